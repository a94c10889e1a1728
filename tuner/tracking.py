"""The only file that knows MLflow: writes a study, and reads studies back.

One experiment a framework and data set; a study is a parent run, its trials are nested runs.
Everything is found again by tags, so logging the same trial twice leaves one run, and a run that
an interruption left half-written is written anew.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import StorageError
from tuner.trial import TrialResult

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

TRIAL_TAG = "trial"
STUDY_TAG = "tuner.study_id"
CROSS = "cross-framework"
"""Stands in place of a framework's name for studies across all of them."""
_KEPT_FILES = ("trial.json", "events.jsonl", "log.txt")
_PARENT = "mlflow.parentRunId"
_SQLITE = "sqlite:///"


def default_tracking_uri(folder: Path) -> str:
    """MLflow's own default made absolute, so that a plain ``mlflow ui`` in ``folder`` shows it."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{folder.absolute()}/mlflow.db"


def _local_database(uri: str) -> Path | None:
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def check_writable(uri: str, folder: Path) -> None:
    """Raise ``StorageError`` if results cannot be kept where they should go; makes ``folder``."""
    artifacts = folder / "mlruns"
    try:
        artifacts.mkdir(parents=True, exist_ok=True)
        fault = "" if os.access(artifacts, os.R_OK | os.W_OK | os.X_OK) else "permission denied"
    except OSError as error:
        fault = error.strerror or str(error)
    if fault:
        raise StorageError(
            f"{artifacts} cannot hold results ({fault}); give output= a folder that can"
        )
    database = _local_database(uri)
    if database and database.exists() and not os.access(database, os.R_OK | os.W_OK):
        raise StorageError(f"{database} cannot be read and written; give tracking_uri= another")


@dataclass(frozen=True)
class StudyRecord:
    """A study as it stands in MLflow.

    Attributes:
        uri: Where it was read.
        run_id: Of the parent run.
        front: Content of its ``front.json``.
        run_ids: Run of each trial by its name, such as ``verify-0003``.
        ended: Seconds since the epoch at which the study was last written.
    """

    uri: str
    run_id: str
    front: Mapping[str, Any]
    run_ids: Mapping[str, str]
    ended: float


def connect(uri: str) -> MlflowClient:
    """A client for ``uri``. Raises ``StorageError`` in one line if the store cannot be used."""
    # MLflow reads these while it is imported
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        logging.getLogger("mlflow").setLevel(logging.ERROR)
        try:
            _make_database(uri)
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)
        except (MlflowException, SQLAlchemyError, OSError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise StorageError(f"MLflow store {uri} cannot be used: {first_line}") from error
    return client


def _make_database(uri: str) -> None:
    """Put a new local database in place whole, once, however many processes ask.

    MLflow's own way is a second of migrations in the open, and one that was killed among them
    leaves a file that MLflow refuses for good.
    """
    from mlflow import MlflowClient

    path = _local_database(uri)
    if path is None or path.exists():
        return
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / path.name
        MlflowClient(tracking_uri=f"{_SQLITE}{whole}").search_experiments(max_results=1)
        copy = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            shutil.copyfile(whole, copy)
            try:
                os.link(copy, path)  # a rename would wipe out another process's first study
            except FileExistsError:
                pass
            except OSError:  # no hard links on this file system
                copy.rename(path)
        finally:
            copy.unlink(missing_ok=True)


class Tracker:
    """Writes one study.

    Args:
        uri: MLflow's tracking address.
        folder: Where ``mlruns/`` lies for a local database.
        experiment: Name of the experiment, made if missing.
        study_id: Tag that finds the study's parent run again.
        name: Name of the parent run.
        tags: Further tags of the parent run; its trials share the ``fingerprint``.
        params: Configuration of the study, a tree, shown as params of the parent run.

    Raises:
        StorageError: If the store cannot be used.
    """

    def __init__(
        self,
        uri: str,
        folder: Path,
        *,
        experiment: str,
        study_id: str,
        name: str,
        tags: Mapping[str, str],
        params: Mapping[str, Any],
    ) -> None:
        check_writable(uri, folder)
        self._fingerprint = tags["fingerprint"]
        self._client = connect(uri)
        self._experiment = _experiment_id(self._client, experiment, uri, folder)
        parents = _search(
            self._client, self._experiment, f"tags.`{STUDY_TAG}` = '{study_id}'", newest=1
        )
        if parents:
            self.run_id = parents[0].info.run_id
        else:
            self.run_id = self._create(name, {**tags, STUDY_TAG: study_id})
            self._log(self.run_id, params=_flatten(params))
        self._logged = self._reconcile()

    def begin(self) -> None:
        """The study goes on: show it as running."""
        self._client.update_run(self.run_id, status="RUNNING")

    def _reconcile(self) -> set[str]:
        """Names of the trials already written; half-written ones are deleted."""
        whole: set[str] = set()
        for run in _children(self._client, self._experiment, self.run_id):
            name = run.data.tags.get(TRIAL_TAG, "")
            if run.info.status == "RUNNING" or name in whole:
                self._client.delete_run(run.info.run_id)
            else:
                whole.add(name)
        return whole

    def _create(self, name: str, tags: Mapping[str, str], start: float | None = None) -> str:
        milliseconds = int(1000 * (start or time.time()))
        run = self._client.create_run(
            self._experiment, start_time=milliseconds, tags=dict(tags), run_name=name
        )
        return str(run.info.run_id)

    def _log(
        self,
        run_id: str,
        *,
        params: Mapping[str, Any] | None = None,
        metrics: Sequence[tuple[str, float, int]] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        now = int(1000 * time.time())
        self._client.log_batch(
            run_id,
            metrics=[Metric(name, value, now, step) for name, value, step in metrics],
            params=[Param(name, str(value)[:6000]) for name, value in (params or {}).items()],
            tags=[RunTag(name, str(value)[:5000]) for name, value in (tags or {}).items()],
        )

    def log_trial(self, result: TrialResult, folder: Path) -> None:
        """Write a finished trial as a nested run, once, with the files of its ``folder``."""
        trial = result.trial
        if trial.name in self._logged:
            return
        wall = result.measurement.wall_time_s if result.measurement else 0.0
        tags = {
            TRIAL_TAG: trial.name,
            _PARENT: self.run_id,
            "fingerprint": self._fingerprint,
            **_tags(result),
        }
        run_id = self._create(trial.name, tags, start=time.time() - wall)
        metrics = [(name, value, result.iterations) for name, value in result.metrics.items()]
        for point in result.checkpoints:
            # the last one is the result itself, logged above at the same step
            if point.iteration < result.iterations:
                metrics.append(("val_accuracy", point.val_accuracy, point.iteration))
            if point.loss is not None:
                metrics.append(("loss", point.loss, point.iteration))
        self._log(run_id, params=result.params, metrics=sorted(metrics, key=lambda each: each[2]))
        for name in _KEPT_FILES:
            if (folder / name).is_file():
                self._client.log_artifact(run_id, str(folder / name))
        status = "FINISHED" if result.usable else "FAILED"
        self._client.set_terminated(run_id, status=status)
        self._logged.add(trial.name)

    def finish(
        self, files: Sequence[Path], tags: Mapping[str, str], *, complete: bool = True
    ) -> None:
        """Attach the report's files and end the parent run."""
        self._log(self.run_id, tags=tags)
        for path in files:
            self._client.log_artifact(self.run_id, str(path))
        self._client.set_terminated(self.run_id, status="FINISHED" if complete else "KILLED")


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = str(value)
    return flat


def _tags(result: TrialResult) -> dict[str, str]:
    tags = {
        "kind": result.trial.kind.value,
        "status": result.status.value,
        "reason": result.reason,
        "seed": str(result.trial.seed),
        "share": f"{result.trial.share:g}",
        "log_tail": result.log_tail,
    }
    if result.measurement:
        tags |= {
            "blas_loaded": result.measurement.blas_loaded,
            "threads_seen": str(result.measurement.threads_seen),
            "disturbed": result.measurement.disturbed,
        }
    tags |= {f"version.{name}": value for name, value in result.versions.items()}
    return {name: value for name, value in tags.items() if value}


def _experiment_id(client: MlflowClient, name: str, uri: str, folder: Path) -> str:
    found = client.get_experiment_by_name(name)
    if found:
        return str(found.experiment_id)
    location = (folder / "mlruns").absolute().as_uri() if _local_database(uri) else None
    # opens the UI at training runs instead of language models
    kind = {"mlflow.experimentKind": "custom_model_development"}
    return str(client.create_experiment(name, artifact_location=location, tags=kind))


def _search(client: MlflowClient, experiment: str, query: str, newest: int = 50_000) -> list[Run]:
    return list(
        client.search_runs(
            [experiment], query, max_results=newest, order_by=["attributes.start_time DESC"]
        )
    )


def _children(client: MlflowClient, experiment: str, parent: str) -> list[Run]:
    return _search(client, experiment, f"tags.`{_PARENT}` = '{parent}'")


def experiment_name(framework: str, dataset: str) -> str:
    """The experiment that studies of a framework on a data set share."""
    return f"{framework}-{dataset}"


def load_results(uri: str, framework: str, dataset: str) -> list[StudyRecord]:
    """All studies of a framework on a data set that have a front, newest first.

    Raises:
        StorageError: If the store cannot be used.
    """
    database = _local_database(uri)
    if database and not database.exists():
        return []  # a question makes no files
    client = connect(uri)
    experiment = client.get_experiment_by_name(experiment_name(framework, dataset))
    if experiment is None:
        return []
    parents = _search(client, experiment.experiment_id, f"tags.`{STUDY_TAG}` != ''")
    records = (_record(client, uri, parent) for parent in parents)
    return [each for each in records if each is not None]


def load_everything(
    uri: str, known: Mapping[str, StudyRecord] | None = None
) -> dict[str, StudyRecord]:
    """All studies with a front, of whatever framework and data set, by the id of their run.

    Args:
        uri: MLflow's tracking address.
        known: What an earlier call returned; what has not been written since is not read again.

    Raises:
        StorageError: If the store cannot be used.
    """
    database = _local_database(uri)
    if database and not database.exists():
        return {}
    client = connect(uri)
    found: dict[str, StudyRecord] = {}
    for experiment in client.search_experiments():
        parents = _search(client, experiment.experiment_id, f"tags.`{STUDY_TAG}` != ''")
        for parent in parents:
            before = (known or {}).get(parent.info.run_id)
            if before is not None and before.ended == _ended(parent):
                record: StudyRecord | None = before
            else:
                record = _record(client, uri, parent)
            if record is not None:
                found[record.run_id] = record
    return found


def _ended(parent: Run) -> float:
    return (parent.info.end_time or parent.info.start_time or 0) / 1000


def _record(client: MlflowClient, uri: str, parent: Run) -> StudyRecord | None:
    """The study of a parent run; ``None`` without a front."""
    front = _read_front(client, parent)
    if front is None:
        return None
    children = _children(client, parent.info.experiment_id, parent.info.run_id)
    runs = {child.data.tags.get(TRIAL_TAG, ""): child.info.run_id for child in children}
    return StudyRecord(uri, parent.info.run_id, front, runs, _ended(parent))


def load_fronts(uri: str, framework: str, newest: int = 8) -> list[dict[str, Any]]:
    """``front.json`` of the latest studies of a framework on whatever data set, newest first.

    Raises:
        StorageError: If the store cannot be used.
    """
    database = _local_database(uri)
    if database and not database.exists():
        return []
    client = connect(uri)
    prefix = experiment_name(framework, "")
    experiments = [
        each.experiment_id
        for each in client.search_experiments(filter_string=f"name LIKE '{prefix}%'")
    ]
    if not experiments:
        return []
    parents = client.search_runs(
        experiments,
        f"tags.`{STUDY_TAG}` != ''",
        max_results=newest,
        order_by=["attributes.start_time DESC"],
    )
    fronts = [_read_front(client, each) for each in parents]
    return [each for each in fronts if each is not None]


def _read_front(client: MlflowClient, parent: Run) -> dict[str, Any] | None:
    from mlflow.exceptions import MlflowException

    try:
        with tempfile.TemporaryDirectory() as scratch:
            path = client.download_artifacts(parent.info.run_id, "front.json", scratch)
            front: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            return front
    except PermissionError as error:
        raise StorageError(f"{error.filename} cannot be read: {error.strerror}") from error
    except (MlflowException, OSError, ValueError):
        return None  # a study that was cut short has none
