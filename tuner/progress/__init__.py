"""The progress of long-running work, and its display while trials are measured.

Everything goes to standard error, so that standard output carries only results. The display must
not disturb measurements: callers only leave figures here, and a thread draws them now and then.
"""

from __future__ import annotations

from tuner.progress.choice import make_progress
from tuner.progress.display import ProgressCallback, StudyProgress, no_progress
from tuner.progress.wording import (
    ABBREVIATED,
    abbreviate_params,
    describe_outcome,
    describe_params,
    format_seconds,
    printable,
)

__all__ = [
    "ProgressCallback",
    "no_progress",
    "StudyProgress",
    "make_progress",
    "describe_params",
    "abbreviate_params",
    "ABBREVIATED",
    "describe_outcome",
    "format_seconds",
    "printable",
]
