"""The choice of the display."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tuner.progress.display import StudyProgress

if TYPE_CHECKING:
    from rich.console import Console


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
