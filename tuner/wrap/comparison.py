"""What interleaved runs prove: how much faster a setting is, and whether nothing is lost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from tuner.values.trial import Interval, TrialResult, TrialStatus
from tuner.verification.noninferiority import p_of_loss
from tuner.wrap.goal import Goal

CONFIDENCE = 0.95
MIN_PAIRS = 3
_LEAST_DEVIATION = 1e-6  # of the goal's figure between runs

Pair = tuple[TrialResult, TrialResult]
"""A run of the program as it is, and one with a setting."""


@dataclass(frozen=True)
class Proof:
    """How a setting compares with the program as it is.

    Attributes:
        speedup: How many times as fast it is, with its confidence interval.
        pairs: Number of interleaved pairs of runs.
        reached: Means of the goal's figure, of the program as it is and with the setting, with
            more as better; ``None`` if it was not read.
        no_loss: Whether no loss is proven; ``None`` if the figure was not read, or was the same
            each time, which shows nothing of other seeds.
    """

    speedup: Interval
    pairs: int
    reached: tuple[float, float] | None = None
    no_loss: bool | None = None

    @property
    def faster(self) -> bool:
        """Whether the setting is proven to be faster."""
        return self.speedup.low > 1


def compare(
    pairs: Sequence[Pair], goal: Goal | None = None, alpha: float = 1 - CONFIDENCE
) -> Proof | None:
    """Return what pairs of runs prove; ``None`` with fewer than three.

    The interval is Student's, on the logarithms of the ratios.

    Args:
        pairs: The pairs.
        goal: The figure that must not get worse.
        alpha: One-sided level of the test that nothing is lost.
    """
    if len(pairs) < MIN_PAIRS:
        return None
    goal = goal or Goal()
    logs = [math.log(seconds(own) / seconds(changed)) for own, changed in pairs]
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1)) * error
    speedup = Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
    own, changed = reached(pairs, goal)
    if not len(own) == len(changed) == len(pairs):
        return Proof(speedup, len(pairs))
    means = statistics.fmean(own), statistics.fmean(changed)
    return Proof(speedup, len(pairs), means, _loses_nothing(own, changed, goal, alpha))


def is_hopeless(pairs: Sequence[Pair], goal: Goal) -> bool:
    """Return whether runs lose so much on average that more of them would hardly prove else.

    To give up makes no false claim more likely.
    """
    own, changed = reached(pairs, goal)
    if len(pairs) < MIN_PAIRS or not own or not changed:
        return False
    loss = statistics.fmean(own) - statistics.fmean(changed)
    return loss > goal.allowance(statistics.fmean(own))


def reached(pairs: Sequence[Pair], goal: Goal) -> tuple[list[float], list[float]]:
    """Return the goal's figures of the program as it is, and with the setting."""
    figures = [[goal.of(each) for each in runs] for runs in zip(*pairs, strict=True)]
    own, changed = ([each for each in column if each is not None] for column in figures)
    return own, changed


def _loses_nothing(
    own: Sequence[float], changed: Sequence[float], goal: Goal, alpha: float
) -> bool | None:
    if len({*own}) == 1 or len({*changed}) == 1:  # of a fixed seed: one training, not many
        return None
    margin = goal.allowance(statistics.fmean(own))
    return p_of_loss(changed, own, margin, _LEAST_DEVIATION) < alpha


def seconds(run: TrialResult) -> float:
    """Return the seconds of what is compared; infinite if the run failed or was given up."""
    if run.status is not TrialStatus.COMPLETE or run.measurement is None:
        return math.inf
    return run.measurement.train_time_s or math.inf
