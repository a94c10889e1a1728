"""What a running program may write, hold and start, and how long it may be idle."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import IO

from tuner.measure import NamelessFiles, ResourceMonitor, nameless_files
from tuner.storage.study_folder import is_full
from tuner.trials.outcome import Failure
from tuner.trials.worker_folder import BLOCK_BYTES, WorkerFolder
from tuner.values.trial import TrialStatus
from tuner.wrap.ending import MAX_BYTES

MAX_OUTPUT_BYTES = 256 * 2**20
_MAX_FILES = 100_000  # that a program may write
_MAX_PROCESSES = 2000
_MAX_OPEN = 20_000  # files of all processes
_LOOK_EVERY_S = (0.1, 1.0)  # at the disk: at first, and later
_HUNG_S = 120.0  # without output, a step, or work of the CPU
_IDLE = 0.01  # of a core, below which nothing computes


class Limits:
    """The limits of one running program.

    Args:
        own: Folder that it writes to.
        output: Its output.
        monitor: Follows its processes.
        memory_bytes: Memory that it may use.
    """

    def __init__(
        self, own: WorkerFolder, output: IO[bytes], monitor: ResourceMonitor, memory_bytes: int
    ) -> None:
        self._own, self._output, self._monitor = own, output, monitor
        self._memory_bytes = memory_bytes
        self._began_s = time.monotonic()
        self._next_look_s = 0.0
        self._last_sign = self._began_s, 0.0, (0, 0)  # of life: when, CPU time, other signs
        self._nameless = NamelessFiles()
        self._shared_bytes = 0

    def broken(self) -> Failure | None:
        """Return which limit is broken that costs little to look at."""
        if self._output_bytes > MAX_OUTPUT_BYTES:
            return TrialStatus.OVER_LIMIT, f"wrote more than {MAX_OUTPUT_BYTES / 2**20:.0f} MiB"
        if self._needs_too_much():
            limit = self._memory_bytes / 2**20
            return TrialStatus.OUT_OF_MEMORY, f"used more than {limit:,.0f} MiB"
        if len(self._monitor.tree) > _MAX_PROCESSES:
            return TrialStatus.OVER_LIMIT, f"has more than {_MAX_PROCESSES} processes"
        return None

    def _needs_too_much(self) -> bool:
        """Return whether its processes hold more memory than they may, shared pages counted once.

        To tell shared pages walks the page tables, so that is done only where all pages together
        are too many, and where more are than at the last time or since the last costly look.
        """
        nameless = self._nameless.memory_bytes
        held = self._monitor.memory_bytes + nameless
        if held - self._shared_bytes <= self._memory_bytes:
            return False
        unshared = self._monitor.unshared_bytes() + nameless
        self._shared_bytes = max(held - unshared, 0)
        return unshared > self._memory_bytes

    def is_look_due(self) -> bool:
        """Return whether to look at what costs more; it is due again after a while."""
        now = time.monotonic()
        if now < self._next_look_s:
            return False
        least_s, most_s = _LOOK_EVERY_S
        self._next_look_s = now + min(max(0.1 * (now - self._began_s), least_s), most_s)
        return True

    def broken_at_a_look(self, folder: Path, marks: int) -> Failure | None:
        """Return which of the other limits is broken.

        Args:
            folder: A folder on the disk that the program uses.
            marks: Number of times that it told its progress.
        """
        self._nameless = nameless_files(self._monitor.tree, _MAX_OPEN)
        self._shared_bytes = 0
        if self._is_hung((os.fstat(self._output.fileno()).st_mtime_ns, marks)):
            return TrialStatus.STALLED, f"no output, step or work for {_HUNG_S:.0f} s"
        count, size = self._own.size(_MAX_FILES)
        if count > _MAX_FILES:
            return TrialStatus.OVER_LIMIT, f"wrote more than {_MAX_FILES:,} files"
        if size + self._nameless.disk_bytes > MAX_BYTES:
            return TrialStatus.OVER_LIMIT, f"wrote more than {MAX_BYTES / 2**30:.0f} GiB"
        if self._nameless.open > _MAX_OPEN:
            return TrialStatus.OVER_LIMIT, f"has more than {_MAX_OPEN:,} open files"
        if is_full(folder):
            return TrialStatus.DISK_FULL, "it left too little free space on the disk"
        return None

    @property
    def _output_bytes(self) -> int:
        return os.fstat(self._output.fileno()).st_blocks * BLOCK_BYTES

    def _is_hung(self, signs: tuple[int, int]) -> bool:
        """Return whether the program has shown no sign of life for too long."""
        now, cpu_s = time.monotonic(), self._monitor.cpu_s()
        last_s, last_cpu_s, last_signs = self._last_sign
        if signs != last_signs or cpu_s - last_cpu_s > _IDLE * (now - last_s):
            self._last_sign = now, cpu_s, signs
        return now - self._last_sign[0] > _HUNG_S
