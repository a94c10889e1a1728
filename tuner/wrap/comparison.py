"""What interleaved runs prove: how much faster a setting is, and whether nothing is lost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.config.schema import VerifyConfig
from tuner.values.distributions import upper_quantile
from tuner.values.trial import Interval, TrialResult, TrialStatus
from tuner.verification.noninferiority import LookPlan, chance_of_proof, p_of_loss
from tuner.wrap.goal import ACCURACY, Goal

CONFIDENCE = VerifyConfig.confidence
MIN_PAIRS = 3
_LEAST_DEVIATION = 1e-6  # between runs: of an accuracy, or relative to another figure
_HOPE = 0.1  # chance of a proof below which a comparison is given up

Pair = tuple[TrialResult, TrialResult]
"""A run of the program as it is, and one with a setting."""


@dataclass(frozen=True)
class Proof:
    """How a setting compares with the program as it is.

    Attributes:
        speedup: How many times as fast it is, with its confidence interval.
        pairs: Number of interleaved pairs of runs.
        confidence: Confidence of the interval.
        reached: Means of the goal's figure, of the program as it is and with the setting, with
            more as better; ``None`` if it was not read.
        no_loss: Whether no loss is proven; ``None`` if the figure was not read, or was the same
            each time, which shows nothing of other seeds.
    """

    speedup: Interval
    pairs: int
    confidence: float = CONFIDENCE
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
        alpha: Level of the interval, and of the one-sided test that nothing is lost.
    """
    if len(pairs) < MIN_PAIRS:
        return None
    goal = goal or Goal()
    logs = [math.log(seconds(own) / seconds(changed)) for own, changed in pairs]
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    half = upper_quantile(alpha / 2, len(logs) - 1) * error
    speedup = Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
    own, changed = reached(pairs, goal)
    if not len(own) == len(changed) == len(pairs):
        return Proof(speedup, len(pairs), 1 - alpha)
    means = statistics.fmean(own), statistics.fmean(changed)
    return Proof(speedup, len(pairs), 1 - alpha, means, _loses_nothing(own, changed, goal, alpha))


def is_hopeless(pairs: Sequence[Pair], goal: Goal, planned: int, alpha: float) -> bool:
    """Return whether the planned runs will hardly prove that nothing is lost.

    To give up makes no false claim more likely.

    Args:
        pairs: The pairs so far.
        goal: The figure that must not get worse.
        planned: Number of pairs that are planned.
        alpha: One-sided level of the test at the end.
    """
    own, changed = reached(pairs, goal)
    if len(pairs) < MIN_PAIRS or not own or not changed:
        return False
    mean = statistics.fmean(own)
    plan = LookPlan((planned,), (planned,), alpha)
    margin, least = goal.allowance(mean), _least_deviation(goal, mean)
    return chance_of_proof(changed, own, plan, margin, least) < _HOPE


def reached(pairs: Sequence[Pair], goal: Goal) -> tuple[list[float], list[float]]:
    """Return the goal's figures of the program as it is, and with the setting."""
    own, changed = (
        [figure for pair in pairs if (figure := goal.of(pair[side])) is not None]
        for side in (0, 1)
    )
    return own, changed


def _loses_nothing(
    own: Sequence[float], changed: Sequence[float], goal: Goal, alpha: float
) -> bool | None:
    if len({*own}) == 1:  # of a fixed seed: one training, not many
        return None
    mean = statistics.fmean(own)
    return p_of_loss(changed, own, goal.allowance(mean), _least_deviation(goal, mean)) < alpha


def _least_deviation(goal: Goal, mean: float) -> float:
    """Return the least standard deviation between runs to assume."""
    return _LEAST_DEVIATION * (1.0 if goal.name == ACCURACY else abs(mean))


def seconds(run: TrialResult) -> float:
    """Return the seconds of what is compared; infinite if the run failed or was given up."""
    if run.status is not TrialStatus.COMPLETE or run.measurement is None:
        return math.inf
    return run.measurement.train_time_s or math.inf
