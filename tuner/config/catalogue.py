"""The available frameworks and data sets, and where their files are.

The folders are the registry: a framework exists if ``frameworks/`` of the project or of the
user's own tree has a folder of its name, a data set if ``conf/dataset/`` has a file of its name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

from tuner.config.schema import DatasetConfig, FrameworkConfig
from tuner.values.errors import ConfigError

_T = TypeVar("_T")


def tuner_home() -> Path:
    """Return the cache folder of runtimes, data sets and unfinished studies (``TUNER_HOME``)."""
    home = os.environ.get("TUNER_HOME")
    if home:
        return Path(home).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tuner"


def project_folder(name: str) -> Path:
    """Return ``conf`` or ``search_spaces``: in the package, or next to it in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def framework_roots(framework_path: str | None = None) -> list[Path]:
    """Return the folders that hold ``frameworks/``, ``conf/framework/`` and ``search_spaces/``.

    The user's own ``framework_path`` comes first; the last one is that of the project itself.
    """
    roots = [Path(framework_path).expanduser().absolute()] if framework_path else []
    return [*roots, Path(__file__).parents[1]]


def framework_folder(name: str, framework_path: str | None = None) -> Path:
    """Return the folder of a framework's worker. Raises ``ConfigError`` if there is none."""
    for root in framework_roots(framework_path):
        if name in {path.name for path in (root / "frameworks").glob("*") if path.is_dir()}:
            return root / "frameworks" / name
    known = ", ".join(list_frameworks(framework_path))
    raise ConfigError(f"unknown framework {name!r}; choose from: {known}")


def worker_script(framework: FrameworkConfig, framework_path: str | None = None) -> Path:
    """Return the worker of a framework; others may share it (``../torch/worker.py``)."""
    folder = framework_folder(framework.name, framework_path)
    return Path(os.path.normpath(folder / framework.worker))


def find_setting_file(group: str, name: str, framework_path: str | None = None) -> Path:
    """Return ``<group>/<name>.yaml`` of the user's framework tree, else of the project.

    Raises:
        ConfigError: If neither has it; lists those that exist.
    """
    folders = [root / group for root in framework_roots(framework_path)[:-1]]
    top, _, rest = group.partition("/")
    folders.append(project_folder(top) / rest)
    for folder in folders:
        if name in {path.stem for path in folder.glob("*.yaml")}:  # so never a path elsewhere
            return folder / f"{name}.yaml"
    known = ", ".join(sorted({path.stem for each in folders for path in each.glob("*.yaml")}))
    kind = group.removeprefix("conf/").replace("search_spaces", "search space")
    raise ConfigError(f"unknown {kind} {name!r}; choose from: {known}")


def list_frameworks(framework_path: str | None = None) -> list[str]:
    """Return the names of all frameworks: the folders of ``frameworks/``."""
    return sorted(
        {
            path.name
            for root in framework_roots(framework_path)
            for path in (root / "frameworks").glob("[a-z]*")
            if path.is_dir()
        }
    )


def list_datasets() -> list[str]:
    """Return the names of all data sets: the files of ``conf/dataset/``."""
    return sorted(path.stem for path in (project_folder("conf") / "dataset").glob("*.yaml"))


def load_framework(name: str, framework_path: str | None = None) -> FrameworkConfig:
    """Return one framework's configuration from its file, without overrides."""
    framework_folder(name, framework_path)
    path = find_setting_file("conf/framework", name, framework_path)
    return _load(FrameworkConfig, path)


def load_dataset_config(name: str) -> DatasetConfig:
    """Return one data set's configuration from its file, without overrides."""
    return _load(DatasetConfig, find_setting_file("conf/dataset", name))


def _load(schema: type[_T], path: Path) -> _T:
    # imported late: omegaconf takes 0.1 s, which --help need not wait for
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.load(path))
        loaded: Any = OmegaConf.to_object(merged)
    except (OmegaConfBaseException, YAMLError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    return loaded  # type: ignore[no-any-return]  # to_object is untyped
