"""Papers' experiments to run and to report on: declarations, and results as if measured."""

from __future__ import annotations

from typing import Any

from tests.report_samples import make_measurement
from tuner.config.paper import PaperClaim, PaperConfig, PaperRow
from tuner.report import PaperResult, PaperRun
from tuner.values.trial import Trial, TrialKind, TrialResult, TrialStatus


def make_paper(**changes: Any) -> PaperConfig:
    """Two libraries of one framework, and a row that cannot be run."""
    values: dict[str, Any] = {
        "name": "paper_sample",
        "source": "wu",
        "where": "table X",
        "about": "library against time",
        "machine": "server_2",
        "held": "the default",
        "sweeps": ["blas"],
        "metrics": ["train_time_s"],
        "rows": [
            PaperRow("Synthetic", "synthetic", {"blas": "slow"}, theirs={"train_time_s": 100.0}),
            PaperRow("Synthetic", "synthetic", {"blas": "fast"}, theirs={"train_time_s": 10.0}),
            PaperRow("Other", theirs={"train_time_s": 50.0}, absent="nobody has it"),
        ],
        "missing": ["GPUs: none here."],
    }
    return PaperConfig(**{**values, **changes})


def make_run(row: PaperRow, train_s: float | None, accuracy: float | None = None) -> PaperRun:
    """A row as if it had been measured; without a time it diverged."""
    trial = Trial(1, {"batch_size": 100, "iterations": 50, **row.params}, TrialKind.PAPER)
    if train_s is None:
        return PaperRun(row, trial.params, TrialResult(trial, TrialStatus.DIVERGED, "NaN"))
    measurement = make_measurement(train_time_s=train_s, test_time_s=2.0)
    result = TrialResult(
        trial, TrialStatus.COMPLETE, "", 50, accuracy, accuracy, measurement=measurement
    )
    return PaperRun(row, trial.params, result)


def make_result(paper: PaperConfig, *runs: PaperRun, **changes: Any) -> PaperResult:
    """An experiment of these rows on two cores."""
    values: dict[str, Any] = {
        "paper": paper,
        "study_id": "77aa01bc00",
        "dataset": "digits",
        "model": "default",
        "runs": runs,
        "train_images": 1000,
        "test_images": 400,
        "cores": 2,
        "command": "python -m tuner experiment=paper_sample",
    }
    return PaperResult(**{**values, **changes})


def series(theirs: list[float], ours: list[float], **changes: Any) -> PaperResult:
    """An experiment of one series, with training times on both sides."""
    rows = [
        PaperRow("A", "synthetic", {"threads": n}, theirs={"train_time_s": each})
        for n, each in enumerate(theirs, 1)
    ]
    paper = make_paper(rows=rows, **changes)
    runs = (make_run(row, each) for row, each in zip(rows, ours, strict=True))
    return make_result(paper, *runs)


def claiming(*order: list[int]) -> PaperClaim:
    """A claim about training times."""
    return PaperClaim("it is slower", "train_time_s", list(order))
