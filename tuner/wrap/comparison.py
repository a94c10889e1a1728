"""What interleaved runs prove: how much faster a setting is, and whether accuracy is kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from tuner.values.trial import Interval, TrialResult
from tuner.verification.noninferiority import p_of_loss

CONFIDENCE = 0.95
MARGIN = 0.002
"""Loss of accuracy (fraction) that counts as none; the same as ``verify.accuracy_margin``."""
MIN_PAIRS = 3
_LEAST_DEVIATION = 1e-6  # of accuracies between runs


@dataclass(frozen=True)
class Proof:
    """How a setting compares with the program's own environment.

    Attributes:
        speedup: How many times as fast it is, with its confidence interval.
        pairs: Number of interleaved pairs of runs.
        accuracy: Mean accuracies of the program as it is and with the setting; ``None`` if they
            were not read.
        no_loss: Whether no loss of accuracy is proven; ``None`` if accuracy was not read, or was
            the same each time, which shows nothing of other seeds.
    """

    speedup: Interval
    pairs: int
    accuracy: tuple[float, float] | None = None
    no_loss: bool | None = None

    @property
    def faster(self) -> bool:
        """Whether the setting is proven to be faster."""
        return self.speedup.low > 1


def compare(pairs: Sequence[tuple[TrialResult, TrialResult]]) -> Proof | None:
    """Return what pairs of runs prove: of the program as it is, and with a setting.

    The interval is Student's, on the logarithms of the ratios. ``None`` with fewer than three
    pairs.
    """
    if len(pairs) < MIN_PAIRS:
        return None
    logs = [math.log(_time_s(own) / _time_s(changed)) for own, changed in pairs]
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1)) * error
    speedup = Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
    own = [each.val_accuracy for each, _ in pairs if each.val_accuracy is not None]
    changed = [each.val_accuracy for _, each in pairs if each.val_accuracy is not None]
    if not len(own) == len(changed) == len(pairs):
        return Proof(speedup, len(pairs))
    means = statistics.fmean(own), statistics.fmean(changed)
    return Proof(speedup, len(pairs), means, _loses_nothing(own, changed))


def _loses_nothing(own: Sequence[float], changed: Sequence[float]) -> bool | None:
    if len({*own}) == 1 or len({*changed}) == 1:  # of a fixed seed: one training, not many
        return None
    return p_of_loss(changed, own, MARGIN, _LEAST_DEVIATION) < 1 - CONFIDENCE


def _time_s(run: TrialResult) -> float:
    assert run.measurement is not None
    return run.measurement.train_time_s
