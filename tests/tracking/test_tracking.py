"""Tests of ``tuner.tracking`` that need no study: the database and who makes it."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

import tuner
from tests.conftest import MLFLOW, add_database
from tests.report_samples import make_result
from tuner.study.loop import StudyLoop
from tuner.study.study import tune
from tuner.tracking import TrackedDataset, Tracker, connect, reading
from tuner.values.errors import StorageAway
from tuner.values.trial import Trial

# making a database takes MLflow seconds on a busy machine
pytestmark = pytest.mark.timeout(60)

CREATE = """
import sys
from tuner.tracking import connect
connect(sys.argv[1]).create_experiment(sys.argv[2])
"""


def _create(database, experiment, **variables):
    return subprocess.Popen(
        [sys.executable, "-c", CREATE, f"sqlite:///{database}", experiment],
        env={**os.environ, **variables},
    )


@pytest.mark.slow
def test_a_kill_while_the_database_is_made_leaves_none(tmp_path):
    database, scratch = tmp_path / "mlflow.db", tmp_path / "scratch"
    scratch.mkdir()
    process = _create(database, "first", TMPDIR=str(scratch))
    while not any(file.stat().st_size for file in scratch.glob("*/mlflow.db")):
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert not database.exists()
    assert connect(f"sqlite:///{database}").search_experiments()


@pytest.mark.slow
def test_two_processes_that_make_the_database_at_once_lose_nothing(tmp_path):
    database = tmp_path / "mlflow.db"
    processes = [_create(database, name) for name in ("first", "second")]
    assert [process.wait() for process in processes] == [0, 0]
    found = {each.name for each in connect(f"sqlite:///{database}").search_experiments()}
    assert found == {"Default", "first", "second"}
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


@pytest.mark.parametrize(
    "read",
    [
        lambda: reading.load_results("uri", "caffe", "mnist"),
        lambda: reading.load_programs("uri", "train.py"),
        lambda: reading.load_fronts("uri", "caffe"),
        lambda: reading.load_everything("uri"),
        lambda: reading.newest_experiment("uri"),
    ],
)
def test_a_store_that_goes_away_while_it_is_read_is_one_line(read, monkeypatch):
    def away(*_, **__):
        raise MlflowException("API request failed")

    client = SimpleNamespace(get_experiment_by_name=away, search_experiments=away)
    monkeypatch.setattr(reading, "_reader", lambda _: client)
    with pytest.raises(StorageAway, match="MLflow store uri cannot be read: API request failed"):
        read()


# the parent run of a study

FIGURES = {"no_loss_speedup": 3.26, "elapsed_s": 1710.0}


def make_tracker(folder, **changes):
    words = {
        "experiment": "caffe-mnist", "study_id": "3f9a1c20", "name": "caffe mnist 3f9a1c20",
        "tags": {"fingerprint": "x"}, "params": {"budget": {"time_s": 60}},
        "dataset": TrackedDataset("mnist", "8d1f0c5b" * 8, "a package"),
    }  # fmt: skip
    return Tracker(add_database(folder, MLFLOW), folder, **{**words, **changes})


def parent_of(folder, tracker):
    return connect(f"sqlite:///{folder}/mlflow.db").get_run(tracker.run_id)


def test_a_finished_study_shows_its_answers_its_data_and_who_wrote_it(tmp_path):
    tracker = make_tracker(tmp_path)
    tracker.finish([], {}, metrics=FIGURES, description="No loss: trial 8 …")
    run = parent_of(tmp_path, tracker)
    assert run.info.status == "FINISHED"
    assert run.data.metrics == FIGURES
    tags = run.data.tags
    assert tags["mlflow.note.content"] == "No loss: trial 8 …"
    assert (tags["kind"], tags["tuner.version"]) == ("study", tuner.__version__)
    assert (tags["mlflow.source.name"], tags["mlflow.source.type"]) == ("tuner", "LOCAL")
    (used,) = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("mnist", "8d1f0c5b")
    assert json.loads(used.dataset.source) == {"source": "a package", "sha256": "8d1f0c5b" * 8}
    client = connect(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_only_the_accuracy_is_logged_of_a_trial_that_ran_beside_others(tmp_path):
    tracker = make_tracker(tmp_path)
    whole = make_result(1, 0.99, 10.0)
    for each in (
        whole,
        dataclasses.replace(whole, trial=Trial(2, whole.trial.params, accuracy_only=True)),
    ):
        tracker.log_trial(each, tmp_path)
    client = connect(f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([parent_of(tmp_path, tracker).info.experiment_id])
    by_name = {each.data.tags["mlflow.runName"]: each.data for each in runs}
    alone, beside = by_name["search-0001"], by_name["search-0002"]
    assert alone.metrics["train_time_s"] == 10.0
    assert "accuracy_only" not in alone.tags
    assert beside.tags["accuracy_only"] == "true"
    assert {*beside.metrics} == {"val_accuracy", "loss"}


def test_what_is_long_is_cut_to_what_every_store_takes(tmp_path):
    tracker = make_tracker(tmp_path)
    long = dataclasses.replace(
        make_result(1, 0.9, 10.0), reason="x" * 60_000, versions={"y" * 300: "1.0"}
    )
    tracker.log_trial(long, tmp_path)
    client = connect(f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([parent_of(tmp_path, tracker).info.experiment_id])
    (run,) = [each for each in runs if "reason" in each.data.tags]
    assert len(run.data.tags["reason"]) == 5000
    assert max(map(len, run.data.tags)) <= 250


def test_a_study_that_goes_on_names_its_data_once(tmp_path):
    make_tracker(tmp_path).finish([], {}, description="before")
    again = make_tracker(tmp_path)
    again.begin()
    run = parent_of(tmp_path, again)
    assert run.info.status == "RUNNING"
    assert run.data.tags["mlflow.note.content"] == ""
    assert len(run.inputs.dataset_inputs) == 1


def test_what_a_kill_kept_from_a_study_s_run_is_logged_by_the_next_command(tmp_path, monkeypatch):
    def killed(*_words, **_figures):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Tracker, "_log", killed)
        with pytest.raises(KeyboardInterrupt):
            make_tracker(tmp_path)
    run = parent_of(tmp_path, make_tracker(tmp_path))
    assert run.data.params == {"budget.time_s": "60"}
    assert len(run.inputs.dataset_inputs) == 1


def test_a_failed_study_is_shown_as_failed_with_its_reason_as_it_is(tmp_path):
    tracker = make_tracker(tmp_path)
    tracker.fail("none of 3 trials succeeded: ![x](http://elsewhere)")
    run = parent_of(tmp_path, tracker)
    assert run.info.status == "FAILED"
    assert run.data.tags["mlflow.note.content"] == (
        r"**Failed:** none of 3 trials succeeded: \!\[x\]\(http://elsewhere\)"
    )


def test_a_study_that_ended_well_cannot_fail_any_more(tmp_path):
    tracker = make_tracker(tmp_path)
    tracker.finish([], {}, description="found")
    tracker.fail("its folder cannot be read")
    run = parent_of(tmp_path, tracker)
    assert (run.info.status, run.data.tags["mlflow.note.content"]) == ("FINISHED", "found")


def test_a_store_that_is_gone_does_not_hide_why_a_study_failed(tmp_path):
    tracker = make_tracker(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(b"no database")
    tracker.fail("the real reason")


def test_a_study_that_ends_in_an_error_is_not_left_running(config, monkeypatch):
    def refuse(*_):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(StudyLoop, "run", refuse)
    with pytest.raises(RuntimeError, match="the disk is full"):
        tune(config)
    client = connect(f"sqlite:///{config.output}/mlflow.db")
    experiments = [each.experiment_id for each in client.search_experiments()]
    (run,) = client.search_runs(experiments)
    assert run.info.status == "FAILED"
    assert run.data.tags["mlflow.note.content"] == "**Failed:** the disk is full"
