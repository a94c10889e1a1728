"""Verification: finalists and the default again, interleaved, fresh seeds, on the test split.

Nothing is claimed from the search itself: its figures were chosen for being good. Here every
round runs each configuration once, in turning order, so that a machine that changes its speed
does so for all. Times are compared round by round (paired t-test on logarithms); accuracies over
seeds on the same test images, with the variance between seeds pooled over all configurations.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from scipy import stats

from tuner.attainment import Estimate, front_confidence
from tuner.config import VerifyConfig
from tuner.pareto import Objective
from tuner.plan import LEAST_ROUNDS, Plan
from tuner.results import Comparison, CostRatio, Verified
from tuner.trial import Interval, TrialKind, TrialResult

_LEAST_FREEDOM = 3  # two seeds that happen to agree say nothing of the spread between seeds
_LEAST_CPU_S = 0.5  # the kernel counts in hundredths of a second


def summarize(plan: Plan, runs: Sequence[TrialResult]) -> tuple[Verified, ...]:
    """What the verification runs prove: the default first, then the finalists, fastest first.

    Empty unless the default and at least one finalist were measured in two common rounds. A
    finalist without a full run is left out.
    """
    by_entrant: list[dict[int, TrialResult]] = [{} for _ in plan.entrants]
    for run in runs:
        turn, index = plan.place(run.trial.number)
        if run.usable and turn >= 0:
            by_entrant[index][turn] = run
    full = [[run for run in rounds.values() if run.trial.share == 1] for rounds in by_entrant]
    if plan.default.test_accuracy is not None:
        full[0] = [plan.default, *full[0]]
    spread = _Spread(full, plan.test_images, plan.config.confidence)
    verified, paired = [], []
    for index, rounds in enumerate(by_entrant):
        common = sorted(rounds.keys() & by_entrant[0].keys())
        if len(common) < LEAST_ROUNDS or not full[index] or not full[0]:
            continue
        against = None
        if index:
            pairs = [(by_entrant[0][turn], rounds[turn]) for turn in common]
            looks = 1 + sum(turn >= plan.rounds for turn in common)
            against = _compare(pairs, full[index], full[0], spread, plan.config, looks)
        verified.append(_verified(plan.entrants[index], rounds, full[index], spread, against))
        paired.append(
            [math.log(_time(rounds[turn]) / _time(by_entrant[0][turn])) for turn in common]
        )
    verified = _with_confidence(verified, paired, spread, plan.objectives)
    verified.sort(key=lambda each: (each.name != "default", each.train_time_s.value))
    return tuple(verified) if len(verified) > 1 and verified[0].name == "default" else ()


def _verified(
    entrant: TrialResult,
    rounds: Mapping[int, TrialResult],
    full: Sequence[TrialResult],
    spread: _Spread,
    against: Comparison | None,
) -> Verified:
    rate_runs = [run for run in rounds.values() if run not in full]
    logs = [math.log(_time(run)) for run in rounds.values()]

    def median(metric: str) -> float:
        return statistics.median(run.metrics[metric] for run in full)

    return Verified(
        name=entrant.trial.title,
        trial_number=entrant.trial.number,
        params=dict(entrant.params),
        full_runs=len(full),
        rate_runs=len(rate_runs),
        rate_share=rate_runs[0].trial.share if rate_runs else 1.0,
        projected=entrant.trial.projected,
        test_accuracy=spread.accuracy(full),
        train_time_s=_log_interval(logs, spread.confidence),
        test_time_s=median("test_time_s"),
        cpu_user_s=median("cpu_user_s"),
        cpu_system_s=median("cpu_system_s"),
        avg_memory_bytes=median("avg_memory_bytes"),
        peak_memory_bytes=median("peak_memory_bytes"),
        runs=tuple(run.trial.name for run in rounds.values()),
        against_default=against,
        confidence=spread.confidence,
        composed=_composed(entrant),
    )


def _with_confidence(
    verified: Sequence[Verified],
    paired: Sequence[Sequence[float]],
    spread: _Spread,
    objectives: Sequence[Objective],
) -> list[Verified]:
    """With how sure each one is to be on their front.

    Args:
        verified: The default first.
        paired: Logarithms of their times by the default's in the same round; their variance is
            pooled, for two or three rounds say little of their own.
        spread: Of the accuracies.
        objectives: Of the study. Of what is neither accuracy nor training time the spread is not
            known, and the figure taken as it is.
    """
    squares = sum((each - statistics.fmean(logs)) ** 2 for logs in paired for each in logs)
    freedom = sum(len(logs) - 1 for logs in paired[1:])
    error = math.sqrt(squares / freedom) if freedom else 0.0

    def estimate(goal: Objective, point: Verified, logs: Sequence[float]) -> Estimate:
        if goal.metric == "train_time_s":
            return Estimate(statistics.fmean(logs), error / math.sqrt(len(logs)), freedom)
        if goal.metric in ("val_accuracy", "test_accuracy"):
            return spread.estimate(point.test_accuracy.value, point.full_runs)
        return Estimate(float(getattr(point, goal.metric, 0.0)))

    rows = [
        [estimate(goal, point, logs) for goal in objectives]
        for point, logs in zip(verified, paired, strict=True)
    ]
    return [
        dataclasses.replace(point, on_front=sure)
        for point, sure in zip(verified, front_confidence(rows, objectives), strict=True)
    ]


def _composed(entrant: TrialResult) -> tuple[float, float] | None:
    if entrant.trial.kind is not TrialKind.DERIVED:
        return None
    return _time(entrant), entrant.metrics["val_accuracy"]


def _time(run: TrialResult) -> float:
    return run.metrics["train_time_s"]


class _Spread:
    """How test accuracy varies: between seeds (pooled over all configurations) and by sampling.

    Args:
        groups: Full runs of each configuration.
        test_images: Size of the test split.
        confidence: Of all intervals.
    """

    def __init__(
        self, groups: Sequence[Sequence[TrialResult]], test_images: int, confidence: float
    ) -> None:
        squares, self.freedom = 0.0, 0
        for group in groups:
            values = [run.test_accuracy for run in group if run.test_accuracy is not None]
            if len(values) > 1:
                squares += statistics.variance(values) * (len(values) - 1)
                self.freedom += len(values) - 1
        if self.freedom < _LEAST_FREEDOM:
            squares, self.freedom = 0.0, 0
        self.seed_variance = squares / self.freedom if self.freedom else 0.0
        self.test_images, self.confidence = test_images, confidence
        law = stats.t(self.freedom) if self.freedom else stats.norm()
        self._quantile, self._tail = law.ppf, law.sf

    def accuracy(self, runs: Sequence[TrialResult]) -> Interval:
        """Mean accuracy; its interval covers the seeds and that the images are a sample."""
        mean = _mean_accuracy(runs)
        variance = self.seed_variance / len(runs) + self._sampling_variance(mean)
        half = float(self._quantile(0.5 + self.confidence / 2)) * math.sqrt(variance)
        return Interval(mean, max(0.0, mean - half), min(1.0, mean + half))

    def estimate(self, accuracy: float, runs: int) -> Estimate:
        """A mean accuracy over ``runs`` seeds, for comparisons on the same test images."""
        variance = self.seed_variance / runs if self.freedom else self._sampling_variance(accuracy)
        return Estimate(accuracy, math.sqrt(variance), self.freedom)

    def gain(
        self,
        runs: Sequence[TrialResult],
        default_runs: Sequence[TrialResult],
        confidence: float,
    ) -> tuple[Interval, float]:
        """Difference of the means and its p-value, over seeds, on the same test images."""
        gain = _mean_accuracy(runs) - _mean_accuracy(default_runs)
        variance = self.seed_variance * (1 / len(runs) + 1 / len(default_runs))
        if not self.freedom:  # too few repeats: only the sampling of the images is known
            variance = 2 * self._sampling_variance(_mean_accuracy(runs))
        error = math.sqrt(variance)
        half = float(self._quantile(0.5 + confidence / 2)) * error
        p_value = 2 * float(self._tail(abs(gain) / error)) if error else float(gain == 0)
        return Interval(gain, gain - half, gain + half), p_value

    def _sampling_variance(self, accuracy: float) -> float:
        """Binomial variance, never quite zero (one success and one failure are added)."""
        bounded = (accuracy * self.test_images + 1) / (self.test_images + 2)
        return bounded * (1 - bounded) / self.test_images


def _mean_accuracy(runs: Sequence[TrialResult]) -> float:
    return statistics.fmean(run.test_accuracy for run in runs if run.test_accuracy is not None)


def _compare(
    pairs: Sequence[tuple[TrialResult, TrialResult]],
    runs: Sequence[TrialResult],
    default_runs: Sequence[TrialResult],
    spread: _Spread,
    config: VerifyConfig,
    looks: int,
) -> Comparison:
    """Compare with the default; ``pairs`` are the default's run and this one's, round by round.

    Whoever is run again because of what was seen is looked at ``looks`` times, and has as many
    chances to seem different: p-values and intervals are those of Bonferroni's correction.
    """
    confidence = 1 - (1 - config.confidence) / looks
    logs = [math.log(_time(default) / _time(run)) for default, run in pairs]
    # a run of a share ends before the test split is evaluated, which may need more memory
    alike = [(default, run) for default, run in pairs if _in_full(default) == _in_full(run)]
    gain, accuracy_p = spread.gain(runs, default_runs, confidence)
    return Comparison(
        speedup=_log_interval(logs, confidence),
        speedup_p=min(1.0, looks * _log_p_value(logs)),
        accuracy_gain=gain,
        accuracy_p=min(1.0, looks * accuracy_p),
        accuracy_kept=gain.low > -config.accuracy_margin,
        cpu=_cost_ratio(pairs, (default_runs, runs), _cpu_s, confidence, _LEAST_CPU_S),
        memory=_cost_ratio(alike, (default_runs, runs), _peak_memory, confidence),
    )


def _in_full(run: TrialResult) -> bool:
    return not run.trial.projected


def _cpu_s(run: TrialResult) -> float:
    return run.metrics["cpu_user_s"] + run.metrics["cpu_system_s"]


def _peak_memory(run: TrialResult) -> float:
    return run.metrics["peak_memory_bytes"]


def _cost_ratio(
    pairs: Sequence[tuple[TrialResult, TrialResult]],
    full: tuple[Sequence[TrialResult], Sequence[TrialResult]],
    cost: Callable[[TrialResult], float],
    confidence: float,
    least: float = 1.0,
) -> CostRatio:
    """This one's cost by the default's, over ``pairs``; of ``full`` runs' medians without them.

    Costs below ``least`` are too small to be compared.
    """
    costs = [(cost(default), cost(run)) for default, run in pairs]
    if min((each for pair in costs for each in pair), default=least) < least:
        return CostRatio(math.nan, gap="too small to be measured")
    if len(costs) >= LEAST_ROUNDS:
        logs = [math.log(mine / reference) for reference, mine in costs]
        ratio = _log_interval(logs, confidence)
        return CostRatio(ratio.value, ratio.low, ratio.high, _log_p_value(logs))
    reference, mine = (statistics.median(map(cost, runs)) for runs in full)
    gap = "only one full run of it or of the default can be compared"
    return CostRatio(mine / reference if reference else math.nan, gap=gap)


def _log_interval(logs: Sequence[float], confidence: float) -> Interval:
    """Geometric mean with its Student interval."""
    mean = statistics.fmean(logs)
    half = 0.0
    if len(logs) > 1:
        error = statistics.stdev(logs) / math.sqrt(len(logs))
        half = float(stats.t.ppf(0.5 + confidence / 2, len(logs) - 1)) * error
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _log_p_value(logs: Sequence[float]) -> float:
    """Two-sided p-value of "the mean of ``logs`` is 0"."""
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    if not error:
        return float(statistics.fmean(logs) == 0)
    return float(2 * stats.t.sf(abs(statistics.fmean(logs)) / error, len(logs) - 1))
