"""Delivery of a study to MLflow, even if MLflow is unavailable for a while.

Everything is in the study's folder before it is sent, so nothing depends on MLflow. What MLflow
does not accept now is sent again later, or by the next command.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from tuner.storage.databases import DatabaseHeld, fault_of
from tuner.tracking.writing import Tracker
from tuner.values.errors import StorageError
from tuner.values.trial import TrialResult

_PAUSE_S = 20.0  # between attempts while trials run: each may take seconds of the study's time
_LAST_PAUSE_S = 2.0
_PATIENCE_S = 60.0  # longest wait for MLflow at the end of a study
_INTERRUPTED_PATIENCE_S = 5.0  # the same if the user has interrupted the study
_TURN_S = 1.0  # longest wait for another driver's upload while trials run
_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS")
"""Codes of MLflow's errors for which another attempt is useless."""


class Outbox:
    """Queue of the results that MLflow has not received yet.

    Args:
        tracker: Writes the results.
        alone: Keeps the study's other drivers from writing to MLflow. Waits at most the given
            seconds for its turn, then raises ``DatabaseHeld``.
        say: Tells the user that MLflow is unavailable, and that it is back.
        clock: Returns seconds.
        sleep: Waits for the given seconds.
    """

    def __init__(
        self,
        tracker: Tracker,
        alone: Callable[[float], AbstractContextManager[None]],
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._tracker, self._alone, self._say = tracker, alone, say
        self._clock, self._sleep = clock, sleep
        self._waiting: list[tuple[TrialResult, Path]] = []
        self._outdated: list[str] = []  # trials whose runs are still to be deleted
        self._away_since: float | None = None
        self._next_attempt = -math.inf
        self._torn = False  # whether something may be half written

    def doubt(self) -> None:
        """Have the next write first check what is written: another driver may have crashed."""
        self._torn = True

    def begin(self) -> None:
        """Show the study as running."""
        self._attempt(self._tracker.begin, _PATIENCE_S)

    def forget(self, *names: str) -> None:
        """Delete what was sent of trials that are to be measured again.

        If MLflow is unavailable now, that is done before anything else is sent.
        """
        self._outdated += names
        self._forget(_PATIENCE_S)

    def _forget(self, turn_s: float) -> bool:
        """Delete what is outdated; return whether nothing is left."""
        while self._outdated:
            if not self._attempt(partial(self._tracker.forget, self._outdated[0]), turn_s):
                return False
            self._outdated.pop(0)
        return True

    def send(self, result: TrialResult, folder: Path) -> None:
        """Send a finished trial with the files of its folder, now or when MLflow answers again."""
        self._waiting.append((result, folder))
        if self._clock() >= self._next_attempt:
            self._flush()

    def finish(
        self,
        files: Sequence[Path],
        tags: Mapping[str, str],
        *,
        complete: bool,
        metrics: Mapping[str, float],
        description: str,
    ) -> bool:
        """Send what waits and the report, then end the study's run; see ``Tracker.finish``.

        Returns:
            Whether nothing is left to send: MLflow has accepted everything, or refused it for
            good. If it is unavailable, this waits for it: a minute at most, or 5 s if the study
            is incomplete.
        """

        def end() -> None:
            self._tracker.finish(
                files, tags, complete=complete, metrics=metrics, description=description
            )

        patience_s = _PATIENCE_S if complete else _INTERRUPTED_PATIENCE_S
        until = self._clock() + patience_s
        while not (self._flush() and self._attempt(end)):
            if self._clock() >= until:
                return self._waiting != [] and self._attempt(end) and self._give_up()
            self._sleep(_LAST_PAUSE_S)
        return True

    def _give_up(self) -> bool:
        """Give up what MLflow does not accept although it accepts other things."""
        if not self._flush():
            names = ", ".join(result.trial.name for result, _ in self._waiting)
            self._say(f"MLflow does not accept these, which stay in the study's folder: {names}")
        return True

    def _flush(self) -> bool:
        """Send what waits, oldest first; return whether nothing is left.

        A result that could not be sent moves to the end of the queue.
        """
        if not self._forget(_TURN_S):
            return False
        while self._waiting:
            result, folder = self._waiting[0]
            if not self._attempt(partial(self._tracker.log_trial, result, folder)):
                self._waiting.append(self._waiting.pop(0))
                return False
            self._waiting.pop(0)
        return True

    def _attempt(self, write: Callable[[], None], turn_s: float = _TURN_S) -> bool:
        """Write unless MLflow is unavailable or locked; return whether no retry is needed."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import DataError, SQLAlchemyError

        try:
            with self._alone(turn_s):
                if self._torn:
                    self._tracker.reconcile()
                    self._torn = False
                write()
        except DatabaseHeld:
            self._next_attempt = self._clock() + _LAST_PAUSE_S
            return False
        except (MlflowException, SQLAlchemyError, StorageError, OSError) as error:
            self._torn = True
            if isinstance(error, DataError) or getattr(error, "error_code", "") in _REFUSALS:
                self._say(f"MLflow refuses what stays in the study's folder: {fault_of(error)}")
                return True
            self._note_away(error)
            return False
        if self._away_since is not None:
            self._say(f"MLflow answers again, after {self._clock() - self._away_since:.0f} s")
            self._away_since = None
        return True

    def _note_away(self, error: Exception) -> None:
        if self._away_since is None:
            self._away_since = self._clock()
            self._say(
                "MLflow cannot be written; results are kept in the study's folder and sent when "
                f"it can: {fault_of(error)}"
            )
        self._next_attempt = self._clock() + _PAUSE_S
