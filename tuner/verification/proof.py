"""What verification runs prove: interleaved, with fresh seeds, on the test split.

Nothing is claimed from the search itself, because its figures were chosen for being good. Here
every round runs each configuration once, in rotating order, so that a change of the machine's
speed affects all of them. Times are compared round by round (paired t-test on logarithms).
Accuracies are compared over seeds on the same test images, by the spread of the two between seeds;
the interval of a single accuracy pools the variance of all configurations.
``tuner.verification.readings`` decides whether a candidate loses nothing.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence

from tuner.values.distributions import tail, upper_quantile
from tuner.values.pareto import Direction, Objective
from tuner.values.quality import Quality
from tuner.values.trial import Interval, TrialKind, TrialResult
from tuner.values.verified import Comparison, CostRatio, Role, Verified
from tuner.verification.confidence import Estimate, front_confidence
from tuner.verification.noninferiority import Spread, pooled_deviation, usual_deviation
from tuner.verification.plan import MIN_ROUNDS, Plan
from tuner.verification.readings import Readings

_MIN_FREEDOM = 3  # two seeds that happen to agree say nothing of the spread between seeds
_MIN_CPU_S = 0.5  # the kernel counts in hundredths of a second


def summarize(plan: Plan, runs: Sequence[TrialResult]) -> tuple[Verified, ...]:
    """Return what the verification runs prove: the default first, then others, fastest first.

    The result is empty unless the default and at least one other were measured in two common
    rounds. Configurations without an accuracy, their own or the default's, are left out, and so
    are those of which a run diverged.
    """
    seen = Readings(plan, runs)
    quality = plan.default.quality
    spread = _Spread(seen.groups(), plan.test_images, plan.config.confidence, quality)
    shown = [
        (index, stop)
        for index in range(len(plan.entrants))
        for stop in sorted({0, seen.earliest(index)})
        if len(seen.common(index, stop)) >= MIN_ROUNDS and seen.accuracies(index, stop)
        if index == 0 or index not in seen.diverged
    ]
    if shown[:1] != [(0, 0)] or len(shown) < 2:
        return ()
    verified = [_verified(seen, *each, spread) for each in shown]
    paired = [
        [math.log(_time(run) / _time(default)) for default, run in seen.common(*each)]
        for each in shown
    ]
    same = [each for each in shown if seen.is_default(each[0])]
    # an entrant that shares the default's accuracy must not seem better or worse by chance
    counts = [
        math.inf if each in same and same[1:] else len(seen.accuracies(*each)) for each in shown
    ]
    sure = _confidences(verified, paired, counts, spread, plan.objectives)
    verified = [
        dataclasses.replace(point, on_front=each)
        for point, each in zip(verified, sure, strict=True)
    ]
    verified.sort(key=lambda each: (not each.is_default, each.train_time_s.value))
    return tuple(verified)


def _verified(seen: Readings, index: int, stop: int, spread: _Spread) -> Verified:
    entrant, role = seen.plan.entrants[index], seen.role(index)
    point, rounds = entrant.points[stop], seen.rounds[index][stop]
    accuracies = seen.accuracies(index, stop)
    # the reference tells the accuracy of a stop, so all its runs are for the rate
    whole = [run for run in rounds.values() if run.trial.share == 1 and role is not Role.STOPPED]
    parts = [run for run in rounds.values() if run not in whole]
    beside = [run for _, run in seen.whole_runs[index][stop] if run.trial.accuracy_only]
    logs = [math.log(_time(run)) for run in rounds.values()]

    def median(metric: str) -> float:
        return statistics.median(run.metrics[metric] for run in whole or parts)

    return Verified(
        name=_name(role, point),
        trial_number=point.trial.number,
        params=dict(point.params),
        full_runs=len(whole) + len(beside),
        rate_runs=len(parts),
        rate_share=parts[0].trial.share if parts else 1.0,
        projected=not (whole or beside),
        test_accuracy=spread.accuracy(accuracies),
        job_accuracy=spread.of_one_job(accuracies),
        train_time_s=_log_interval(logs, spread),
        job_time_s=_log_interval(logs, spread, of_one_job=True),
        test_time_s=median("test_time_s"),
        cpu_user_s=median("cpu_user_s"),
        cpu_system_s=median("cpu_system_s"),
        avg_memory_bytes=median("avg_memory_bytes"),
        peak_memory_bytes=median("peak_memory_bytes"),
        runs=tuple(run.trial.name for run in (*rounds.values(), *beside)),
        against_default=_compare(seen, index, stop, spread) if index else None,
        confidence=spread.confidence,
        composed=_composed(point),
        role=role,
        accuracy_from=_source(seen, index),
        stop_of=entrant.result.trial.title if stop else "",
        quality=spread.quality,
    )


def _name(role: Role, point: TrialResult) -> str:
    if role is Role.RUNTIME_ONLY:
        return "runtime only"
    return f"default at {point.iterations:,}" if role is Role.STOPPED else point.trial.title


def _source(seen: Readings, index: int) -> str:
    """Tell where the accuracy comes from; empty if only from the entrant's own whole runs."""
    plan, words = seen.plan, seen.plan.default.accuracy_from or "its first run"
    if seen.role(index) is Role.STOPPED:
        return f"{words} at this stop"
    if not (plan.accuracies and seen.is_default(index)):
        return ""
    if index == 0:
        return words
    return f"the default's ({words}); only its rate was measured"


def _composed(point: TrialResult) -> tuple[float, float | None] | None:
    return (_time(point), point.val_accuracy) if point.trial.kind is TrialKind.DERIVED else None


def _time(run: TrialResult) -> float:
    return run.metrics["train_time_s"]


def _confidences(
    verified: Sequence[Verified],
    paired: Sequence[Sequence[float]],
    counts: Sequence[float],
    spread: _Spread,
    objectives: Sequence[Objective],
) -> list[float]:
    """Return how sure each one is to be on their front.

    Args:
        verified: Verified configurations, the default first.
        paired: Logarithms of their times over the default's in the same round. Their variance is
            pooled, because two or three rounds alone say little.
        counts: How many accuracies each one's mean is taken over.
        spread: Spread of the accuracies.
        objectives: The study's objectives. Figures other than accuracy and training time are taken
            as they are, because their spread is unknown.
    """
    squares = sum((each - statistics.fmean(logs)) ** 2 for logs in paired for each in logs)
    freedom = sum(len(logs) - 1 for logs in paired[1:])
    error = math.sqrt(squares / freedom) if freedom else 0.0

    def estimate(
        goal: Objective, point: Verified, logs: Sequence[float], count: float
    ) -> Estimate:
        if goal.metric == "train_time_s":
            return Estimate(statistics.fmean(logs), error / math.sqrt(len(logs)), freedom)
        if goal.is_quality:
            found = spread.estimate(point.test_accuracy.value, count)
            falls = goal.direction is Direction.MINIMIZE
            return dataclasses.replace(found, value=-found.value) if falls else found
        return Estimate(float(getattr(point, goal.metric, 0.0)))

    rows = [
        [estimate(goal, *each) for goal in objectives]
        for each in zip(verified, paired, counts, strict=True)
    ]
    return front_confidence(rows, objectives)


class _Spread:
    """How test accuracy varies: between seeds (pooled over all configurations) and by sampling.

    Args:
        groups: Test accuracies of each configuration, one per seed.
        test_images: Size of the test split.
        confidence: Confidence of all intervals.
        quality: What the accuracies are scores of.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[float]],
        test_images: int,
        confidence: float,
        quality: Quality,
    ) -> None:
        freedom = sum(len(each) - 1 for each in groups if each)
        self.freedom = freedom if freedom >= _MIN_FREEDOM else 0
        self.seed_variance = pooled_deviation(*groups) ** 2 if self.freedom else 0.0
        self.test_images, self.confidence, self.quality = test_images, confidence, quality
        self._quantile = upper_quantile((1 - confidence) / 2, self.freedom or math.inf)

    def accuracy(self, accuracies: Sequence[float]) -> Interval:
        """Return the mean accuracy; its interval covers seeds and the sampling of the images."""
        mean = statistics.fmean(accuracies)
        variance = self.seed_variance / len(accuracies) + self._sampling_variance(mean)
        half = self._quantile * math.sqrt(variance)
        return Interval(mean, max(0.0, mean - half), min(1.0, mean + half))

    def of_one_job(self, accuracies: Sequence[float]) -> Interval:
        """Return the mean accuracy with the interval of one further run, on the same test images.

        The spread is that of these runs, moderated as in the proof of no loss.
        """
        mean = statistics.fmean(accuracies)
        spread = Spread(usual_deviation(mean, self.test_images, self.quality))
        deviation = spread.deviation(accuracies) * math.sqrt(1 + 1 / len(accuracies))
        half = upper_quantile((1 - self.confidence) / 2, spread.freedom(accuracies)) * deviation
        return Interval(mean, max(0.0, mean - half), min(1.0, mean + half))

    def estimate(self, accuracy: float, count: float) -> Estimate:
        """Return a mean accuracy over ``count`` seeds, to be compared on the same test images."""
        variance = (
            self.seed_variance / count if self.freedom else self._sampling_variance(accuracy)
        )
        return Estimate(accuracy, math.sqrt(variance), self.freedom)

    def gain(
        self, accuracies: Sequence[float], default: Sequence[float]
    ) -> tuple[Interval, float]:
        """Return the difference of the means and its p-value, over seeds, on the same test images.

        The spread is that of these two, as in the proof of no loss, because a configuration that
        errs more varies more. Where these have too few runs, it is that of all configurations.
        """
        gain = statistics.fmean(accuracies) - statistics.fmean(default)
        by_runs = 1 / len(accuracies) + 1 / len(default)
        if len(accuracies) + len(default) - 2 >= _MIN_FREEDOM:
            usual = usual_deviation(statistics.fmean(default), self.test_images, self.quality)
            error, freedom = Spread(usual).error(accuracies, default)
        elif self.freedom:
            error, freedom = math.sqrt(self.seed_variance * by_runs), self.freedom
        else:  # only the sampling of the images is known
            sampling = 2 * self._sampling_variance(statistics.fmean(accuracies))
            error, freedom = math.sqrt(sampling), math.inf
        half = upper_quantile((1 - self.confidence) / 2, freedom) * error
        p_value = 2 * tail(abs(gain) / error, freedom) if error else float(gain == 0)
        return Interval(gain, gain - half, gain + half), p_value

    def _sampling_variance(self, accuracy: float) -> float:
        """Return the variance due to sampling, never quite 0.

        To an accuracy, one success and one failure are added.
        """
        if self.quality.is_perplexity:
            return self.quality.sampling_deviation(accuracy, self.test_images) ** 2
        bounded = (accuracy * self.test_images + 1) / (self.test_images + 2)
        return bounded * (1 - bounded) / self.test_images


def _compare(seen: Readings, index: int, stop: int, spread: _Spread) -> Comparison:
    """Compare an entrant with the default, whose run comes first in each pair of a round."""
    pairs = seen.common(index, stop)
    logs = [math.log(_time(default) / _time(run)) for default, run in pairs]
    # a run of a share ends before the test split is evaluated, which may need more memory
    alike = [
        (default, run) for default, run in pairs if default.trial.projected == run.trial.projected
    ]
    if seen.is_default(index):  # by construction
        gain, accuracy_p = Interval(0.0, 0.0, 0.0), 1.0
    elif seen.role(index) is Role.STOPPED and (recorded := seen.plan.recorded_stop):
        gain, accuracy_p = recorded.gain(spread.confidence)
    else:
        gain, accuracy_p = spread.gain(seen.accuracies(index, stop), seen.of_default())
    looks, proven = seen.no_loss(index, stop)
    return Comparison(
        speedup=_log_interval(logs, spread),
        speedup_p=_log_p_value(logs),
        accuracy_gain=gain,
        accuracy_p=accuracy_p,
        no_loss=proven and (not seen.plan.part or seen.is_default(index)),
        no_loss_looks=looks,
        loss_ruled_out=seen.loss_ruled_out(index, stop),
        cpu=_cost_ratio(pairs, pairs, _cpu_s, spread, _MIN_CPU_S),
        memory=_cost_ratio(alike, pairs, _peak_memory, spread),
    )


def _cpu_s(run: TrialResult) -> float:
    return run.metrics["cpu_user_s"] + run.metrics["cpu_system_s"]


def _peak_memory(run: TrialResult) -> float:
    return run.metrics["peak_memory_bytes"]


def _cost_ratio(
    pairs: Sequence[tuple[TrialResult, TrialResult]],
    otherwise: Sequence[tuple[TrialResult, TrialResult]],
    cost: Callable[[TrialResult], float],
    spread: _Spread,
    least: float = 1.0,
) -> CostRatio:
    """Return an entrant's cost divided by the default's, over ``pairs``.

    With too few pairs, it is the ratio of the medians over ``otherwise``, without an interval.
    Costs below ``least`` are too small to be compared.
    """
    costs = [(cost(default), cost(run)) for default, run in pairs]
    if min((each for pair in costs for each in pair), default=least) < least:
        return CostRatio(math.nan, gap="too small to be measured")
    if len(costs) >= MIN_ROUNDS:
        logs = [math.log(mine / reference) for reference, mine in costs]
        ratio = _log_interval(logs, spread)
        return CostRatio(ratio.value, ratio.low, ratio.high, _log_p_value(logs))
    reference = statistics.median(cost(default) for default, _ in otherwise)
    mine = statistics.median(cost(run) for _, run in otherwise)
    gap = "runs of one were whole, those of the other a part"
    return CostRatio(mine / reference if reference else math.nan, gap=gap)


def _log_interval(logs: Sequence[float], spread: _Spread, *, of_one_job: bool = False) -> Interval:
    """Return the geometric mean with its Student interval, or with that of one further run."""
    mean = statistics.fmean(logs)
    half = 0.0
    if len(logs) > 1:
        error = statistics.stdev(logs) * math.sqrt(of_one_job + 1 / len(logs))
        half = upper_quantile((1 - spread.confidence) / 2, len(logs) - 1) * error
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _log_p_value(logs: Sequence[float]) -> float:
    """Return the two-sided p-value of "the mean of ``logs`` is 0"."""
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    if not error:
        return float(statistics.fmean(logs) == 0)
    return 2 * tail(abs(statistics.fmean(logs)) / error, len(logs) - 1)
