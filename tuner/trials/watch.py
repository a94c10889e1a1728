"""Watching of one running trial: its events, its use of resources, and when it has to end."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from tuner.measure import (
    NamelessFiles,
    ResourceMonitor,
    mapped_files,
    nameless_files,
    process_tree,
)
from tuner.trials.outcome import Failure
from tuner.trials.protocol import STOP, EventLog, trained_iterations
from tuner.trials.stopping import can_extend, far_behind
from tuner.trials.worker_folder import BLOCK_BYTES, WorkerFolder
from tuner.values.errors import ProtocolError
from tuner.values.quality import ACCURACY, Quality
from tuner.values.trial import Checkpoint, Trial, TrialStatus

Listener = Callable[[Trial, int, float], None]
"""Called with the trial, its iterations and its training seconds so far."""

_HOPELESS = 10.0  # times its limit: a trial that needs more is stopped once a quarter is used
_POLL_S = (0.002, 0.05)  # shortest and longest pause
_MIN_FREE_DISK_BYTES = 64 * 2**20
_MAX_PROCESSES = 1000
_MAX_FILES, _MAX_BYTES = 10_000, 4 * 2**30  # limits of a worker's folder
_MAX_OPEN = 20_000  # open files of all processes
MAX_LOG_BYTES = 64 * 2**20
"""Limit of a worker's output."""
_COUNT_EVERY_S = 1.0


@dataclass
class Watch:
    """Watches one running trial: reads its events, enforces limits, stops it if it is futile.

    Clocks and monitor start at once, all else in ``follow``, which returns when the worker has
    answered or must be given up; the caller ends the worker and finishes the monitor.

    Args:
        trial: What the worker was asked to train.
        folder: The worker's folder, where its events appear.
        process: The worker, or the sandbox around it.
        output: File without a name that its output goes to.
        monitor: Measures that process and its descendants; it is started here.
        memory_limit_bytes: Memory of the whole tree, files without a name included, above which
            the trial is given up.
        stall_limit_s: Seconds without any event after which it is given up.
        listener: Told of each sign of life.
        cancel: Once set, the trial is given up.
        quality: What the worker has to judge.
    """

    trial: Trial
    folder: WorkerFolder
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    monitor: ResourceMonitor
    memory_limit_bytes: int
    stall_limit_s: float
    listener: Listener | None = None
    cancel: threading.Event | None = None
    quality: Quality = ACCURACY
    mapped: set[str] = field(default_factory=set)
    """Files that the tree had mapped when training ended."""
    stopping: str = ""
    """Why the trial was asked to stop."""

    def __post_init__(self) -> None:
        self.log = EventLog(self.folder, quality=self.quality)
        self.monitor.start()
        self._began_s = self._heard_s = time.monotonic()
        self._training = False
        self._weighed_checkpoints = 0
        self._nameless = NamelessFiles()
        self._next_count_s = self._began_s

    def follow(self) -> Failure | None:
        """Watch until the worker has answered or must be given up.

        Returns:
            Why it must be given up; ``None`` if it answered or ended by itself.
        """
        try:
            return self._follow()
        except ProtocolError as error:
            return TrialStatus.INVALID, str(error)

    def _follow(self) -> Failure | None:
        pause = _POLL_S[0]
        while True:
            dead = self.process.poll() is not None
            heard = self.log.read()
            while dead and self.log.read():  # this is the last chance to read
                heard = True
            if heard:
                self._hear()
            if dead or self.log.result or self.log.error:
                return None
            failure = self._broken_limit()
            if failure:
                return failure
            self._steer()
            time.sleep(pause)
            pause = min(pause * 1.3, _POLL_S[1])

    def _hear(self) -> None:
        self._heard_s = time.monotonic()
        if self.log.setup_time_s is not None and not self._training:
            self._training = True
            self.monitor.begin_training()
        if self.log.ended and not self.mapped:
            self.monitor.end_training()
            self.mapped = mapped_files(process_tree(self.process.pid)) | {""}
        if self.listener:
            self.listener(self.trial, self.log.iteration, self.log.train_time_s)

    def _broken_limit(self) -> Failure | None:
        now = time.monotonic()
        limit = self.memory_limit_bytes
        if self.cancel and self.cancel.is_set():
            return TrialStatus.INTERRUPTED, "the tuner was stopped"
        if now - self._began_s > self.trial.time_limit_s:
            return TrialStatus.TIMEOUT, f"not done after {self.trial.time_limit_s:.0f} s"
        if now - self._heard_s > self.stall_limit_s:
            return TrialStatus.STALLED, (
                f"no sign of life for {self.stall_limit_s:.0f} s (framework.stall_limit_s=)"
            )
        if self.monitor.memory_bytes + self._nameless.memory_bytes > limit:
            return TrialStatus.OUT_OF_MEMORY, (
                f"used more than {limit / 2**20:,.0f} MiB (executor.memory_limit_mb=)"
            )
        if shutil.disk_usage(self.folder.path).free < _MIN_FREE_DISK_BYTES:
            return TrialStatus.DISK_FULL, (
                f"less than {_MIN_FREE_DISK_BYTES // 2**20} MiB left in {self.folder.path}"
            )
        excess = self._excess(now)
        return (TrialStatus.OVER_LIMIT, excess) if excess else None

    def _excess(self, now: float) -> str:
        """Return what the worker has more of than allowed, in words; empty if nothing."""
        if len(self.monitor.tree) > _MAX_PROCESSES:
            return f"had more than {_MAX_PROCESSES:,} processes at once"
        if now < self._next_count_s:
            return ""
        self._next_count_s = now + _COUNT_EVERY_S
        self._nameless = nameless_files(self.monitor.tree, _MAX_OPEN)
        if self._nameless.open > _MAX_OPEN:
            return f"had more than {_MAX_OPEN:,} files open"
        return self.overflow()

    def overflow(self) -> str:
        """Return what the worker has more of on the disk than allowed, in words; empty if none.

        Raises:
            ProtocolError: If the worker forbids to look.
        """
        output = os.fstat(self.output.fileno())
        if max(output.st_size, output.st_blocks * BLOCK_BYTES) > MAX_LOG_BYTES:
            return f"wrote more than {MAX_LOG_BYTES // 2**20} MiB of output"
        files, size = self.folder.size(_MAX_FILES)
        if files > _MAX_FILES:
            return f"had more than {_MAX_FILES:,} files and folders in its folder"
        if size + self._nameless.disk_bytes > _MAX_BYTES:
            return f"took more than {_MAX_BYTES // 2**20:,} MiB of the disk"
        return ""

    def _steer(self) -> None:
        """Ask the trial to stop if it has reached its limit or clearly leads nowhere."""
        if not self.stopping and self.log.iteration:
            self.stopping = self._past_limit() or self._far_behind() or self._futile()
        if self.stopping:
            self.folder.touch(STOP)

    def _past_limit(self) -> str:
        limit, log = self.trial.train_time_limit_s, self.log
        if limit is None:
            return ""
        if log.train_time_s > limit:
            return f"its limit of {limit:.0f} s was reached"
        if self.trial.projected:  # as much of a part as there is time for is of use
            return ""
        projected = log.train_time_s / log.iteration * trained_iterations(self.trial)
        if projected > _HOPELESS * limit and log.train_time_s > limit / 4:
            return f"it would have taken {projected:.0f} s, its limit is {limit:.0f} s"
        return ""

    def _far_behind(self) -> str:
        if self.trial.curve:  # ``_futile`` weighs its further course, which may overtake rivals
            return ""
        rival = far_behind(self._compared(), self.trial.rivals)
        if not rival:
            return ""
        return f"another trial had {self.quality.shown(rival[1], 1)} after {rival[0]:.1f} s"

    def _futile(self) -> str:
        """Return why the rest of a learning curve cannot add to the front; empty if it can."""
        log, trial = self.log, self.trial
        if not trial.curve or len(log.checkpoints) == self._weighed_checkpoints:
            return ""
        self._weighed_checkpoints = len(log.checkpoints)
        own_pace_s = log.train_time_s / log.iteration
        end_s = own_pace_s * trained_iterations(trial)
        end_s = min(end_s, trial.train_time_limit_s or end_s)
        if trial.pace_s and own_pace_s:
            end_s *= trial.pace_s / own_pace_s
        extends = can_extend(self._compared(), trial.rivals, end_s, self.quality)
        return "" if extends else "it could add nothing to the front any more"

    def _compared(self) -> list[Checkpoint]:
        """Return the checkpoints, at the times that are compared with those of rivals."""
        pace_s = self.trial.pace_s
        if not pace_s:
            return self.log.checkpoints
        return [
            dataclasses.replace(each, train_time_s=each.iteration * pace_s)
            for each in self.log.checkpoints
        ]
