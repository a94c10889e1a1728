"""What a study tells its display."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from tuner.progress.wording import printable
from tuner.values.trial import Trial, TrialResult

ProgressCallback = Callable[[str, float | None], None]
"""Called with the task and the fraction (0–1) of it that is done, ``None`` while unknown."""

_logger = logging.getLogger(__name__)


def no_progress(task: str, fraction: float | None) -> None:
    """Show nothing."""


class StudyProgress(contextlib.AbstractContextManager["StudyProgress"]):
    """Is told what a study does; this base class shows nothing (``progress=none``).

    Any thread may call any method, as often as it likes.
    """

    def __exit__(self, *_: object) -> None:
        return None

    def task(self, task: str, fraction: float | None) -> None:
        """Report the progress of installing or downloading, as a ``ProgressCallback``."""

    def phase(self, name: str, detail: str = "") -> None:
        """Report that the study enters ``default``, ``search``, ``verify`` or ``report``."""

    def budget(self, elapsed_s: float, total_s: float, trials: int, max_trials: int) -> None:
        """Report the budget used, in seconds and trials; ``max_trials`` 0 is no limit."""

    def trial_started(self, trial: Trial) -> None:
        """Report that a trial begins."""

    def trial_progress(self, trial: Trial, iteration: int, train_time_s: float) -> None:
        """Report the iterations that the running trial has trained, and the seconds it took."""

    def trial_finished(self, result: TrialResult, front: Sequence[TrialResult]) -> None:
        """Report that a trial ended; ``front`` is the validation front that includes it."""

    def warn(self, text: str) -> None:
        """Report what a reader must know; goes to the log if nothing is shown."""
        _logger.warning("%s", printable(text))

    def message(self, text: str) -> None:
        """Report what a reader may want to know."""
