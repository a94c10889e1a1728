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
"""Called with what is being done and the fraction (0–1) done, ``None`` while that is unknown."""

_logger = logging.getLogger(__name__)


def no_progress(task: str, fraction: float | None) -> None:
    """Show nothing."""


class StudyProgress(contextlib.AbstractContextManager["StudyProgress"]):
    """Told what a study does; this base shows nothing (``progress=none``).

    Every method may be called from any thread, as often as it likes.
    """

    def __exit__(self, *_: object) -> None:
        return None

    def task(self, task: str, fraction: float | None) -> None:
        """A ``ProgressCallback`` for installing and downloading."""

    def phase(self, name: str, detail: str = "") -> None:
        """The study enters ``default``, ``search``, ``verify`` or ``report``."""

    def budget(self, elapsed_s: float, total_s: float, trials: int, max_trials: int) -> None:
        """So much of the budget is used, in seconds and trials; ``max_trials`` 0 is no limit."""

    def trial_started(self, trial: Trial) -> None:
        """A trial begins."""

    def trial_progress(self, trial: Trial, iteration: int, train_time_s: float) -> None:
        """The running trial has trained ``iteration`` iterations in ``train_time_s`` seconds."""

    def trial_finished(self, result: TrialResult, front: Sequence[TrialResult]) -> None:
        """A trial ended; ``front`` is the front on the validation split with it."""

    def warn(self, text: str) -> None:
        """Something a reader must know; goes to the log where nothing else is shown."""
        _logger.warning("%s", printable(text))

    def message(self, text: str) -> None:
        """Something a reader may want to know."""


def make_progress(mode: str, *, console: Console | None = None) -> StudyProgress:
    """Make the display that ``progress=<mode>`` asks for.

    Args:
        mode: ``auto`` is ``live`` where standard output and error are a terminal, else
            ``plain``; ``live`` needs a terminal and is ``plain`` without one; ``none`` is silent.
        console: Where to show it; standard error if not given.
    """
    if mode == "none":
        return StudyProgress()
    # rich costs 0.1 s that --help need not wait for
    from rich.console import Console

    from tuner.progress.live import LiveProgress
    from tuner.progress.plain import PlainProgress

    shown = console or Console(stderr=True)
    terminal = shown.is_terminal and not shown.is_dumb_terminal
    if mode == "auto":
        terminal = terminal and (console is not None or sys.stdout.isatty())
    return LiveProgress(shown) if terminal and mode != "plain" else PlainProgress(shown)
