"""The answer to a question, in plain values: what to run, how sure that is, and what proves it.

Python's ``recommend`` returns them, and the service sends them over HTTP.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from tuner.config.catalogue import load_framework
from tuner.recommendation.choice import Limits, Recommendation
from tuner.recommendation.evidence import EXPIRES_AFTER_S, Evidence
from tuner.recommendation.hosts import split_host
from tuner.recommendation.layouts import over_link
from tuner.recommendation.settings_file import fill_settings, settings_template
from tuner.runtimes import find_runtime
from tuner.values.errors import ConfigError
from tuner.values.scaling import Link, read_topology


def answer(found: Recommendation, dataset: str, configured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values that ``recommend`` does; ``configured`` is of ``configuration``."""
    choice = found.choice
    # differs from what was asked for if the study had to fall back to another
    measured_on = choice.dataset or dataset
    chosen = {
        "id": choice.id,
        "framework": choice.framework,
        "dataset": measured_on,
        "model": choice.model,
    }
    sure = {"role": choice.role, "no_loss": choice.no_loss, "assurance": choice.assurance}
    noted = {"note": found.note, "drift": choice.drift}
    noted = {name: text for name, text in noted.items() if text}
    return {**chosen, **sure, **noted, **configured, **_proof(found)}


def layouts_of(
    found: Recommendation, limits: Limits, link: Link | None, framework_path: str | None = None
) -> dict[str, Any]:
    """Return ``split`` and ``over_link`` of an answer, those of the two that were asked for."""
    asked, splits = dict[str, Any](), split_host(found, limits)
    if splits:
        asked["split"] = {goal: dataclasses.asdict(each) for goal, each in splits.items()}
    if link:
        choice = found.choice
        topology = read_topology(load_framework(choice.framework, framework_path).topology)
        groups = over_link(choice.params, choice.layouts, topology, link)
        asked["over_link"] = dataclasses.asdict(groups)
    return asked


def configuration(
    choice: Evidence, dataset: str, framework_path: str | None = None
) -> dict[str, Any]:
    """Return what to run a job with: params, variables to set, and the settings file if any."""
    framework = load_framework(choice.framework, framework_path)
    try:
        environment = find_runtime(framework).job_environment(choice.params)
    except KeyError as error:
        raise ConfigError(
            f"{framework.name} now has a param {error} that study {choice.study} did not record; "
            "run a new study"
        ) from error
    found = {"params": dict(choice.params), "environment": environment}
    like = choice.like or dataset
    if template := settings_template(framework, like, choice.model, framework_path):
        found["settings"] = fill_settings(template, choice.params)
    return found


def _proof(found: Recommendation) -> dict[str, Any]:
    """Return figures with intervals, in the units of their names, and the runs behind them."""
    choice, learnt = found.choice, f"test_{found.choice.quality.name}"
    versus = choice.figures["comparison"]
    return {
        "speedup": versus["speedup"] if versus else None,
        "measured": {
            name: choice.figures[name]
            for name in (
                *(learnt, "train_time_s", "test_time_s", "cpu_user_s", "cpu_system_s"),
                *("avg_memory_bytes", "peak_memory_bytes", "projected", "confidence", "verdict"),
            )
        },
        "jobs_per_hour": choice.jobs_per_hour,
        "promised": {
            "train_time_s": dataclasses.asdict(choice.job_time_s),
            learnt: dataclasses.asdict(choice.job_figure),
        },
        "against_default": versus,
        "evidence": {
            "study_run_id": choice.study,
            "run_ids": list(choice.run_ids),
            "age_s": round(time.time() - choice.measured_at),
            "expires": round(choice.measured_at + EXPIRES_AFTER_S),
            "fingerprint": choice.fingerprint,
        },
        "alternatives": [each.summary() for each in found.alternatives[:3]],
    }
