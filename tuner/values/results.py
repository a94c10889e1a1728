"""The frozen values of a finished study: everything a report shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.values.exchange import Lossy
from tuner.values.groups import Group, groups
from tuner.values.params import batch_size_of
from tuner.values.pareto import Objective, hypervolume, pareto_front
from tuner.values.quality import ACCURACY, MIN_ERROR, Quality
from tuner.values.runtime_map import RuntimeMap
from tuner.values.trial import TrialResult
from tuner.values.verified import Answers, Verified, answers_of

_POOR = 5.0  # times the default's error


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A whole study as reports and recommendations see it.

    Attributes:
        study_id: Short hash that identifies the study and its folders.
        framework, title: Name and printed name of the framework.
        dataset: Name of the data set actually used.
        dataset_facts: Sizes, source, digest and such, ready to print.
        model: The network: ``default`` is the framework's own.
        objectives: What was optimised.
        constraints: Limits, as written by the user.
        trials: Trial 0 and the search trials, by number.
        derived: Points composed of a run's checkpoint and the pace of a runtime setting.
        runtimes: What the race of the runtime settings found; ``None`` without a race.
        verifications: Every verification run, in the order it was run.
        verified: The default first, then the finalists, fastest first; empty if time ran out.
        machine: Facts of the machine, ready to print.
        runtime: Versions of the runtime's packages.
        warnings: What a reader must know, such as a data set that was replaced.
        started: ISO 8601 time of the start.
        elapsed_s: Seconds spent over all sessions of the study.
        budget: The budget, ready to print.
        complete: Whether the study ran to its end (was not interrupted).
        tracked: Whether MLflow has everything; if not, the same command sends the rest.
        command: The command that continues or repeats the study.
        accuracy_margin: Non-inferiority margin: loss of test accuracy (fraction) counted as none.
        reference: Where the default's accuracy comes from, in words; empty for its own run.
        default_part: The part of the default that everything is compared with, in words; empty
            for the whole default.
        notes: Remarks on the study that the figures do not show, ready to print.
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
    tracked: bool = True
    command: str = ""
    accuracy_margin: float = 0.002
    reference: str = ""
    default_part: str = ""
    notes: tuple[str, ...] = ()

    @property
    def quality(self) -> Quality:
        """What its accuracies are scores of."""
        return next((each.quality for each in self.trials), ACCURACY)

    @property
    def answers(self) -> Answers:
        """The no-loss, runtime-only and most accurate configurations.

        If only the first part of the default is known, nothing but the runtime setting is known to
        lose nothing, and none is the most accurate.
        """
        found = answers_of(self.verified)
        return dataclasses.replace(found, most_accurate=None) if self.default_part else found

    @property
    def default(self) -> TrialResult | None:
        """Trial 0, the framework's own default, if it gave usable figures."""
        return next(
            (each for each in self.trials if each.trial.is_default and each.usable),
            None,
        )

    @property
    def pace_ratios(self) -> list[float]:
        """Measured training times over those that the race's probes predicted, ascending.

        Full runs of the search and of verification count if they had the machine to themselves.
        The shorter half is left out: it resembles the probes too much to tell anything.
        """
        if self.runtimes is None:
            return []
        known = self.runtimes
        trained = [
            each
            for each in (*self.trials, *self.verifications)
            if each.usable
            and not each.trial.is_default
            and each.iterations
            and not (each.trial.accuracy_only or each.trial.projected)
        ]
        trained.sort(key=lambda each: each.iterations)
        return sorted(
            each.metrics["train_time_s"] / each.iterations / promised
            for each in trained[len(trained) // 2 :]
            for promised in [known.promised_s(each.params)]
            if promised
        )

    @property
    def groups(self) -> list[Group]:
        """The pace of groups of processes at the default's batch size; empty if none ran."""
        if self.runtimes is None or self.default is None:
            return []
        return groups(self.runtimes, batch_size_of(self.default.params))

    @property
    def lossy_kinds(self) -> list[Lossy]:
        """The lossy exchanges that were worth searching at the default's batch size."""
        if self.runtimes is None or self.default is None:
            return []
        return self.runtimes.lossy_kinds(batch_size_of(self.default.params))

    @property
    def points(self) -> tuple[TrialResult, ...]:
        """All points that the front is drawn from: the trials and the points derived from them."""
        return timed(self.trials, self.derived)

    @property
    def front(self) -> list[TrialResult]:
        """The non-dominated usable points on the validation split, default included."""
        return front_of(self.points, self.objectives)

    @property
    def discarded(self) -> int:
        """The number of disturbed measurements that were thrown away and repeated."""
        return sum(len(each.discarded) for each in (*self.trials, *self.verifications))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one framework's study.

    Attributes:
        framework, title: Name and printed name of the framework.
        study: Its study; ``None`` if there is none.
        reason: Why it has no study, or why its study verified nothing; else empty.
    """

    framework: str
    title: str
    study: StudyResult | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CrossResult:
    """The same study of several frameworks in turn, each against its own default.

    Attributes:
        cross_id: Short hash of the studies that it consists of.
        dataset: Name of the data set actually used.
        model: The network: ``default`` is the framework's own.
        objectives: What was optimised, in every study.
        outcomes: One per framework, in the order in which they were run.
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
    def quality(self) -> Quality:
        """What its accuracies are scores of."""
        return next((each.quality for each in self.studies), ACCURACY)

    @property
    def studies(self) -> list[StudyResult]:
        """The studies that exist."""
        return [each.study for each in self.outcomes if each.study is not None]

    @property
    def left_out(self) -> list[Outcome]:
        """The frameworks that cannot be compared, each with its reason."""
        return [each for each in self.outcomes if each.reason]


def least_of_interest(default_accuracy: float, quality: Quality = ACCURACY) -> float:
    """Return the accuracy below which no point matters: several times the default's error.

    Args:
        default_accuracy: The default's.
        quality: What both are scores of.
    """
    # a default that makes no error, on a few images, would leave nothing else to be seen
    return quality.score_of_error(_POOR * max(quality.error(default_accuracy), MIN_ERROR))


def timed(
    trials: Sequence[TrialResult], derived: Sequence[TrialResult]
) -> tuple[TrialResult, ...]:
    """Return trials and derived points, without trials that ran for their accuracy alone."""
    return (*(each for each in trials if not each.trial.accuracy_only), *derived)


def front_of(trials: Sequence[TrialResult], objectives: Sequence[Objective]) -> list[TrialResult]:
    """Return the non-dominated usable trials, best first in the first objective."""
    usable = [each for each in trials if _measured(each, objectives)]
    points = [[each.value(trial.metrics) for each in objectives] for trial in usable]
    return [usable[index] for index in pareto_front(points, objectives)]


def hypervolume_over_time(
    trials: Sequence[TrialResult],
    objectives: Sequence[Objective],
    reference: Sequence[float],
    derived: Sequence[TrialResult] = (),
) -> list[float]:
    """Return the hypervolume after each trial in turn, derived points included; it never falls.

    Returns:
        One value per trial, shape (len(trials),).
    """
    volumes: list[float] = []
    points: list[list[float]] = []
    for trial in trials:
        own = [each for each in derived if each.trial.number == trial.trial.number]
        points += [
            [goal.value(each.metrics) for goal in objectives]
            for each in (trial, *own)
            if _measured(each, objectives)
        ]
        volumes.append(hypervolume(points, reference, objectives))
    return volumes


def _measured(trial: TrialResult, objectives: Sequence[Objective]) -> bool:
    return trial.usable and {each.metric for each in objectives} <= trial.metrics.keys()


def default_warnings(trials: Sequence[TrialResult], part: str) -> list[str]:
    """Return what a reader must know of the default, which everything is compared with.

    Args:
        trials: The study's trials.
        part: The part of the default that was trained, in words; empty for the whole.
    """
    default = next((each for each in trials if each.trial.is_default), None)
    if default is None:
        return []
    if not default.usable:
        return [f"the default itself failed: {default.status.value}, {default.reason}"]
    if not part:
        return []
    return [
        f"everything is compared with {part} of the default: what it reaches at its end is not "
        "known; a larger budget trains it to its end, python -m tuner reference records it"
    ]
