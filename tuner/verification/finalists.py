"""Which of the points that a search found are worth verifying."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tuner.config.schema import Constraint
from tuner.values.pareto import Direction, Objective, hypervolume
from tuner.values.results import front_of, least_of_interest
from tuner.values.trial import TrialKind, TrialResult

Chances = Callable[[Sequence[TrialResult]], Sequence[float]]
"""How likely points are to be proven to lose nothing, 0–1 each."""

_LEAST_CHANCE = 0.15  # of being proven; less is not worth whole runs
_LEAST_GAIN = 0.1  # logarithm of the speed-up over what is sure already


def runtime_only(
    points: Sequence[TrialResult], default: TrialResult, constraints: Sequence[Constraint]
) -> TrialResult | None:
    """The default's own training at the fastest other setting; ``None`` if none is faster.

    Args:
        points: All that was found.
        default: Trial 0.
        constraints: Only a point that keeps them is of interest.
    """
    same = [
        each
        for each in points
        if each.trial.kind is TrialKind.DERIVED
        and _is_default(each, default)
        and _is_allowed(each, constraints)
    ]
    fastest = min(same, key=train_time_s, default=default)
    return fastest if train_time_s(fastest) < train_time_s(default) else None


def promising(
    points: Sequence[TrialResult],
    chances: Chances,
    default: TrialResult,
    constraints: Sequence[Constraint],
    *,
    tried: Sequence[tuple[TrialResult, bool]],
    sure_s: float | None,
    expected_s: Callable[[TrialResult, float], float],
) -> list[TrialResult]:
    """The points that are likely to be proven and are worth it.

    Those come first that promise most speed for a second of verifying them, or a gain of accuracy
    most likely.

    Args:
        points: All that was found.
        chances: Of the points.
        default: Trial 0.
        constraints: Only points that keep them are of interest.
        tried: The candidates so far, and whether each is proven. What trains a part of one that
            is refuted loses more.
        sure_s: Least training time that is sure to lose nothing: what is not faster yet is not
            worth it. ``None`` if a gain of accuracy is sought, however slow.
        expected_s: Seconds that it is expected to take to verify a point with a chance.
    """
    for_speed = sure_s is not None
    most_s = sure_s * math.exp(-_LEAST_GAIN) if sure_s is not None else math.inf

    def value(point: TrialResult, chance: float) -> float:
        if sure_s is None:
            return chance
        return chance * math.log(sure_s / train_time_s(point)) / expected_s(point, chance)

    worthy = [
        each
        for each in points
        if each.usable
        and not each.trial.is_default
        and 0 < train_time_s(each) < most_s
        and _is_allowed(each, constraints)
        and not _is_default(each, default)
        # a part of what is proven may be as good and faster, but never more accurate
        and not any(
            each.params == other.params
            or (_is_part_of(each, other) and not (proven and for_speed))
            for other, proven in tried
        )
    ]
    values = [
        (value(each, chance), each)
        for each, chance in zip(worthy, chances(worthy), strict=True)
        if chance >= _LEAST_CHANCE
    ]
    return [each for _, each in sorted(values, key=lambda each: each[0], reverse=True)]


def worthy_front(
    points: Sequence[TrialResult],
    known: Sequence[TrialResult],
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
) -> list[TrialResult]:
    """The points of the front that are worth verifying.

    What errs many times as often as the default is of no interest, and left out.

    Args:
        points: Trials and what is derived from them.
        known: The default, and what else needs no verification.
        objectives: Of the study.
        constraints: Only points that keep them are of interest.
    """
    poorest = least_of_interest(known[0].metrics.get("val_accuracy", 0.0))
    params = [each.params for each in known]
    return [
        each
        for each in front_of(points, objectives)
        if each.params not in params
        and each.metrics.get("val_accuracy", 1.0) >= poorest
        and not any(limit.violation(each.metrics) > 0 for limit in constraints)
    ]


def pick_trade_offs(
    points: Sequence[TrialResult],
    default: TrialResult,
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    most: int,
    affordable: Callable[[Sequence[TrialResult]], bool],
    chosen: Sequence[TrialResult] = (),
) -> list[TrialResult]:
    """The worthy points of the front that add most hypervolume to what is verified already.

    Args:
        points: Trials and what is derived from them.
        default: Trial 0.
        objectives: Of the study.
        constraints: Only points that keep them are picked.
        most: How many.
        affordable: Whether there is time for these.
        chosen: What is verified already.
    """
    front = worthy_front(points, [default, *chosen], objectives, constraints)
    picked: list[TrialResult] = []
    while len(picked) < most:
        rest = [each for each in front if each not in picked and affordable([*picked, each])]
        if not rest:
            break
        known_points = [*chosen, *picked]
        whole = [*known_points, *front]
        picked.append(
            max(rest, key=lambda each: _volume([*known_points, each], whole, objectives))
        )
    return picked


def _volume(
    chosen: Sequence[TrialResult], front: Sequence[TrialResult], objectives: Sequence[Objective]
) -> float:
    """Hypervolume of ``chosen``, each objective scaled to the extent of ``front``."""
    rows = {id(each): [goal.value(each.metrics) for goal in objectives] for each in front}
    low = [min(column) for column in zip(*rows.values(), strict=True)]
    high = [max(column) for column in zip(*rows.values(), strict=True)]

    def scaled(row: Sequence[float]) -> list[float]:
        return [
            (value - least) / ((most - least) or 1.0)
            for value, least, most in zip(row, low, high, strict=True)
        ]

    corner = [-0.1 if each.direction is Direction.MAXIMIZE else 1.1 for each in objectives]
    return hypervolume([scaled(rows[id(each)]) for each in chosen], corner, objectives)


def train_time_s(point: TrialResult) -> float:
    """Training time of a point that was measured or composed, seconds."""
    return point.metrics["train_time_s"]


def _is_default(point: TrialResult, default: TrialResult) -> bool:
    """Whether it is the default's own training, at whatever runtime setting."""
    return point.trial.number == 0 and point.iterations == default.iterations


def _is_allowed(point: TrialResult, constraints: Sequence[Constraint]) -> bool:
    return not any(limit.violation(point.metrics) > 0 for limit in constraints)


def _is_part_of(point: TrialResult, other: TrialResult) -> bool:
    """Whether ``other`` trains the same for as long or longer, at whatever runtime setting."""
    names = ("batch_size", "learning_rate")
    same = all(point.params.get(name) == other.params.get(name) for name in names)
    return same and int(point.params["iterations"] or 1) <= int(other.params["iterations"] or 1)
