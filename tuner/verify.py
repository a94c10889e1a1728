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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from tuner.config import Constraint, VerifyConfig
from tuner.pareto import Direction, Objective, hypervolume
from tuner.results import Comparison, CostRatio, Verified, front_of
from tuner.trial import Interval, Trial, TrialKind, TrialResult

_LEAST_ROUNDS = 2
_LEAST_FREEDOM = 3  # two seeds that happen to agree say nothing of the spread between seeds
_LEAST_RATE_S = 8.0  # a rate measured for less is mostly noise
_LEAST_CPU_S = 0.5  # the kernel counts in hundredths of a second


def pick_finalists(
    trials: Sequence[TrialResult],
    default: TrialResult,
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    config: VerifyConfig,
) -> list[TrialResult]:
    """The points of the front worth verifying, most important first.

    First the fastest whose validation accuracy is not below the default's by more than half the
    margin, or else the most accurate; then those that add most hypervolume.

    Args:
        trials: Usable and other trials of the search.
        default: Trial 0.
        objectives: Of the study.
        constraints: Only trials that keep them can be finalists.
        config: How many, and the margin.
    """
    allowed = [
        each
        for each in trials
        if each is not default
        and not any(limit.violation(each.metrics) > 0 for limit in constraints)
    ]
    front = front_of(allowed, objectives)
    chosen: list[TrialResult] = []
    least = default.metrics.get("val_accuracy", 0.0) - config.accuracy_margin / 2
    equals = [each for each in front if each.metrics.get("val_accuracy", 0.0) >= least]
    if equals:
        chosen.append(min(equals, key=lambda each: each.metrics["train_time_s"]))
    elif front:
        chosen.append(max(front, key=lambda each: each.metrics.get("val_accuracy", 0.0)))
    while len(chosen) < min(config.finalists, len(front)):
        rest = [each for each in front if each not in chosen]
        chosen.append(max(rest, key=lambda each: _volume([*chosen, each], front, objectives)))
    return chosen[: config.finalists]


def _volume(
    chosen: Sequence[TrialResult], front: Sequence[TrialResult], objectives: Sequence[Objective]
) -> float:
    """Hypervolume of ``chosen``, each objective scaled to the front's own extent."""
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


@dataclass(frozen=True)
class Plan:
    """Which verification runs there will be.

    Attributes:
        default: Trial 0.
        finalists: What is compared with it.
        rounds: How often everything is run once.
        config: Shares and limits.
        seed: The study's seed; verification uses seeds that no search trial used.
        test_images: Size of the test split.
        first: Number of the first run; an earlier plan of the study may have used those below.
    """

    default: TrialResult
    finalists: tuple[TrialResult, ...]
    rounds: int
    config: VerifyConfig
    seed: int
    test_images: int
    first: int = 0

    @property
    def entrants(self) -> tuple[TrialResult, ...]:
        """Everything that is run in each round, the default first."""
        return (self.default, *self.finalists)

    def trials(self) -> Iterator[Trial]:
        """All runs in their order; the same plan always gives the same numbers and seeds."""
        count = len(self.entrants)
        for turn in range(self.rounds):
            for place in range(count):
                index = (place + turn) % count
                yield self.trial(turn, index)

    def trial(self, turn: int, index: int) -> Trial:
        """The run of one entrant in one round."""
        share = self._share(turn, index)
        return Trial(
            number=self.first + turn * len(self.entrants) + index,
            params=self.entrants[index].params,
            kind=TrialKind.VERIFY,
            seed=1000 * (self.seed + 1) + turn,
            test=share == 1,
            share=share,
        )

    def _share(self, turn: int, index: int) -> float:
        entrant = self.entrants[index]
        long = entrant.metrics["train_time_s"] > self.config.long_s
        # trial 0 was itself a full run with the test split; a finalist's first repeat is one
        has_full_run = index == 0 or turn > 0
        rate = max(self.config.rate_share, _LEAST_RATE_S / entrant.metrics["train_time_s"])
        if entrant.trial.projected:
            return min(entrant.trial.share, rate)
        return min(rate, 1.0) if long and has_full_run else 1.0

    def place(self, number: int) -> tuple[int, int]:
        """Round and entrant of the run with this number."""
        return divmod(number - self.first, len(self.entrants))

    def cost_s(self) -> float:
        """Estimated wall time of all runs, in seconds."""
        return sum(self._cost_s(trial) for trial in self.trials())

    def _cost_s(self, trial: Trial) -> float:
        measured = self.entrants[self.place(trial.number)[1]].measurement
        assert measured is not None
        rest = measured.setup_time_s + 3 * measured.test_time_s + 1.0
        return measured.train_time_s * trial.share + rest

    def within(self, budget_s: float) -> Plan:
        """The plan cut to ``budget_s``: fewer finalists first, then fewer rounds.

        At least one finalist and two rounds remain: less would prove nothing.
        """
        plan = self
        while plan.cost_s() > budget_s and len(plan.finalists) > 1:
            plan = dataclasses.replace(plan, finalists=plan.finalists[:-1])
        while plan.cost_s() > budget_s and plan.rounds > _LEAST_ROUNDS:
            plan = dataclasses.replace(plan, rounds=plan.rounds - 1)
        return plan


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
    verified = []
    for index, rounds in enumerate(by_entrant):
        common = sorted(rounds.keys() & by_entrant[0].keys())
        if len(common) < _LEAST_ROUNDS or not full[index] or not full[0]:
            continue
        against = None
        if index:
            pairs = [(by_entrant[0][turn], rounds[turn]) for turn in common]
            against = _compare(pairs, full[index], full[0], spread, plan.config)
        verified.append(_verified(plan.entrants[index], rounds, full[index], spread, against))
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
        self.quantile = float(law.ppf(0.5 + confidence / 2))
        self._tail = law.sf

    def accuracy(self, runs: Sequence[TrialResult]) -> Interval:
        """Mean accuracy; its interval covers the seeds and that the images are a sample."""
        mean = _mean_accuracy(runs)
        variance = self.seed_variance / len(runs) + self._sampling_variance(mean)
        half = self.quantile * math.sqrt(variance)
        return Interval(mean, max(0.0, mean - half), min(1.0, mean + half))

    def gain(
        self, runs: Sequence[TrialResult], default_runs: Sequence[TrialResult]
    ) -> tuple[Interval, float]:
        """Difference of the means and its p-value, over seeds, on the same test images."""
        gain = _mean_accuracy(runs) - _mean_accuracy(default_runs)
        variance = self.seed_variance * (1 / len(runs) + 1 / len(default_runs))
        if not self.freedom:  # too few repeats: only the sampling of the images is known
            variance = 2 * self._sampling_variance(_mean_accuracy(runs))
        error = math.sqrt(variance)
        half = self.quantile * error
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
) -> Comparison:
    """Compare with the default; ``pairs`` are the default's run and this one's, round by round."""
    logs = [math.log(_time(default) / _time(run)) for default, run in pairs]
    # a run of a share ends before the test split is evaluated, which may need more memory
    alike = [(default, run) for default, run in pairs if _in_full(default) == _in_full(run)]
    gain, accuracy_p = spread.gain(runs, default_runs)
    return Comparison(
        speedup=_log_interval(logs, config.confidence),
        speedup_p=_log_p_value(logs),
        accuracy_gain=gain,
        accuracy_p=accuracy_p,
        accuracy_kept=gain.low > -config.accuracy_margin,
        cpu=_cost_ratio(pairs, (default_runs, runs), _cpu_s, config.confidence, _LEAST_CPU_S),
        memory=_cost_ratio(alike, (default_runs, runs), _peak_memory, config.confidence),
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
    if len(costs) >= _LEAST_ROUNDS:
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
