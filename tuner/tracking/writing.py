"""Writing of a study: a parent run, with its trials as nested runs, each written once."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tuner
from tuner.tracking.store import (
    DRIFT_FOUND_TAG,
    DRIFT_TAG,
    PARENT_TAG,
    STUDY_TAG,
    TRIAL_TAG,
    check_writable,
    children_of,
    connect,
    local_database,
    one_line,
    search_runs,
)
from tuner.values.errors import StorageError
from tuner.values.exchange import changes
from tuner.values.trial import TrialResult

if TYPE_CHECKING:
    from mlflow import MlflowClient

_KEPT_FILES = ("trial.json", "events.jsonl", "log.txt")
_NOTE = "mlflow.note.content"
"""MLflow's tag for a run's description."""
_MARKDOWN = re.compile(r"[\\`*_{}\[\]()<>#!|~&]")
_KEY_LETTERS, _TAG_LETTERS, _PARAM_LETTERS = 250, 5000, 6000  # what every MLflow store takes
_DIGEST_LETTERS = 8  # the length of MLflow's own digests; the source has the whole digest


@dataclass(frozen=True, slots=True)
class TrackedDataset:
    """The data set of a study as MLflow shows it.

    Attributes:
        name: Name of the data set actually used.
        digest: Identifies its content and split; MLflow shows the first 8 letters.
        source: Where it came from, in words or as an address.
    """

    name: str
    digest: str
    source: str


class Tracker:
    """Writes one study.

    Args:
        uri: MLflow's tracking address.
        folder: Folder of ``mlruns/`` for a local database.
        experiment: Name of the experiment, created if missing.
        study_id: Tag by which the study's parent run is found again.
        name: Name of the parent run.
        tags: Further tags of the parent run; its trials share the ``fingerprint``.
        params: Configuration of the study, a tree, shown as params of the parent run.
        fresh: Whether to delete what an earlier study of this id left.
        dataset: Data set of all its runs; shown as the parent run's input.

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
        fresh: bool = False,
        dataset: TrackedDataset | None = None,
    ) -> None:
        check_writable(uri, folder)
        self._fingerprint = tags["fingerprint"]
        self._client = connect(uri)
        self._logged: set[str] = set()
        study = f"tags.`{STUDY_TAG}` = '{study_id}'"
        with one_line(uri, "written"):
            self._experiment = _experiment_id(self._client, experiment, uri, folder)
            parents = search_runs(self._client, self._experiment, study)
            if fresh:
                self._delete([each.info.run_id for each in parents])
            known = parents[0] if parents and not fresh else None
            own_tags = {**_study_tags(), **tags, STUDY_TAG: study_id}
            self.run_id = known.info.run_id if known else self._create(name, own_tags)
            if known is None or (params and not known.data.params):  # its beginning may have died
                if dataset is not None:
                    self._log_dataset(dataset)
                self._log(self.run_id, params=_flatten(params))
            self.reconcile()

    def _delete(self, parents: Sequence[str]) -> None:
        for parent in parents:
            for run in children_of(self._client, self._experiment, parent):
                self._client.delete_run(run.info.run_id)
            self._client.delete_run(parent)

    def begin(self) -> None:
        """Show the study as running, and clear the description of an earlier end."""
        self._client.update_run(self.run_id, status="RUNNING")
        self._client.set_tag(self.run_id, _NOTE, "")

    def reconcile(self) -> None:
        """Find out which trials are written; delete half-written and duplicate runs."""
        whole: set[str] = set()
        for run in children_of(self._client, self._experiment, self.run_id):
            name = run.data.tags.get(TRIAL_TAG, "")
            if run.info.status == "RUNNING" or name in whole:
                self._client.delete_run(run.info.run_id)
            else:
                whole.add(name)
        self._logged = whole

    def _create(self, name: str, tags: Mapping[str, str], start: float | None = None) -> str:
        milliseconds = int(1000 * (start or time.time()))
        run = self._client.create_run(
            self._experiment,
            start_time=milliseconds,
            tags={key[:_KEY_LETTERS]: text[:_TAG_LETTERS] for key, text in tags.items()},
            run_name=name,
        )
        return str(run.info.run_id)

    def _log_dataset(self, dataset: TrackedDataset) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        known = Dataset(
            name=dataset.name,
            digest=dataset.digest[:_DIGEST_LETTERS],
            source_type="tuner",
            source=json.dumps({"source": dataset.source, "sha256": dataset.digest}),
        )
        use = [InputTag("mlflow.data.context", "training")]
        self._client.log_inputs(self.run_id, datasets=[DatasetInput(known, tags=use)])

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
            params=[
                Param(name, str(value)[:_PARAM_LETTERS]) for name, value in (params or {}).items()
            ],
            tags=[RunTag(name, str(value)[:_TAG_LETTERS]) for name, value in (tags or {}).items()],
        )

    def log_trial(self, result: TrialResult, folder: Path) -> None:
        """Write a finished trial as a nested run, once, with the files of its ``folder``."""
        trial = result.trial
        if trial.name in self._logged:
            return
        wall = result.measurement.wall_time_s if result.measurement else 0.0
        tags = {
            TRIAL_TAG: trial.name,
            PARENT_TAG: self.run_id,
            "fingerprint": self._fingerprint,
            **_tags(result),
        }
        run_id = self._create(trial.name, tags, start=time.time() - wall)
        metrics = [
            (name, value, result.iterations)
            for name, value in result.metrics.items()
            if not trial.accuracy_only or name.endswith(result.quality.name)
        ]
        for point in result.checkpoints:
            # the last one is the result itself, logged above at the same step
            if point.iteration < result.iterations:
                figure = result.quality.figure(point.val_accuracy)
                metrics.append((f"val_{result.quality.name}", figure, point.iteration))
            if point.loss is not None:
                metrics.append(("loss", point.loss, point.iteration))
        self._log(run_id, params=result.params, metrics=sorted(metrics, key=lambda each: each[2]))
        for name in _KEPT_FILES:
            if (folder / name).is_file():
                self._client.log_artifact(run_id, str(folder / name))
        status = "FINISHED" if result.usable else "FAILED"
        self._client.set_terminated(run_id, status=status)
        self._logged.add(trial.name)

    def forget(self, name: str) -> None:
        """Delete what was written of a trial that is to be measured again."""
        for run in children_of(self._client, self._experiment, self.run_id):
            if run.data.tags.get(TRIAL_TAG) == name:
                self._client.delete_run(run.info.run_id)
        self._logged.discard(name)

    def finish(
        self,
        files: Sequence[Path],
        tags: Mapping[str, str],
        *,
        complete: bool = True,
        metrics: Mapping[str, float] | None = None,
        description: str = "",
    ) -> None:
        """Attach the report's files and end the parent run.

        Args:
            files: Files of the report.
            tags: Further tags of the parent run.
            complete: Whether the study reached its end.
            metrics: The study's figures, by name.
            description: Markdown that the UI shows at the top of the run.
        """
        figures = [(name, value, 0) for name, value in (metrics or {}).items()]
        note = {_NOTE: description} if description else {}
        self._log(self.run_id, metrics=figures, tags={**tags, **note})
        for path in files:
            self._client.log_artifact(self.run_id, str(path))
        self._client.set_terminated(self.run_id, status="FINISHED" if complete else "KILLED")

    def fail(self, reason: str) -> None:
        """End the parent run as failed; ``reason`` becomes its description.

        A study that has already ended is not changed. Errors of the store are ignored: they must
        not hide why the study failed.
        """
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        with contextlib.suppress(MlflowException, SQLAlchemyError, StorageError, OSError):
            if self._client.get_run(self.run_id).info.status == "RUNNING":
                self._log(self.run_id, tags={_NOTE: f"**Failed:** {_plain(reason)}"})
                self._client.set_terminated(self.run_id, status="FAILED")


def mark_drift(uri: str, run_id: str, how: str, found: float) -> None:
    """Tag a study's run as no longer keeping what it promised.

    Args:
        uri: MLflow's tracking address.
        run_id: Id of the study's run.
        how: How jobs broke the promise, in words.
        found: When that was found, seconds since the epoch.

    Raises:
        StorageAway: If the store cannot be written.
    """
    with one_line(uri, "written"):
        client = connect(uri)
        client.set_tag(run_id, DRIFT_FOUND_TAG, f"{found:.0f}")
        client.set_tag(run_id, DRIFT_TAG, how)


def _plain(text: str) -> str:
    """Return text as Markdown that shows it as it is; a worker may have written some of it."""
    return _MARKDOWN.sub(r"\\\g<0>", text)


def _study_tags() -> dict[str, str]:
    """Return tags that tell a study's run from its trials' runs, and name its writer."""
    return {
        "kind": "study",
        "tuner.version": tuner.__version__,
        "mlflow.source.name": "tuner",
        "mlflow.source.type": "LOCAL",
    }


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
        "accuracy_only": "true" if result.trial.accuracy_only else "",
        "changes_learning": changes(result.params),
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
    location = (folder / "mlruns").absolute().as_uri() if local_database(uri) else None
    # for UIs that open by an experiment's kind; others ask for ?workflowType=machine_learning
    kind = {"mlflow.experimentKind": "custom_model_development"}
    return str(client.create_experiment(name, artifact_location=location, tags=kind))
