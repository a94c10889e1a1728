"""Runs of programs, made up."""

from __future__ import annotations

from tuner.values.trial import Measurement, Trial, TrialResult, TrialStatus


def run(
    train_s: float,
    *,
    accuracy: float | None = None,
    reported=None,
    cpu_s=None,
    memory=0,
    disturbed="",
    **trial,
) -> TrialResult:
    figures = dict.fromkeys(
        ("setup_time_s", "test_time_s", "cpu_system_s", "cpu_iowait_s", "cpu_user_pct",
         "cpu_system_pct", "cpu_iowait_pct", "avg_memory_bytes"), 0,
    )  # fmt: skip
    figures |= {"cpu_user_s": cpu_s or 0, "train_cpu_s": cpu_s, "peak_memory_bytes": memory}
    figures["disturbed"] = disturbed
    return TrialResult(
        trial=Trial(trial.pop("number", 1), trial.pop("params", {}), **trial),
        status=TrialStatus.COMPLETE,
        val_accuracy=accuracy,
        reported=reported or {},
        measurement=Measurement(train_time_s=train_s, wall_time_s=train_s, **figures),
    )
