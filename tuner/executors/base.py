"""The interface of every executor."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from tuner.values.trial import Trial, TrialResult


class Executor(Protocol):
    """Runs trials. A trial's failure is a result; only the tuner's own faults raise."""

    @property
    def slots(self) -> int:
        """Number of trials that may run at once, each on its own cores."""

    def submit(self, trial: Trial) -> Future[TrialResult]:
        """Start ``trial`` as soon as a slot is free."""

    def cancel(self) -> None:
        """End every running trial; their results are ``INTERRUPTED``."""

    def close(self) -> None:
        """Cancel the running trials and release everything."""
