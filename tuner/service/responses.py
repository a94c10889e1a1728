"""What the service answers over HTTP."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from tuner.recommendation.hosts import Split
from tuner.recommendation.layouts import OverLink
from tuner.values.verified import Role

Mode = Literal["apply", "observe"]
Param = int | float | str | None


class Job(BaseModel):
    """A requested study and its progress."""

    id: str
    kind: Literal["study", "recheck"]
    state: Literal["queued", "running", "stopping", "complete", "failed", "stopped"]
    request: dict[str, Any]
    submitted: float = Field(description="seconds since the epoch, as the two below; 0 if not yet")
    started: float
    ended: float
    reason: str = Field(description="why it failed, or waits")
    study_id: str = Field(description="the study on record that came of it")
    progress: dict[str, Any] = Field(
        description="phase, detail, elapsed_s of budget_s, trials, and the front so far"
    )


class Figure(BaseModel):
    """A figure with its interval."""

    value: float
    low: float
    high: float


class Ratio(BaseModel):
    """A ratio with its interval; an end that cannot be given is null."""

    value: float | None
    low: float | None
    high: float | None


class Measured(BaseModel):
    """Measured figures: seconds, bytes, fractions."""

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


class Promise(BaseModel):
    """Predictions for one job; the interval of a prediction is wider than that of a mean."""

    train_time_s: Figure
    test_accuracy: Figure


class JobPromise(BaseModel):
    """What one job is promised."""

    train_time_s: float
    longest_s: float | None = Field(description="null if only one run was measured")
    least_accuracy: float
    speedup: float
    confidence: float = Field(description="probability that a job keeps both limits, at least")


class JobOutcome(BaseModel):
    """What came of a job."""

    train_time_s: float | None = Field(description="null if it ended early")
    test_accuracy: float | None


class JobClaim(BaseModel):
    """A job with a recommendation, and what came of it."""

    recommendation: str
    job: str
    study_run_id: str
    applied: bool = Field(description="false if the job kept its own configuration")
    promised: JobPromise
    claimed: float = Field(description="seconds since the epoch")
    ended: float | None
    outcome: JobOutcome | None
    kept: bool | None = Field(description="whether the promise was kept; null if not judged")
    breach: str = Field("", description="how it was broken")
    drift: str = Field("", description="how jobs broke what the study promised, if it drifted")


class Kept(BaseModel):
    """How well promises were kept."""

    claimed: int
    kept: int
    broken: int
    failed: int
    observed: int = Field(description="jobs that ended with their own configuration")
    saved_s: float = Field(description="training time saved against the default")
    not_saved_s: float = Field(description="training time that the observed jobs would have saved")


class Recommended(BaseModel):
    """A recommendation, how well its promises were kept, and its newest jobs."""

    id: str
    study_run_id: str
    kept: Kept
    drift: str
    recheck: str = Field(description="the job that measures it again, or why there is none")
    jobs: list[JobClaim]


class Proof(BaseModel):
    """Source of an answer: runs in MLflow, age, and fingerprint of the machine."""

    study_run_id: str
    run_ids: list[str]
    age_s: float
    expires: float = Field(description="when to measure again, seconds since the epoch")
    fingerprint: str


_ROLE = "what it was verified for: " + ", ".join(each.value for each in Role)
_NO_LOSS = "whether no loss of accuracy against the framework's default is proven"


class Point(BaseModel):
    """Summary of a verified configuration."""

    framework: str
    role: str = Field(description=_ROLE)
    no_loss: bool = Field(description=_NO_LOSS)
    params: dict[str, Param]
    test_accuracy: float
    train_time_s: float
    peak_memory_mb: float


class ProgramAnswer(BaseModel):
    """The setting that a user's own program should run with, and why."""

    program: str
    command: str = Field(description="with the setting, for a shell")
    no_loss: bool | None = Field(description="null if the program's accuracy was not read")
    assurance: str
    params: dict[str, Param]
    environment: dict[str, str]
    objective: Literal["time", "cpu", "memory"] = Field(description="what it needs less of")
    gain: Ratio = Field(description="how many times less of the objective it needs")
    speedup: Ratio = Field(description="how many times as fast it is, whatever the objective")
    all_disturbed: bool | None = Field(
        description="whether other work on the machine disturbed every run of the proof; null if "
        "that is not on record"
    )
    evidence: Proof
    stale: bool = Field(
        description="whether it was measured on another machine, or with other files than the "
        "newest study of the program"
    )
    note: str | None = Field(description="if it is stale, why")


class Answer(BaseModel):
    """The configuration that a job should run with, and why."""

    id: str = Field(description="of this recommendation; jobs claim it and report outcomes by it")
    mode: Mode = Field(
        "apply", description="observe: jobs keep their own configuration, and report their times"
    )
    framework: str
    dataset: str
    model: str
    role: str = Field(description=_ROLE)
    no_loss: bool = Field(description=_NO_LOSS)
    assurance: str = Field(description="how sure it is that nothing is lost, or what is lost")
    note: str | None = Field(None, description="if the answer is the untouched default, why")
    params: dict[str, Param]
    environment: dict[str, str]
    settings: str | None = Field(None, description="the framework's own settings file")
    speedup: Ratio | None = Field(description="over the default; null for the default itself")
    measured: Measured
    jobs_per_hour: float = Field(description="trainings that the whole host completes in an hour")
    promised: Promise
    against_default: dict[str, Any] | None
    evidence: Proof
    stale: bool = Field(
        description="whether it was measured on another machine, or jobs broke what it promised"
    )
    drift: str | None = Field(None, description="how jobs broke what it promised")
    alternatives: list[Point]
    split: dict[Literal["soonest", "most_jobs"], Split] | None = Field(
        None, description="how to share out the cores that were asked for"
    )
    over_link: OverLink | None = Field(None, description="if a bandwidth was asked for")


class FrontPoint(Point):
    """A verified configuration, and whether it is on the front."""

    name: str
    study_run_id: str
    verdict: str
    is_default: bool
    on_front: bool


class Study(BaseModel):
    """Summary of a study."""

    id: str = Field(description="of the study; before it begins, of the job")
    run_id: str = ""
    state: Literal["queued", "running", "stopping", "stopped", "failed", "complete", "cut short"]
    framework: str
    dataset: str
    model: str
    verified: int = 0
    trials: dict[str, int] = {}
    elapsed_s: float = 0.0
    ended: float = Field(description="seconds since the epoch; 0 if not yet")
    warnings: list[str] = []


class Framework(BaseModel):
    """A framework that can be tuned."""

    name: str
    title: str
    runtime: str
    installed: bool


HealthStatus = Literal["ok", "stale", "failed"]


class Health(BaseModel):
    """Whether the service can answer."""

    status: HealthStatus = Field(description="stale: the store cannot be read; failed: restart it")
    version: str
    studies: int
    damaged: int = Field(description="recorded studies that cannot be read")
    read_s_ago: float | None = Field(description="null if the store was never read")
    fault: str


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str
    binding: list[str] = Field([], description="limits that no configuration meets")
    nearest: Point | None = Field(None, description="what comes closest to meeting them")
