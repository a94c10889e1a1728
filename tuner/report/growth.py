"""Growth of the hypervolume of a study's front, for the page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.report.axes import label, quantity, shown
from tuner.report.view import usable_points
from tuner.values.pareto import Direction, Objective
from tuner.values.results import StudyResult, hypervolume_over_time
from tuner.values.trial import TrialResult

_DEFAULT_SLACK = 1.1


@dataclass(frozen=True, slots=True)
class Growth:
    """The hypervolume of the front over the course of the study.

    Attributes:
        elapsed_s: Wall time of the trials up to and including each trial, with discarded
            measurements, seconds.
        share: Hypervolume as a percentage of the box between reference point and ideal.
        reference: The reference point, in words.
    """

    elapsed_s: list[float]
    share: list[float]
    reference: str


def view_growth(result: StudyResult) -> Growth | None:
    """Return how the front grew; ``None`` without a usable trial.

    The reference point is a tenth worse than the default in each objective, or the worst
    measured value if the default has none. The ideal is 0 for costs and 1 for accuracies.
    """
    usable = usable_points(result)
    if not usable:
        return None
    corner = [_reference(each, result.default, usable) for each in result.objectives]
    box = math.prod(
        abs(end - (0.0 if each.direction is Direction.MINIMIZE else 1.0))
        for each, end in zip(result.objectives, corner, strict=True)
    )
    volumes = hypervolume_over_time(result.trials, result.objectives, corner, result.derived)
    words = [
        f"{label(each).rpartition(', ')[0]} {quantity(each, shown(each, end))}"
        for each, end in zip(result.objectives, corner, strict=True)
    ]
    source = "a tenth worse than the default" if result.default else "the worst measured"
    return Growth(
        elapsed_s=list(itertools.accumulate(map(_wall_s, result.trials))),
        share=[100 * each / box if box else 0.0 for each in volumes],
        reference=f"{', '.join(words)} ({source})",
    )


def _reference(
    objective: Objective, default: TrialResult | None, usable: Sequence[TrialResult]
) -> float:
    cost = objective.direction is Direction.MINIMIZE
    if default is not None and objective.metric in default.metrics:
        value = objective.value(default.metrics)
        return value * _DEFAULT_SLACK if cost else value / _DEFAULT_SLACK
    values = [objective.value(each.metrics) for each in usable]
    return max(values) if cost else min(values)


def _wall_s(result: TrialResult) -> float:
    measured = [*result.discarded, *([result.measurement] if result.measurement else [])]
    return sum(each.wall_time_s for each in measured)
