"""Data sets of the user's own: what ``dataset.path`` alone says of them."""

from __future__ import annotations

import dataclasses
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from tuner.config.catalogue import list_datasets
from tuner.config.schema import DatasetConfig
from tuner.values.errors import ConfigError

OWN = "own"
"""The source of such a data set."""
_SETTING = "dataset.path"
_NAME = re.compile("[a-z][a-z0-9_]{0,39}")  # what the service takes as the name of a data set


def own_overrides(words: Sequence[str]) -> list[str]:
    """Return overrides by which ``dataset.path`` alone makes a data set of the user's own.

    The values of a shipped data set, such as its mirrors, must not remain, so its group goes. A
    name given as that of a group names the user's data.

    Args:
        words: What the user wrote; returned as they are without ``dataset.path``.
    """
    if not any(_value(word, _SETTING) not in (None, "", "null") for word in words):
        return list(words)
    several = bool({"-m", "--multirun"} & set(words))
    found: list[str] = []
    # before the first that is about data, so that these win, and after Hydra's own options
    own = ["~dataset", "dataset.name=''", "dataset.validation=0"]
    for word in words:
        path, name = _value(word, _SETTING), _value(word, "dataset")
        if own and word.lstrip("+").startswith("dataset"):
            found, own = found + own, []
        if path is not None:
            found.append(f"{_SETTING}={_quoted(path, several)}")
        else:
            found.append(word if name is None else f"dataset.name={name}")
    return found


def _value(word: str, setting: str) -> str | None:
    """Return the value that a word gives to a setting; ``None`` if it sets another."""
    name, equals, value = word.partition("=")
    return value if equals and name.lstrip("+") == setting else None


def _quoted(path: str, several: bool) -> str:
    """Quote a path for Hydra, whose grammar has no tilde and no blank; ``several`` by commas."""
    if '"' in path or path.startswith("'"):
        return path
    return ",".join(f'"{each}"' for each in (path.split(",") if several else [path]))


def named(config: DatasetConfig) -> DatasetConfig:
    """Return a data set of the user's own with its source and name, and its path made absolute.

    Any other is returned unchanged. Without a name it is called like its file or folder; if a
    shipped data set has that name, ``own_`` is put before it.

    Raises:
        ConfigError: If it cannot have that name.
    """
    if not config.path:
        return config
    path = Path(os.path.abspath(os.path.expanduser(config.path)))  # noqa: PTH100, PTH111 - unlike
    # theirs in pathlib, these never fail, and take the ".." of a link as a shell does
    name = config.name or _name_of(path)
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "dataset.name must be up to 40 of a-z, 0-9 and '_' and begin with a letter, "
            f"got {name!r}"
        )
    if name in list_datasets():
        raise ConfigError(
            f"dataset.name={name} is a data set that comes with the tuner; "
            f"call your own another name, such as own_{name}"
        )
    return dataclasses.replace(config, name=name, source=OWN, path=str(path))


def _name_of(path: Path) -> str:
    stem = path.stem if path.suffix.lower() == ".npz" else path.name
    plain = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode().lower()
    name = re.sub("[^a-z0-9]+", "_", plain).strip("_")
    if not name:
        raise ConfigError(
            f"{_SETTING}={path} has no letter of a-z to be named by; add dataset.name=flowers"
        )
    name = name if name[0].isalpha() else f"data_{name}"
    return (f"own_{name}" if name in list_datasets() else name)[:40].rstrip("_")
