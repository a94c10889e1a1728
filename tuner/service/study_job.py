"""A requested study, and the states that it can be in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

State = Literal["queued", "running", "stopping", "complete", "failed", "stopped"]
QUEUED: Final = "queued"
RUNNING: Final = "running"
STOPPING: Final = "stopping"
COMPLETE: Final = "complete"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
OPEN = (QUEUED, RUNNING, STOPPING)
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class StudyJob:
    """A requested study.

    Attributes:
        id: Id of the job.
        kind: ``study`` or ``recheck``.
        words: Overrides of ``python -m tuner``.
        request: The request as it was sent.
        submitted: Seconds since the epoch.
        state: ``queued``, ``running``, ``stopping``, ``complete``, ``failed`` or ``stopped``.
        started, ended: Seconds since the epoch; 0 before.
        reason: Why it failed, or why it waits.
        study_id: The resulting study on record.
        process: Pid and start time of its process while it runs.
        turn: Its position in the queue, independent of clock changes.
    """

    id: str
    kind: str
    words: Sequence[str]
    request: Mapping[str, Any]
    submitted: float
    state: State = QUEUED
    started: float = 0.0
    ended: float = 0.0
    reason: str = ""
    study_id: str = ""
    process: Sequence[float] = ()
    turn: int = 0

    def setting(self, name: str) -> str:
        """Return the value that an override sets; empty if none sets it."""
        return next(
            (each.partition("=")[2] for each in self.words if each.startswith(f"{name}=")), ""
        )
