"""The words that settings may take, and checks that need no data set, space or runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter

from tuner.config.schema import (
    SEEDS,
    SamplerConfig,
    TuneConfig,
    objectives_of,
    parse_constraint,
)
from tuner.values.errors import ConfigError
from tuner.values.extras import require_extra

CHOICES: Mapping[str, tuple[str, ...]] = {
    "model": ("default", "lenet", "alexnet", "vgg", "resnet50", "lstm"),
    "goal": ("no_loss", "accuracy", "perplexity"),
    "baseline": ("auto", "full", "projected"),
    "resume": ("auto", "restart"),
    "progress": ("auto", "live", "plain", "none"),
    "search": ("factored", "joint", "raytune"),
    "sampler": ("tpe", "nsga2", "gp", "random"),
    "executor": ("local", "ray"),
    "framework.runtime.install": ("auto", "never"),
    "framework.topology": ("ring", "server"),
    "dataset.on_unavailable": ("fallback", "error"),
}
"""The values of each setting that takes a word from a fixed list."""


def _check(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {wanted}, got {value!r}")


def validate(config: TuneConfig) -> TuneConfig:
    """Return ``config`` unchanged if it can be used.

    Raises:
        ConfigError: For the first fault, or a package that a setting needs and is not installed.
    """
    for name, share in (
        ("executor.memory_share", config.executor.memory_share),
        ("budget.trial_share", config.budget.trial_share),
        ("budget.default_share", config.budget.default_share),
        ("verify.rate_share", config.verify.rate_share),
        ("search.race_share", config.search.race_share),
    ):
        _check(0 < share <= 1, name, share, "above 0 and at most 1")
    for name, least, number in (
        ("budget.trials", 0, config.budget.trials),
        ("verify.finalists", 0, config.verify.finalists),
        ("verify.repeats", 1, config.verify.repeats),
        ("measure.repeats", 0, config.measure.repeats),
        ("executor.memory_limit_mb", 0, config.executor.memory_limit_mb),
        ("executor.cores_per_trial", 0, config.executor.cores_per_trial),
        ("executor.jobs_per_host", 1, config.executor.jobs_per_host),
        ("executor.nodes_per_trial", 1, config.executor.nodes_per_trial),
        ("verify.perplexity_margin", 0, config.verify.perplexity_margin),
        ("measure.max_foreign_pct", 0, config.measure.max_foreign_pct),
        ("measure.max_steal_pct", 0, config.measure.max_steal_pct),
    ):
        _check(number >= least, name, number, f"at least {least}")
    for name, above_zero in (
        ("budget.time_s", config.budget.time_s),
        ("verify.min_rate_s", config.verify.min_rate_s),
        ("verify.max_rate_s", config.verify.max_rate_s),
        ("measure.sample_interval_s", config.measure.sample_interval_s),
        ("framework.stall_limit_s", config.framework.stall_limit_s),
        ("search.probe_s", config.search.probe_s),
    ):
        _check(0 < above_zero < math.inf, name, above_zero, "above 0 and finite")
    _check(0 <= config.seed < SEEDS, "seed", config.seed, f"at least 0 and below {SEEDS}")
    for name, fraction in (
        ("budget.verify_share", config.budget.verify_share),
        ("verify.accuracy_margin", config.verify.accuracy_margin),
    ):
        _check(0 <= fraction < 1, name, fraction, "a fraction, at least 0 and below 1")
    _check(
        0 < config.verify.confidence < 1,
        "verify.confidence",
        config.verify.confidence,
        "between 0 and 1",
    )
    for name, choices in CHOICES.items():
        value = attrgetter(name)(config)
        value = getattr(value, "name", value)  # of a group such as search
        _check(value in choices, name, value, f"one of {', '.join(choices)}")
    if config.search.name == "factored" and config.sampler.name != SamplerConfig.name:
        raise ConfigError(
            f"sampler={config.sampler.name} is for search=joint or raytune, got "
            f"search={config.search.name}, which uses no sampler"
        )
    _validate_executor(config)
    _check(
        len(set(config.frameworks)) == len(config.frameworks),
        "frameworks",
        config.frameworks,
        "distinct names, or [all]",
    )
    _validate_objectives(config)
    _require_packages(config)
    return config


def _require_packages(config: TuneConfig) -> None:
    for needed, purpose, extra, package in (
        (config.executor.name == "ray", "executor=ray", "ray", "ray"),
        (config.search.name == "raytune", "search=raytune", "ray", "ray"),
        (config.sampler.name == "gp", "sampler=gp", "gp", "torch"),
    ):
        if needed:
            require_extra(purpose, extra, package)


def _validate_executor(config: TuneConfig) -> None:
    if config.executor.name == "local":
        for name in ("address", "cores_per_trial"):
            given = getattr(config.executor, name)
            _check(not given, f"executor.{name}", given, "left out unless executor=ray")
    nodes = config.executor.nodes_per_trial
    for permitted, wanted in (
        (config.executor.name == "ray", "1 unless executor=ray"),
        (config.framework.spans_nodes, f"1 with {config.framework.name}, which trains on one"),
    ):
        _check(nodes == 1 or permitted, "executor.nodes_per_trial", nodes, wanted)
    _check(
        not config.dataset.path or config.executor.name == "local",
        "executor",
        config.executor.name,
        "local with dataset.path: other machines may lack these files, or have others",
    )
    if config.executor.jobs_per_host > 1:
        permitted = config.executor.name == "local" and config.search.name != "factored"
        _check(
            permitted,
            "executor.jobs_per_host",
            config.executor.jobs_per_host,
            "1 unless executor=local and search is joint or raytune",
        )


def _validate_objectives(config: TuneConfig) -> None:
    _check(bool(config.objectives), "objectives", config.objectives, "at least one name")
    _check(
        len(set(config.objectives)) == len(config.objectives),
        "objectives",
        config.objectives,
        "distinct names",
    )
    asked = [
        *(("objectives", each.name, each) for each in objectives_of(config)),
        *(("constraints", each, parse_constraint(each).objective) for each in config.constraints),
    ]
    figure = config.dataset.figure
    for name, text, objective in asked:
        _check(
            objective.name not in ("test_accuracy", "test_perplexity"),
            name,
            config.objectives if name == "objectives" else text,
            f"without {objective.name}, which is for verification; {figure} is of the "
            "validation split",
        )
        _check(
            not objective.is_quality or objective.metric.endswith(figure),
            name,
            text,
            f"about {figure}, which {config.dataset.name} is measured by",
        )
    _check(config.goal in ("no_loss", figure), "goal", config.goal, f"no_loss or {figure}")
