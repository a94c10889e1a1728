"""The frameworks of a study of several: what each needs, and why one cannot take part."""

from __future__ import annotations

import dataclasses

from tuner.config.catalogue import load_framework
from tuner.config.schema import FrameworkConfig, TuneConfig
from tuner.datasets.provide import Dataset
from tuner.progress import StudyProgress
from tuner.runtimes import Runtime, ensure_installed, find_runtime
from tuner.storage.study_folder import study_id
from tuner.study.preparation import load_space, study_id_here
from tuner.values.errors import ConfigError, RuntimeUnavailable
from tuner.values.space import SearchSpace


@dataclasses.dataclass(frozen=True, slots=True)
class Entrant:
    """One framework before anything of it is measured.

    Attributes:
        config: The configuration with this framework as its only one.
        space: Its search space.
        study_id: Id of its study.
        runtime: Its installed runtime; ``None`` if it cannot take part.
        obstacle: Why it cannot take part; else empty.
    """

    config: TuneConfig
    space: SearchSpace
    study_id: str
    runtime: Runtime | None
    obstacle: str

    @property
    def framework(self) -> FrameworkConfig:
        """The framework."""
        return self.config.framework


def config_of(config: TuneConfig, name: str) -> TuneConfig:
    """Return the configuration with the framework ``name`` as its only one.

    Raises:
        ConfigError: If there is no such framework.
    """
    framework = config.framework
    if name != framework.name:
        install = framework.runtime.install
        framework = load_framework(name, config.framework_path)
        framework.runtime.install = install
    return dataclasses.replace(config, framework=framework, frameworks=[])


def prepare_entrant(
    config: TuneConfig, name: str, dataset: Dataset, uri: str, progress: StudyProgress
) -> Entrant:
    """Install a framework's runtime, and check that it has a default for the data set and model.

    Args:
        config: Configuration of all; the overrides of its ``framework`` apply only to the
            framework of that name, its ``runtime.install`` to all.
        name: Name of the framework.
        dataset: The data set.
        uri: MLflow's tracking address.
        progress: Shows the installation.

    Raises:
        ConfigError: If there is no such framework.
    """
    own = config_of(config, name)
    space = load_space(own, dataset)
    try:
        space.default(dataset.name, config.model)
        runtime = find_runtime(own.framework, sandbox=config.sandbox)
        ensure_installed(runtime, progress.task)
    except (ConfigError, RuntimeUnavailable) as error:
        return Entrant(own, space, study_id(own, space, dataset, uri), None, str(error))
    return Entrant(own, space, study_id_here(own, space, dataset, uri, runtime), runtime, "")
