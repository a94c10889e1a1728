"""MLflow's store: the database behind an address, and the names used in it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.storage.databases import exclusive, fault_of
from tuner.values.addresses import without_password
from tuner.values.errors import StorageAway, StorageError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

TRIAL_TAG = "trial"
STUDY_TAG = "tuner.study_id"
PARENT_TAG = "mlflow.parentRunId"
CROSS = "cross-framework"
"""Used in place of a framework's name for studies across several frameworks."""
PAPERS = "papers"
"""The same for papers' experiments."""
DRIFT_TAG = "drift"
"""Tag of a study that did not keep what it promised: how jobs broke it, in words."""
DRIFT_FOUND_TAG = "drift.found"
"""When that was found, seconds since the epoch."""
PROGRAMS = "programs"
"""Experiment of the studies of users' own programs."""
_SQLITE = "sqlite:///"


def default_tracking_uri(folder: Path) -> str:
    """Return MLflow's default address, made absolute: ``mlflow ui`` in ``folder`` shows it."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{folder.absolute()}/mlflow.db"


def local_database(uri: str) -> Path | None:
    """Return the file of an address; ``None`` if it is no file of this machine."""
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


@contextlib.contextmanager
def one_line(uri: str, use: str) -> Iterator[None]:
    """Turn the errors of an unavailable or full store into a one-line ``StorageAway``.

    Args:
        uri: MLflow's tracking address.
        use: What the store cannot be: ``used``, ``read`` or ``written``.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        shown = without_password(uri)
        raise StorageAway(f"MLflow store {shown} cannot be {use}: {fault_of(error)}") from error


def check_writable(uri: str, folder: Path) -> None:
    """Create ``folder``; raise ``StorageError`` if it or a local database is not writable."""
    artifacts = folder / "mlruns"
    try:
        artifacts.mkdir(parents=True, exist_ok=True)
        fault = "" if os.access(artifacts, os.R_OK | os.W_OK | os.X_OK) else "permission denied"
    except OSError as error:
        fault = error.strerror or str(error)
    if fault:
        raise StorageError(
            f"{artifacts} cannot hold results ({fault}); set output= to a writable folder"
        )
    database = local_database(uri)
    if database and database.exists() and not os.access(database, os.R_OK | os.W_OK):
        raise StorageError(f"{database} cannot be read and written; set tracking_uri= to another")


def connect(uri: str) -> MlflowClient:
    """Return a client for ``uri``; raise a one-line ``StorageError`` if it cannot be used."""
    # MLflow reads these while it is imported
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # for an unavailable server: results wait for it (see outbox.py), so requests need not
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        # errors are reported in one line; MLflow would print a traceback before it
        logging.getLogger("mlflow").setLevel(logging.CRITICAL)
        with one_line(uri, "used"):
            _make_database(uri)
            # locking a server tries it only once; MLflow tries an absent one for minutes
            with contextlib.nullcontext() if local_database(uri) else exclusive(uri):
                client = MlflowClient(tracking_uri=uri)
                client.search_experiments(max_results=1)  # makes the tables of a new database
    return client


def _make_database(uri: str) -> None:
    """Create a new local database atomically and once, however many processes ask for it.

    MLflow itself would migrate the final file for about a second; if it is killed meanwhile, it
    leaves a file that it refuses for good.
    """
    from mlflow import MlflowClient

    path = local_database(uri)
    if path is None or path.exists():
        return
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / path.name
        MlflowClient(tracking_uri=f"{_SQLITE}{whole}").search_experiments(max_results=1)
        copy = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            shutil.copyfile(whole, copy)
            try:
                os.link(copy, path)  # a rename would overwrite another process's first study
            except FileExistsError:
                pass
            except OSError:  # no hard links on this file system
                copy.rename(path)
        finally:
            copy.unlink(missing_ok=True)


def search_runs(
    client: MlflowClient, experiment: str, query: str, newest: int = 50_000
) -> list[Run]:
    """Return the runs of an experiment that match a query, newest first."""
    return list(
        client.search_runs(
            [experiment], query, max_results=newest, order_by=["attributes.start_time DESC"]
        )
    )


def children_of(client: MlflowClient, experiment: str, parent: str) -> list[Run]:
    """Return the runs of a study's trials."""
    return search_runs(client, experiment, f"tags.`{PARENT_TAG}` = '{parent}'")


def experiment_name(framework: str, dataset: str) -> str:
    """Return the name of the experiment for a framework's studies on a data set."""
    return f"{framework}-{dataset}"
