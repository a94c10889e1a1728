"""The durable record of one study: what was measured survives Ctrl-C, ``kill -9`` and a reboot.

A folder below ``TUNER_HOME/studies``: ``study.json`` (what is studied, time used so far),
``optuna.db``, and a folder a trial. A trial is finished once its ``result.json`` is there; the
sampler and MLflow are brought up to it after an interruption.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from tuner.config import TuneConfig
from tuner.databases import without_password
from tuner.datasets import Dataset
from tuner.errors import ConfigError, StorageError
from tuner.space import SearchSpace
from tuner.trial import TrialKind, TrialResult, TrialStatus

RESULT = "result.json"
_STUDY = "study.json"


def study_id(config: TuneConfig, space: SearchSpace, dataset: Dataset, uri: str) -> str:
    """Short hash of what makes a study the same: all that decides its figures.

    How long it goes on does not, so a larger budget goes on with the same study.
    """
    identity = {
        "framework": dataclasses.asdict(config.framework),
        "dataset": dataset.digest,
        "space": repr(space),
        "search": [dataclasses.asdict(each) for each in (config.search, config.sampler)],
        "executor": dataclasses.asdict(config.executor),
        "goals": [
            *(config.model, config.goal, config.objectives, config.constraints, config.seed),
        ],
        "default": [config.baseline, config.budget.default_share],
        "kept": [without_password(uri), without_password(config.storage)],
        **({} if config.sandbox else {"sandbox": "off"}),
    }
    text = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, also after a power cut."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as target:
        target.write(text)
        target.flush()
        os.fsync(target.fileno())
    partial.replace(path)


class StudyRecord(Protocol):
    """What a study keeps, and how long it has been at work."""

    @property
    def trials(self) -> Path:
        """Folder with one folder a trial."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """All that was saved, by name."""

    @property
    def elapsed_s(self) -> float:
        """Seconds spent on the study, over all its sessions."""

    def restart_clock(self) -> None:
        """Count from now."""

    def save(self, **facts: Any) -> None:
        """Add to the facts."""

    def keep(self, result: TrialResult) -> None:
        """Record a finished trial for good."""

    def results(self, *kinds: TrialKind) -> list[TrialResult]:
        """All finished trials of these kinds, by number."""


class StudyFolder:
    """One study's folder, held by one process at a time.

    Args:
        path: The folder; made if missing.
        fresh: Throw away what an earlier study of the same identity left.

    Raises:
        ConfigError: If another process holds the study.
        StorageError: If the folder cannot be written.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path, self.trials = path, path / "trials"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(f"{path}.lock")
            self._lock.acquire(timeout=0)
            if fresh:
                shutil.rmtree(path, ignore_errors=True)
            self.trials.mkdir(parents=True, exist_ok=True)
        except Timeout:
            raise ConfigError(
                f"study {path.name} is being run by another process; wait for its end, "
                "or give this one another seed or another folder (output=)"
            ) from None
        except OSError as error:
            raise StorageError(
                f"{error.filename or path} cannot be written ({error.strerror}); "
                "point TUNER_HOME at a folder that can"
            ) from error
        self.facts: dict[str, Any] = self._load()
        self._resumed_s = time.monotonic()
        self._before_s = float(self.facts.get("elapsed_s", 0.0))

    @property
    def marker(self) -> str:
        """Of the study's processes; another folder may hold a study of the same id."""
        place = hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:10]
        return f"{self.path.name}-{place}"

    def _load(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / _STUDY).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise StorageError(
                f"{self.path / _STUDY} is damaged ({error}); resume=never starts the study anew"
            ) from error

    @property
    def elapsed_s(self) -> float:
        """Seconds spent on the study, over all its sessions."""
        return self._before_s + time.monotonic() - self._resumed_s

    def restart_clock(self) -> None:
        """Count from now: what went before (an installation) is no part of the study."""
        self._resumed_s = time.monotonic()

    def save(self, **facts: Any) -> None:
        """Add to the study's facts; the time used so far is saved with them."""
        self.facts |= {**facts, "elapsed_s": self.elapsed_s}
        write_atomically(self.path / _STUDY, json.dumps(self.facts, indent=1, default=str))

    def keep(self, result: TrialResult) -> None:
        """Record a finished trial for good. An interrupted one is not finished."""
        if result.status is TrialStatus.INTERRUPTED:
            return
        folder = self.trials / result.trial.name
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / RESULT, result.to_json())
        self.save()

    def results(self, *kinds: TrialKind) -> list[TrialResult]:
        """All finished trials of these kinds, by number."""
        found = [
            TrialResult.from_json(path.read_text(encoding="utf-8"))
            for kind in kinds
            for path in self.trials.glob(f"{kind.value}-*/{RESULT}")
        ]
        return sorted(found, key=lambda each: each.trial.number)

    def close(self) -> None:
        """Let other processes have the study."""
        self._lock.release()
