"""What interleaved runs prove: how much better a setting is, and whether nothing is lost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.config.schema import VerifyConfig
from tuner.values.distributions import upper_quantile
from tuner.values.trial import Interval, TrialResult
from tuner.verification.noninferiority import LookPlan, Spread, chance_of_proof, p_of_loss
from tuner.wrap.goal import ACCURACY, Goal
from tuner.wrap.objective import Objective

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
        gain: How many times less of the objective it needs, with its confidence interval.
        costs: The objective's figure of the program as it is and with the setting, as geometric
            means: their ratio is the gain.
        speedup: How many times as fast it is in the same runs, whatever the objective, with its
            confidence interval.
        pairs: Number of interleaved pairs of runs.
        confidence: Confidence of the interval.
        reached: Means of the goal's figure, of the program as it is and with the setting, with
            more as better; ``None`` if it was not read.
        no_loss: Whether no loss is proven; ``None`` if the figure was not read, or was the same
            each time, which shows nothing of other seeds.
        all_disturbed: Whether other work on the machine disturbed every one of these runs.
    """

    gain: Interval
    costs: tuple[float, float]
    speedup: Interval
    pairs: int
    confidence: float = CONFIDENCE
    reached: tuple[float, float] | None = None
    no_loss: bool | None = None
    all_disturbed: bool = False

    @property
    def better(self) -> bool:
        """Whether the setting is proven to need less of the objective."""
        return self.gain.low > 1


def compare(
    pairs: Sequence[Pair],
    goal: Goal | None = None,
    alpha: float = 1 - CONFIDENCE,
    objective: Objective = Objective.TIME,
) -> Proof | None:
    """Return what pairs of runs prove; ``None`` with fewer than three.

    Args:
        pairs: The pairs.
        goal: The figure that must not get worse.
        alpha: Level of the intervals, and of the one-sided test that nothing is lost.
        objective: The figure that is minimised.
    """
    if len(pairs) < MIN_PAIRS:
        return None
    goal = goal or Goal()
    proof = Proof(
        _ratio(pairs, objective, alpha),
        (_mean(pairs, 0, objective), _mean(pairs, 1, objective)),
        _ratio(pairs, Objective.TIME, alpha),
        len(pairs),
        1 - alpha,
        all_disturbed=all(Objective.TIME.is_disturbed(each) for pair in pairs for each in pair),
    )
    own, changed = reached(pairs, goal)
    if not len(own) == len(changed) == len(pairs):
        return proof
    means = statistics.fmean(own), statistics.fmean(changed)
    return replace(proof, reached=means, no_loss=_loses_nothing(own, changed, goal, alpha))


def _ratio(pairs: Sequence[Pair], objective: Objective, alpha: float) -> Interval:
    """Return how many times less is needed; the interval is Student's, on the logarithms."""
    logs = [math.log(objective.of(own) / objective.of(changed)) for own, changed in pairs]
    mean = statistics.fmean(logs)
    least = max(objective.least_spread(_mean(pairs, side, objective)) for side in (0, 1))
    error = max(statistics.stdev(logs), least) / math.sqrt(len(logs))
    half = upper_quantile(alpha / 2, len(logs) - 1) * error
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _mean(pairs: Sequence[Pair], side: int, objective: Objective) -> float:
    return statistics.geometric_mean([objective.of(pair[side]) for pair in pairs])


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
    margin, spread = goal.allowance(mean), _spread(goal, mean)
    return chance_of_proof(changed, own, plan, margin, spread) < _HOPE


def reached(pairs: Sequence[Pair], goal: Goal) -> tuple[list[float], list[float]]:
    """Return the goal's figures of the program as it is, and with the setting."""
    own, changed = (
        [figure for pair in pairs if (figure := goal.of(pair[side])) is not None]
        for side in (0, 1)
    )
    return own, changed


def differ(own: Sequence[float], changed: Sequence[float], goal: Goal, alpha: float) -> bool:
    """Return whether a setting changes the goal's figure by more than seeds explain.

    That is so if the means differ by more than what counts as no loss, and a two-sided t-test
    tells them apart.

    Args:
        own: Figures of the program as it is.
        changed: Those with the setting, at least one.
        goal: The figure.
        alpha: Level of the test.
    """
    if len(own) < MIN_PAIRS:
        return False
    mean = statistics.fmean(own)
    if abs(statistics.fmean(changed) - mean) <= goal.allowance(mean):
        return False
    spread = _spread(goal, mean)
    p_values = (p_of_loss(changed, own, 0.0, spread), p_of_loss(own, changed, 0.0, spread))
    return 2 * min(p_values) < alpha


def _loses_nothing(
    own: Sequence[float], changed: Sequence[float], goal: Goal, alpha: float
) -> bool | None:
    if len({*own}) == 1:  # of a fixed seed: one training, not many
        return None
    mean = statistics.fmean(own)
    return p_of_loss(changed, own, goal.allowance(mean), _spread(goal, mean)) < alpha


def _spread(goal: Goal, mean: float) -> Spread:
    """Return how figures vary between runs, of which nothing is known beforehand."""
    least = _LEAST_DEVIATION * (1.0 if goal.name == ACCURACY else abs(mean))
    return Spread(least, usual_runs=0)
