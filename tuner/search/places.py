"""What accuracy depends on: all params but those of the runtime and the iterations.

A learning curve shows every number of iterations on its way, and the runtime changes only time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.space import Choices, Range, SearchSpace
from tuner.trial import Params, ParamValue


class AccuracyCube:
    """The part of a search space that accuracy depends on, as a unit cube.

    Args:
        space: The whole space.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._names = [
            name for name in space.params if name not in space.runtime and name != "iterations"
        ]

    def part(self, params: Params) -> dict[str, ParamValue]:
        """Those of ``params`` that are dimensions of the cube."""
        return {name: params[name] for name in self._names}

    def place(self, params: Params) -> tuple[float, ...]:
        """Where ``params`` are in the cube."""
        return tuple(
            _coordinate(self._space.params[name], params[name], params) for name in self._names
        )

    def draw(self, random: np.random.Generator) -> dict[str, ParamValue]:
        """The part of some params of the space."""
        return self.part(self._space.suggest(_Draw(random)))


class _Draw:
    """Suggests params as a sampler's trial would."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def suggest_int(self, _name: str, low: int, high: int, *, log: bool = False) -> int:
        return round(self.suggest_float(_name, low, high, log=log))

    def suggest_float(self, _name: str, low: float, high: float, *, log: bool = False) -> float:
        if log:
            return math.exp(self._random.uniform(math.log(low), math.log(high)))
        return float(self._random.uniform(low, high))

    def suggest_categorical(self, _name: str, choices: Sequence[Any]) -> Any:
        return choices[int(self._random.integers(len(choices)))]


def _coordinate(param: Range | Choices, value: ParamValue, params: Params) -> float:
    if isinstance(param, Choices):
        values = param.values(params)
        return values.index(value) / max(len(values) - 1, 1)
    low, high, at = param.low, param.high, float(value or 0)
    if param.log:
        low, high, at = math.log(low), math.log(high), math.log(at)
    return (at - low) / ((high - low) or 1.0)
