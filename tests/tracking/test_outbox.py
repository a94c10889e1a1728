"""Tests of ``tuner.tracking.outbox``: an MLflow that goes away, and comes back."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from tests.conftest import free_port
from tests.report_samples import make_result
from tests.tracking.test_tracking import FIGURES, make_tracker
from tuner.progress import StudyProgress
from tuner.storage.databases import DatabaseHeld
from tuner.study.study import tune
from tuner.tracking import Outbox, connect
from tuner.tracking.writing import Tracker

# making a database takes MLflow seconds on a busy machine
pytestmark = pytest.mark.timeout(120)


class Clock:
    """Time that passes while somebody sleeps, and when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Fickle:
    """A tracker whose MLflow fails with ``fault``, after the run was made, while there is one."""

    def __init__(self, tracker: Tracker):
        self.tracker, self.fault, self.attempts = tracker, None, 0
        self.stuck: set[str] = set()

    def log_trial(self, result, folder):
        self.attempts += 1
        if result.trial.name in self.stuck:
            raise AWAY
        if self.fault:
            self.tracker._create(result.trial.name, {
                "trial": result.trial.name, "mlflow.parentRunId": self.tracker.run_id,
            })  # fmt: skip
            raise self.fault
        self.tracker.log_trial(result, folder)

    def forget(self, name):
        if self.fault:
            raise self.fault
        self.tracker.forget(name)

    def finish(self, *words, **figures):
        if self.fault:
            raise self.fault
        self.tracker.finish(*words, **figures)

    def reconcile(self):
        self.tracker.reconcile()


@contextlib.contextmanager
def at_once(_wait_s):
    """No other driver uploads."""
    yield


AWAY = MlflowException("API request failed with exception HTTPConnectionPool")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def said():
    return []


@pytest.fixture
def tracker(tmp_path):
    return Fickle(make_tracker(tmp_path))


@pytest.fixture
def outbox(tracker, clock, said):
    return Outbox(tracker, at_once, said.append, clock=clock, sleep=clock.sleep)


def names_in(folder, tracker):
    """Names of the trials that MLflow has, each with its status."""
    client = connect(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_run(tracker.tracker.run_id).info.experiment_id
    runs = client.search_runs([experiment], run_view_type=ViewType.ACTIVE_ONLY)
    trials = [each for each in runs if "trial" in each.data.tags]
    return sorted((each.data.tags["trial"], each.info.status) for each in trials)


def finish(outbox, complete=True):
    return outbox.finish([], {}, complete=complete, metrics=FIGURES, description="")


@pytest.mark.slow
def test_what_mlflow_missed_is_sent_once_when_it_is_back(tmp_path, tracker, outbox, clock, said):
    tracker.fault = AWAY
    outbox.send(make_result(1, 0.99, 10.0), tmp_path)
    outbox.send(make_result(2, 0.98, 9.0), tmp_path)
    assert len(said) == 1
    assert "HTTPConnectionPool" in said[0]
    tracker.fault = None
    clock.now += 60
    outbox.send(make_result(3, 0.97, 8.0), tmp_path)
    assert names_in(tmp_path, tracker) == [(f"search-000{n}", "FINISHED") for n in (1, 2, 3)]
    assert "answers again, after 60 s" in said[1]


def test_what_is_measured_again_replaces_what_was_sent_even_if_mlflow_was_away(
    tmp_path, tracker, outbox, clock
):
    outbox.send(make_result(1, 0.99, 10.0), tmp_path)
    tracker.fault = AWAY
    outbox.forget("search-0001")
    tracker.fault = None
    clock.now += 60
    outbox.send(make_result(1, 0.95, 20.0), tmp_path)
    assert names_in(tmp_path, tracker) == [("search-0001", "FINISHED")]
    client = connect(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_run(tracker.tracker.run_id).info.experiment_id
    times = [each.data.metrics.get("train_time_s") for each in client.search_runs([experiment])]
    assert 20.0 in times
    assert 10.0 not in times


def test_a_study_is_not_held_up_by_one_attempt_after_the_other(tmp_path, tracker, outbox, clock):
    tracker.fault = AWAY
    for number in range(1, 31):
        outbox.send(make_result(number, 0.99, 10.0), tmp_path)
        clock.now += 1
    assert tracker.attempts == 2


@pytest.mark.slow
def test_the_end_waits_for_mlflow(tmp_path, tracker, clock, said):
    def sleep(seconds):
        clock.sleep(seconds)
        if clock.now > 30:
            tracker.fault = None

    outbox = Outbox(tracker, at_once, said.append, clock=clock, sleep=sleep)
    tracker.fault = AWAY
    outbox.send(make_result(1, 0.99, 10.0), tmp_path)
    assert finish(outbox)
    assert names_in(tmp_path, tracker) == [("search-0001", "FINISHED")]


def test_what_another_driver_keeps_back_is_sent_after_it(tmp_path, tracker, clock, said):
    taken = [True]

    @contextlib.contextmanager
    def alone(wait_s):
        clock.sleep(wait_s)
        if taken:
            raise DatabaseHeld("another process has held it")
        yield

    outbox = Outbox(tracker, alone, said.append, clock=clock, sleep=clock.sleep)
    outbox.send(make_result(1, 0.99, 10.0), tmp_path)
    assert clock.now <= 1, "the search goes on meanwhile"
    assert tracker.attempts == 0
    taken.clear()
    assert finish(outbox)
    assert names_in(tmp_path, tracker) == [("search-0001", "FINISHED")]
    assert said == [], "that is no fault of MLflow"


@pytest.mark.parametrize(("complete", "max_s"), [(True, 62), (False, 7)])
def test_the_end_does_not_wait_for_ever(tmp_path, tracker, outbox, clock, complete, max_s):
    tracker.fault = AWAY
    outbox.send(make_result(1, 0.99, 10.0), tmp_path)
    assert not finish(outbox, complete)
    assert clock.now <= max_s


def test_what_mlflow_refuses_keeps_nothing_else_back(tmp_path, tracker, outbox, said):
    tracker.fault = MlflowException("metric too long", error_code=INVALID_PARAMETER_VALUE)
    outbox.send(make_result(1, 0.99, 10.0), tmp_path)
    tracker.fault = None
    outbox.send(make_result(2, 0.98, 9.0), tmp_path)
    assert finish(outbox)
    assert names_in(tmp_path, tracker) == [("search-0002", "FINISHED")]
    assert ["metric too long" in each for each in said] == [True]


def test_what_mlflow_never_accepts_keeps_nothing_else_back(tmp_path, tracker, outbox, clock, said):
    tracker.stuck = {"search-0001"}
    for number in (1, 2, 3):
        outbox.send(make_result(number, 0.99, 10.0), tmp_path)
        clock.now += 60
    assert finish(outbox)
    assert names_in(tmp_path, tracker) == [(f"search-000{n}", "FINISHED") for n in (2, 3)]
    assert "does not accept these, which stay in the study's folder: search-0001" in said[-1]


class Server:
    """A real MLflow server, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port("127.0.0.1")
        self.address = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
                *("--host", "127.0.0.1", "--port", str(self.port)),
                *("--backend-store-uri", f"sqlite:///{self.folder}/server.db"),
                *("--artifacts-destination", str(self.folder / "artifacts")),
            ],
            env={
                **os.environ,
                "MLFLOW_DISABLE_TELEMETRY": "true",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # four processes less to start
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{self.address}/health", timeout=5).ok:
                    return
            assert self.process.poll() is None, "the server has ended"
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.2)

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "mlflow"
    folder.mkdir()
    server = Server(folder)
    server.start()
    yield server
    server.stop()


class AtTrial(StudyProgress):
    """Does something when a trial of a certain place begins; keeps what is said."""

    def __init__(self, doings):
        self.doings, self.begun, self.said = doings, 0, []

    def trial_started(self, trial):
        self.begun += 1
        self.doings.get(self.begun, lambda: None)()

    def message(self, text):
        self.said.append(text)


def trials_of(address):
    client = connect(address)
    everywhere = [each.experiment_id for each in client.search_experiments()]
    runs = client.search_runs(everywhere)
    parents = [each for each in runs if each.data.tags.get("kind") == "study"]
    trials = [each.data.tags["trial"] for each in runs if "trial" in each.data.tags]
    return [each.info.status for each in parents], trials


@pytest.mark.slow
def test_a_study_outlives_its_mlflow_server(config, server):
    config = dataclasses.replace(config, tracking_uri=server.address)
    shown = AtTrial({4: server.stop, 9: server.start})
    result = tune(config, shown)
    assert result.complete
    status, trials = trials_of(server.address)
    measured = [*result.trials, *result.verifications]
    assert status == ["FINISHED"]
    assert sorted(trials) == sorted(each.trial.name for each in measured)
    assert any("MLflow cannot be written" in each for each in shown.said)


@pytest.mark.slow
def test_what_was_not_sent_by_the_end_is_sent_by_the_same_command(config, server, monkeypatch):
    monkeypatch.setattr("tuner.tracking.outbox._PATIENCE_S", 1.0)
    config = dataclasses.replace(config, tracking_uri=server.address)
    shown = AtTrial({4: server.stop})
    result = tune(config, shown)
    assert result.complete
    assert not result.tracked
    assert "the same command sends what is missing" in shown.said[-1]
    server.start()
    assert tune(config).tracked
    status, trials = trials_of(server.address)
    measured = [*result.trials, *result.verifications]
    assert status == ["FINISHED"]
    assert sorted(trials) == sorted(each.trial.name for each in measured)
