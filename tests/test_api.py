"""The Python interface, and the example that shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tuner
from tests.conftest import SYNTHETIC
from tests.served import Service
from tuner.values.errors import CompositionError, ConfigError, NothingRecommended

EXAMPLES = Path(__file__).parents[1] / "examples"
TREE = {"framework": "synthetic", "framework_path": str(SYNTHETIC), "dataset": "digits"}
SHORT = {
    "budget.time_s": 30,
    "budget.trials": 4,
    "measure.max_foreign_pct": 100,
    "search.probe_s": 0.0005,
}


def test_importing_the_package_imports_nothing_else():
    heavy = "('tuner.', 'optuna', 'mlflow')"
    code = f"import sys, tuner; print([n for n in sys.modules if n.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_what_it_offers_is_there_whatever_was_imported_before():
    import tuner.api
    import tuner.recommendation.choice

    for name in tuner.__all__:
        assert getattr(tuner, name) is getattr(tuner.api, name)
    assert tuner.recommendation.choice.__name__ == "tuner.recommendation.choice"
    with pytest.raises(AttributeError, match="optimise"):
        _ = tuner.optimise


@pytest.mark.parametrize(
    ("overrides", "error", "fact"),
    [
        ({"framework": "caffee"}, CompositionError, "did you mean caffe"),
        ({"speed": 3}, CompositionError, "speed"),
        ({"frameworks": ["caffe", "torch"]}, ConfigError, "frameworks="),
        ({"budget.time_s": -1}, ConfigError, "budget.time_s must be above 0"),
        ({"resume": None}, CompositionError, "resume"),
    ],
)
def test_what_cannot_be_tuned_is_named(home, tmp_path, overrides, error, fact):
    with pytest.raises(error, match=fact) as refused:
        tuner.tune(**{**TREE, "output": str(tmp_path), **overrides})
    assert "\n" not in str(refused.value)


def test_the_command_in_a_report_shows_no_password(monkeypatch):
    told = {}
    monkeypatch.setattr("tuner.api.run_study", lambda _, **words: told.update(words))
    tuner.tune("storage=postgresql://me:secret@host/db", **TREE)
    assert "storage=postgresql://me:***@host/db" in told["command"]
    assert "secret" not in told["command"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_values_are_taken_as_the_command_line_takes_them(home, tmp_path):
    where = {"output": str(tmp_path), "progress": "none"}
    result = tuner.tune(
        *(f"{name}={value}" for name, value in SHORT.items()), **TREE, **where, seed=1,
        objectives=["accuracy", "train_time_s"], constraints=["accuracy>=0.2"],
        prior=[{"batch_size": 32, "learning_rate": 0.02}],
    )  # fmt: skip
    assert result.complete
    assert result.constraints == ("accuracy>=0.2",)
    assert any(each.params["batch_size"] == 32 for each in result.trials)
    (record,) = tuner.load_results("synthetic", "digits", output=str(tmp_path))
    assert len(record.front["verified"]) == len(result.verified)
    asked = {**TREE, "output": str(tmp_path)}
    answer = tuner.recommend(**asked, min_accuracy=0.3)
    assert answer["measured"]["test_accuracy"]["value"] >= 0.3
    assert set(answer["evidence"]["run_ids"]) <= set(record.run_ids.values())
    with pytest.raises(NothingRecommended, match="min_accuracy"):
        tuner.recommend(**asked, min_accuracy=0.99999)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_first_steps_run(home, tmp_path):
    words = [f"{name}={value}" for name, value in {**TREE, **SHORT}.items()]
    done = subprocess.run(
        [sys.executable, EXAMPLES / "first_steps.py", *words],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "default: " in done.stdout
    assert "verified" in done.stdout
    assert "environment:" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_scheduler_runs_ten_jobs_in_the_time_that_was_promised(home, tmp_path):
    tuner.tune(**TREE, **SHORT, output=str(tmp_path), progress="none")
    path = f"framework_path={TREE['framework_path']}"
    service = Service(tmp_path, path)
    done = subprocess.run(
        [sys.executable, EXAMPLES / "scheduler.py", service.address, "dataset=digits", path],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert service.stop() == (0, "")
    assert done.returncode == 0, done.stdout + done.stderr
    *jobs, kept = done.stdout.splitlines()
    assert len(jobs) == 10
    assert all("synthetic took" in each for each in jobs)
    assert kept.startswith(("9 of 10", "10 of 10"))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two jobs want two CPUs")
def test_what_was_measured_side_by_side_is_recommended_for_that_alone(home, tmp_path):
    study = {**TREE, "experiment": "tenancy", "output": str(tmp_path)}
    result = tuner.tune(**study, **SHORT, progress="none")
    assert result.machine["jobs_per_host"] == "2"
    asked = {"framework": "synthetic", "dataset": "digits", "output": str(tmp_path)}
    found = tuner.recommend(**asked, jobs_per_host=2, framework_path=TREE["framework_path"])
    time_s = found["measured"]["train_time_s"]["value"]
    assert found["jobs_per_hour"] == pytest.approx(2 * 3600 / time_s)
    with pytest.raises(NothingRecommended, match=r"measured with jobs_per_host=1; measured: 2"):
        tuner.recommend(**asked, framework_path=TREE["framework_path"])


@pytest.mark.slow
def test_a_configuration_is_trained_once_and_measured(home):
    params = {"batch_size": 32, "iterations": 200, "blas": "fast"}
    result = tuner.train(**TREE, params=params)
    assert result.trial.time_limit_s > 86400.0, "whoever trains a large network waits for it"
    assert result.params["batch_size"] == 32
    assert result.params["learning_rate"] == 0.01, "the default's"
    assert result.iterations == 200
    assert result.metrics["test_accuracy"] > 0.5
    for wrong in ({"blas": "none"}, {"momentum": 0.9}):
        with pytest.raises(ConfigError, match="synthetic cannot be trained with"):
            tuner.train(**TREE, params=wrong)
