"""What is measured again of a paper: its figures by name, and how ours come about."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tuner.config.paper import PaperConfig, PaperRow
from tuner.values.params import Params, ParamValue, batch_size_of, iterations_of, workers_of
from tuner.values.trial import TrialResult, TrialStatus

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a table.

    Attributes:
        label: Its heading, with its unit.
        higher: Whether more of it is better.
        tolerance: Difference that counts as none: of the value, or absolute in its unit.
        absolute: Whether ``tolerance`` is absolute.
        digits: Digits after the point that are printed; -1 for three significant ones.
    """

    label: str
    higher: bool = False
    tolerance: float = 0.05
    absolute: bool = False
    digits: int = -1


FIGURES: Mapping[str, Figure] = {
    "train_time_s": Figure("training time, s"),
    "train_time_per_epoch_s": Figure("training time of an epoch, s"),
    "iteration_time_s": Figure("time of an iteration, s"),
    "images_per_s": Figure("training, images/s", higher=True),
    "efficiency_pct": Figure("scaling efficiency, %", True, 5.0, absolute=True, digits=0),
    "test_time_s": Figure("testing time, s"),
    "test_images_per_s": Figure("testing, images/s", higher=True),
    "accuracy_pct": Figure("accuracy, %", True, 0.2, absolute=True, digits=2),
    "cpu_user_pct": Figure("CPU user, %", False, 2.0, absolute=True, digits=1),
    "cpu_system_pct": Figure("CPU system, %", False, 2.0, absolute=True, digits=1),
    "cpu_iowait_pct": Figure("CPU iowait, %", False, 2.0, absolute=True, digits=1),
    "cpu_total_pct": Figure("CPU total, %", False, 2.0, absolute=True, digits=1),
    "memory_avg_mb": Figure("average memory, MB"),
    "memory_max_mb": Figure("maximum memory, MB"),
}
"""Every figure that a paper's experiment may name. The tolerance of accuracy is that of
``verify.accuracy_margin``; the others are set so that single runs are not read too finely."""

_OF_TESTS = frozenset({"accuracy_pct", "test_time_s", "test_images_per_s"})


def needs_test(metrics: Collection[str]) -> bool:
    """Return whether any of these figures is one of the test split."""
    return not _OF_TESTS.isdisjoint(metrics)


@dataclass(frozen=True, slots=True)
class PaperRun:
    """One row and what became of it here.

    Attributes:
        row: The row.
        params: What was or would be trained; empty if the row cannot be run.
        result: Its trial; ``None`` if there is none.
        reason: Why there is none.
        labels: What a reader of our figures must know, such as "oversubscribed".
    """

    row: PaperRow
    params: Params = field(default_factory=dict)
    result: TrialResult | None = None
    reason: str = ""
    labels: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether it gave figures."""
        return self.result is not None and self.result.usable

    @property
    def whole(self) -> bool:
        """Whether it was trained to its end, so that its accuracy is that of the row."""
        return self.result is not None and self.measured and not self.result.trial.projected

    @property
    def diverged(self) -> bool:
        """Whether its training diverged."""
        return self.result is not None and self.result.status is TrialStatus.DIVERGED


@dataclass(frozen=True, slots=True)
class PaperResult:
    """A paper's experiment, run here.

    Attributes:
        paper: Its declaration.
        study_id: Short hash of what was run.
        dataset: Name of the data set actually used.
        model: ``default`` or ``lenet``.
        runs: One per row, in the paper's order.
        train_images, test_images: Sizes of the splits.
        cores: CPUs of a trial here.
        machine: Facts of the machine, ready to print.
        warnings: What a reader must know.
        budget_s, elapsed_s: Seconds that it might take, and that it took.
        complete: Whether it was not interrupted.
        command: The command that continues or repeats it.
        tracked: Whether MLflow has everything.
    """

    paper: PaperConfig
    study_id: str
    dataset: str
    model: str
    runs: tuple[PaperRun, ...]
    train_images: int
    test_images: int
    cores: int
    machine: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    budget_s: float = 0.0
    elapsed_s: float = 0.0
    complete: bool = True
    command: str = ""
    tracked: bool = True

    def ours(self, run: PaperRun, figure: str) -> float | None:
        """Return a figure of one row as measured here.

        Returns:
            The figure in the unit of its name; NaN for the accuracy of a training that diverged;
            ``None`` if it was not measured.
        """
        if figure == "accuracy_pct" and run.diverged:
            return math.nan
        result = run.result
        if result is None or not run.measured or result.measurement is None:
            return None
        if figure == "efficiency_pct":
            return self._efficiency(run)
        if figure == "accuracy_pct":
            accuracy = result.test_accuracy if run.whole else None
            return None if accuracy is None else 100 * accuracy
        if figure.startswith("test_"):
            test_s = result.measurement.test_time_s
            if result.test_accuracy is None or test_s <= 0:
                return None
            return test_s if figure == "test_time_s" else self.test_images / test_s
        return self._cost(run, result, figure)

    def _cost(self, run: PaperRun, result: TrialResult, figure: str) -> float | None:
        """Return a figure of time, CPU or memory."""
        measured = result.measurement
        assert measured is not None
        iterations = iterations_of(result.params)
        images = iterations * batch_size_of(run.params)
        train_s = measured.train_time_s
        user, system, iowait = (
            measured.cpu_user_pct,
            measured.cpu_system_pct,
            measured.cpu_iowait_pct,
        )
        return {
            "train_time_s": train_s,
            "train_time_per_epoch_s": train_s * self.train_images / images,
            "iteration_time_s": train_s / iterations,
            "images_per_s": images / train_s if train_s > 0 else None,
            "cpu_user_pct": user,
            "cpu_system_pct": system,
            "cpu_iowait_pct": iowait,
            "cpu_total_pct": user + system + iowait,
            "memory_avg_mb": measured.avg_memory_bytes / _MIB,
            "memory_max_mb": measured.peak_memory_bytes / _MIB,
        }[figure]

    def _efficiency(self, run: PaperRun) -> float | None:
        """Return the throughput over that of as many times one worker, in percent.

        The one worker has as many threads, and as large a part of a batch, as each of the others.
        """
        alone = next(
            (
                each
                for each in self.runs
                if each.params.get("workers") == 1 and _per_worker(each) == _per_worker(run)
            ),
            None,
        )
        one = self.ours(alone, "images_per_s") if alone else None
        own = self.ours(run, "images_per_s")
        return 100 * own / (workers_of(run.params) * one) if one and own else None


def _per_worker(run: PaperRun) -> tuple[str, float, ParamValue]:
    workers = workers_of(run.params)
    batch_size = batch_size_of(run.params)
    return run.row.of, batch_size / workers, run.params.get("threads")
