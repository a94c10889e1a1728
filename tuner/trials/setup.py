"""What trials need on the machine that runs them: their cores, the data set, the runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tuner import measure
from tuner.config.catalogue import tuner_home, worker_script
from tuner.config.schema import ExecutorConfig, TuneConfig
from tuner.datasets.provide import Dataset, load_dataset
from tuner.progress import StudyProgress
from tuner.runtimes import Runtime, ensure_installed, find_runtime
from tuner.trials.session import TrialSetup, worker_files
from tuner.values.errors import ConfigError

UNCONFINED = (
    "Workers ran without a sandbox (sandbox=off): they could read and write whatever the user may."
)


def core_sets(
    config: ExecutorConfig, spelled: Callable[[str], str] = "executor.{}".format
) -> list[tuple[int, ...]]:
    """Return the CPUs of each job that may run here at once, in disjoint sets of one size.

    Args:
        config: Names the CPUs.
        spelled: Returns what the user calls one of its settings, for error messages.

    Raises:
        ConfigError: If there are fewer CPUs than one trial needs.
    """
    cores = measure.parse_cores(config.cores, spelled("cores"))
    size = config.cores_per_trial or len(cores) // config.jobs_per_host
    if not 0 < size <= len(cores):
        name = "cores_per_trial" if config.cores_per_trial else "jobs_per_host"
        raise ConfigError(
            f"{spelled(name)}={getattr(config, name)}: there are {len(cores)} CPUs for trials here"
        )
    starts = range(0, len(cores) - size + 1, size)
    sets = [cores[first : first + size] for first in starts]
    return sets if config.cores_per_trial else sets[: config.jobs_per_host]


def claims_folder() -> Path:
    """Return the folder where studies of one ``TUNER_HOME`` see each other's claims of CPUs."""
    return tuner_home() / "slots"


def claim_cores(
    config: ExecutorConfig, progress: StudyProgress, check: Callable[[], None] = lambda: None
) -> measure.Claim:
    """Claim all CPUs on which trials run here, once no other study has any of them.

    Args:
        config: Names the CPUs.
        progress: Shows which process is waited for.
        check: Called while waiting; an exception it raises ends that.
    """
    cores = [core for each in core_sets(config) for core in each]
    return measure.claim(
        [cores], claims_folder(), check=check, tell=lambda taken: progress.phase("waiting", taken)
    )


def host_facts(config: TuneConfig) -> dict[str, str]:
    """Return what determines how fast and how trials run on this machine, ready to print.

    The cluster is among it where trials train on several of its nodes, and so over its network.
    """
    executor = config.executor
    facts = measure.machine_facts(core_sets(executor)[0])
    if executor.jobs_per_host > 1:
        facts["jobs_per_host"] = str(executor.jobs_per_host)
    if executor.nodes_per_trial > 1:
        where = f" at {executor.address}" if executor.address else ""
        facts["nodes"] = f"{executor.nodes_per_trial} of the Ray cluster{where}"
    if not config.sandbox:
        facts["sandbox"] = "off"
    return facts


def fetch(config: TuneConfig, progress: StudyProgress) -> tuple[Dataset, Runtime]:
    """Provide data set and runtime; warn if the data set was replaced.

    Raises:
        RuntimeUnavailable, DatasetUnavailable: Something needed is missing and unobtainable.
    """
    return fetch_dataset(config, progress), fetch_runtime(config, progress)


def fetch_dataset(config: TuneConfig, progress: StudyProgress) -> Dataset:
    """Provide the data set; warn if it was replaced, and say what the user's own one is."""
    dataset = load_dataset(config.dataset, progress=progress.task)
    if dataset.warning:
        progress.warn(dataset.warning)
    if dataset.likeness:
        facts = dataset.facts()
        progress.message(
            f"data set {dataset.name} is {dataset.origin}: {facts['images']}; "
            f"classes {facts['classes']}; {dataset.split}; images {dataset.prepared}"
        )
    return dataset


def fetch_runtime(config: TuneConfig, progress: StudyProgress) -> Runtime:
    """Provide the framework's runtime."""
    runtime = find_runtime(config.framework, sandbox=config.sandbox)
    ensure_installed(runtime, progress.task)
    return runtime


def make_setup(
    config: TuneConfig,
    dataset: Dataset,
    runtime: Runtime,
    *,
    folder: Path,
    marker: str,
    cores: tuple[int, ...],
) -> TrialSetup:
    """Return what all trials of a configuration share; see ``TrialSetup``."""
    total = measure.total_memory_bytes()
    share = config.executor.memory_share / len(core_sets(config.executor))
    limit = config.executor.memory_limit_mb * 2**20 or int(share * total)
    worker = worker_script(config.framework, config.framework_path)
    runtime.divide_cache(worker_files(worker))
    return TrialSetup(
        framework=config.framework,
        runtime=runtime,
        dataset=dataset,
        model=config.model,
        worker=worker,
        folder=folder,
        marker=marker,
        cores=cores,
        memory_limit_bytes=limit,
        measure=config.measure,
    )
