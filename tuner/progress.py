"""How long-running work says how far it is, and how that is shown."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[str, float | None], None]
"""Called with what is being done and the fraction (0–1) done, ``None`` while that is unknown."""


def no_progress(task: str, fraction: float | None) -> None:
    """Show nothing."""
