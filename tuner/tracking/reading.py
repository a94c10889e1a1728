"""Reading of studies, for the service's answers and for the start of later studies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tuner.storage.databases import fault_of
from tuner.tracking.store import (
    DRIFT_FOUND_TAG,
    DRIFT_TAG,
    PROGRAMS,
    STUDY_TAG,
    TRIAL_TAG,
    children_of,
    connect,
    experiment_name,
    local_database,
    one_line,
    search_runs,
)
from tuner.values.addresses import without_password
from tuner.values.errors import StorageAway, StorageError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PROGRAM_FRONT = "wrap.json"
_FRONT = "front.json"
_TOLD = {
    "requested": "dataset_requested",
    "drift": DRIFT_TAG,
    "drift_found": DRIFT_FOUND_TAG,
    "program": "program",
}
"""The tag of each field of a record."""
_STUDIES = f"tags.`{STUDY_TAG}` != ''"


@dataclass(frozen=True)
class StudyRecord:
    """A study as stored in MLflow.

    Attributes:
        uri: Address it was read from.
        run_id: Id of the parent run.
        front: Content of its ``front.json``; empty if it has none, as it was cut short.
        run_ids: Run id of each trial by its name, such as ``verify-0003``.
        ended: When the study was last written, seconds since the epoch.
        requested: Name of the requested data set; another one may have been used in its place.
        drift: How jobs broke what the study promised, in words; empty if none did.
        drift_found: When that was found, seconds since the epoch, as a text.
        program: Name of the user's program that was tuned; empty for a framework.
        away: Why it cannot be told whether it has a front; empty if it can.
    """

    uri: str
    run_id: str
    front: Mapping[str, Any]
    run_ids: Mapping[str, str]
    ended: float
    requested: str = ""
    drift: str = ""
    drift_found: str = ""
    program: str = ""
    away: str = ""

    @property
    def has_front(self) -> bool:
        """Whether there is anything to answer from, damaged or not."""
        return self.front != {}


def _reader(uri: str) -> MlflowClient | None:
    """Return a client; ``None`` if there is no database yet, as reading creates no files."""
    database = local_database(uri)
    return None if database and not database.exists() else connect(uri)


def load_results(uri: str, framework: str, dataset: str) -> list[StudyRecord]:
    """Return all studies of a framework on a data set that have a front, newest first.

    Raises:
        StorageError: If the store cannot be used.
    """
    client = _reader(uri)
    if client is None:
        return []
    with one_line(uri, "read"):
        experiment = client.get_experiment_by_name(experiment_name(framework, dataset))
        if experiment is None:
            return []
        parents = search_runs(client, experiment.experiment_id, _STUDIES)
        return _with_front([_record(client, uri, parent) for parent in parents])


def load_programs(uri: str, program: str) -> list[StudyRecord]:
    """Return all studies of a user's program, newest first, each with its ``wrap.json`` as front.

    Args:
        uri: MLflow's tracking address.
        program: The program's name.

    Raises:
        StorageError: If the store cannot be used.
    """
    client = _reader(uri)
    if client is None:
        return []
    with one_line(uri, "read"):
        experiment = client.get_experiment_by_name(PROGRAMS)
        if experiment is None:
            return []
        parents = search_runs(client, experiment.experiment_id, _STUDIES)
        own = [each for each in parents if each.data.tags.get("program") == program]
        return _with_front([_record(client, uri, each) for each in own])


def newest_experiment(uri: str) -> str | None:
    """Return the id of the newest study's experiment; ``None`` if there is no study.

    Raises:
        StorageError: If the store cannot be used.
    """
    client = _reader(uri)
    if client is None:
        return None
    with one_line(uri, "read"):
        every = [each.experiment_id for each in client.search_experiments()]
        newest = ["attributes.start_time DESC"]
        runs = client.search_runs(every, _STUDIES, max_results=1, order_by=newest)
    return str(runs[0].info.experiment_id) if runs else None


def load_everything(
    uri: str, known: Mapping[str, StudyRecord] | None = None
) -> dict[str, StudyRecord]:
    """Return all studies, of any framework or program, by the id of their run.

    Args:
        uri: MLflow's tracking address.
        known: Result of an earlier call; studies not written since are not read again.

    Raises:
        StorageError: If the store cannot be used, or no front can be reached.
    """
    client = _reader(uri)
    if client is None:
        return {}
    found: dict[str, StudyRecord] = {}
    with one_line(uri, "read"):
        for experiment in client.search_experiments():
            for parent in search_runs(client, experiment.experiment_id, _STUDIES):
                record = (known or {}).get(parent.info.run_id)
                if record is None or record.away or record.ended != _ended(parent):
                    record = _record(client, uri, parent)
                elif any(getattr(record, name) != value for name, value in _told(parent).items()):
                    record = dataclasses.replace(record, **_told(parent))
                found[record.run_id] = record
    _with_front(found.values())
    return found


def _with_front(records: Iterable[StudyRecord]) -> list[StudyRecord]:
    """Return the studies that have a front.

    Raises:
        StorageAway: If there is none, and one cannot be reached: "nothing" would be wrong.
    """
    found = [each for each in records if each.has_front]
    away = next(filter(None, (each.away for each in records)), "")
    if away and not found:
        raise StorageAway(away)
    return found


def _ended(parent: Run) -> float:
    return (parent.info.end_time or parent.info.start_time or 0) / 1000


def _told(parent: Run) -> dict[str, Any]:
    return {name: parent.data.tags.get(tag, "") for name, tag in _TOLD.items()}


def _record(client: MlflowClient, uri: str, parent: Run) -> StudyRecord:
    """Return the study of a parent run."""
    told, runs = _told(parent), dict[str, str]()
    try:
        front = _read_front(client, parent, PROGRAM_FRONT if told["program"] else _FRONT)
    except StorageAway as error:
        front, told["away"] = None, str(error)
    if front is not None:
        children = children_of(client, parent.info.experiment_id, parent.info.run_id)
        runs = {child.data.tags.get(TRIAL_TAG, ""): child.info.run_id for child in children}
    run_id, ended = parent.info.run_id, _ended(parent)
    return StudyRecord(uri, run_id, {} if front is None else front, runs, ended, **told)


def load_fronts(uri: str, framework: str, newest: int = 8) -> list[dict[str, Any]]:
    """Return ``front.json`` of a framework's latest studies on any data set, newest first.

    Raises:
        StorageError: If the store cannot be used.
    """
    client = _reader(uri)
    if client is None:
        return []
    prefix = experiment_name(framework, "")
    with one_line(uri, "read"):
        experiments = [
            each.experiment_id
            for each in client.search_experiments(filter_string=f"name LIKE '{prefix}%'")
        ]
        if not experiments:
            return []
        parents = client.search_runs(
            experiments,
            _STUDIES,
            max_results=newest,
            order_by=["attributes.start_time DESC"],
        )
        fronts = list[dict[str, Any] | None]()
        for each in parents:
            with contextlib.suppress(StorageAway):  # a study can begin without it
                fronts.append(_read_front(client, each))
    return [each for each in fronts if each is not None]


def _read_front(client: MlflowClient, parent: Run, name: str = _FRONT) -> dict[str, Any] | None:
    """Return a study's front; ``None`` if it has none, as it was cut short.

    Raises:
        StorageAway: If that cannot be told.
        StorageError: If it must not be read.
    """
    with tempfile.TemporaryDirectory() as scratch:
        try:
            path = client.download_artifacts(parent.info.run_id, name, scratch)
        except PermissionError as error:
            raise StorageError(f"{error.filename} cannot be read: {error.strerror}") from error
        except Exception as error:  # each kind of artifact store has errors of its own
            if why := _why_away(client, parent, name):
                store = f"MLflow store {without_password(client.tracking_uri)}"
                raise StorageAway(f"the artifacts of {store} cannot be read: {why}") from error
            return None
        try:
            front: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # half-written, or no file
            return None
        return front


def _why_away(client: MlflowClient, parent: Run, name: str) -> str:
    """Return why a run's artifact cannot be reached; empty if the run has none of this name."""
    place = urlsplit(parent.info.artifact_uri)
    folder = Path(unquote(place.path)).parent.parent  # of all runs of the experiment
    if place.scheme in ("", "file") and not folder.is_dir():
        return f"there is no folder {folder}"
    try:
        listed = [each.path for each in client.list_artifacts(parent.info.run_id)]
    except Exception as error:  # as above
        return fault_of(error)
    return f"{name} of run {parent.info.run_id} is there, but unreadable" if name in listed else ""
