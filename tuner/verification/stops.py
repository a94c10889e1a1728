"""Stops of one training, which differ in their iterations alone.

They have one pace, so runs that tell the rate of one tell that of all. And whole runs of one pass
through all earlier ones, so the test split can be evaluated there on the way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from tuner.values.params import Params, ParamValue, iterations_of
from tuner.values.space import SearchSpace
from tuner.values.trial import Measurement, TrialResult, TrialStatus

Training = frozenset[tuple[str, ParamValue]]
"""What is trained, apart from for how long."""

_MOST = 4  # earlier stops that are tested with one
_APART = 0.88  # of the iterations of the next later one, at most
_EARLIEST = 0.5  # of the iterations of the one whose runs tell of them
_FURTHER = (math.sqrt(2), 2.0)  # times as long as a training was trained
_Array = np.typing.NDArray[np.float64]


def training_of(params: Params) -> Training:
    """Name what is trained, whatever the iterations."""
    return frozenset((name, value) for name, value in params.items() if name != "iterations")


def same_training(params: Params, others: Params) -> bool:
    """Return whether two configurations differ in their iterations alone."""
    return training_of(params) == training_of(others)


def earlier_stops(point: TrialResult, points: Iterable[TrialResult]) -> list[TrialResult]:
    """Return earlier stops that are worth a look on the way to ``point``, the latest first.

    Args:
        point: Where the runs end.
        points: All points that the search found.
    """
    known = {
        iterations_of(each.params): each
        for each in points
        if each.usable and same_training(each.params, point.params)
    }
    whole = last = iterations_of(point.params)
    found: list[TrialResult] = []
    for iterations in sorted(known, reverse=True):
        if _EARLIEST * whole <= iterations <= _APART * last and len(found) < _MOST:
            found.append(known[iterations])
            last = iterations
    return found


def later_ends(points: Iterable[TrialResult], space: SearchSpace) -> list[TrialResult]:
    """Return ends beyond those that trainings had, which may lose nothing where these do.

    Nobody has seen their accuracy, so it is ``None``. Their runs also tell of the ends that
    trainings had.

    Args:
        points: All points that the search found.
        space: Search space of the study; ends outside it are left out.
    """
    last: dict[Training, TrialResult] = {}
    for each in sorted(points, key=lambda point: iterations_of(point.params)):
        if each.usable and each.trial.number and not each.ended_itself:
            last[training_of(each.params)] = each
    ends = [_trained_on(each, factor) for each in last.values() for factor in _FURTHER]
    return [each for each in ends if not space.refusal(each.params)]


def _trained_on(point: TrialResult, factor: float) -> TrialResult:
    """Return a point as if its training had gone on for ``factor`` times as long."""
    iterations = round(factor * iterations_of(point.params))
    return dataclasses.replace(
        for_iterations(point, iterations),
        trial=point.trial.derive(point.trial.point, {**point.params, "iterations": iterations}),
        status=TrialStatus.COMPLETE,
        reason=f"{point.trial.name}, trained on to {iterations:,} iterations",
        iterations=iterations,
        val_accuracy=None,
        checkpoints=(),
    )


def with_stops(chances: _Array, speedups: _Array, times_s: _Array) -> _Array:
    """Return what verifying each end of a training is worth, with the stops its runs tell of.

    The earlier a stop, the more speed it adds, for the chance that it and all later ones are
    proven.

    Args:
        chances: Of a proof at each end, shape (n, k).
        speedups: Logarithms of the speed-ups there.
        times_s: Training times there, ascending.
    """
    worth: _Array = chances * speedups
    for end in range(worth.shape[1]):
        chance, speedup = chances[:, end], speedups[:, end]
        for stop in reversed(range(end)):
            told = times_s[:, stop] >= _EARLIEST * times_s[:, end]
            if not told.any():
                break
            chance = np.minimum(chance, chances[:, stop])
            worth[:, end] += told * chance * (speedups[:, stop] - speedup)
            speedup = speedups[:, stop]
    return worth


def at_stop(run: TrialResult, iterations: int) -> TrialResult | None:
    """Return a whole run as if it had ended earlier; ``None`` if it was not tested there."""
    for each in run.checkpoints:
        if each.iteration == iterations and each.test_accuracy is not None:
            params = {**run.trial.params, "iterations": iterations}
            return dataclasses.replace(
                run,
                trial=dataclasses.replace(run.trial, params=params),
                measurement=_lasting(run, each.train_time_s),
                iterations=iterations,
                val_accuracy=each.val_accuracy,
                test_accuracy=each.test_accuracy,
            )
    return None


def for_iterations(run: TrialResult, iterations: int) -> TrialResult:
    """Return a run that tells a rate, as if it stood for another stop of the same training.

    Args:
        run: A run of a part of its iterations (``Trial.share`` below 1).
        iterations: Those of the stop that it is to stand for.
    """
    factor = iterations / iterations_of(run.trial.params)
    return dataclasses.replace(
        run,
        trial=dataclasses.replace(
            run.trial,
            params={**run.trial.params, "iterations": iterations},
            share=run.trial.share / factor,
        ),
        measurement=_lasting(run, factor * run.metrics["train_time_s"]),
    )


def _lasting(run: TrialResult, train_time_s: float) -> Measurement:
    """Return what a run took, as if it had trained for another time.

    The CPU times of user and system grow alike with the training, those of the set-up do not.
    """
    measured = run.measurement
    assert measured is not None
    longer_s = train_time_s - measured.train_time_s
    cpu_s = measured.cpu_user_s + measured.cpu_system_s
    more = max(0.0, 1 + measured.cores_used * longer_s / cpu_s) if cpu_s else 1.0
    return dataclasses.replace(
        measured,
        train_time_s=train_time_s,
        cpu_user_s=more * measured.cpu_user_s,
        cpu_system_s=more * measured.cpu_system_s,
    )
