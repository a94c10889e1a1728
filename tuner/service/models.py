"""What goes over the wire: requests that are refused unless they are just this, and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
"""Of a framework or data set: no path, nothing for a shell."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Param = int | float | str | None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Question(_Strict):
    """Which configuration should a job run with?"""

    framework: Name | None = Field(None, description="chooses among all if it is not given")
    dataset: Name = "mnist"
    max_train_time_s: Positive | None = None
    max_memory_mb: Positive | None = Field(None, description="peak, MiB")
    min_accuracy: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="on the test split, fraction"
    )
    cores: Annotated[int, Field(gt=0, le=65536)] | None = Field(
        None, description="CPUs that the job will have, as many as it was measured on"
    )
    objective: Literal["train_time_s", "accuracy", "memory_mb"] = "train_time_s"


class ParetoQuestion(_Strict):
    """Which configurations are on the front?"""

    framework: Name | None = Field(None, description="all if it is not given")
    dataset: Name = "mnist"


class StudiesQuestion(_Strict):
    """Which studies are on record?"""

    framework: Name | None = None
    dataset: Name | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 100


class Figure(BaseModel):
    """A figure with its interval."""

    value: float
    low: float
    high: float


class Measured(BaseModel):
    """What was measured: seconds, bytes, fractions."""

    test_accuracy: Figure
    train_time_s: Figure
    test_time_s: float
    cpu_user_s: float
    cpu_system_s: float
    avg_memory_bytes: float
    peak_memory_bytes: float
    projected: bool
    confidence: float
    verdict: str


class Proof(BaseModel):
    """Where it comes from: runs in MLflow, age, and on what machine."""

    study_run_id: str
    run_ids: list[str]
    age_s: float
    fingerprint: str


class Point(BaseModel):
    """A verified configuration in short."""

    framework: str
    params: dict[str, Param]
    test_accuracy: float
    train_time_s: float
    peak_memory_mb: float


class Answer(BaseModel):
    """What a job should run with, and why."""

    framework: str
    dataset: str
    model: str
    params: dict[str, Param]
    environment: dict[str, str]
    settings: str | None = Field(None, description="the framework's own settings file")
    measured: Measured
    against_default: dict[str, Any] | None
    evidence: Proof
    stale: bool = Field(description="whether this machine differs from the one it was measured on")
    alternatives: list[Point]


class FrontPoint(Point):
    """A verified configuration, and whether another one is better in everything."""

    name: str
    study_run_id: str
    verdict: str
    is_default: bool
    on_front: bool


class Study(BaseModel):
    """A study in short."""

    id: str
    run_id: str
    framework: str
    dataset: str
    model: str
    complete: bool
    verified: int
    trials: dict[str, int]
    elapsed_s: float
    ended: float = Field(description="seconds since the epoch")
    warnings: list[str]


class Framework(BaseModel):
    """A framework that can be tuned."""

    name: str
    title: str
    runtime: str
    installed: bool


class Health(BaseModel):
    """Whether the service can answer."""

    status: Literal["ok", "stale"]
    version: str
    studies: int
    read_s_ago: float
    fault: str


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str
    binding: list[str] = Field([], description="limits that nothing keeps")
    nearest: Point | None = Field(None, description="what comes nearest to keeping them")
