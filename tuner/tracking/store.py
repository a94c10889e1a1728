"""Where MLflow keeps things: the one database of an address, and how things in it are named."""

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

from tuner.storage.databases import exclusive, fault_of, without_password
from tuner.values.errors import StorageAway, StorageError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

TRIAL_TAG = "trial"
STUDY_TAG = "tuner.study_id"
PARENT_TAG = "mlflow.parentRunId"
CROSS = "cross-framework"
"""Stands in place of a framework's name for studies across all of them."""
_SQLITE = "sqlite:///"


def default_tracking_uri(folder: Path) -> str:
    """MLflow's own default made absolute, so that a plain ``mlflow ui`` in ``folder`` shows it."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{folder.absolute()}/mlflow.db"


def local_database(uri: str) -> Path | None:
    """The file of an address; ``None`` where it is no file of this machine."""
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


@contextlib.contextmanager
def one_line(uri: str, use: str) -> Iterator[None]:
    """Turn what a store that is away or full raises into a ``StorageAway`` of one line.

    Args:
        uri: MLflow's tracking address.
        use: What it cannot be: ``used``, ``read`` or ``written``.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        shown = without_password(uri)
        raise StorageAway(f"MLflow store {shown} cannot be {use}: {fault_of(error)}") from error


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
    database = local_database(uri)
    if database and database.exists() and not os.access(database, os.R_OK | os.W_OK):
        raise StorageError(f"{database} cannot be read and written; give tracking_uri= another")


def connect(uri: str) -> MlflowClient:
    """A client for ``uri``. Raises ``StorageError`` in one line if the store cannot be used."""
    # MLflow reads these while it is imported
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # of a server that is away; results wait for it (see outbox.py), so a request need not
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        # what goes wrong is said in one line; MLflow would print a traceback before it
        logging.getLogger("mlflow").setLevel(logging.CRITICAL)
        with one_line(uri, "used"):
            _make_database(uri)
            # to hold a server is to ask it once; MLflow asks one that is not there for minutes
            with contextlib.nullcontext() if local_database(uri) else exclusive(uri):
                client = MlflowClient(tracking_uri=uri)
                client.search_experiments(max_results=1)  # makes the tables of a new database
    return client


def _make_database(uri: str) -> None:
    """Put a new local database in place whole, once, however many processes ask.

    MLflow's own way is a second of migrations in the open, and one that was killed among them
    leaves a file that MLflow refuses for good.
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
                os.link(copy, path)  # a rename would wipe out another process's first study
            except FileExistsError:
                pass
            except OSError:  # no hard links on this file system
                copy.rename(path)
        finally:
            copy.unlink(missing_ok=True)


def search_runs(
    client: MlflowClient, experiment: str, query: str, newest: int = 50_000
) -> list[Run]:
    """Runs of an experiment that fit a query, newest first."""
    return list(
        client.search_runs(
            [experiment], query, max_results=newest, order_by=["attributes.start_time DESC"]
        )
    )


def children_of(client: MlflowClient, experiment: str, parent: str) -> list[Run]:
    """The trials of a study's run."""
    return search_runs(client, experiment, f"tags.`{PARENT_TAG}` = '{parent}'")


def experiment_name(framework: str, dataset: str) -> str:
    """The experiment that studies of a framework on a data set share."""
    return f"{framework}-{dataset}"
