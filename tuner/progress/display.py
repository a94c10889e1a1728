"""What a study tells its display, and the choice of the display."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tuner.progress.wording import printable
from tuner.values.trial import Trial, TrialResult

if TYPE_CHECKING:
    from rich.console import Console

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


def make_progress(mode: str, *, console: Console | None = None) -> StudyProgress:
    """Make the display that ``progress=<mode>`` asks for.

    Args:
        mode: ``auto`` is ``live`` if standard output and error are a terminal, else ``plain``;
            ``live`` needs a terminal and is ``plain`` without one; ``none`` is silent.
        console: Where to show it; standard error if not given.
    """
    if mode == "none":
        return StudyProgress()
    # imported late: rich takes 0.1 s, which --help need not wait for
    from rich.console import Console

    from tuner.progress.live import LiveProgress
    from tuner.progress.plain import PlainProgress

    shown = console or Console(stderr=True)
    terminal = shown.is_terminal and not shown.is_dumb_terminal
    if mode == "auto":
        terminal = terminal and (console is not None or sys.stdout.isatty())
    return LiveProgress(shown) if terminal and mode != "plain" else PlainProgress(shown)
