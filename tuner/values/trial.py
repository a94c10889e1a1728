"""The frozen values that pass through the tuner: requests for trials and their results.

Nothing here imports a third-party package, so every package and every executor can use it.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tuner.values.params import Params, ParamValue, iterations_of
from tuner.values.quality import ACCURACY, Quality

ENDED_ITSELF = "the worker ended by itself"
"""The reason of a training that the framework's own rule ended before its last iteration."""
_NO_NAME_OF_A_METRIC = re.compile(r"[^\w .-]", re.ASCII)


class TrialKind(enum.Enum):
    """What a trial was run for."""

    DEFAULT = "default"
    SEARCH = "search"
    PROBE = "probe"
    """Measures only how long iterations take, never accuracy."""
    DERIVED = "derived"
    """Composed of a run's checkpoint and the time of a runtime setting; never run."""
    VERIFY = "verify"
    REFERENCE = "reference"
    """Records how a default converges: both splits at every checkpoint, outside any study."""
    PAPER = "paper"
    """Repeats a row of a published table."""


class TrialStatus(enum.Enum):
    """How a trial ended. Only ``COMPLETE`` and ``STOPPED`` carry usable figures."""

    COMPLETE = "COMPLETE"
    STOPPED = "STOPPED"
    """Ended early, by the host or by itself: valid figures for the iterations reached."""
    DIVERGED = "DIVERGED"
    TIMEOUT = "TIMEOUT"
    STALLED = "STALLED"
    """The worker showed no progress for longer than its stall limit."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    DISK_FULL = "DISK_FULL"
    CRASHED = "CRASHED"
    LEFT_PROCESSES = "LEFT_PROCESSES"
    """The worker ended but left processes of its own running (they were killed)."""
    OVER_LIMIT = "OVER_LIMIT"
    """The worker had more processes, files or output than allowed."""
    IMPOSSIBLE = "IMPOSSIBLE"
    """The framework refused these params (worker exit 2)."""
    UNAVAILABLE = "UNAVAILABLE"
    """The framework could not be imported (worker exit 3)."""
    INVALID = "INVALID"
    """Ran, but not as requested (wrong library or thread count), or broke the protocol."""
    INTERRUPTED = "INTERRUPTED"
    """The tuner was stopped while the trial ran."""

    @property
    def usable(self) -> bool:
        """Whether the trial's figures may be compared with others."""
        return self in (TrialStatus.COMPLETE, TrialStatus.STOPPED)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the two ends of its confidence interval, all in the same unit."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One request to train.

    Attributes:
        number: Number within the study among trials of its kind. Search trials count from 1, and
            0 is the framework default; a derived point has the number of its origin.
        params: ``batch_size``, ``iterations``, ``learning_rate``, ``blas``, ``threads``,
            ``blas_kernel`` and any other param of the search space.
        kind: What the trial is run for.
        seed: Seed of weights and data order.
        train_time_limit_s: Training time after which the worker is asked to stop and report what
            it has; a trial that clearly cannot come near its iterations in that time ends sooner,
            unless only a ``share`` of them is asked for.
        time_limit_s: Wall time after which the worker is killed.
        test: Whether the test split may be evaluated.
        share: Fraction (0–1] of ``iterations`` that is actually trained; below 1 the training
            time is projected from the measured rate.
        rivals: Training seconds and validation accuracy of the best trials so far; a trial that
            falls clearly behind them is asked to stop.
        curve: Iterations of the shortest training of interest. From a quarter of it on, accuracy
            is evaluated often, and the trial is stopped once its further course can add nothing
            to ``rivals``. 0 if only the end of the trial matters.
        finely: First and last iteration of the part in which a ``curve`` is evaluated even more
            often, because stops close together still differ there; ``(0, 0)`` for none.
        test_at: Iterations on the way at which both splits are evaluated, and at no others.
        warm: Whether a worker that has trained before may train it; its memory is then not its
            own, and its set-up is shorter.
        accuracy_only: Whether only its accuracy counts, so that it may run on one core while
            others run: its times are then no measurement.
        pace_s: Seconds per iteration at the setting that an ``accuracy_only`` trial stands for;
            it is compared with ``rivals`` at that pace. 0 for its own pace.
        repeat: Number of this further training of the same trial, from 1; repeats do not count as
            trials. 0 for the trial itself.
        point: Number of this point among those derived from a run, from 1. 0 for a run.
    """

    number: int
    params: Params
    kind: TrialKind = TrialKind.SEARCH
    seed: int = 1
    train_time_limit_s: float | None = None
    time_limit_s: float = 3600.0
    test: bool = False
    share: float = 1.0
    rivals: tuple[tuple[float, float], ...] = ()
    curve: int = 0
    finely: tuple[int, int] = (0, 0)
    test_at: tuple[int, ...] = ()
    warm: bool = False
    accuracy_only: bool = False
    pace_s: float = 0.0
    repeat: int = 0
    point: int = 0

    @property
    def name(self) -> str:
        """Unique name within a study, also that of the trial's folder."""
        name = f"{self.kind.value}-{self.number:04d}"
        name += f"-point-{self.point}" if self.point else ""
        return name + (f"-repeat-{self.repeat}" if self.repeat else "")

    @property
    def is_default(self) -> bool:
        """Whether it is trial 0, the framework's own default."""
        return self.kind is TrialKind.DEFAULT

    @property
    def title(self) -> str:
        """Name for readers: ``default``, ``trial 4``, ``trial 4 at 500``, ``verify 2``."""
        if self.is_default:
            return "default"
        if self.kind is TrialKind.DERIVED:
            return f"trial {self.number} at {int(self.params['iterations'] or 0):,}"
        return f"{'verify' if self.kind is TrialKind.VERIFY else 'trial'} {self.number}"

    def derive(self, point: int, params: Params) -> Trial:
        """Return the derived point with this number, from 1, among those of this trial."""
        return dataclasses.replace(
            self,
            kind=TrialKind.DERIVED,
            point=point,
            params=params,
            share=1.0,
            accuracy_only=False,
            pace_s=0.0,
        )

    @property
    def projected(self) -> bool:
        """Whether the training time is projected from a share of the iterations."""
        return self.share < 1


@dataclass(frozen=True, slots=True)
class SideBySide:
    """How to measure the accuracy of trainings that run side by side.

    Attributes:
        params: The same training at a runtime setting that needs one core.
        at_once: Number of runs at a time, one per core.
        train_s: Expected training time of one of them, seconds.
    """

    params: Params
    at_once: int
    train_s: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Accuracy on the validation split after some iterations.

    Attributes:
        iteration: Iterations trained so far.
        train_time_s: Training time so far, evaluation not counted.
        loss: Last training loss, ``None`` if it was not finite.
        val_accuracy: Fraction 0–1; of a perplexity, its score (see ``tuner.values.quality``).
        test_accuracy: On the test split; only for references.
    """

    iteration: int
    train_time_s: float
    loss: float | None
    val_accuracy: float
    test_accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the host measured around one trial. Seconds, bytes, and percent of the trial's cores.

    CPU seconds and memory are those of the worker's process tree from its start to its end;
    ``foreign_cpu_pct`` and ``steal_pct`` cover the training alone and the trial's own cores.
    ``sent_bytes`` is what the processes of a group sent to each other while training, as far as it
    went through a network; 0 without a sandbox. Of a group that spans nodes it is all that the
    nodes' interfaces sent, and its other figures are sums (or the largest) over the nodes.
    """

    setup_time_s: float
    train_time_s: float
    test_time_s: float
    wall_time_s: float
    cpu_user_s: float
    cpu_system_s: float
    cpu_iowait_s: float
    cpu_user_pct: float
    cpu_system_pct: float
    cpu_iowait_pct: float
    avg_memory_bytes: int
    peak_memory_bytes: int
    foreign_cpu_pct: float = 0.0
    steal_pct: float = 0.0
    psi_cpu_pct: float = 0.0
    involuntary_switches: int = 0
    threads_seen: int = 0
    processes_seen: int = 0
    cores_used: float = 0.0
    blas_loaded: str = ""
    sent_bytes: int = 0
    train_cpu_s: float | None = None
    """CPU seconds of the part of a program that is compared; ``None`` if that is unknown."""
    disturbed: str = ""
    """Why the timing cannot be trusted; empty if nothing interfered."""


@dataclass(frozen=True)
class TrialResult:
    """Everything known about one finished trial.

    Attributes:
        trial: The request.
        status: How it ended.
        reason: One line why, empty for a trial that was trained in full.
        iterations: Iterations actually trained (fewer than asked if stopped or projected).
        val_accuracy: Fraction 0–1 on the validation split, ``None`` if never reached; of a
            perplexity, its score (see ``tuner.values.quality``).
        test_accuracy: The same on the test split, ``None`` unless asked for.
        checkpoints: In the order of training.
        measurement: ``None`` when the worker never began to train.
        versions: Versions of framework, interpreter and libraries as the worker reported them.
        log_tail: Last lines of the worker's own output when it failed.
        discarded: Disturbed measurements of this trial that were thrown away before this one.
        accuracy_from: Source of the accuracies, in words, if not this training.
        reported: Further figures that a user's program reported, by name.
        curve: Of a user's program, when it told its goal's figure, in seconds since its start, and
            the figure.
        quality: What the accuracies are scores of.
    """

    trial: Trial
    status: TrialStatus
    reason: str = ""
    iterations: int = 0
    val_accuracy: float | None = None
    test_accuracy: float | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    measurement: Measurement | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    log_tail: str = ""
    discarded: tuple[Measurement, ...] = ()
    accuracy_from: str = ""
    reported: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[tuple[float, float], ...] = ()
    quality: Quality = ACCURACY

    @property
    def usable(self) -> bool:
        """Whether the figures may enter a comparison."""
        return self.status.usable and self.measurement is not None

    @property
    def ended_itself(self) -> bool:
        """Whether the framework's own early stopping ended it: then the training is whole."""
        return self.status is TrialStatus.STOPPED and self.reason.endswith(ENDED_ITSELF)

    @property
    def params(self) -> dict[str, ParamValue]:
        """The params that the figures hold for: of a stopped trial, the iterations it reached."""
        params = dict(self.trial.params)
        if self.status is TrialStatus.STOPPED:
            params["iterations"] = self.iterations
        return params

    def projected(self, why: str) -> TrialResult:
        """Return the trial as if only a share of its iterations had been asked for.

        Times are projected to all iterations; accuracy stays the one that was reached.
        """
        measured = self.measurement
        assert measured is not None
        share = self.iterations / iterations_of(self.trial.params)
        factor = 1.0 if self.trial.projected else 1 / share
        return dataclasses.replace(
            self,
            trial=dataclasses.replace(self.trial, share=share),
            status=TrialStatus.COMPLETE,
            reason=f"projected from {share:.0%} of its iterations: {why}",
            measurement=dataclasses.replace(
                measured,
                train_time_s=measured.train_time_s * factor,
                cpu_user_s=measured.cpu_user_s * factor,
                cpu_system_s=measured.cpu_system_s * factor,
            ),
        )

    @cached_property
    def metrics(self) -> Mapping[str, float]:
        """Every known figure, by its name in logs and constraints."""
        figures: dict[str, Any] = {
            **{_NO_NAME_OF_A_METRIC.sub("_", name): each for name, each in self.reported.items()},
            **{f"{split}_{self.quality.name}": each for split, each in self._figures.items()},
        }
        if self.measurement is not None:
            figures |= {
                each.name: getattr(self.measurement, each.name)
                for each in dataclasses.fields(self.measurement)
            }
        return {
            name: float(value)
            for name, value in figures.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }

    @property
    def _figures(self) -> Mapping[str, float]:
        """The accuracy or perplexity of each split that was judged."""
        scores = {"val": self.val_accuracy, "test": self.test_accuracy}
        return {
            split: self.quality.figure(each) for split, each in scores.items() if each is not None
        }

    def to_json(self) -> str:
        """Serialise; ``from_json`` reads back an equal value."""
        return json.dumps(
            dataclasses.asdict(self),
            default=lambda value: value.value if isinstance(value, enum.Enum) else dict(value),
        )

    @classmethod
    def from_json(cls, text: str) -> TrialResult:
        """Read what ``to_json`` wrote. Raises ``ValueError`` or ``KeyError`` for anything else."""
        raw = json.loads(text)
        trial = raw.pop("trial")
        trial["kind"] = TrialKind(trial["kind"])
        trial["rivals"] = tuple((time_s, accuracy) for time_s, accuracy in trial["rivals"])
        trial["finely"] = tuple(trial.get("finely", (0, 0)))
        trial["test_at"] = tuple(trial.get("test_at", ()))
        measurement = raw.pop("measurement")
        return cls(
            trial=Trial(**trial),
            status=TrialStatus(raw.pop("status")),
            checkpoints=tuple(Checkpoint(**point) for point in raw.pop("checkpoints")),
            measurement=Measurement(**measurement) if measurement else None,
            discarded=tuple(Measurement(**each) for each in raw.pop("discarded")),
            curve=tuple((time_s, figure) for time_s, figure in raw.pop("curve", ())),
            quality=Quality(**raw.pop("quality", {})),
            **raw,
        )
