"""The durable record of one study: what was measured survives Ctrl-C, ``kill -9`` and a reboot.

A folder below ``TUNER_HOME/studies``: ``study.json`` (what is studied, time used so far),
``optuna.db``, and a folder a trial. A trial is finished once its ``result.json`` is there; the
sampler and MLflow are brought up to it after an interruption.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from tuner.config.schema import TuneConfig
from tuner.datasets.provide import Dataset
from tuner.storage.databases import without_password
from tuner.values.errors import ConfigError, StorageError
from tuner.values.space import SearchSpace
from tuner.values.trial import TrialKind, TrialResult, TrialStatus

RESULT = "result.json"
STUDY = "study.json"
_HOME_ID = "home-id"
_LEADERS_FACTS = {"default", "verification"}
_TRIAL = "trial/"
_LEAST_FREE_BYTES = 64 * 2**20  # below which a worker is ended, see ``Watch``


def study_id(
    config: TuneConfig,
    space: SearchSpace,
    dataset: Dataset,
    uri: str,
    place: Sequence[str] = (),
) -> str:
    """Short hash of what makes a study the same: all that decides its figures.

    How long it goes on does not, so a larger budget goes on with the same study.

    Args:
        config: Of the study.
        space: That is searched.
        dataset: That is trained on.
        uri: MLflow's tracking address.
        place: What tells the machine from others; without it, the studies that are the same but
            for the machine have one id.
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
        "place": place,
        **({} if config.sandbox else {"sandbox": "off"}),
    }
    text = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def require_space(folder: Path, result: TrialResult) -> None:
    """Take a trial that failed beside a full disk for no result: that is no fault of its params.

    Args:
        folder: On the disk that it was run on.
        result: Of the trial.

    Raises:
        OSError: If that is why it failed.
    """
    failed = result.status in (TrialStatus.CRASHED, TrialStatus.DISK_FULL)
    if failed and is_full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / result.trial.name))


def is_full(folder: Path) -> bool:
    """Whether the disk of a folder has too little room for another trial."""
    return shutil.disk_usage(folder).free < _LEAST_FREE_BYTES


def home_id(home: Path) -> str:
    """What tells this ``TUNER_HOME`` from all others, made up when it is first asked for.

    The name of a host does not: containers get a new one, and two hosts may share one MLflow.

    Raises:
        StorageError: If it cannot be kept.
    """
    path = home / _HOME_ID
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # of two that ask at once, both get the same
            if not path.exists():
                write_atomically(path, uuid.uuid4().hex)
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{error.filename or path} cannot be written ({error.strerror}); "
        "point TUNER_HOME at a folder that can"
    )


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, also after a power cut."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as target:
            target.write(text)
            target.flush()
            os.fsync(target.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # on a full disk every byte counts
            partial.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    """Have a new name in a folder outlast a power cut, as ``fsync(2)`` of a file does not."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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

    Attributes:
        damaged: Names of the trials whose result could not be read, and was set aside.
        publish: Called with name and value (JSON) of what another driver needs to go on with
            the study in this one's place.

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
            raise _unwritable(path, error) from error
        self.damaged: list[str] = []
        self.publish: Callable[[str, Any], None] = lambda _name, _value: None
        self.facts: dict[str, Any] = self._load()
        self._resumed_s = time.monotonic()
        self._before_s = float(self.facts.get("elapsed_s", 0.0))

    def kin(self, identity: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Name and machine of the studies that are the same as this one but for the machine.

        Args:
            identity: ``study_id`` without a place.
        """
        for path in sorted(self.path.parent.glob(f"*/{STUDY}")):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                facts = json.loads(path.read_text(encoding="utf-8"))
                if facts.get("kin") == identity and path.parent != self.path:
                    yield path.parent.name, facts.get("machine", {})

    @property
    def marker(self) -> str:
        """Of the study's processes; another folder may hold a study of the same id."""
        place = hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:10]
        return f"{self.path.name}-{place}"

    def _load(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / STUDY).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise StorageError(
                f"{self.path / STUDY} is damaged ({error}); resume=restart starts the study anew"
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
        write_atomically(self.path / STUDY, json.dumps(self.facts, indent=1, default=str))
        for name in _LEADERS_FACTS & facts.keys():
            self.publish(name, facts[name])

    def keep(self, result: TrialResult) -> None:
        """Record a finished trial for good. An interrupted one is not finished.

        Raises:
            OSError: If it cannot be written, or the trial crashed while nothing could.
        """
        if result.status is TrialStatus.INTERRUPTED:
            return
        require_space(self.trials, result)
        folder = self.trials / result.trial.name
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / RESULT, result.to_json())
        self.save()
        if result.trial.kind is not TrialKind.SEARCH:  # those are told to all drivers
            self.publish(_TRIAL + result.trial.name, result.to_json())

    def adopt(self, published: Mapping[str, Any]) -> None:
        """Go on with what another driver published, who led the study before."""
        for name, value in published.items():
            if name.startswith(_TRIAL):
                self.keep(TrialResult.from_json(value))
        self.save(**{name: value for name, value in published.items() if name in _LEADERS_FACTS})

    def results(self, *kinds: TrialKind) -> list[TrialResult]:
        """All finished trials of these kinds, by number; damaged ones are set aside."""
        paths = (path for kind in kinds for path in self.trials.glob(f"{kind.value}-*/{RESULT}"))
        found = [each for each in map(self._read, paths) if each is not None]
        return sorted(found, key=lambda each: each.trial.number)

    def set_aside(self, result: TrialResult) -> None:
        """Have a trial measured again; what is kept of it is no result any more."""
        path = self.trials / result.trial.name / RESULT
        path.replace(path.with_name(f"{RESULT}.failed"))

    def _read(self, path: Path) -> TrialResult | None:
        try:
            return TrialResult.from_json(path.read_text(encoding="utf-8"))
        except (ValueError, KeyError, TypeError, AttributeError):
            path.replace(path.with_name(f"{RESULT}.damaged"))
            self.damaged.append(path.parent.name)
            return None

    def close(self) -> None:
        """Let other processes have the study."""
        self._lock.release()
