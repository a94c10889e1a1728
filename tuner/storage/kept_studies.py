"""Listing and removal of the studies that this machine keeps so that they can be resumed.

A study removed here cannot be resumed. MLflow keeps what it has received of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from tuner.storage.study_folder import RESULT, STUDY, delete_folder
from tuner.values.errors import ConfigError, StorageError

State = Literal["complete", "interrupted", "running", "damaged"]


@dataclass(frozen=True)
class KeptStudy:
    """A study's folder.

    Attributes:
        id: The study's id.
        state: ``running`` while a driver holds it; ``damaged`` if its ``study.json`` cannot be
            read; ``interrupted`` if it has not run to its end.
        framework, dataset: Their names; empty if not recorded.
        trials: Number of ended trials, including verification runs.
        elapsed_s: Seconds spent on it.
        size: Bytes of its files.
        age_s: Seconds since its ``study.json`` was written.
    """

    id: str
    state: State
    framework: str
    dataset: str
    trials: int
    elapsed_s: float
    size: int
    age_s: float


def kept_studies(home: Path) -> list[KeptStudy]:
    """Return all studies of a ``TUNER_HOME``, the most recently written first."""
    folders = [path for path in (home / "studies").glob("*") if path.is_dir()]
    return sorted(map(_describe, folders), key=lambda each: each.age_s)


def _describe(folder: Path) -> KeptStudy:
    facts: dict[str, Any] = {}
    state: State = "damaged"
    written = folder.stat().st_mtime
    with contextlib.suppress(OSError, ValueError, TypeError):
        facts = dict(json.loads((folder / STUDY).read_text(encoding="utf-8")))
        written = (folder / STUDY).stat().st_mtime
        state = "complete" if facts.get("complete") else "interrupted"
    with _held(folder) as free:
        return KeptStudy(
            id=folder.name,
            state=state if free else "running",
            framework=str(facts.get("framework", "")),
            dataset=str(facts.get("dataset", "")),
            trials=len(list((folder / "trials").glob(f"*/{RESULT}"))),
            elapsed_s=float(facts.get("elapsed_s", 0.0)),
            size=_size(folder),
            age_s=max(0.0, time.time() - written),
        )


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Keep a study from being run meanwhile; yield ``False`` if it is being run already."""
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def remove_study(home: Path, study_id: str) -> int:
    """Delete a study's folder and return the bytes that it took.

    Raises:
        ConfigError: If there is no such study, or it is being run.
        StorageError: If it cannot be deleted.
    """
    folder = home / "studies" / study_id
    if not re.fullmatch(r"[\w-]+", study_id) or not folder.is_dir():
        raise ConfigError(
            f"no study {study_id!r} is kept in {home}; python -m tuner studies lists them"
        )
    with _held(folder) as free:
        if not free:
            raise ConfigError(f"study {study_id} is being run; wait for its end, or stop it first")
        size = _size(folder)
        delete_folder(folder)
        if folder.exists():
            raise StorageError(f"{folder} cannot be deleted; look at the permissions in it")
    # its lock stays: another process may have opened it, and would then hold a deleted one
    return size


def _size(folder: Path) -> int:
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a running study deletes files
                size += Path(place, name).lstat().st_size
    return size
