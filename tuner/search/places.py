"""The params that accuracy depends on: all but those of the runtime and the iterations.

A learning curve covers every number of iterations on its way, and the runtime changes only time,
but for a lossy exchange of gradients in a group of processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tuner.search.curves import Curve
from tuner.values.exchange import Lossy, group_of, lossy
from tuner.values.params import AVERAGE_WEIGHTS, Params, ParamValue
from tuner.values.ranges import Choices, Range
from tuner.values.space import SearchSpace
from tuner.values.trial import TrialResult, TrialStatus

_Array = np.typing.NDArray[np.float64]
_CLIFF = 0.15  # distance in the cube over which divergence becomes unlikely
_APART = 0.25  # of a lossy exchange from the exact one: it is made to learn nearly the same
_LOST = 4.0  # times the default's error after as many iterations: nearly diverged


class AccuracyCube:
    """The part of a search space that accuracy depends on, as a unit cube.

    Args:
        space: The whole space.

    Attributes:
        kinds: The lossy exchanges that are dimensions of it. Each becomes one when ``admit`` meets
            it, so a search without them is none the harder.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space, self._names = space, space.learns_by
        self.kinds: list[Lossy] = []

    def admit(self, params: Iterable[Params]) -> None:
        """Give the cube a dimension for each lossy exchange that any of ``params`` train with."""
        found = dict.fromkeys(filter(None, map(lossy, params)))
        self.kinds += [each for each in found if each not in self.kinds]

    def part(self, params: Params) -> dict[str, ParamValue]:
        """Return those of ``params`` that accuracy depends on."""
        group = group_of(params) if lossy(params) else {}
        return {name: params[name] for name in self._names} | group

    def place(self, params: Params) -> tuple[float, ...]:
        """Return the coordinates of ``params`` in the cube."""
        own = (_coordinate(self._space.params[name], params[name], params) for name in self._names)
        kind = lossy(params)
        return *own, *(_APART * (kind == each) for each in self.kinds)

    def curves(self, results: Sequence[TrialResult], by_test: float = 0.0) -> list[Curve]:
        """Return the learning curves of trainings that did not diverge, nor nearly.

        Args:
            results: Results of trainings.
            by_test: Error on the validation split divided by that on the test split. With it,
                final test accuracies count as looks at a curve, by other images than those by
                which it was chosen; 0 leaves them out.
        """
        found = []
        lost = self._lost(results)
        for each in results:
            points = [point for point in each.checkpoints if point.iteration > 0]
            if not points or not each.usable or each in lost:
                continue
            place = self.place(each.params)
            iterations = tuple(point.iteration for point in points)
            looks, quality = tuple(point.val_accuracy for point in points), each.quality
            found.append(Curve(place, iterations, looks, quality=quality))
            if by_test and each.test_accuracy is not None:
                error = by_test * quality.error(each.test_accuracy)
                seen = max(0.0, quality.score_of_error(error))
                found.append(Curve(place, (each.iterations,), (seen,), False, quality))
        return found

    def stability(self, places: _Array, results: Sequence[TrialResult]) -> _Array:
        """Return how likely trainings are not to diverge, given those that did or nearly did.

        Divergence is a cliff, which a smooth model of accuracy would round off far into the
        region that trains well. A training that diverged at some rate is assumed to diverge at
        any higher one, and near its other params. One that went well shows that others may, at its
        rate and below. Whether weights are averaged changes nothing of how they are trained.

        Args:
            places: Coordinates in the cube, shape (n, d).
            results: All trainings.

        Returns:
            Probabilities, shape (n,).
        """
        lost = {id(each) for each in self._lost(results)}
        rate = self._names.index("learning_rate")
        same = [row for row, name in enumerate(self._names) if name == AVERAGE_WEIGHTS]
        stable: _Array = np.ones(len(places))
        failed, succeeded = np.zeros(len(places)), np.zeros(len(places))
        for each in results:
            apart = places - np.array(self.place(each.params))
            apart[:, same] = 0.0
            higher = apart[:, rate] > 0
            if id(each) in lost:
                apart[higher, rate] = 0.0
                near = _nearness(apart)
                failed += near
                stable *= 1 - near
            elif each.usable:
                apart[:, rate] = 0.0
                succeeded += np.where(higher, 0.0, _nearness(apart))
        likely = stable + succeeded
        return likely / (likely + failed)

    @staticmethod
    def _lost(results: Sequence[TrialResult]) -> list[TrialResult]:
        """Return the trainings that diverged, or nearly did.

        One that nearly did errs far more than the default, at a higher rate.
        """
        default = next((each for each in results if each.trial.is_default), None)
        return [
            each
            for each in results
            if each.status is TrialStatus.DIVERGED
            or (default is not None and each.usable and _errs_far_more(each, default))
        ]

    def draw(self, random: np.random.Generator) -> dict[str, ParamValue]:
        """Draw params of the space at random, and return their part, with an exact exchange."""
        drawn = self._space.suggest(_Draw(random))
        return {name: drawn[name] for name in self._names}


def _errs_far_more(result: TrialResult, default: TrialResult) -> bool:
    """Return whether a training at a higher rate errs far more than the default did by then.

    Of one with another exchange of gradients it is not known whether that is due to the rate.
    """
    if lossy(result.params) != lossy(default.params):
        return False
    rate, own = (float(each.params["learning_rate"] or 0) for each in (result, default))
    if rate <= own or not result.checkpoints:
        return False
    last = result.checkpoints[-1]
    reached = [
        each.val_accuracy for each in default.checkpoints if each.iteration <= last.iteration
    ]
    if not reached:
        return False
    return result.quality.error(last.val_accuracy) > _LOST * default.quality.error(max(reached))


def _nearness(apart: _Array) -> _Array:
    """Return how much a training tells of others that are so far apart, 0–1, shape (n,)."""
    near: _Array = np.exp(-0.5 * (apart**2).sum(axis=1) / _CLIFF**2)
    return near


class _Draw:
    """Draws params at random, with the interface of a sampler's trial."""

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
        # a default may have none of the choices that a user has left
        row = values.index(value) if value in values else -1
        return row / max(len(values) - 1, 1)
    low, high, at = param.low, param.high, float(value or 0)
    if param.log:
        low, high, at = math.log(low), math.log(high), math.log(at)
    return (at - low) / ((high - low) or 1.0)
