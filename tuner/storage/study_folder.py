"""The durable record of one study: results survive Ctrl-C, ``kill -9`` and a reboot.

It is a folder below ``TUNER_HOME/studies`` with ``study.json`` (what is studied, time used so
far), ``optuna.db`` and one folder per trial. A trial is finished once its ``result.json`` exists.
After an interruption, the sampler and MLflow are brought up to date with these files.
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
from tuner.values.addresses import without_password
from tuner.values.errors import ConfigError, StorageError
from tuner.values.space import SearchSpace
from tuner.values.trial import TrialKind, TrialResult, TrialStatus

RESULT = "result.json"
STUDY = "study.json"
_HOME_ID = "home-id"
_LEADERS_FACTS = {"default", "verification"}
_TRIAL = "trial/"
_MIN_FREE_BYTES = 64 * 2**20  # below which a worker is ended, see ``Watch``


def study_id(
    config: TuneConfig,
    space: SearchSpace,
    dataset: Dataset,
    uri: str,
    place: Sequence[str] = (),
) -> str:
    """Return a short hash of everything that determines a study's figures.

    The study's length is not part of it, so a larger budget resumes the same study.

    Args:
        config: The study's configuration.
        space: Its search space.
        dataset: Its data set.
        uri: MLflow's tracking address.
        place: Identifies the machine; without it, studies that differ only in the machine have
            the same id.
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
    """Reject a trial that failed while the disk was full: its params are not to blame.

    Args:
        folder: A folder on the disk that the trial used.
        result: Result of the trial.

    Raises:
        OSError: If the trial crashed or ran out of disk space, and the disk is full.
    """
    failed = result.status in (TrialStatus.CRASHED, TrialStatus.DISK_FULL)
    if failed and is_full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / result.trial.name))


def is_full(folder: Path) -> bool:
    """Return whether the disk of a folder has too little space for another trial."""
    return shutil.disk_usage(folder).free < _MIN_FREE_BYTES


def home_id(home: Path) -> str:
    """Return the unique id of this ``TUNER_HOME``, creating it on first use.

    A host name would not do: containers get a new one, and two hosts may share one MLflow.

    Raises:
        StorageError: If it cannot be stored.
    """
    path = home / _HOME_ID
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # concurrent callers get the same id
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


def delete_folder(folder: Path) -> None:
    """Delete a folder as far as possible, whatever permissions a worker set that has ended."""
    if folder.is_symlink():
        return
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    for parent, names, _ in os.walk(folder):
        for path in (Path(parent, each) for each in names):
            if not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a file completely or not at all, even in case of a power cut."""
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
    """Make a new name in a folder survive a power cut; ``fsync(2)`` of a file does not."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class StudyFacts(Protocol):
    """What a study stores, and the time spent on it."""

    @property
    def trials(self) -> Path:
        """Folder with one folder per trial."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """All saved facts, by name."""

    @property
    def elapsed_s(self) -> float:
        """Seconds spent on the study, over all its sessions."""

    def restart_clock(self) -> None:
        """Restart the clock of this session now."""

    def save(self, **facts: Any) -> None:
        """Add to the facts."""

    def keep(self, result: TrialResult) -> None:
        """Store a finished trial permanently."""

    def results(self, *kinds: TrialKind) -> list[TrialResult]:
        """Return all finished trials of these kinds, by number."""


class StudyFolder:
    """One study's folder, locked by one process at a time.

    Args:
        path: The folder; created if missing.
        fresh: Whether to delete what an earlier study with the same id left.

    Attributes:
        damaged: Names of the trials whose result could not be read and was set aside.
        publish: Called with the name and value (JSON) of what another driver needs to take over
            the study.

    Raises:
        ConfigError: If another process runs the study.
        StorageError: If the folder cannot be written.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path, self.trials = path, path / "trials"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(f"{path}.lock")
            self._lock.acquire(timeout=0)
            if fresh:
                delete_folder(path)
            self.trials.mkdir(parents=True, exist_ok=True)
        except Timeout:
            raise ConfigError(
                f"study {path.name} is being run by another process; wait for its end "
                "(a study of a framework may also have another seed=, or another output=)"
            ) from None
        except OSError as error:
            raise _unwritable(path, error) from error
        self.damaged: list[str] = []
        self.publish: Callable[[str, Any], None] = lambda _name, _value: None
        try:
            self.facts: dict[str, Any] = self._load()
        except BaseException:
            self.close()
            raise
        self._resumed_s = time.monotonic()
        self._before_s = float(self.facts.get("elapsed_s", 0.0))

    def kin(self, identity: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield name and machine of the studies that differ from this one only in the machine.

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
        """Marker of the study's processes; differs for a study of the same id elsewhere."""
        place = hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:10]
        return f"{self.path.name}-{place}"

    def _load(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / STUDY).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise StorageError(
                f"{self.path / STUDY} is damaged ({error}); resume=restart starts over "
                "(--restart of wrap)"
            ) from error

    @property
    def elapsed_s(self) -> float:
        """Seconds spent on the study, over all its sessions."""
        return self._before_s + time.monotonic() - self._resumed_s

    def restart_clock(self) -> None:
        """Restart the clock of this session: time before it (an installation) does not count."""
        self._resumed_s = time.monotonic()

    def save(self, **facts: Any) -> None:
        """Add to the study's facts, and save them with the time used so far."""
        self.facts |= {**facts, "elapsed_s": self.elapsed_s}
        write_atomically(self.path / STUDY, json.dumps(self.facts, indent=1, default=str))
        for name in _LEADERS_FACTS & facts.keys():
            self.publish(name, facts[name])

    def keep(self, result: TrialResult) -> None:
        """Store a finished trial permanently; ignore an interrupted one.

        Raises:
            OSError: If it cannot be written, or the trial failed while the disk was full.
        """
        if result.status is TrialStatus.INTERRUPTED:
            return
        require_space(self.trials, result)
        folder = self.trials / result.trial.name
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / RESULT, result.to_json())
        self.save()
        if result.trial.kind is not TrialKind.SEARCH:  # all drivers learn of those anyway
            self.publish(_TRIAL + result.trial.name, result.to_json())

    def adopt(self, published: Mapping[str, Any]) -> None:
        """Take over what the previous leading driver published."""
        for name, value in published.items():
            if name.startswith(_TRIAL):
                self.keep(TrialResult.from_json(value))
        self.save(**{name: value for name, value in published.items() if name in _LEADERS_FACTS})

    def results(self, *kinds: TrialKind) -> list[TrialResult]:
        """Return all finished trials of these kinds, by number; set damaged ones aside."""
        paths = (path for kind in kinds for path in self.trials.glob(f"{kind.value}-*/{RESULT}"))
        found = [each for each in map(self._read, paths) if each is not None]
        return sorted(found, key=lambda each: each.trial.number)

    def set_aside(self, result: TrialResult) -> None:
        """Set a trial's result aside, so that the trial is measured again."""
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
        """Release the study for other processes."""
        self._lock.release()
