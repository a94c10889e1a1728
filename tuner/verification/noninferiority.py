"""Non-inferiority ("no loss"): sequential tests that a configuration is not less accurate.

The default's test accuracies over several seeds (its reference) are compared with those of the
candidate, over other seeds, on the same images. The test is a one-sided t-test of "the mean is
lower by the margin or more", by Welch: a candidate may vary more than the default, see ``Spread``.
It is looked at after planned numbers of runs. Each look may spend a part of the level, by the
spending function of Pocock's type (Lan and DeMets 1983, doi:10.1093/biomet/70.3.659), as nominal
levels of t-tests (Jennison and Turnbull 2000, ISBN 978-0849303166, section 4.4). Most studies have
time for one or two looks; the function of O'Brien and Fleming's type would keep the level for the
last.

A study may test one candidate after the other. The first has two thirds of the level, each further
one a third of its predecessor's. So all claims of a study together err at most as often as the
level says (a fixed sequence of levels; Tian and Ramdas 2021, doi:10.1177/0962280220983381).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from tuner.values.distributions import tail, upper_quantile
from tuner.values.quality import ACCURACY, Quality

_MIN_FREEDOM = 2  # of both together; two runs that happen to agree prove nothing
_USUAL_RUNS = 4  # that the usual deviation between seeds counts as
_POINTS = 801  # of the numerical integration
_FARTHEST = 8.0  # standard deviations
_MIN_LEVEL = 1e-12  # of a look, so that its bound is finite
# of the deviation that sampling gives: of images, and of words, which all seeds find alike hard
_OF_SAMPLING = {"accuracy": 0.7, "perplexity": 0.35}
_Array = np.typing.NDArray[np.float64]


@dataclass(frozen=True)
class LookPlan:
    """The planned looks at a candidate.

    Attributes:
        default_runs: How many accuracies of the default are known at each look.
        candidate_runs: How many of the candidate's own, ascending.
        alpha: One-sided level that all looks together may spend.
    """

    default_runs: tuple[int, ...]
    candidate_runs: tuple[int, ...]
    alpha: float

    @functools.cached_property
    def levels(self) -> tuple[float, ...]:
        """Nominal one-sided level of the test at each look."""
        known = [
            1 / (1 / default + 1 / candidate)
            for default, candidate in zip(self.default_runs, self.candidate_runs, strict=True)
        ]
        return nominal_levels(tuple(each / known[-1] for each in known), self.alpha)

    def first(self, looks: int) -> LookPlan:
        """Return the plan of so many looks instead, which spend the same level."""
        return LookPlan(self.default_runs[:looks], self.candidate_runs[:looks], self.alpha)

    def level(self, runs: int) -> float | None:
        """Return the level of the look after ``runs`` of the candidate; ``None`` if unplanned."""
        if runs not in self.candidate_runs:
            return None
        return self.levels[self.candidate_runs.index(runs)]

    def allowance(
        self, margin: float, candidate: float, default: float, usual_runs: int = _USUAL_RUNS
    ) -> float:
        """Return the true loss (fraction) that the last look takes for none half of the time.

        It is negative if only a gain would be proven as often.

        Args:
            margin: Loss that counts as none.
            candidate: Standard deviation of the candidate's test accuracies between seeds.
            default: The same of the default.
            usual_runs: See ``Spread``.
        """
        runs = self.candidate_runs[-1], self.default_runs[-1]
        error, freedom = _welch((candidate, default), runs, usual_runs)
        return margin - upper_quantile(self.levels[-1], freedom) * error


@dataclass(frozen=True)
class Spread:
    """How the accuracies of a configuration vary between seeds, as far as that is known.

    Two or three runs of a candidate hardly tell, and many of a default that agree well say little
    of it: pooled, they would hide how much it varies. So each has a variance of its own, which the
    usual one moderates as if it had been seen in some runs more (Smyth 2004,
    doi:10.2202/1544-6115.1027).

    Attributes:
        usual: The usual standard deviation, above 0.
        usual_runs: Runs that it counts as; 0 if it is only the least one to assume. The variance
            is then pooled over both configurations.
    """

    usual: float
    usual_runs: int = _USUAL_RUNS

    def deviations(
        self, candidate: Sequence[float], default: Sequence[float]
    ) -> tuple[float, float]:
        """Return the standard deviations of both between seeds."""
        if not self.usual_runs:
            pooled = max(pooled_deviation(candidate, default), self.usual)
            return pooled, pooled
        return self.deviation(candidate), self.deviation(default)

    def deviation(self, runs: Sequence[float]) -> float:
        """Return the moderated standard deviation of one configuration."""
        freedom = max(len(runs) - 1, 0)
        squares = self.usual_runs * self.usual**2 + freedom * pooled_deviation(runs) ** 2
        return math.sqrt(squares / (self.usual_runs + freedom))

    def freedom(self, runs: Sequence[float]) -> int:
        """Return the degrees of freedom of the moderated deviation of one configuration."""
        return max(self.usual_runs + len(runs) - 1, 1)

    def error(self, candidate: Sequence[float], default: Sequence[float]) -> tuple[float, float]:
        """Return the standard error of the difference of means, and its degrees of freedom."""
        runs = len(candidate), len(default)
        error, freedom = _welch(self.deviations(candidate, default), runs, self.usual_runs)
        return error, freedom if self.usual_runs else sum(runs) - 2


def _welch(
    deviations: tuple[float, float], runs: tuple[int, int], usual_runs: int
) -> tuple[float, float]:
    """Return the error of a difference of means, and its freedom (Welch and Satterthwaite)."""
    squares = [each**2 / count for each, count in zip(deviations, runs, strict=True)]
    known = [max(usual_runs + count - 1, 1) for count in runs]
    spread = sum(each**2 / freedom for each, freedom in zip(squares, known, strict=True))
    return math.sqrt(sum(squares)), sum(squares) ** 2 / spread if spread else float(sum(known))


def candidate_alpha(alpha: float, place: int) -> float:
    """Return the level of the candidate at this place in a study's order, counted from 0.

    Each takes two thirds of what those before it left, as most studies have time for one or two.
    """
    return float(alpha * 2 / 3 ** (place + 1))


def usual_deviation(accuracy: float, items: int, quality: Quality = ACCURACY) -> float:
    """Return the standard deviation of test accuracies that seeds usually have.

    In ``references/`` it is 0.3 to 0.8 times that of sampling the images, seldom more; candidates
    of smaller batches and higher rates were seen at 0.9 times.

    Args:
        accuracy: Accuracy of the default (fraction).
        items: Size of the test split.
        quality: What accuracies are scores of.
    """
    return _OF_SAMPLING[quality.name] * quality.sampling_deviation(accuracy, items)


def p_of_loss(
    candidate: Sequence[float], default: Sequence[float], margin: float, spread: Spread
) -> float:
    """Return the one-sided p-value of "the candidate's mean is lower by the margin or more".

    Args:
        candidate: Its test accuracies (fractions), one per seed.
        default: Those of the default.
        margin: Loss that counts as none (fraction).
        spread: How both vary between seeds.

    Returns:
        The p-value; 1 where the runs are too few to estimate the spread between seeds.
    """
    if len(candidate) + len(default) - 2 < _MIN_FREEDOM or not candidate or not default:
        return 1.0
    error, freedom = spread.error(candidate, default)
    gain = statistics.fmean(candidate) - statistics.fmean(default)
    return tail((gain + margin) / error, freedom)


def least_margin(
    candidate: Sequence[float], default: Sequence[float], level: float, spread: Spread
) -> float:
    """Return the least margin (fraction) at which ``p_of_loss`` is below ``level``.

    It is below 0 for a proven gain, and infinite where no margin would do.
    """
    if len(candidate) + len(default) - 2 < _MIN_FREEDOM or not candidate or not default:
        return math.inf
    error, freedom = spread.error(candidate, default)
    gain = statistics.fmean(candidate) - statistics.fmean(default)
    return upper_quantile(level, freedom) * error - gain


def chance_of_proof(
    candidate: Sequence[float],
    default: Sequence[float],
    plan: LookPlan,
    margin: float,
    spread: Spread,
) -> float:
    """Return the probability that the last planned look proves no loss, given the runs so far.

    This is the predictive power, without prior belief about the candidate (Spiegelhalter, Freedman
    and Blackburn 1986, doi:10.1016/0197-2456(86)90003-6). Giving up where it is small makes no
    false claim more likely.

    Args:
        candidate: Its test accuracies (fractions), at least one.
        default: Those of the default, at least one.
        plan: The planned looks at the candidate.
        margin: Loss that counts as none (fraction).
        spread: How both vary between seeds.
    """
    own, others = spread.deviations(candidate, default)
    gain = statistics.fmean(candidate) - statistics.fmean(default)
    known, last = len(candidate), plan.candidate_runs[-1]
    error = own * math.sqrt(max(last - known, 0) / (known * last))
    lead = gain + plan.allowance(margin, own, others, spread.usual_runs)
    return tail(-lead / error) if error else float(lead > 0)


def pooled_deviation(*groups: Sequence[float]) -> float:
    """Return the standard deviation within the groups; 0 where none has two members."""
    squares = sum(statistics.variance(each) * (len(each) - 1) for each in groups if len(each) > 1)
    freedom = sum(len(each) - 1 for each in groups if each)
    return math.sqrt(squares / freedom) if freedom else 0.0


def spent(fraction: float, alpha: float) -> float:
    """Return the part of ``alpha`` that may be spent by a fraction (0–1] of the information."""
    return alpha * math.log(1 + (math.e - 1) * fraction)


@functools.lru_cache(maxsize=256)
def nominal_levels(fractions: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """Return the one-sided level of the test at each look, so that all together spend ``alpha``.

    The distribution of a score that no look has stopped yet is integrated numerically from look
    to look (Armitage, McPherson and Rowe 1969, doi:10.2307/2343787).

    Args:
        fractions: Fractions of the information at each look, ascending to 1.
        alpha: Level of all looks together.
    """
    levels: list[float] = []
    grid, density, before, used = np.array([0.0]), np.array([1.0]), 0.0, 0.0
    for fraction in fractions:
        step = math.sqrt(max(fraction - before, 1e-12))
        share = max(spent(fraction, alpha) - used, _MIN_LEVEL)
        # the bound that the score exceeds with the probability of this share
        bound = _bound(grid, density, step, share)
        levels.append(tail(bound / math.sqrt(fraction)))
        following = np.linspace(-_FARTHEST * math.sqrt(fraction), bound, _POINTS)
        scores = (following[:, None] - grid[None, :]) / step
        moved = np.exp(-(scores**2) / 2) / (math.sqrt(2 * math.pi) * step)
        density = moved @ density * (following[1] - following[0])
        grid, before, used = following, fraction, used + share
    return tuple(levels)


def _bound(grid: _Array, density: _Array, step: float, share: float) -> float:
    """Return the bound that the next score exceeds with a probability of ``share``."""
    from scipy import optimize  # takes longer to import than the rest of this module

    def excess(bound: float) -> float:
        return float(special.ndtr((grid - bound) / step) @ density) - share

    return float(optimize.brentq(excess, -_FARTHEST, _FARTHEST))
