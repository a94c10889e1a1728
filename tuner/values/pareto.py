"""The objectives, dominance, Pareto fronts and hypervolume.

``moocore`` (C) computes fronts and hypervolume.

Points are given in the natural sense of each objective (accuracy up, time down); only this module
flips signs.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import moocore
import numpy as np

from tuner.values.errors import ConfigError

_Array = np.typing.NDArray[np.float64]


class Direction(enum.Enum):
    """The direction in which an objective improves."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


@dataclass(frozen=True, slots=True)
class Objective:
    """One figure to optimise.

    Attributes:
        name: Name used on the command line and in reports.
        metric: Name of the figure in ``TrialResult.metrics``.
        direction: The direction in which it improves.
        scale: Factor from the metric's unit to the unit in the name.
    """

    name: str
    metric: str
    direction: Direction
    scale: float = 1.0

    @property
    def is_quality(self) -> bool:
        """Whether it tells how well something was learnt, not what that cost."""
        return self.metric.endswith(("_accuracy", "_perplexity"))

    def value(self, metrics: Mapping[str, float]) -> float:
        """Return the value in the objective's unit. Raises ``KeyError`` if it was not measured."""
        return metrics[self.metric] * self.scale


_MIB = 1.0 / 2**20

OBJECTIVES: Mapping[str, Objective] = {
    each.name: each
    for each in (
        Objective("accuracy", "val_accuracy", Direction.MAXIMIZE),
        Objective("test_accuracy", "test_accuracy", Direction.MAXIMIZE),
        Objective("perplexity", "val_perplexity", Direction.MINIMIZE),
        Objective("test_perplexity", "test_perplexity", Direction.MINIMIZE),
        Objective("train_time_s", "train_time_s", Direction.MINIMIZE),
        Objective("test_time_s", "test_time_s", Direction.MINIMIZE),
        Objective("setup_time_s", "setup_time_s", Direction.MINIMIZE),
        Objective("wall_time_s", "wall_time_s", Direction.MINIMIZE),
        Objective("cpu_user_s", "cpu_user_s", Direction.MINIMIZE),
        Objective("cpu_system_s", "cpu_system_s", Direction.MINIMIZE),
        Objective("avg_memory_mb", "avg_memory_bytes", Direction.MINIMIZE, _MIB),
        Objective("peak_memory_mb", "peak_memory_bytes", Direction.MINIMIZE, _MIB),
    )
}
"""Everything that can be optimised or constrained, by name; memory in MiB."""


def find_objective(name: str) -> Objective:
    """Return the objective called ``name``. Raises ``ConfigError`` listing the known ones."""
    try:
        return OBJECTIVES[name]
    except KeyError:
        known = ", ".join(OBJECTIVES)
        raise ConfigError(f"unknown objective {name!r}; choose from: {known}") from None


def _as_costs(points: Sequence[Sequence[float]], objectives: Sequence[Objective]) -> _Array:
    """Return points, shape (n, m), as an array in which smaller is better everywhere."""
    return np.asarray(points, dtype=float).reshape(-1, len(objectives)) * _signs(objectives)


def _signs(objectives: Sequence[Objective]) -> _Array:
    return np.array([-1.0 if each.direction is Direction.MAXIMIZE else 1.0 for each in objectives])


def pareto_front(points: Sequence[Sequence[float]], objectives: Sequence[Objective]) -> list[int]:
    """Return the indices of the non-dominated points, best first in the first objective.

    Of several equal points only the first is kept.

    Args:
        points: Shape (n, m), one row per point, columns in the order of ``objectives``.
        objectives: The m objectives.
    """
    if not points:
        return []
    costs = _as_costs(points, objectives)
    kept = np.flatnonzero(moocore.is_nondominated(costs, keep_weakly=False))
    return [int(index) for index in sorted(kept, key=lambda index: tuple(costs[index]))]


def front_shares(drawn: _Array, objectives: Sequence[Objective]) -> list[float]:
    """Return how often each of n points is on the front, given samples of their true figures.

    Args:
        drawn: Joint samples of the points' figures, shape (draws, n, m), the last axis
            in the order of ``objectives``.
        objectives: The m objectives.

    Returns:
        Fractions 0–1, shape (n,).
    """
    costs = drawn * _signs(objectives)
    others, own = costs[:, None, :, :], costs[:, :, None, :]  # (draws, n, n, m)
    no_worse, better = np.all(others <= own, axis=3), np.any(others < own, axis=3)
    dominated = np.any(no_worse & better, axis=2)
    return [float(each) for each in 1 - np.mean(dominated, axis=0)]


def hypervolume(
    points: Sequence[Sequence[float]],
    reference: Sequence[float],
    objectives: Sequence[Objective],
) -> float:
    """Return the volume dominated by ``points`` and bounded by ``reference``; larger is better.

    Args:
        points: Shape (n, m); points that do not dominate ``reference`` add nothing.
        reference: The m coordinates of the worst acceptable point.
        objectives: The m objectives.
    """
    if not points:
        return 0.0
    corner = _as_costs([reference], objectives)[0]
    costs = np.minimum(_as_costs(points, objectives), corner)
    return float(moocore.hypervolume(costs, ref=corner))
