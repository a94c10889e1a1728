"""The only module that uses Hydra, which composes ``conf/`` into plain dataclasses."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.config.catalogue import project_folder
from tuner.config.own_data import named, own_overrides
from tuner.config.schema import TuneConfig
from tuner.values.errors import CompositionError, ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_PARTS = ("job", "hydra", "all")
"""What Hydra's ``--cfg`` shows."""
_KINDS = {
    "converted to Float": "a number",
    "converted to Integer": "a whole number",
    "not a valid bool": "true or false",
    "not a ListConfig": "a list such as [this,that]",
}
"""What a setting must be, by what OmegaConf says of a wrong value."""


def compose(words: Sequence[str]) -> TuneConfig:
    """Return the configuration that ``python -m tuner`` would use for these words.

    Args:
        words: Overrides such as ``framework=caffe`` or ``budget.time_s=60``.

    Raises:
        CompositionError: If they are not valid overrides.
        ConfigError: If the user's own data cannot have the name that they say.
    """
    import hydra

    _store_types()
    try:
        with hydra.initialize_config_dir(str(project_folder("conf")), version_base="1.3"):
            return _to_dataclass(hydra.compose("config", overrides=prepare_overrides(words)))
    except ConfigError:  # which is a ValueError too
        raise
    except _composition_errors() as error:
        raise CompositionError(_explain(error)) from error


def run_each(words: Sequence[str], run: Callable[[TuneConfig], None]) -> None:
    """Run the study of a command line, or with ``-m`` each of its studies.

    Hydra answers its own options (``--help``, ``--cfg job``) itself.

    Args:
        words: What the user wrote.
        run: Called with each composed configuration. It must not raise, because Hydra would add
            lines of its own to the error.

    Raises:
        CompositionError: If the words are not valid overrides.
        ConfigError: If the user's own data cannot have the name that they say.
    """
    import hydra

    for word, value in pairwise([*words, ""]):
        if word in ("--cfg", "-c") and value not in _PARTS:  # Hydra would print its usage
            raise CompositionError(f"{word} must be one of {', '.join(_PARTS)}, got {value!r}")
    _store_types()
    # Hydra prints errors over several lines and exits by itself, unless told to raise them
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = ["tuner", *prepare_overrides(words)]
    entry = hydra.main(
        version_base="1.3", config_path=str(project_folder("conf")), config_name="config"
    )
    faults: list[Exception] = []

    def compose_and_run(composed: DictConfig) -> None:
        try:
            config = _to_dataclass(composed)
        except _composition_errors() as error:
            faults.append(error)  # for the same reason as ``run``
        else:
            run(config)

    try:
        entry(compose_and_run)()
        if faults:
            raise faults[0]
    except ConfigError:
        raise
    except _composition_errors() as error:
        if before == "1":
            raise
        raise CompositionError(_explain(error)) from error
    finally:
        os.environ["HYDRA_FULL_ERROR"] = before or "0"


def _composition_errors() -> tuple[type[Exception], ...]:
    """Return what Hydra raises for invalid overrides: not only its own exceptions."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    return HydraException, OmegaConfBaseException, ValueError, TypeError, KeyError


def _store_types() -> None:
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="tune_config", node=TuneConfig)


def _to_dataclass(composed: DictConfig) -> TuneConfig:
    from omegaconf import OmegaConf

    config = OmegaConf.to_object(composed)
    assert isinstance(config, TuneConfig)
    for unknown in _unknown_settings(config):  # +name=value can add an unknown setting
        raise CompositionError(_unknown_setting(unknown))
    config.dataset = named(config.dataset)
    return config


def _unknown_settings(part: Any, group: str = "") -> Iterator[str]:
    known = {each.name for each in fields(part)}
    for name, value in vars(part).items():
        if name not in known:
            yield group + name
        elif is_dataclass(value):
            yield from _unknown_settings(value, f"{group}{name}.")


def prepare_overrides(words: Sequence[str]) -> list[str]:
    """Translate what users write to Hydra's grammar.

    Hydra needs quotes in ``constraints=peak_memory_mb<=2048`` and ``++`` before
    ``search_space.x=``. The user's own framework tree must be on its search path before it looks
    up groups. The user's own data are no data set of a group.

    Raises:
        CompositionError: If that tree has no folder ``conf/``, or there is no such experiment.
    """
    prepared = []
    _check_experiment(words)
    for word in own_overrides(words):
        name, _, value = word.partition("=")
        plain = '"' not in value and (not value.startswith("[") or re.search("[<>]", value))
        if name == "constraints" and plain:
            limits = [each.strip(" '") for each in value.strip("[]").split(",")]
            word = "constraints=[" + ",".join(f'"{each}"' for each in limits) + "]"
        elif name.startswith("search_space."):
            word = f"++{word}"
        elif name == "framework_path" and value not in ("", "null"):
            folder = Path(value).expanduser().absolute() / "conf"
            if not folder.is_dir():
                raise CompositionError(
                    f"framework_path={value} has no folder conf/ in it; "
                    "docs/adding-a-framework.md shows what belongs there"
                )
            prepared.append(f"hydra.searchpath=[file://{folder}]")
        elif re.fullmatch(r"[\d.-]+", value) and (project_folder("conf") / name).is_dir():
            word = f'{name}="{value}"'  # a number is no name of a choice to Hydra
        prepared.append(word)
    return prepared


def _check_experiment(words: Sequence[str]) -> None:
    """Raise ``CompositionError`` for an unknown experiment, which Hydra would run without.

    To Hydra its group is optional.
    """
    given = dict(word.lstrip("+").partition("=")[::2] for word in words)
    own = given.get("framework_path", "null")
    roots = [project_folder("conf"), *([Path(own, "conf").expanduser()] if own != "null" else [])]
    known = sorted({path.stem for root in roots for path in root.glob("experiment/*.yaml")})
    for name in given.get("experiment", "null").split(","):
        if name.strip("'\" ") not in ("null", *known):
            raise CompositionError(
                f"unknown experiment {name!r}{_close(name, known)}; "
                "python -m tuner experiment=list lists all"
            )


def _close(name: str, known: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _unknown_setting(name: str) -> str:
    group, _, _ = name.rpartition(".")
    known = [f"{group}.{each}" for each in _fields_of(group)] if group else []
    hint = _close(name, [*known, *_fields_of("")])
    return f"unknown setting {name!r}{hint}; python -m tuner config lists all"


def _fields_of(group: str) -> list[str]:
    """Return the settings of a group such as ``budget``; without one, those of the top level."""
    part = getattr(TuneConfig(), group, None) if group else TuneConfig()
    return [each.name for each in fields(part)] if is_dataclass(part) else []


def _explain(error: Exception) -> str:
    """Return one line: what does not compose, and what would."""
    unknown = re.match(r"Could not override '([^']+)'", str(error))
    if unknown:
        return _unknown_setting(unknown[1])
    given = re.match(r"Error merging override \+*([^=]+)=(.*)", str(error))
    kind = next((kind for said, kind in _KINDS.items() if said in str(error.__cause__)), "")
    if given and kind:
        return f"{given[1]} must be {kind}, got {given[2]!r}"
    wanted = getattr(error, "missing_cfg_file", None)
    options = list(getattr(error, "options", None) or [])
    if wanted and options:
        group, _, name = str(wanted).rpartition("/")
        hint = _close(name, options)
        return f"unknown {group} {name!r}; choose from: {', '.join(options)}{hint}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = str(error.__cause__ or "").splitlines()[:1]
    return " ".join(
        "; ".join([*lines[:2], *(each for each in cause if each not in lines)]).split()
    )
