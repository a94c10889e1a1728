"""The runs of a program on this machine, one after the other, and what is kept of each."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import IO

from tuner.trials.protocol import log_tail
from tuner.trials.worker_folder import WorkerFolder
from tuner.values.trial import Trial
from tuner.wrap.aim import Aim, Ran
from tuner.wrap.watch import RunSetup, Watch

_KEPT_BYTES = 2**20  # of the output


class Runner(RunSetup):
    """Runs one program many times; made as a ``RunSetup`` is."""

    slots = 1  # runs at once

    def submit(self, trial: Trial, aim: Aim) -> Future[Ran]:
        """Run the program now; the run has ended when this returns."""
        ended = Future[Ran]()
        ended.set_result(self.run(trial, aim))
        return ended

    def run(self, trial: Trial, aim: Aim) -> Ran:
        """Run the program with a setting; again if others disturbed it."""
        result, seen = self._run(trial, aim)
        again = self.objective.is_disturbed(result) and result.usable and not aim.once
        return self._run(trial, aim) if again else (result, seen)

    def _run(self, trial: Trial, aim: Aim) -> Ran:
        folder = self.folder / trial.name
        folder.mkdir(parents=True, exist_ok=True)
        with (
            WorkerFolder(self.folder / "workers" / trial.name) as own,
            tempfile.TemporaryFile(dir=self.folder) as output,
        ):
            watch = Watch(self, trial, aim, own, output)
            try:
                failure = watch.follow()
                watch.ask_to_stop(failure)
            finally:
                usage = watch.end()
                _keep(output, folder / "log.txt")
        tail = log_tail(folder / "log.txt")
        return watch.conclude(failure, usage, tail), watch.seen()


def _keep(output: IO[bytes], log: Path) -> None:
    """Keep the end of a program's output."""
    size = os.fstat(output.fileno()).st_size
    log.write_bytes(os.pread(output.fileno(), _KEPT_BYTES, max(0, size - _KEPT_BYTES)))
