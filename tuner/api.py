"""The Python interface: what the commands do, as functions of the same names, values and errors.

::

    from tuner import load_results, recommend, tune

    result = tune(framework="caffe", dataset="mnist", budget="quick")
    answer = recommend(framework="caffe", dataset="mnist", max_train_time_s=60)
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.config.catalogue import list_frameworks, load_framework, tuner_home
from tuner.config.composing import compose
from tuner.config.validation import validate
from tuner.convergence.references import Reference
from tuner.progress import make_progress
from tuner.recommendation.answer import answer, configuration, layouts_of
from tuner.recommendation.choice import PERPLEXITY_MARGIN, Limits, recommend_fresh
from tuner.recommendation.evidence import MARGIN, Evidence
from tuner.recommendation.layouts import LATENCY_MS
from tuner.recommendation.programs import recommend_program as choose_for_program
from tuner.recommendation.reading import evidence_of
from tuner.recommendation.this_machine import ThisMachine
from tuner.study.preparation import standalone_setup
from tuner.study.recording import record_reference as record
from tuner.study.study import tune as run_study
from tuner.tracking import StudyRecord, default_tracking_uri, load_programs
from tuner.tracking import load_results as load_records
from tuner.trials.session import run_trial
from tuner.trials.setup import claim_cores
from tuner.values.addresses import without_password
from tuner.values.errors import ConfigError, DamagedStudy, NoTrialSucceeded
from tuner.values.params import Params
from tuner.values.results import StudyResult
from tuner.values.scaling import Link
from tuner.values.trial import Trial, TrialResult
from tuner.wrap.objective import read_objective

_log = logging.getLogger(__name__)
_LONGEST_S = 7 * 86400.0  # of a training that somebody waits for


def tune(*overrides: str, **settings: Any) -> StudyResult:
    """Run one study to its end, or resume it: ``python -m tuner``.

    Args:
        overrides: Settings as on the command line, such as ``"budget.time_s=60"``.
        settings: The same as keywords, for names that Python allows: ``framework="caffe"``.

    Returns:
        The results, including the verified configurations.

    Raises:
        TunerError: If the study cannot run. One line: the fact, the value received, the remedy.
        KeyboardInterrupt: If interrupted. All measurements are kept; the same call resumes.
    """
    words = [*overrides, *_words(settings)]
    config = compose(words)
    if config.paper.rows:
        raise ConfigError(f"{config.paper.name} runs on the command line; tune runs studies alone")
    if config.frameworks:
        raise ConfigError("frameworks= compares several on the command line; call tune for each")
    command = shlex.join(["python", "-m", "tuner", *map(without_password, words)])
    return run_study(config, command=command)


def train(*overrides: str, params: Params, **settings: Any) -> TrialResult:
    """Train once in the framework's own runtime, for example with params from ``recommend``.

    Args:
        overrides: As for ``tune``: framework, data set, model, seed.
        params: What to train with; missing params take the default's values.
        settings: The same as keywords, for names that Python allows.

    Returns:
        The figures, including those of the test split.

    Raises:
        TunerError: If the params cannot be used or the training fails; the message says why.
    """
    config = validate(compose([*overrides, *_words(settings)]))
    with (
        make_progress(config.progress) as progress,
        standalone_setup(config, progress) as (space, setup),
    ):
        default = space.default(setup.dataset.name, config.model).params
        chosen = space.completed({**default, **params})
        for name, value in params.items():
            if name not in space.params or chosen[name] != value:
                raise ConfigError(f"{setup.framework.name} cannot be trained with {name}={value}")
        trial = Trial(0, chosen, seed=config.seed, test=True, time_limit_s=_LONGEST_S)
        with claim_cores(config.executor, progress):
            result = run_trial(setup, trial, listener=progress.trial_progress)
    if not result.usable:
        raise NoTrialSucceeded(f"the training ended {result.status.value}: {result.reason}")
    return result


def record_reference(
    *overrides: str, seeds: int = 10, to: str = "", **settings: Any
) -> tuple[Reference, Path]:
    """Record how a framework's default converges: ``python -m tuner reference``.

    Args:
        overrides: As for ``tune``: framework, data set, model.
        seeds: Number of seeds in all; seeds recorded before count.
        to: Folder for the record; empty for ``references`` in ``TUNER_HOME``.
        settings: The same as keywords, for names that Python allows.

    Returns:
        The reference, and its file.

    Raises:
        TunerError: If something needed is missing, or a training fails.
    """
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, got {seeds}")
    config = compose([*overrides, *_words(settings)])
    folder = Path(to).expanduser().absolute() if to else tuner_home() / "references"
    with make_progress(config.progress) as progress:
        return record(config, seeds, folder, progress)


def _words(settings: Mapping[str, Any]) -> list[str]:
    """Convert settings to overrides."""
    return [f"{name}={_word(value)}" for name, value in settings.items()]


def _word(value: object) -> str:
    """Format a Python value for an override."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_word, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}:{_word(each)}' for name, each in value.items())}}}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def load_results(
    framework: str, dataset: str = "mnist", *, output: str = ".", tracking_uri: str = ""
) -> list[StudyRecord]:
    """Return all studies of a framework on a data set that ended in a report, newest first.

    Args:
        framework: Name of the framework.
        dataset: Name of the data set.
        output: Folder with ``mlflow.db``.
        tracking_uri: Address of another MLflow.

    Raises:
        StorageError: If MLflow's store cannot be used.
    """
    uri = tracking_uri or default_tracking_uri(Path(output))
    return load_records(uri, framework, dataset)


def recommend(
    *,
    framework: str = "",
    dataset: str = "mnist",
    max_train_time_s: float | None = None,
    max_memory_mb: float | None = None,
    min_accuracy: float | None = None,
    max_accuracy_loss: float | None = MARGIN,
    cores: int | None = None,
    jobs_per_host: int = 1,
    max_workers: int | None = None,
    max_perplexity: float | None = None,
    max_perplexity_loss: float | None = PERPLEXITY_MARGIN,
    objective: str = "train_time_s",
    bandwidth: str = "",
    latency_ms: float = LATENCY_MS,
    output: str = ".",
    tracking_uri: str = "",
    framework_path: str | None = None,
) -> dict[str, Any]:
    """Return the verified configuration to run a job with: ``python -m tuner recommend``.

    Unless the limits say otherwise, this is the fastest configuration that is proven to lose no
    accuracy against the framework's default. If there is none, it is the untouched default.
    What was measured on this machine, with the libraries installed here, is preferred.

    Args:
        framework: Name of the framework; empty to choose among all that have results.
        dataset: Name of the data set.
        max_train_time_s: Longest training time, seconds.
        max_memory_mb: Highest peak memory, MiB.
        min_accuracy: Lowest accuracy on the test split, fraction 0–1. A configuration keeps it if
            the lower end of its interval does, or if it is proven to lose nothing against a
            default that was measured at or above it.
        max_accuracy_loss: Fraction that may be lost against the framework's default; 0.002 is no
            loss as studies prove it, ``None`` allows any loss.
        cores: CPUs that the job will have; only figures measured on exactly as many count. The
            answer then has a ``split`` of so many.
        jobs_per_host: Number of such jobs that will share the host (measured by
            experiment=tenancy).
        max_workers: Most processes that may train the job together; 1 if it is started as one.
        max_perplexity: Of a text, the highest perplexity, as ``min_accuracy`` of images.
        max_perplexity_loss: Of a text, the rise of perplexity that is allowed, as a part of the
            default's; ``None`` allows any.
        objective: ``train_time_s``, ``accuracy``, ``perplexity`` or ``memory_mb``: what to prefer
            within the limits.
        bandwidth: Bandwidth of the link between hosts, such as ``10gbit``: the answer then says
            how fast groups of up to 64 would train ``over_link``.
        latency_ms: Latency of that link, one way, milliseconds.
        output: Folder with ``mlflow.db``.
        tracking_uri: Address of another MLflow.
        framework_path: Folder with the user's own frameworks.

    Returns:
        ``id`` (of this recommendation, the same whoever asks), ``framework``, ``dataset`` (that
        it was measured on), ``model``, ``role`` (what it was verified for), ``no_loss`` (whether
        that is proven), ``assurance`` (how sure it is, in words), ``note`` (why it is the
        untouched default, if it is), ``drift`` (how jobs broke what it promised, if they did and
        nothing fresher answers), ``params``,
        ``environment`` (variables to set), ``settings`` (the framework's own settings file, if
        it has one), ``speedup``, ``measured`` and ``against_default`` (figures with intervals;
        ``None`` for the default), ``jobs_per_hour`` (of the whole host), ``promised`` (the
        intervals that the time and the accuracy of one job will fall into), ``evidence`` (run
        ids, age in seconds, when it expires in seconds since the epoch, fingerprint),
        ``alternatives``, ``stale`` (whether it was measured on another machine or with other
        libraries, or jobs broke what it promised), and where they were asked for ``split`` (of
        the host's cores, for the ``soonest`` end of one job and for the ``most_jobs`` an hour:
        ``jobs``, and of each ``cores``, ``workers``, ``threads``, ``train_time_s`` and
        ``memory_mb``; ``jobs_per_hour``; its ``basis``, ``measured`` or ``modelled``, and a
        ``note``) and ``over_link`` (``bandwidth_mbit``,
        ``latency_ms``, ``batch_size``, a ``note``, and ``groups``: ``workers``, ``threads`` of
        each, ``samples_s`` and ``train_time_s`` with intervals, ``basis``).

    Raises:
        NothingRecommended: If nothing keeps the limits. Says which limit binds, and what comes
            nearest.
        ConfigError: If a name does not exist.
    """
    if not bandwidth and latency_ms != LATENCY_MS:
        raise ConfigError(f"latency_ms={latency_ms:g} needs a bandwidth, such as bandwidth=10gbit")
    link = Link.read(bandwidth, latency_ms) if bandwidth else None
    names = list_frameworks(framework_path)
    if framework:
        names = [load_framework(framework, framework_path).name]
    evidence, here, stale = list[Evidence](), ThisMachine(framework_path), set[str]()
    for name in names:
        for study in load_results(name, dataset, output=output, tracking_uri=tracking_uri):
            try:
                evidence += evidence_of(study)
            except DamagedStudy as error:
                _log.warning("run %s is passed over: %s", study.run_id, error)
                continue
            if here.differs_from(study):
                stale.add(study.run_id)
    limits = Limits(
        max_train_time_s,
        max_memory_mb,
        min_accuracy,
        max_accuracy_loss,
        cores,
        jobs_per_host,
        max_workers,
        max_perplexity,
        max_perplexity_loss,
    )
    found = recommend_fresh(evidence, limits, objective, stale)
    return {
        **answer(found, dataset, configuration(found.choice, dataset, framework_path)),
        "stale": found.choice.study in stale or bool(found.choice.drift),
        **layouts_of(found, limits, link, framework_path),
    }


def recommend_program(
    program: str, *, objective: str = "time", output: str = ".", tracking_uri: str = ""
) -> dict[str, Any]:
    """Return the proven setting of a program that ``python -m tuner wrap`` tuned.

    Args:
        program: Name of its file, such as ``train.py``, or of its command.
        objective: What it needs less of: ``time``, ``cpu`` (CPU time) or ``memory``.
        output: Folder with ``mlflow.db``.
        tracking_uri: Address of another MLflow.

    Returns:
        ``program``, ``command`` (with the setting, for a shell), ``no_loss`` (whether that is
        proven; ``None`` if accuracy was not read), ``assurance`` (in words), ``params``,
        ``environment`` (variables to set), ``objective``, ``gain`` (how many times less of it is
        needed) and ``speedup`` (how many times as fast it is), both with their intervals,
        ``all_disturbed`` (whether other work on the machine disturbed every run of the proof;
        ``None`` if that is not on record), ``evidence`` as of ``recommend``, ``stale`` (whether it
        was measured on another machine, or with other files than the newest study of the program)
        and ``note`` (which of these).

    Raises:
        NothingRecommended: If no setting of it is proven to be better.
        ConfigError: If there is no such objective.
        StorageError: If MLflow's store cannot be used.
    """
    chosen = read_objective(objective, "objective of a program")
    records = load_programs(tracking_uri or default_tracking_uri(Path(output)), program)
    return choose_for_program(program, records, chosen)
