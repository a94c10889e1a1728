"""The only place that knows MLflow: writes a study, and reads studies back.

One experiment a framework and data set; a study is a parent run, its trials are nested runs.
Everything is found again by tags, so logging the same trial twice leaves one run, and a run that
an interruption left half-written is written anew.
"""

from __future__ import annotations

from tuner.tracking.outbox import Outbox
from tuner.tracking.reading import (
    StudyRecord,
    load_everything,
    load_fronts,
    load_results,
    newest_experiment,
)
from tuner.tracking.store import (
    CROSS,
    TRIAL_TAG,
    check_writable,
    connect,
    default_tracking_uri,
    experiment_name,
)
from tuner.tracking.writing import TrackedDataset, Tracker

__all__ = [
    "CROSS",
    "TRIAL_TAG",
    "default_tracking_uri",
    "check_writable",
    "connect",
    "experiment_name",
    "Outbox",
    "TrackedDataset",
    "Tracker",
    "StudyRecord",
    "load_results",
    "load_everything",
    "load_fronts",
    "newest_experiment",
]
