"""What the user gives is refused in one line that names the value and what would work."""

from __future__ import annotations

import dataclasses

import pytest

from tuner.config.catalogue import load_dataset_config
from tuner.config.schema import TuneConfig, objectives_of, parse_constraint
from tuner.config.validation import validate
from tuner.values.errors import ConfigError

NAN, INF = float("nan"), float("inf")


def changed(path: str, value: object) -> TuneConfig:
    """A valid configuration but for one entry."""
    config = TuneConfig()
    *groups, name = path.split(".")
    target: object = config
    for group in groups:
        target = getattr(target, group)
    assert hasattr(target, name)
    setattr(target, name, value)
    return config


def refusal(config: TuneConfig) -> str:
    with pytest.raises(ConfigError) as refused:
        validate(config)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2
    return str(refused.value)


def test_the_defaults_are_valid_and_returned_unchanged():
    config = TuneConfig()
    assert validate(config) is config
    assert config == TuneConfig()


SHARES = (
    "executor.memory_share",
    "budget.trial_share",
    "budget.default_share",
    "verify.rate_share",
)
BAD = [
    *((path, value, "above 0 and at most 1") for path in SHARES for value in (0, -0.1, 1.01, NAN)),
    *(("budget.verify_share", value, "at least 0 and below 1") for value in (-0.1, 1.0, NAN)),
    *(("verify.confidence", value, "between 0 and 1") for value in (0, 1, 95, -1, NAN)),
    ("budget.trials", -1, "at least 0"),
    ("verify.finalists", -1, "at least 0"),
    ("verify.repeats", 0, "at least 1"),
    ("measure.repeats", -1, "at least 0"),
    ("executor.memory_limit_mb", -5, "at least 0"),
    *(("seed", value, "at least 0 and below 2147483648") for value in (-1, 2**31)),
    *(("budget.time_s", value, "above 0 and finite") for value in (0, -60, NAN, INF)),
    *(("verify.min_rate_s", value, "above 0") for value in (0, -1, NAN)),
    *(("verify.max_rate_s", value, "above 0") for value in (0, -1, NAN)),
    *(("measure.sample_interval_s", value, "above 0") for value in (0, -1, NAN)),
    *(("framework.stall_limit_s", value, "above 0") for value in (0, -1)),
    *(("verify.accuracy_margin", value, "a fraction, at least 0") for value in (-0.001, 2, NAN)),
    *(("measure.max_foreign_pct", value, "at least 0") for value in (-1, NAN)),
    *(("measure.max_steal_pct", value, "at least 0") for value in (-1, NAN)),
    ("model", "resnet", "default, lenet, alexnet, vgg, resnet50, lstm"),
    ("objectives", ["train_time_s", "perplexity"], "about accuracy, which mnist is measured by"),
    ("constraints", ["perplexity<=120"], "about accuracy, which mnist is measured by"),
    ("goal", "perplexity", "no_loss or accuracy"),
    ("resume", "yes", "auto, restart"),
    ("progress", "loud", "auto, live, plain, none"),
    ("search.name", "genetic", "joint"),
    ("sampler.name", "cmaes", "tpe, nsga2, gp, random"),
    ("sampler.name", "nsga2", "for search=joint or raytune, got search=factored"),
    ("executor.name", "slurm", "local"),
    ("framework.runtime.install", "maybe", "auto, never"),
    ("dataset.on_unavailable", "ignore", "fallback, error"),
    ("objectives", [], "at least one name"),
    ("objectives", ["accuracy", "accuracy"], "distinct names"),
    ("objectives", ["accuracy", "test_accuracy"], "validation split"),
    ("objectives", ["accuracy", "speed"], "train_time_s"),
    ("constraints", ["test_accuracy>=0.98"], "accuracy is of the validation split"),
    ("constraints", ["peak_memory_mb<2048"], "name<=number"),
    ("constraints", ["accuracy>=0.9", "ram<=5"], "peak_memory_mb"),
]


@pytest.mark.parametrize(("path", "value", "wanted"), BAD, ids=lambda each: str(each)[:30])
def test_a_bad_value_is_named_with_what_would_work(path, value, wanted):
    message = refusal(changed(path, value))
    # lists are refused for one of their entries, constraints for one of their words
    received = value[-1] if isinstance(value, list) and value else value
    assert str(received).removesuffix("<=5") in message
    assert wanted in message
    name = path.removeprefix("framework.").removesuffix(".name")
    if path not in ("objectives", "constraints"):
        assert name in message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((path, value) for path in SHARES for value in (0.001, 1)),
        ("budget.verify_share", 0),
        ("budget.trials", 0),
        ("verify.finalists", 0),
        ("verify.repeats", 1),
        ("verify.accuracy_margin", 0),
        ("measure.max_foreign_pct", 0),
        ("seed", 0),
        ("seed", 2**31 - 1),
        ("objectives", ["train_time_s"]),
        ("objectives", ["accuracy", "train_time_s", "peak_memory_mb"]),
        ("constraints", ["peak_memory_mb<=2048", "accuracy>=0.985"]),
        ("resume", "restart"),
    ],
)
def test_values_at_the_edge_are_accepted(path, value):
    validate(changed(path, value))


def of_text(**changes):
    return dataclasses.replace(TuneConfig(), dataset=load_dataset_config("ptb"), **changes)


def test_what_a_text_is_measured_by_takes_the_place_of_accuracy():
    names = [each.name for each in objectives_of(validate(of_text()))]
    assert names == ["perplexity", "train_time_s"]
    validate(of_text(goal="perplexity", constraints=["perplexity<=120"]))
    for wrong in (
        {"goal": "accuracy"},
        {"constraints": ["accuracy>=0.9"]},
        {"objectives": ["train_time_s", "accuracy"]},
    ):
        with pytest.raises(ConfigError, match="perplexity"):
            validate(of_text(**wrong))


def test_objectives_come_in_the_order_given():
    config = changed("objectives", ["train_time_s", "accuracy"])
    objectives = objectives_of(config)
    assert [each.name for each in objectives] == ["train_time_s", "accuracy"]


@pytest.mark.parametrize(
    ("text", "name", "upper", "limit"),
    [
        ("peak_memory_mb<=2048", "peak_memory_mb", True, 2048),
        (" accuracy >= 0.985 ", "accuracy", False, 0.985),
        ("train_time_s<=1e2", "train_time_s", True, 100),
    ],
)
def test_constraints_are_read(text, name, upper, limit):
    constraint = parse_constraint(text)
    assert (constraint.objective.name, constraint.upper, constraint.limit) == (name, upper, limit)
    assert parse_constraint(str(constraint)) == constraint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "accuracy",
        "accuracy>=",
        "accuracy>=high",
        "accuracy>=nan",
        "accuracy=0.9",
        "accuracy==0.9",
        "accuracy>0.9",
        ">=0.9",
        "accuracy>=0.9 0.8",
        "accuracy>=0.9\nmore",
        "2048>=peak_memory_mb",
    ],
)
def test_what_is_no_constraint_is_refused(text):
    with pytest.raises(ConfigError) as refused:
        parse_constraint(text)
    assert repr(text) in str(refused.value)
    assert "such as peak_memory_mb<=2048" in str(refused.value)


def test_violations_are_in_the_unit_of_the_constraint():
    upper, lower = parse_constraint("peak_memory_mb<=100"), parse_constraint("accuracy>=0.9")
    assert upper.violation({"peak_memory_bytes": 103 * 2**20}) == pytest.approx(3)
    assert upper.violation({"peak_memory_bytes": 100 * 2**20}) == 0
    assert lower.violation({"val_accuracy": 0.8}) == pytest.approx(0.1)
    assert lower.violation({"val_accuracy": 0.95}) < 0
    assert lower.violation({}) == INF
    assert upper.violation({"val_accuracy": 1.0}) == INF
