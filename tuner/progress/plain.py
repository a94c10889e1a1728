"""Progress where there is no terminal: lines for logs and pipes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.progress.display import StudyProgress
from tuner.progress.wording import (
    describe_outcome,
    describe_params,
    format_seconds,
    printable,
)
from tuner.values.trial import Trial, TrialResult

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_INTERVAL_S = 30.0


class PlainProgress(StudyProgress):
    """One line per event, for logs and pipes; a long trial reports progress every 30 s."""

    def __init__(self, console: Console) -> None:
        self._file = console.file
        self._lock = threading.Lock()
        self._began = self._spoke = time.monotonic()
        self._quarters: dict[str, int] = {}

    def task(self, task: str, fraction: float | None) -> None:
        """Print the task at 0, 25, 50, 75 and 100 %, or once where its length is unknown."""
        quarter = int(4 * min(1.0, fraction or 0.0))
        with self._lock:
            known = self._quarters.get(task)
            self._quarters[task] = quarter
        if known != quarter:
            self._print(task if fraction is None else f"{task}: {25 * quarter} %")

    def phase(self, name: str, detail: str = "") -> None:
        """Print the phase."""
        self._print(f"== {name}{': ' if detail else ''}{detail}")

    def trial_progress(self, trial: Trial, iteration: int, train_time_s: float) -> None:
        """Print how far the trial is, if nothing was printed for 30 s."""
        if time.monotonic() - self._spoke < _PLAIN_INTERVAL_S:
            return
        asked = trial.params.get("iterations")
        of = f" of {asked:,}" if isinstance(asked, int) else ""
        # a program that is wrapped may not tell its steps
        done = f"{iteration:,}{of} iterations in " if iteration or of else "running for "
        self._print(f"{trial.title}: {done}{format_seconds(train_time_s)} s")

    def trial_finished(self, result: TrialResult, front: Sequence[TrialResult]) -> None:
        """Print the trial's params and its outcome."""
        asked = f"{result.trial.title}: {describe_params(result.trial.params)}"
        mark = ", on the front" if any(each is result for each in front) else ""
        self._print(f"{asked} -> {describe_outcome(result)}{mark}")

    def warn(self, text: str) -> None:
        """Print the warning."""
        self._print(f"WARNING: {text}")

    def message(self, text: str) -> None:
        """Print the message."""
        self._print(text)

    def _print(self, text: str) -> None:
        with self._lock:
            self._spoke = time.monotonic()
            line = f"[{self._spoke - self._began:4.0f} s] {printable(text)}"
            print(line, file=self._file, flush=True)
