"""Brings a study to MLflow, also one that is away for a while.

All that is sent lies in the study's folder before, so that nothing depends on MLflow being there:
what it does not take now, it is sent again later, or by the next command.
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

_PAUSE_S = 20.0  # between attempts while trials go on: each may take seconds of the study's time
_LAST_PAUSE_S = 2.0
_PATIENCE_S = 60.0  # that the end of a study waits for MLflow,
_INTERRUPTED_PATIENCE_S = 5.0  # and that of one that the user has interrupted
_TURN_S = 1.0  # that another driver's upload is waited for while trials go on
_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS")
"""Codes of MLflow's errors that another attempt would not mend."""


class Outbox:
    """Keeps the results that MLflow has still to get.

    Args:
        tracker: Writes them.
        alone: Keeps other drivers of the study from writing to MLflow, once they have let this
            one have its turn within so many seconds; raises ``DatabaseHeld`` otherwise.
        say: Tells the user that MLflow is away, and that it is back.
        clock: Seconds.
        sleep: Waits for so many seconds.
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
        self._away_since: float | None = None
        self._next_attempt = -math.inf
        self._torn = False  # whether something may be half written

    def doubt(self) -> None:
        """Look again at what is written, as another driver may have died over it."""
        self._torn = True

    def begin(self) -> None:
        """Show the study as running."""
        self._attempt(self._tracker.begin, _PATIENCE_S)

    def forget(self, name: str) -> None:
        """Delete what was sent of a trial, which is to be measured again."""
        self._attempt(partial(self._tracker.forget, name), _PATIENCE_S)

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
        """Send all that waits and the report, and end the study's run; see ``Tracker.finish``.

        Returns:
            Whether MLflow has taken all of it. An absent one is waited for, for a minute at most.
        """

        def end() -> None:
            self._tracker.finish(
                files, tags, complete=complete, metrics=metrics, description=description
            )

        patience_s = _PATIENCE_S if complete else _INTERRUPTED_PATIENCE_S
        until = self._clock() + patience_s
        while not (self._flush() and self._attempt(end)):
            if self._clock() >= until:
                return False
            self._sleep(_LAST_PAUSE_S)
        return True

    def _flush(self) -> bool:
        """Send what waits, the oldest first. Returns whether nothing waits any more."""
        while self._waiting:
            result, folder = self._waiting[0]
            if not self._attempt(partial(self._tracker.log_trial, result, folder)):
                return False
            self._waiting.pop(0)
        return True

    def _attempt(self, write: Callable[[], None], turn_s: float = _TURN_S) -> bool:
        """Write, unless MLflow is away or another driver's. Returns whether that is done with."""
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
