"""Which verified configuration a job should run with, under limits; pure but for its templates.

Only verified points are recommended: figures of the search were chosen for being good.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner.errors import ConfigError, NothingRecommended
from tuner.measure import fingerprint
from tuner.tracking import StudyRecord
from tuner.trial import Interval, Params, ParamValue


@dataclass(frozen=True, slots=True)
class Limits:
    """What a job allows; ``None`` is no limit. Seconds, MiB, fraction 0–1, CPUs.

    Times hold for as many CPUs, and as many such jobs side by side on the host, as they were
    measured with, so ``cores`` and ``jobs_per_host`` are asked for exactly.
    """

    max_train_time_s: float | None = None
    max_memory_mb: float | None = None
    min_accuracy: float | None = None
    cores: int | None = None
    jobs_per_host: int = 1


@dataclass(frozen=True)
class Evidence:
    """One verified configuration, as read back from MLflow.

    Attributes:
        params: What to run with.
        figures: Its entry in ``front.json``: every figure with its interval.
        run_ids: MLflow runs that prove the figures.
        study: MLflow run of the study.
        framework: Name of the framework.
        model: ``default`` or ``lenet``.
        fingerprint: Of the machine and libraries it was measured on.
        measured_at: Seconds since the epoch.
        dataset: Name of the data set it was measured on.
        cores: CPUs that its trials owned; 0 if that is not on record.
        jobs_per_host: How many such jobs shared the host while it was measured.
    """

    params: Params
    figures: Mapping[str, Any]
    run_ids: tuple[str, ...]
    study: str
    framework: str = ""
    model: str = "default"
    fingerprint: str = ""
    measured_at: float = 0.0
    dataset: str = ""
    cores: int = 0
    jobs_per_host: int = 1

    @cached_property
    def train_time_s(self) -> float:
        """Seconds of training."""
        return float(self.figures["train_time_s"]["value"])

    @cached_property
    def job_time_s(self) -> Interval:
        """Seconds of training that one job will take, with the interval of this prediction.

        A run more varies by itself as well as those that were measured, so with n of them this
        is the square root of n + 1 wider (in logarithms) than the interval of their mean.
        """
        time_s = Interval(**self.figures["train_time_s"])
        wider = math.sqrt(len(self.figures["runs"]) + 1)
        return Interval(
            time_s.value,
            time_s.value * (time_s.low / time_s.value) ** wider,
            time_s.value * (time_s.high / time_s.value) ** wider,
        )

    @property
    def jobs_per_hour(self) -> float:
        """Trainings that the host ends in an hour, with as many at once as were measured."""
        return self.jobs_per_host * 3600 / self.train_time_s

    @cached_property
    def memory_mb(self) -> float:
        """Peak memory, MiB."""
        return float(self.figures["peak_memory_bytes"]) / 2**20

    @cached_property
    def accuracy(self) -> float:
        """Test accuracy, fraction 0–1."""
        return float(self.figures["test_accuracy"]["value"])

    def summary(self) -> dict[str, Any]:
        """What it is and what it costs, as plain values."""
        return {
            "framework": self.framework,
            "params": dict(self.params),
            "test_accuracy": self.accuracy,
            "train_time_s": self.train_time_s,
            "peak_memory_mb": self.memory_mb,
        }


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The point to run with, and the other points that keep the limits, best first."""

    choice: Evidence
    alternatives: tuple[Evidence, ...]


OBJECTIVES = ("train_time_s", "accuracy", "memory_mb")


def recommend(
    evidence: Sequence[Evidence], limits: Limits, objective: str = "train_time_s"
) -> Recommendation:
    """The best configuration by ``objective`` among those that keep all limits.

    Raises:
        ConfigError: If there is no such objective, or no job is asked for.
        NothingRecommended: If there is no evidence, or nothing keeps the limits; the message
            says which limit binds and what comes nearest.
    """
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    if limits.jobs_per_host < 1:
        raise ConfigError(f"jobs_per_host must be at least 1, got {limits.jobs_per_host}")
    if not evidence:
        raise NothingRecommended(
            "no verified study is on record here; run python -m tuner framework=... dataset=... "
            "first, or say where it was tracked (tracking_uri=)"
        )
    for name in ("jobs_per_host", "cores"):
        evidence = _measured_so(evidence, name, getattr(limits, name))
    fitting = [each for each in evidence if not _violations(each, limits)]
    if not fitting:
        raise _why_nothing(evidence, limits)
    sign = -1 if objective == "accuracy" else 1
    fitting.sort(key=lambda each: (sign * getattr(each, objective), -each.accuracy))
    return Recommendation(fitting[0], tuple(fitting[1:]))


def _measured_so(evidence: Sequence[Evidence], name: str, wanted: int | None) -> list[Evidence]:
    """What was measured under a circumstance that times depend on."""
    found = [each for each in evidence if wanted in (None, getattr(each, name))]
    if not found:
        known = sorted({getattr(each, name) for each in evidence} - {0})
        raise NothingRecommended(
            f"nothing was measured with {name}={wanted}; there is "
            f"{', '.join(map(str, known)) or 'nothing on record about it'}",
            binding=[name],
        )
    return found


def _violations(point: Evidence, limits: Limits) -> dict[str, float]:
    """By how much, as a fraction of the limit, each broken limit is broken."""
    broken = {}
    for name, limit, value, sign in (
        ("max_train_time_s", limits.max_train_time_s, point.train_time_s, 1),
        ("max_memory_mb", limits.max_memory_mb, point.memory_mb, 1),
        ("min_accuracy", limits.min_accuracy, point.accuracy, -1),
    ):
        if limit is not None and sign * (value - limit) > 0:
            broken[name] = abs(value - limit) / max(abs(limit), 1e-9)
    return broken


def _why_nothing(evidence: Sequence[Evidence], limits: Limits) -> NothingRecommended:
    nearest = min(evidence, key=lambda each: max(_violations(each, limits).values()))
    alone = set.intersection(*(set(_violations(each, limits)) for each in evidence))
    binding = sorted(alone or _violations(nearest, limits))
    asked = ", ".join(f"{name}={getattr(limits, name):g}" for name in binding)
    whose = f" with {nearest.framework}" if nearest.framework else ""
    return NothingRecommended(
        f"nothing measured keeps {asked}{'' if alone else ' together with the other limits'}; "
        f"the nearest takes {nearest.train_time_s:.1f} s and {nearest.memory_mb:.0f} MiB "
        f"for {100 * nearest.accuracy:.2f} %{whose}: {dict(nearest.params)}",
        binding,
        nearest.summary(),
    )


def evidence_of(record: StudyRecord) -> list[Evidence]:
    """The verified points of one study."""
    front = record.front
    cores = str(front["machine"].get("cores", "")).split()
    return [
        Evidence(
            params=point["params"],
            figures=point,
            run_ids=tuple(
                record.run_ids[name] for name in point["runs"] if name in record.run_ids
            ),
            study=record.run_id,
            framework=str(front.get("framework", "")),
            model=str(front.get("model", "default")),
            fingerprint=fingerprint(front["machine"], front["runtime"]),
            measured_at=record.ended,
            dataset=str(front.get("dataset", "")),
            cores=int(cores[0]) if cores and cores[0].isdecimal() else 0,
            jobs_per_host=int(front["machine"].get("jobs_per_host", 1)),
        )
        for point in front.get("verified", [])
    ]


def fill_settings(template: Path, params: Params) -> str:
    """The framework's own settings file with ``params`` filled in.

    ``$name`` is a param, ``$name_80pct`` is 80 % of it, rounded down.
    """
    text = template.read_text(encoding="utf-8")
    return string.Template(text).safe_substitute(_Values(params))


class _Values(dict[str, ParamValue]):
    """Params by name, and their percentages."""

    def __missing__(self, name: str) -> ParamValue:
        param, _, percent = name.removesuffix("pct").rpartition("_")
        if not name.endswith("pct") or not percent.isdecimal():
            raise KeyError(name)
        return int(self[param] or 0) * int(percent) // 100
