"""The process of one job: it runs the study and writes its progress into the job's folder.

    python -m tuner.service.job FOLDER

reads ``job.json`` and writes ``progress.json`` while it runs and ``outcome.json`` at the end. It
ends like the command line: on SIGINT or SIGTERM it keeps what was measured, and the next process
of the same job resumes the study. If MLflow is away or the disk is full, it exits with 75
(``os.EX_TEMPFAIL``) to ask for another attempt.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tuner.config.composing import compose
from tuner.progress import StudyProgress
from tuner.storage.study_folder import write_atomically
from tuner.study.study import tune
from tuner.values.addresses import without_password
from tuner.values.errors import INTERRUPTED, PASSING_FAULTS, StorageAway, TunerError
from tuner.values.trial import TrialKind, TrialResult

JOB, PROGRESS, OUTCOME = "job.json", "progress.json", "outcome.json"
_EVERY_S = 1.0
_NOT_TRACKED = "the study has ended, and MLflow has not got all of it"


class _Told(StudyProgress):
    """Writes a study's progress to a file; minor updates at most once a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told_s = 0.0
        self._facts: dict[str, Any] = {"phase": "preparation", "trials": 0, "front": []}

    def _tell(self, *, now: bool = False, **facts: Any) -> None:
        self._facts |= facts
        if now or time.monotonic() - self._told_s > _EVERY_S:
            self._told_s = time.monotonic()
            with suppress(OSError):  # a failed progress report must not end the study
                write_atomically(self._path, json.dumps(self._facts))

    def task(self, task: str, fraction: float | None) -> None:
        self._tell(detail=task if fraction is None else f"{task} {fraction:.0%}")

    def phase(self, name: str, detail: str = "") -> None:
        self._tell(now=True, phase=name, detail=detail)

    def budget(self, elapsed_s: float, total_s: float, trials: int, max_trials: int) -> None:  # noqa: ARG002 - time is the limit
        self._tell(elapsed_s=elapsed_s, budget_s=total_s, trials=trials)

    def trial_finished(self, result: TrialResult, front: Sequence[TrialResult]) -> None:
        points = [
            {
                "params": dict(each.params),
                **{
                    name: figure
                    for name, figure in each.metrics.items()
                    if name in ("val_accuracy", "val_perplexity")
                },
                "train_time_s": each.metrics["train_time_s"],
            }
            for each in front
        ]
        searched = self._facts["trials"] + (result.trial.kind is not TrialKind.VERIFY)
        self._tell(now=True, detail=result.trial.title, trials=searched, front=points)


def _may_pass(error: TunerError) -> bool:
    cause = error.__cause__
    full = isinstance(cause, OSError) and cause.errno in PASSING_FAULTS
    return full or isinstance(error, StorageAway)


def main(folder: Path) -> int:
    """Run the job of a folder and return the exit code of the command line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = json.loads((folder / JOB).read_text(encoding="utf-8"))["words"]
    command = shlex.join(["python", "-m", "tuner", *map(without_password, words)])
    told = _Told(folder / PROGRESS)
    try:
        result = tune(compose(words), told, command=command)
        outcome = {"study_id": result.study_id, "reason": "" if result.tracked else _NOT_TRACKED}
        code = 0 if result.tracked else os.EX_TEMPFAIL
    except TunerError as error:
        outcome = {"study_id": "", "reason": " ".join(str(error).split())}
        code = os.EX_TEMPFAIL if _may_pass(error) else error.exit_code
        print(error, file=sys.stderr)  # into the job's log, in case the outcome cannot be written
    except OSError as error:
        if error.errno not in PASSING_FAULTS:
            raise
        outcome, code = {"study_id": "", "reason": str(error)}, os.EX_TEMPFAIL
    except KeyboardInterrupt:
        return INTERRUPTED
    with suppress(OSError):
        write_atomically(folder / OUTCOME, json.dumps(outcome))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
