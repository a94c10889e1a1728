"""Which configuration to run with: limits, order, and an honest no."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import stats

from tests.conftest import SYNTHETIC
from tests.report_samples import DEFAULT_PARAMS, MIB, make_study
from tuner.api import answer, settings_template
from tuner.errors import ConfigError, NothingRecommended
from tuner.recommendation import Evidence, Limits, evidence_of, fill_settings, recommend
from tuner.registry import framework_folder, load_framework
from tuner.report import front_json
from tuner.tracking import StudyRecord


def point(name: str, time_s: float, memory_mb: float, accuracy: float) -> Evidence:
    figures = {
        "train_time_s": {"value": time_s},
        "peak_memory_bytes": memory_mb * MIB,
        "test_accuracy": {"value": accuracy},
    }
    return Evidence({"name": name}, figures, ("run",), "study")


FAST = point("fast", 10, 300, 0.97)
MIDDLE = point("middle", 40, 250, 0.985)
BEST = point("best", 60, 400, 0.99)
SLOW = point("slow", 190, 264, 0.991)
ALL = [SLOW, MIDDLE, BEST, FAST]


def names(recommendation):
    chosen = (recommendation.choice, *recommendation.alternatives)
    return [each.params["name"] for each in chosen]


@pytest.mark.parametrize(
    ("limits", "objective", "order"),
    [
        (Limits(), "train_time_s", ["fast", "middle", "best", "slow"]),
        (Limits(), "accuracy", ["slow", "best", "middle", "fast"]),
        (Limits(), "memory_mb", ["middle", "slow", "fast", "best"]),
        (Limits(max_train_time_s=60), "accuracy", ["best", "middle", "fast"]),
        (Limits(max_train_time_s=59.9), "accuracy", ["middle", "fast"]),
        (Limits(max_memory_mb=264), "train_time_s", ["middle", "slow"]),
        (Limits(min_accuracy=0.985), "train_time_s", ["middle", "best", "slow"]),
        (Limits(100, 300, 0.98), "train_time_s", ["middle"]),
    ],
)
def test_the_best_within_the_limits_comes_first(limits, objective, order):
    assert names(recommend(ALL, limits, objective)) == order


def test_of_equals_the_more_accurate_comes_first():
    equals = [point("poor", 10, 300, 0.95), point("rich", 10, 300, 0.96)]
    assert names(recommend(equals, Limits())) == ["rich", "poor"]


def refusal(limits, evidence=ALL) -> str:
    with pytest.raises(NothingRecommended) as refused:
        recommend(evidence, limits)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 4
    return str(refused.value)


@pytest.mark.parametrize(
    ("limits", "binding", "nearest"),
    [
        (Limits(max_train_time_s=5), "max_train_time_s=5", "fast"),
        (Limits(max_memory_mb=200), "max_memory_mb=200", "middle"),
        (Limits(min_accuracy=0.999), "min_accuracy=0.999", "slow"),
        # the time alone binds: each of the others keeps the memory limit
        (Limits(max_train_time_s=5, max_memory_mb=1000), "max_train_time_s=5", "fast"),
        (
            Limits(max_train_time_s=9, max_memory_mb=200),
            "max_memory_mb=200, max_train_time_s=9",
            "fast",
        ),
    ],
)
def test_a_limit_that_nothing_keeps_is_named_with_what_comes_nearest(limits, binding, nearest):
    message = refusal(limits)
    assert message.startswith(f"nothing measured keeps {binding}; the nearest takes ")
    assert message.endswith(f"{{'name': '{nearest}'}}")


def test_limits_that_bind_only_together_are_told_so():
    message = refusal(Limits(max_train_time_s=30, min_accuracy=0.98))
    assert message.startswith(
        "nothing measured keeps min_accuracy=0.98 together with the other limits; "
        "the nearest takes 10.0 s and 300 MiB for 97.00 %: "
    )


def test_a_limit_of_zero_is_a_limit():
    assert "max_train_time_s=0" in refusal(Limits(max_train_time_s=0))
    assert names(recommend(ALL, Limits(min_accuracy=0)))[0] == "fast"


def test_without_evidence_the_answer_is_to_run_a_study():
    assert "run python -m tuner framework=" in refusal(Limits(), evidence=[])


def test_an_unknown_objective_is_refused():
    with pytest.raises(ConfigError, match="one of train_time_s, accuracy, memory_mb, got 'speed'"):
        recommend(ALL, Limits(), "speed")


def test_no_job_at_all_is_refused():
    with pytest.raises(ConfigError, match="jobs_per_host must be at least 1, got 0"):
        recommend(ALL, Limits(jobs_per_host=0))


@pytest.fixture
def record() -> StudyRecord:
    """A study as it is read back from MLflow."""
    runs = {"verify-0004": "run-4", "verify-0005": "run-5", "verify-0000": "run-0"}
    front = json.loads(json.dumps(front_json(make_study())))
    return StudyRecord("sqlite://", "parent", front, runs, ended=1000.0)


def test_the_verified_points_of_a_study_are_its_evidence(record):
    study = make_study()
    evidence = evidence_of(record)
    assert len(evidence) == len(study.verified)
    for each, verified in zip(evidence, study.verified, strict=True):
        assert dict(each.params) == dict(verified.params)
        assert each.train_time_s == pytest.approx(verified.train_time_s.value)
        assert each.memory_mb == pytest.approx(verified.peak_memory_bytes / MIB)
        assert each.accuracy == pytest.approx(verified.test_accuracy.value)
        assert each.measured_at == 1000.0
        assert each.study == "parent"
    by_time = {round(each.train_time_s, 1): each for each in evidence}
    assert by_time[21.4].run_ids == ("run-4", "run-5")
    assert len({each.fingerprint for each in evidence}) == 1
    assert evidence[0].fingerprint
    choice = recommend(evidence, Limits(min_accuracy=0.988)).choice
    assert choice.train_time_s == pytest.approx(40.6)


def test_an_answer_names_the_data_set_that_was_measured_on(record):
    asked = [dataclasses.replace(each, dataset="mnist_5k") for each in evidence_of(record)]
    assert answer(recommend(asked, Limits()), "mnist", {})["dataset"] == "mnist_5k"


def test_a_study_that_verified_nothing_is_no_evidence(record):
    front = {name: value for name, value in record.front.items() if name != "verified"}
    assert evidence_of(dataclasses.replace(record, front=front)) == []


def test_caffes_own_settings_file_is_filled_in():
    framework = load_framework("caffe")
    template = framework_folder("caffe") / framework.settings_template
    text = fill_settings(template, {**DEFAULT_PARAMS, "iterations": 730, "learning_rate": 0.015})
    assert "base_lr: 0.015\n" in text
    assert "max_iter: 730\n" in text
    assert "$" not in text


def test_a_default_may_have_a_settings_file_of_its_own():
    template = framework_folder("caffe") / "cifar10_quick_solver.prototxt"
    text = fill_settings(template, {**DEFAULT_PARAMS, "iterations": 5000, "learning_rate": 0.001})
    assert "stepvalue: 4000\nmax_iter: 5000\n" in text
    assert "$" not in text


def test_the_settings_file_is_that_of_data_set_and_model():
    framework = load_framework("caffe")
    found = {
        (data, model): settings_template(framework, data, model)
        for data, model in (("cifar10", "default"), ("cifar10", "lenet"), ("mnist", "default"))
    }
    assert {pair: path.name for pair, path in found.items()} == {
        ("cifar10", "default"): "cifar10_quick_solver.prototxt",
        ("cifar10", "lenet"): "solver.prototxt",
        ("mnist", "default"): "solver.prototxt",
    }
    assert (
        settings_template(
            load_framework("synthetic", str(SYNTHETIC)), "digits", "default", str(SYNTHETIC)
        )
        is None
    )


def test_what_a_template_does_not_know_stays_as_it_is(tmp_path):
    template = tmp_path / "settings.txt"
    template.write_text("rate $learning_rate cost $$5 other $unknown $unknown_80pct $_5 $5pct\n")
    text = fill_settings(template, {"learning_rate": 1})
    assert text == "rate 1 cost $5 other $unknown $unknown_80pct $_5 $5pct\n"


def test_what_one_job_takes_is_less_certain_than_the_mean_of_several():
    times = [10.0, 11.0, 12.5, 9.5]
    logs = np.log(times)
    quantile = stats.t.ppf(0.975, len(logs) - 1)
    half = quantile * logs.std(ddof=1) / math.sqrt(len(logs))
    mean = logs.mean()
    figures = {
        "train_time_s": {
            "value": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)
        },
        "runs": ["verify-0001", "verify-0003", "verify-0005", "verify-0007"],
    }  # fmt: skip
    promised = Evidence({}, figures, (), "study").job_time_s
    # the interval of a prediction, as textbooks have it
    spread = quantile * logs.std(ddof=1) * math.sqrt(1 + 1 / len(logs))
    assert promised.low == pytest.approx(math.exp(mean - spread))
    assert promised.high == pytest.approx(math.exp(mean + spread))
