"""The only package that imports MLflow: writes studies and reads them back.

Each pair of framework and data set has one experiment. A study is a parent run; its trials are
nested runs. Runs are found by tags, so logging a trial twice leaves one run. A run that an
interruption left half-written is written again.
"""

from __future__ import annotations

from tuner.tracking.outbox import Outbox
from tuner.tracking.reading import (
    PROGRAM_FRONT,
    StudyRecord,
    load_everything,
    load_fronts,
    load_programs,
    load_results,
    newest_experiment,
)
from tuner.tracking.store import (
    CROSS,
    PAPERS,
    PROGRAMS,
    TRIAL_TAG,
    check_writable,
    connect,
    default_tracking_uri,
    experiment_name,
)
from tuner.tracking.writing import TrackedDataset, Tracker, mark_drift

__all__ = [
    "CROSS",
    "PAPERS",
    "PROGRAMS",
    "PROGRAM_FRONT",
    "TRIAL_TAG",
    "default_tracking_uri",
    "check_writable",
    "connect",
    "experiment_name",
    "mark_drift",
    "Outbox",
    "TrackedDataset",
    "Tracker",
    "StudyRecord",
    "load_results",
    "load_everything",
    "load_fronts",
    "load_programs",
    "newest_experiment",
]
