"""The frozen values of a finished study: what was verified, and everything a report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.pareto import Objective, hypervolume, pareto_front
from tuner.runtime_map import RuntimeMap
from tuner.trial import Interval, ParamValue, TrialKind, TrialResult

_POOR = 5.0  # times the default's error
_COMPOSED_SLACK = 1.1  # a composed time may be so far beyond the verified interval
_SPLITS_DIFFER = 0.03  # accuracy on the validation split may be so far from that on the test split


@dataclass(frozen=True, slots=True)
class CostRatio:
    """A cost of one verified configuration divided by the default's; below 1 is cheaper.

    Attributes:
        value: The ratio.
        low, high: Ends of its confidence interval, ``None`` where none can be given.
        p: Two-sided p-value of "the ratio is 1"; ``None`` without an interval.
        gap: Why there is no interval; empty where there is one.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    gap: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One verified configuration against the verified default.

    Attributes:
        speedup: Default's training time divided by this one's; above 1 is faster.
        speedup_p: Two-sided p-value of "the speed-up is 1".
        accuracy_gain: Test accuracy minus the default's, a fraction; above 0 is better.
        accuracy_p: Two-sided p-value of "the accuracies are equal".
        accuracy_kept: Whether the gain's interval lies above minus the margin that counts as
            no loss (non-inferiority).
        cpu: CPU seconds (user and system) of a whole run, compared round by round.
        memory: Peak memory, compared between runs of one sort, in full or over a share.
    """

    speedup: Interval
    speedup_p: float
    accuracy_gain: Interval
    accuracy_p: float
    accuracy_kept: bool
    cpu: CostRatio | None = None
    memory: CostRatio | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """One configuration measured again, interleaved with the others, with fresh seeds.

    Attributes:
        name: ``default`` or ``trial 12``.
        trial_number: The trial it was found by.
        params: What was run.
        full_runs: Runs trained to their last iteration; every accuracy comes from these.
        rate_runs: Further runs that trained only ``rate_share`` of the iterations to measure
            the rate again.
        rate_share: Fraction (0–1) of the iterations of those; 1 when there are none.
        projected: Whether even the full run was a share of the default's iterations
            (``budget=quick``): time projected, accuracy that of the shorter training.
        composed: Training time in seconds and validation accuracy as they were composed before;
            ``None`` where both were measured in one run.
        test_accuracy: Fraction 0–1.
        train_time_s: Seconds for all iterations.
        test_time_s, cpu_user_s, cpu_system_s: Median over the full runs, seconds.
        avg_memory_bytes, peak_memory_bytes: Median over the full runs.
        runs: Names of the verification runs behind the figures (``verify-0003``).
        against_default: ``None`` for the default itself.
        confidence: Of every interval here (0–1).
        on_front: How sure it is that no other verified configuration dominates it (0–1).
    """

    name: str
    trial_number: int
    params: Mapping[str, ParamValue]
    full_runs: int
    rate_runs: int
    rate_share: float
    projected: bool
    test_accuracy: Interval
    train_time_s: Interval
    test_time_s: float
    cpu_user_s: float
    cpu_system_s: float
    avg_memory_bytes: float
    peak_memory_bytes: float
    runs: tuple[str, ...] = ()
    against_default: Comparison | None = None
    confidence: float = 0.95
    composed: tuple[float, float] | None = None
    on_front: float = 1.0

    @property
    def refuted(self) -> str:
        """Which composed figure is far from the verified one, which alone stands; else empty."""
        if self.composed is None:
            return ""
        (time_s, accuracy), time, test = self.composed, self.train_time_s, self.test_accuracy
        if not time.low / _COMPOSED_SLACK <= time_s <= time.high * _COMPOSED_SLACK:
            return "time"
        if not test.low - _SPLITS_DIFFER <= accuracy <= test.high + _SPLITS_DIFFER:
            return "accuracy"
        return ""

    @property
    def verdict(self) -> str:
        """What may be claimed, in a few words: "2.1x faster, accuracy not significant"."""
        if self.against_default is None:
            return "reference"
        versus, level = self.against_default, 1 - self.confidence
        ratio = versus.speedup.value
        time = "time not significant"
        if versus.speedup_p < level:
            time = f"{ratio:.1f}x faster" if ratio > 1 else f"{1 / ratio:.1f}x slower"
        gain = 100 * versus.accuracy_gain.value
        accuracy = "accuracy difference not significant"
        if versus.accuracy_p < level:
            accuracy = f"accuracy {gain:+.2f} points"
        return f"{time}, {accuracy}"


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A whole study as reports and recommendations see it.

    Attributes:
        study_id: Short hash that identifies the study and its folders.
        framework, title: Name and printed name of the framework.
        dataset: Name of the data set really used.
        dataset_facts: Sizes, source, digest and such, ready to print.
        model: ``default`` or ``lenet``.
        objectives: What was optimised.
        constraints: Limits, as written by the user.
        trials: Trial 0 and the search trials, by number.
        derived: Points composed of a run's checkpoint and the pace of a runtime setting.
        runtimes: What the race of the runtime settings found; ``None`` without one.
        verifications: Every verification run, in the order it was run.
        verified: The default first, then the finalists, fastest first; empty if time ran out.
        machine: Facts of the machine, ready to print.
        runtime: Versions of the runtime's packages.
        warnings: What a reader must know, such as a data set that was replaced.
        started: ISO 8601 time of the start.
        elapsed_s: Seconds spent over all sessions of the study.
        budget: The budget, ready to print.
        complete: Whether the study came to its end (not interrupted).
        command: The command that continues or repeats the study.
    """

    study_id: str
    framework: str
    title: str
    dataset: str
    dataset_facts: Mapping[str, str]
    model: str
    objectives: tuple[Objective, ...]
    constraints: tuple[str, ...] = ()
    trials: tuple[TrialResult, ...] = ()
    derived: tuple[TrialResult, ...] = ()
    runtimes: RuntimeMap | None = None
    verifications: tuple[TrialResult, ...] = ()
    verified: tuple[Verified, ...] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    runtime: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    started: str = ""
    elapsed_s: float = 0.0
    budget: Mapping[str, str] = field(default_factory=dict)
    complete: bool = True
    command: str = ""

    @property
    def default(self) -> TrialResult | None:
        """Trial 0, the framework's own default, if it gave usable figures."""
        return next(
            (each for each in self.trials if each.trial.kind is TrialKind.DEFAULT and each.usable),
            None,
        )

    @property
    def pace_ratios(self) -> list[float]:
        """Training time of the longer search trials by what the race's probes promised, ascending.

        The shorter half resembles the probes too much to say anything.
        """
        if self.runtimes is None:
            return []
        known = self.runtimes
        trained = [
            each
            for each in self.trials
            if each.usable and each.trial.kind is TrialKind.SEARCH and each.iterations
        ]
        trained.sort(key=lambda each: each.iterations)
        return sorted(
            each.metrics["train_time_s"] / each.iterations / promised
            for each in trained[len(trained) // 2 :]
            for promised in [known.promised_s(each.params)]
            if promised
        )

    @property
    def points(self) -> tuple[TrialResult, ...]:
        """All that the front is drawn from: the trials and what was derived from them."""
        return (*self.trials, *self.derived)

    @property
    def front(self) -> list[TrialResult]:
        """The non-dominated usable points on the validation split, default included."""
        return front_of(self.points, self.objectives)

    @property
    def discarded(self) -> int:
        """How many disturbed measurements were thrown away and repeated."""
        return sum(len(each.discarded) for each in (*self.trials, *self.verifications))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one framework's study.

    Attributes:
        framework, title: Name and printed name of the framework.
        study: Its study; ``None`` where there is none.
        reason: Why it has no study, or why its study verified nothing; else empty.
    """

    framework: str
    title: str
    study: StudyResult | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CrossResult:
    """The same study with one framework after the other, each against its own default.

    Attributes:
        cross_id: Short hash of the studies that it consists of.
        dataset: Name of the data set really used.
        model: ``default`` (each framework's own network) or ``lenet`` (the same everywhere).
        objectives: What was optimised, in every study.
        outcomes: One a framework, in the order in which they were run.
        machine: Facts of the machine, ready to print.
        warnings: What a reader must know.
        budget_s: Seconds that all studies together may take.
        complete: Whether every framework had its turn (not interrupted).
        command: The command that continues or repeats it.
    """

    cross_id: str
    dataset: str
    model: str
    objectives: tuple[Objective, ...]
    outcomes: tuple[Outcome, ...]
    machine: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    budget_s: float = 0.0
    complete: bool = True
    command: str = ""

    @property
    def studies(self) -> list[StudyResult]:
        """The studies there are."""
        return [each.study for each in self.outcomes if each.study is not None]

    @property
    def left_out(self) -> list[Outcome]:
        """The frameworks that cannot be compared, each with its reason."""
        return [each for each in self.outcomes if each.reason]


def least_of_interest(default_accuracy: float) -> float:
    """Accuracy below which nobody who knows the default cares: several times its error."""
    return 1 - _POOR * (1 - default_accuracy)


def front_of(trials: Sequence[TrialResult], objectives: Sequence[Objective]) -> list[TrialResult]:
    """The usable trials that no other dominates, best first in the first objective."""
    usable = [each for each in trials if _measured(each, objectives)]
    points = [[each.value(trial.metrics) for each in objectives] for trial in usable]
    return [usable[index] for index in pareto_front(points, objectives)]


def hypervolume_over_time(
    trials: Sequence[TrialResult],
    objectives: Sequence[Objective],
    reference: Sequence[float],
    derived: Sequence[TrialResult] = (),
) -> list[float]:
    """Hypervolume after each trial in turn, what was derived from it included; never falls.

    Returns:
        One value a trial, shape (len(trials),).
    """
    volumes: list[float] = []
    points: list[list[float]] = []
    for trial in trials:
        own = [each for each in derived if each.trial.origin == trial.trial.number]
        points += [
            [goal.value(each.metrics) for goal in objectives]
            for each in (trial, *own)
            if _measured(each, objectives)
        ]
        volumes.append(hypervolume(points, reference, objectives))
    return volumes


def _measured(trial: TrialResult, objectives: Sequence[Objective]) -> bool:
    return trial.usable and {each.metric for each in objectives} <= trial.metrics.keys()


def default_warnings(trials: Sequence[TrialResult]) -> list[str]:
    """What a reader must know of the default, which all is compared with."""
    default = next((each for each in trials if each.trial.number == 0), None)
    if default is None:
        return []
    if not default.usable:
        return [f"the default itself failed: {default.status.value}, {default.reason}"]
    if not default.trial.projected:
        return []
    return [
        f"the default's time is projected from {default.trial.share:.0%} of its iterations, and "
        f"its accuracy is the one reached after these {default.iterations:,} iterations"
    ]
