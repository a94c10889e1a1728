"""What clients may ask over HTTP; an unknown field or a bad value is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from tuner.recommendation.evidence import MARGIN
from tuner.recommendation.layouts import LATENCY_MS
from tuner.values.scaling import BANDWIDTH, MAX_LATENCY_MS

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
"""Name of a framework, data set or param, without characters special to paths or shells."""
Limit = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}(<=|>=)[0-9.]{1,20}$")]
"""A constraint such as peak_memory_mb<=2048."""
Plain = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{0,60}$")]
"""A param's value that is a text."""
Form = Annotated[
    Literal["json", "yaml", "env", "sh", "argv", "slurm", "k8s-configmap", "trainjob"],
    Field(description="anything but json is a text for a job to start with"),
]
Model = Literal["default", "lenet", "alexnet", "vgg", "resnet50"]
JobName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,127}$")]
"""The client's own name of a job, such as its Slurm id or the UID of a pod."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_MAX_STUDY_S = 7 * 86400.0
_MAX_JOB_S = 366 * 86400.0


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Question(_Strict):
    """Which configuration should a job run with?"""

    framework: Name | None = Field(None, description="if omitted, all are considered")
    dataset: Name = "mnist"
    max_train_time_s: Positive | None = None
    max_memory_mb: Positive | None = Field(None, description="peak, MiB")
    min_accuracy: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="on the test split, fraction; met if the lower end of the interval meets it, "
        "or if no loss is proven against a default that was measured at or above it",
    )
    max_accuracy_loss: Fraction | Literal["none"] = Field(
        MARGIN,
        description="largest loss against the framework's default, fraction; 0.002 is no loss as "
        "studies prove it, none allows any loss",
    )
    cores: Annotated[int, Field(gt=0, le=65536)] | None = Field(
        None,
        description="CPUs of the job; only what was measured on as many is considered, and the "
        "answer says how to split them",
    )
    jobs_per_host: Annotated[int, Field(gt=0, le=65536)] = Field(
        1,
        description="jobs on one host; only what was measured beside as many is considered",
    )
    max_workers: Annotated[int, Field(gt=0, le=65536)] | None = Field(
        None,
        description="processes that may train the job together; 1 if it is started as one",
    )
    objective: Literal["train_time_s", "accuracy", "memory_mb"] = "train_time_s"
    bandwidth: Annotated[str, Field(pattern=BANDWIDTH)] | None = Field(
        None,
        description="of the link between hosts, such as 10gbit: the answer then says how fast 4 "
        "to 64 workers would train over it",
    )
    latency_ms: Annotated[float, Field(ge=0, le=MAX_LATENCY_MS)] = Field(
        LATENCY_MS, description="of that link, one way"
    )
    format: Form = "json"


class ProgramQuestion(_Strict):
    """What should a program need less of, and in which form should the answer come?"""

    objective: Literal["time", "cpu", "memory"] = "time"
    format: Form = "json"


class ParetoQuestion(_Strict):
    """Which configurations are on the front?"""

    framework: Name | None = Field(None, description="if omitted, all")
    dataset: Name = "mnist"


class ClaimRequest(_Strict):
    """A job that starts with a recommendation."""

    job: JobName
    applied: bool | None = Field(
        None,
        description="whether it takes the configuration; if omitted, as the service's mode says",
    )


class OutcomeRequest(_Strict):
    """What came of a job that claimed a recommendation."""

    job: JobName
    train_time_s: Annotated[float, Field(gt=0, le=_MAX_JOB_S)] | None = Field(
        description="of training alone, seconds; null if the job ended early: its promise is then "
        "not judged"
    )
    test_accuracy: Fraction | None = None


class StudiesQuestion(_Strict):
    """Which studies are on record?"""

    framework: Name | None = None
    dataset: Name | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 100


class StudyRequest(_Strict):
    """A study to run; fields that are not given are as on the command line."""

    kind: Literal["study"] = "study"
    framework: Name
    dataset: Name = "mnist"
    model: Model | None = None
    search: Literal["factored", "joint", "raytune"] | None = None
    goal: Literal["no_loss", "accuracy"] | None = Field(
        None, description="what to search for first; no_loss if omitted"
    )
    budget: Literal["quick", "default", "thorough"] | None = None
    time_s: Annotated[float, Field(ge=1, le=_MAX_STUDY_S)] | None = Field(
        None, description="of the whole study, seconds; if omitted, that of the budget"
    )
    baseline: Literal["auto", "full", "projected"] | None = None
    objectives: Annotated[list[Name], Field(min_length=1, max_length=8)] | None = None
    constraints: Annotated[list[Limit], Field(max_length=8)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    jobs_per_host: Annotated[int, Field(ge=1, le=65536)] = Field(
        1, description="measure so many trials side by side, each on its share of the cores"
    )


class RecheckRequest(_Strict):
    """A request to measure a study's finalists and the default again, on this machine."""

    kind: Literal["recheck"]
    study_id: Annotated[str, Field(pattern=r"^[0-9a-f]{8,32}$")]


class Recorded(_Strict):
    """The values that a recheck takes from a record, validated like a request."""

    framework: Name
    dataset: Name
    model: Model
    jobs_per_host: Annotated[int, Field(ge=1, le=65536)]
    points: list[dict[Name, int | float | Plain]]


def _kind(value: Any) -> str:
    kind = value.get("kind", "study") if isinstance(value, dict) else getattr(value, "kind", "")
    return kind if isinstance(kind, str) else ""


Order = Annotated[
    Annotated[StudyRequest, Tag("study")] | Annotated[RecheckRequest, Tag("recheck")],
    Discriminator(_kind),
]
