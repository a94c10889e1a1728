"""The choice of the points that are worth verifying, from all that a search found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tuner.config.schema import Constraint
from tuner.values.exchange import lossy
from tuner.values.params import iterations_of
from tuner.values.pareto import Direction, Objective, hypervolume
from tuner.values.results import front_of, least_of_interest
from tuner.values.trial import TrialKind, TrialResult
from tuner.verification.recorded_stop import RecordedStop, stopped_default
from tuner.verification.stops import Training, training_of, with_stops

Chances = Callable[[Sequence[TrialResult]], Sequence[float]]
"""Estimates how likely points are to be proven to lose nothing, 0–1 each."""

MIN_CHANCE = 0.15
"""Chance of being proven from which on a point is worth runs."""
_NEARLY = 0.9  # times the most that a training promises
_MIN_GAIN = 0.1  # logarithm of the speed-up over what is sure already


def runtime_only(
    points: Sequence[TrialResult], default: TrialResult, constraints: Sequence[Constraint]
) -> TrialResult | None:
    """Return the default's own training at the fastest other setting; ``None`` if none is faster.

    Args:
        points: All points that the search found.
        default: Trial 0.
        constraints: Only a point that meets them is of interest.
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


def stopped(
    points: Sequence[TrialResult],
    default: TrialResult,
    stop: RecordedStop,
    constraints: Sequence[Constraint],
) -> TrialResult | None:
    """Return the default stopped earlier, at the fastest setting; ``None`` if not allowed.

    Args:
        points: All points that the search found.
        default: Trial 0.
        stop: Where its reference proves no loss.
        constraints: Only a point that meets them is of interest.
    """
    found = [
        each
        for each in points
        if each.trial.kind is TrialKind.DERIVED
        and each.trial.number == 0
        and each.iterations == stop.iterations
    ]
    allowed = [
        each for each in (*found, stopped_default(default, stop)) if _is_allowed(each, constraints)
    ]
    return min(allowed, key=train_time_s, default=None)


def promising(
    points: Sequence[TrialResult],
    chances: Chances,
    default: TrialResult,
    constraints: Sequence[Constraint],
    *,
    learns_by: Sequence[str],
    tried: Sequence[tuple[TrialResult, bool]],
    sure_s: float | None,
    stops: Callable[[TrialResult], Sequence[TrialResult]] = lambda _point: (),
) -> list[tuple[float, TrialResult]]:
    """Return the points with a fair chance of a proof, and what each promises, the best first.

    The best point promises most speed, or is the most likely to gain accuracy. What the runs of a
    point tell of earlier stops counts too: the speed of each for the chance that it is proven as
    well. So a later end insures an earlier stop. Of one training, the shortest of those that
    promise nearly as much comes first. What a proof takes does not count otherwise: a cheap
    attempt that fails leaves less of the level to all later ones.

    Args:
        points: All points that the search found.
        chances: Estimates the chances of the points.
        default: Trial 0.
        constraints: Only points that meet them are of interest.
        learns_by: The params that change what is learned, see ``SearchSpace.learns_by``.
        tried: The candidates so far, and whether each is proven. A shorter part of a refuted one
            loses more.
        sure_s: Shortest training time (s) already known to lose no accuracy; only faster points
            are worth verifying. ``None`` if a gain of accuracy is sought, at whatever speed.
        stops: Returns earlier stops of a point that its runs tell of, the latest first.
    """
    for_speed = sure_s is not None
    max_s = sure_s * math.exp(-_MIN_GAIN) if sure_s is not None else math.inf
    worthy = [
        each
        for each in points
        if each.usable
        and not each.trial.is_default
        and 0 < train_time_s(each) < max_s
        and _is_allowed(each, constraints)
        and not _is_default(each, default)
        # a part of a proven training may be as good and faster, but never more accurate
        and not any(
            each.params == other.params
            or (_is_part_of(each, other, learns_by) and not (proven and for_speed))
            for other, proven in tried
        )
    ]
    chance_of = dict(zip(map(id, worthy), chances(worthy), strict=True))
    fair = [each for each in worthy if chance_of[id(each)] >= MIN_CHANCE]

    def value(point: TrialResult) -> float:
        if sure_s is None:
            return chance_of[id(point)]
        ends = [*reversed(stops(point)), point]
        likely = np.array([[chance_of.get(id(each), 0.0) for each in ends]])
        times_s = np.array([[train_time_s(each) for each in ends]])
        return float(with_stops(likely, np.log(sure_s / times_s), times_s)[0, -1])

    values = {id(each): value(each) for each in fair}
    best: dict[Training, float] = {}
    for each in fair:
        trained = training_of(each.params)
        best[trained] = max(best.get(trained, 0.0), values[id(each)])

    def rank(point: TrialResult) -> tuple[float, float]:
        own, most = values[id(point)], best[training_of(point.params)]
        return -(most if own >= _NEARLY * most else own), train_time_s(point)

    return [(values[id(each)], each) for each in sorted(fair, key=rank)]


def worthy_front(
    points: Sequence[TrialResult],
    known: Sequence[TrialResult],
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
) -> list[TrialResult]:
    """Return the points of the front that are worth verifying.

    Points that err many times as often as the default are left out.

    Args:
        points: Trials and the points derived from them.
        known: The default first, then other points that need no verification.
        objectives: The study's objectives.
        constraints: Only points that meet them are of interest.
    """
    poorest = least_of_interest(known[0].val_accuracy or 0.0, known[0].quality)
    params = [each.params for each in known]
    return [
        each
        for each in front_of(points, objectives)
        if each.params not in params
        and (each.val_accuracy is None or each.val_accuracy >= poorest)
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
    """Return the worthy points of the front that add most hypervolume to those verified already.

    Args:
        points: Trials and the points derived from them.
        default: Trial 0.
        objectives: The study's objectives.
        constraints: Only points that meet them are picked.
        most: How many to pick at most.
        affordable: Returns whether there is time for these points.
        chosen: Points that are verified already, or planned; of an end that no training had yet
            the accuracy is unknown.
    """
    front = worthy_front(points, [default, *chosen], objectives, constraints)
    known = [each for each in chosen if all(goal.metric in each.metrics for goal in objectives)]
    picked: list[TrialResult] = []
    while len(picked) < most:
        rest = [each for each in front if each not in picked and affordable([*picked, each])]
        if not rest:
            break
        whole = [*known, *picked, *front]
        picked.append(
            max(rest, key=lambda each: _volume([*known, *picked, each], whole, objectives))
        )
    return picked


def _volume(
    chosen: Sequence[TrialResult], front: Sequence[TrialResult], objectives: Sequence[Objective]
) -> float:
    """Return the hypervolume of ``chosen``, each objective scaled to the extent of ``front``."""
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
    """Return the training time of a point that was measured or composed, seconds."""
    return point.metrics["train_time_s"]


def _is_default(point: TrialResult, default: TrialResult) -> bool:
    """Return whether a point is the default's own training, at whatever runtime setting."""
    return point.trial.number == 0 and point.iterations == default.iterations


def _is_allowed(point: TrialResult, constraints: Sequence[Constraint]) -> bool:
    return not any(limit.violation(point.metrics) > 0 for limit in constraints)


def _is_part_of(point: TrialResult, other: TrialResult, learns_by: Sequence[str]) -> bool:
    """Return whether ``other`` trains the same for as long or longer, however fast."""
    mine, others = point.params, other.params
    same = all(mine.get(name) == others.get(name) for name in learns_by)
    same = same and lossy(mine) == lossy(others)
    return same and iterations_of(mine) <= iterations_of(others)
