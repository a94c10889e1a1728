"""The default's own training, stopped earlier: what its reference proves of that.

Many defaults train far beyond the point from which more iterations change their accuracy. The runs
of a reference were tested on their way, so they show at which stops nothing is lost, without
training anything again. At a stop and at its end a run is compared with itself, which leaves out
most of what differs between seeds: a paired t-test, from the latest stop to the earliest until one
is not proven. Tests in a fixed order each have the full level (Maurer, Hothorn and Lehmacher 1995;
see ``tuner.verification.readings``).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.convergence.references import Accuracies, Reference
from tuner.values.distributions import tail, upper_quantile
from tuner.values.trial import Checkpoint, Interval, TrialResult, TrialStatus
from tuner.verification.stops import for_iterations

MIN_SEEDS = 3
"""Fewer hardly show how a run differs from itself."""


@dataclass(frozen=True)
class RecordedStop:
    """A stop of the default at which its reference proves no loss.

    Attributes:
        iterations: Where it stops.
        accuracies: Test accuracies there, one per seed.
        gains: The same minus those at the end of each run.
        val_accuracy: Mean validation accuracy there.
    """

    iterations: int
    accuracies: tuple[float, ...]
    gains: tuple[float, ...]
    val_accuracy: float

    def gain(self, confidence: float) -> tuple[Interval, float]:
        """Return the mean gain, and the two-sided p-value of "there is none"."""
        mean, error, freedom = _error(self.gains)
        half = upper_quantile((1 - confidence) / 2, freedom) * error
        p_value = 2 * tail(abs(mean) / error, freedom) if error else float(mean == 0)
        return Interval(mean, mean - half, mean + half), p_value


def earliest_stop(reference: Reference, margin: float, level: float) -> RecordedStop | None:
    """Return the earliest stop that is proven to lose less than ``margin``; ``None`` without any.

    Args:
        reference: The default's recorded convergence.
        margin: Loss that counts as none (fraction).
        level: One-sided level of all stops together.
    """
    if len(reference.runs) < MIN_SEEDS:
        return None
    found = None
    ends = [run.looks[-1] for run in reference.runs]
    first_end = min(each.iteration for each in ends)
    for look in reversed([each for each in reference.curve if each.iteration < first_end]):
        at_stop = [reference.looks_of(run.seed)[look.iteration] for run in reference.runs]
        stop = _stop(look, at_stop, ends)
        mean, error, freedom = _error(stop.gains)
        if error == 0 or tail((mean + margin) / error, freedom) >= level:
            return found
        found = stop
    return found


def _stop(
    mean: Accuracies, at_stop: Sequence[Accuracies], ends: Sequence[Accuracies]
) -> RecordedStop:
    accuracies = tuple(each.test_accuracy for each in at_stop)
    gains = tuple(
        stop.test_accuracy - end.test_accuracy for stop, end in zip(at_stop, ends, strict=True)
    )
    return RecordedStop(mean.iteration, accuracies, gains, mean.val_accuracy)


def _error(gains: Sequence[float]) -> tuple[float, float, int]:
    """Return the mean of paired gains, its standard error, and the degrees of freedom."""
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    return statistics.fmean(gains), error, len(gains) - 1


def stopped_default(default: TrialResult, stop: RecordedStop) -> TrialResult:
    """Return the default at its own setting as if it had stopped there."""
    params = {**default.params, "iterations": stop.iterations}
    shorter = for_iterations(default, stop.iterations)
    return dataclasses.replace(
        shorter,
        trial=default.trial.derive(1, params),
        status=TrialStatus.COMPLETE,
        reason=f"derived from {default.trial.name} after {stop.iterations} iterations",
        iterations=stop.iterations,
        val_accuracy=stop.val_accuracy,
        test_accuracy=None,
        checkpoints=(
            Checkpoint(stop.iterations, shorter.metrics["train_time_s"], None, stop.val_accuracy),
        ),
    )
