"""A study of the synthetic framework whose n-th write kills the process, or finds the disk full.

Writes are counted where this process does them: files opened for writing, renamed and made below
the study's folder (audit events of PEP 578), and statements that change a database.
"""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from tuner.config.catalogue import load_dataset_config, load_framework
from tuner.config.schema import (
    BudgetConfig,
    ExecutorConfig,
    MeasureConfig,
    SearchConfig,
    TuneConfig,
    VerifyConfig,
)
from tuner.progress import StudyProgress
from tuner.study.study import tune
from tuner.values.errors import TunerError

KILL, FULL = "kill -9", "full disk"
SYNTHETIC = Path(__file__).parent.parent / "synthetic"
TRIALS = 3
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("INSERT", "UPDATE", "DELETE")


class Faults:
    """Counts the writes below a folder; from the ``at``-th on something is wrong."""

    def __init__(self, folder: Path, kind: str, at: int) -> None:
        self._folder, self._kind, self._at = str(folder), kind, at
        self.count = 0
        self.armed = True

    def _hit(self) -> bool:
        """One more write. Returns whether it finds the disk full."""
        if not self.armed:
            return False
        self.count += 1
        if self._at and self.count >= self._at:
            if self._kind == KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            return True
        return False

    def audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Of PEP 578."""
        if name == "open":
            path, mode, flags = arguments
            writes = bool(flags & _WRITING) or any(each in (mode or "") for each in "wax+")
        elif name in ("os.rename", "os.mkdir"):
            path, writes = arguments[0], True
        else:
            return
        if writes and str(path).startswith(self._folder) and self._hit():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def statement(self, _connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        """Of SQLAlchemy, before it is executed."""
        if text.lstrip().upper().startswith(_CHANGES) and self._hit():
            fault = sqlite3.OperationalError("database or disk is full")
            raise OperationalError(text, None, fault)


def run_study(
    folder: Path, kind: str, at: int, answer: Connection, storage: str, executor: str
) -> None:
    """Run the study of a folder, in a process of its own.

    Args:
        folder: Holds ``TUNER_HOME`` and MLflow's database.
        kind: What happens: ``KILL`` or ``FULL``.
        at: At which write, counted from 1; 0 for none.
        answer: Is sent the number of writes, and the error's class and line if there was one.
        storage: Database of the study; its own file if empty.
        executor: Name of the executor.
    """
    import tuner.tracking.outbox as outbox

    os.environ["TUNER_HOME"] = str(folder / "home")
    outbox._PATIENCE_S = 0.1
    faults = Faults(folder, kind, at)
    sys.addaudithook(faults.audit)
    event.listen(Engine, "before_cursor_execute", faults.statement)
    error = ("", "")
    try:
        tune(make_config(folder, storage, executor), StudyProgress())
    except TunerError as fault:
        error = type(fault).__name__, str(fault)
    except OSError as fault:
        error = type(fault).__name__, f"{fault.errno} {fault}"
    faults.armed = False
    answer.send((faults.count, *error))


def make_config(folder: Path, storage: str, executor: str) -> TuneConfig:
    """The study."""
    return TuneConfig(
        framework=load_framework("synthetic", str(SYNTHETIC)),
        framework_path=str(SYNTHETIC),
        dataset=load_dataset_config("digits"),
        search=SearchConfig("joint", warm_start=False),
        budget=BudgetConfig(time_s=60, trials=TRIALS),
        verify=VerifyConfig(finalists=1, repeats=2),
        storage=storage,
        executor=ExecutorConfig(executor),
        measure=MeasureConfig(max_foreign_pct=100, max_steal_pct=100),
        output=str(folder),
        progress="none",
    )
