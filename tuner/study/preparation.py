"""Preparation of a study before its first trial: space, data, runtime, folder, store."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import measure
from tuner.config.catalogue import find_setting_file, tuner_home
from tuner.config.schema import LONGER, TuneConfig
from tuner.datasets.provide import Dataset
from tuner.progress import StudyProgress
from tuner.runtimes import Runtime
from tuner.storage.databases import can_be_held
from tuner.storage.study_folder import StudyFolder, home_id, study_id
from tuner.study.warm_start import earlier_points
from tuner.tracking import check_writable, default_tracking_uri, load_fronts
from tuner.trials.session import TrialSetup
from tuner.trials.setup import (
    core_sets,
    fetch_dataset,
    fetch_runtime,
    host_facts,
    make_setup,
)
from tuner.values.addresses import without_password
from tuner.values.errors import BudgetTooSmall, ConfigError, StorageError
from tuner.values.params import Params, iterations_of
from tuner.values.space import Default, SearchSpace


def results_place(config: TuneConfig) -> tuple[str, Path]:
    """Return MLflow's address and the output folder, which holds its artifacts.

    Raises:
        StorageError: If either, or ``config.storage``, cannot be used.
    """
    output = Path(config.output).expanduser().absolute()
    uri = config.tracking_uri or default_tracking_uri(output)
    check_writable(uri, output)
    if config.storage and not can_be_held(config.storage):
        raise StorageError(
            f"storage {without_password(config.storage)} must be an address of SQLite or "
            "PostgreSQL, which the drivers of one study can lock"
        )
    return uri, output


def shown_config(config: TuneConfig) -> dict[str, Any]:
    """Return the configuration as others may see it: without passwords of addresses.

    Of a paper's experiment it has the name alone.
    """
    shown: dict[str, Any] = _shown(dataclasses.asdict(config))
    name = shown.pop("paper")["name"]
    return {**shown, "paper": name} if name else shown


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return without_password(value) if isinstance(value, str) else value


def load_space(config: TuneConfig, dataset: Dataset | None = None) -> SearchSpace:
    """Return the search space of a study on this machine.

    Args:
        config: The study's configuration.
        dataset: Its data set. The user's own must be given, as their form decides about the
            defaults; a shipped one may be missing still.

    Raises:
        ConfigError: If the overrides or the prior do not fit it.
    """
    space = SearchSpace.load(
        find_setting_file("search_spaces", config.framework.name, config.framework_path),
        cores=len(core_sets(config.executor)[0]),
        cpu_flags=measure.cpu_flags(),
        dataset=config.dataset.name,
        model=config.model,
        overrides=config.search_space,
        likeness=dataset.likeness if dataset else None,
        nodes=config.executor.nodes_per_trial,
    )
    if config.goal == "no_loss" and not config.prior:
        return space
    default = space.default(config.dataset.name, config.model).params
    if config.goal != "no_loss":
        space = space.with_longer(round(LONGER * iterations_of(default)))
    prior = [space.completed({**default, **point}) for point in config.prior]
    for given, point in zip(config.prior, prior, strict=True):
        refusal = space.refusal(point)
        if refusal:
            raise ConfigError(f"prior {dict(given)} is outside the search space: {refusal}")
    return dataclasses.replace(space, start=(*prior, *space.start))


def _dataset_and_space(config: TuneConfig, progress: StudyProgress) -> tuple[Dataset, SearchSpace]:
    """Return the data set and the search space, which has a default for it.

    That there is none is told before anything is fetched or installed.
    """
    dataset = fetch_dataset(config, progress) if config.dataset.path else None
    space = load_space(config, dataset)
    space.default(config.dataset.name, config.model)
    return dataset or fetch_dataset(config, progress), space


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a study starts from.

    Attributes:
        space: The search space.
        default: The framework's default for this data set and model.
        setup: What all trials share.
        folder: The study's folder, locked against other processes.
    """

    space: SearchSpace
    default: Default
    setup: TrialSetup
    folder: StudyFolder


def prepare(config: TuneConfig, progress: StudyProgress, uri: str) -> Preparation:
    """Provide everything that the first trial needs.

    Raises:
        ConfigError: A value cannot be used, or another process runs the same study.
        BudgetTooSmall: If there is too little time for a network this large.
        RuntimeUnavailable, DatasetUnavailable: If one is missing and cannot be installed or
            downloaded.
    """
    dataset, space = _dataset_and_space(config, progress)
    default = space.default(dataset.name, config.model)
    if config.budget.time_s < default.least_budget_s:
        raise BudgetTooSmall(
            f"model={config.model} is too large for a study of {config.budget.time_s:g} s; "
            f"it needs budget.time_s={default.least_budget_s:g} or more"
        )
    runtime = fetch_runtime(config, progress)
    name = study_id_here(config, space, dataset, uri, runtime)
    with contextlib.ExitStack() as held:
        folder = StudyFolder(tuner_home() / "studies" / name, fresh=config.resume == "restart")
        held.callback(folder.close)
        if "kin" not in folder.facts:
            kin = study_id(config, space, dataset, uri)
            _record_new_study(folder, kin, config, dataset, runtime, progress)
        if config.search.warm_start:
            space = _with_hints(space, default.params, folder, config, uri)
        cores = core_sets(config.executor)[0]
        setup = make_setup(
            config, dataset, runtime, folder=folder.trials, marker=folder.marker, cores=cores
        )
        held.pop_all()  # from here on the study's own
    return Preparation(space, default, setup, folder)


def study_id_here(
    config: TuneConfig, space: SearchSpace, dataset: Dataset, uri: str, runtime: Runtime
) -> str:
    """Return the id of a study on this machine with these libraries.

    Processes that share a study by ``storage=`` have the same id, whatever their ``TUNER_HOME``.
    """
    place = [measure.fingerprint(host_facts(config), runtime.packages())]
    if not config.storage:
        place.append(home_id(tuner_home()))
    return study_id(config, space, dataset, uri, place)


def _record_new_study(
    folder: StudyFolder,
    kin: str,
    config: TuneConfig,
    dataset: Dataset,
    runtime: Runtime,
    progress: StudyProgress,
) -> None:
    """Record a new study's facts; report earlier studies that it replaces.

    ``kin`` is the same for all studies that differ by nothing but the machine and its libraries.
    """
    machine = {**host_facts(config), **runtime.packages()}
    for name, before in folder.kin(kin):
        changed = [
            f"{key} {before.get(key, 'none')} -> {machine.get(key, 'none')}"
            for key in sorted({*before, *machine})
            if before.get(key) != machine.get(key)
        ]
        progress.message(
            f"study {name} ran on another machine or with other libraries "
            f"({', '.join(changed)}); it is kept, and study {folder.path.name} starts over"
        )
    folder.save(kin=kin, machine=machine, framework=config.framework.name, dataset=dataset.name)


@contextlib.contextmanager
def standalone_setup(
    config: TuneConfig, progress: StudyProgress
) -> Iterator[tuple[SearchSpace, TrialSetup]]:
    """Provide a setup for trials that belong to no study; delete their files on exit.

    Raises:
        RuntimeUnavailable, DatasetUnavailable: If one is missing and cannot be installed or
            downloaded.
    """
    dataset, space = _dataset_and_space(config, progress)
    runtime = fetch_runtime(config, progress)
    home = tuner_home()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="single-") as folder:
        place = Path(folder)
        cores = core_sets(config.executor)[0]
        setup = make_setup(config, dataset, runtime, folder=place, marker=place.name, cores=cores)
        yield space, setup


def _with_hints(
    space: SearchSpace, default: Params, folder: StudyFolder, config: TuneConfig, uri: str
) -> SearchSpace:
    """Return the space with start points after those of the prior: the best of earlier studies.

    These points are looked up once, when a study begins, and stored for when it is resumed.
    """
    if "hints" not in folder.facts:
        fronts = load_fronts(uri, config.framework.name)
        folder.save(hints=earlier_points(fronts, space, default, config.model))
    hints = folder.facts["hints"]
    own = space.start[: len(config.prior)]
    return dataclasses.replace(space, start=(*own, *hints)) if hints else space
