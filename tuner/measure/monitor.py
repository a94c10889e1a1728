"""What a process tree uses while it trains, and what others do on its CPUs meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tuner.measure.files import scratch_bytes
from tuner.measure.processes import (
    SANDBOX,
    TICKS_PER_S,
    Process,
    interface_bytes,
    involuntary_switches,
    process_tree,
    read_process,
    sent_bytes,
    status_value,
    unshared_bytes,
)

_MIN_WINDOW_S = 0.5  # CPU time is counted in ticks of 10 ms: shorter windows say nothing
_BUSY = slice(0, 3)  # user, nice, system of a line of /proc/stat
_IOWAIT, _STEAL = 4, 7


@dataclass(frozen=True, slots=True)
class _Moment:
    """The machine's and the tree's counters at one instant, in seconds."""

    time_s: float
    user_s: float
    system_s: float
    busy_s: float
    iowait_s: float
    steal_s: float
    host_s: float
    psi_s: float
    switches: int
    sent_bytes: int

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process tree used between two moments, and the interference meanwhile.

    Seconds and bytes; percentages are of the cores of the trial over the same time. These figures
    cover the training alone: ``train_user_s``, ``train_system_s``, ``threads`` (of one process),
    ``processes``, ``cores_used``, ``sent_bytes`` (see the function) and the interference.
    """

    wall_s: float
    user_s: float
    system_s: float
    iowait_s: float
    train_user_s: float
    train_system_s: float
    user_pct: float
    system_pct: float
    iowait_pct: float
    avg_memory_bytes: int
    peak_memory_bytes: int
    threads: int
    processes: int
    cores_used: float
    sent_bytes: int
    foreign_pct: float
    steal_pct: float
    psi_pct: float
    involuntary_switches: int


@dataclass
class ResourceMonitor:
    """Samples the process tree below ``root`` in a thread of its own.

    Call ``start``, then ``begin_training`` and ``end_training`` as the worker reports them,
    then ``finish``, which returns the usage since ``start``.

    Args:
        root: Process whose tree is measured.
        cores: CPUs the tree owns; interference is what others do on these.
        interval_s: Seconds between samples.
        ends_itself: Whether the processes may end before ``finish``; what they used is known up
            to the last sample then.
        interface: The interface through which the tree reaches its group's other nodes: what it
            sent is what this interface sent. Empty for processes with a network of their own.
        long_every_s: Seconds between samples of the memory that processes share, and of the
            switches of all threads: too costly for every sample.
    """

    root: int
    cores: Collection[int]
    interval_s: float = 0.1
    ends_itself: bool = False
    interface: str = ""
    long_every_s: float = 2.0
    memory_bytes: int = 0
    """Memory of the tree at the latest sample: RSS, and files that are held in memory."""
    tree: list[int] = field(default_factory=list)
    """Processes of the latest sample."""
    _rss: list[int] = field(default_factory=list)
    _pss: list[int] = field(default_factory=list)
    _rss_with_pss: list[int] = field(default_factory=list)
    _peak: int = 0
    _threads: int = 0
    _processes: int = 0
    _training: bool = False
    _train_start: _Moment | None = None
    _trained: tuple[_Moment, _Moment] | None = None
    _noted: _Moment | None = None
    _switches: int = 0

    def start(self) -> None:
        """Begin a measurement and forget earlier figures."""
        self._rss, self._pss, self._rss_with_pss = [], [], []
        self._peak, self._threads, self._processes = 0, 0, 0
        self._training, self._trained, self._train_start = False, None, None
        self._noted = None
        self._lock = threading.Lock()
        self._next_long_s = 0.0
        self._start = self._moment()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self.interval_s):
            self.sample()

    def sample(self) -> None:
        """Sample the tree once; any thread may call this."""
        with self._lock:
            self.tree = process_tree(self.root)
            processes = [each for each in map(read_process, self.tree) if each]
            is_long = time.monotonic() >= self._next_long_s
            if self.ends_itself:
                if is_long:
                    self._switches = involuntary_switches(self.tree)
                self._note(self._moment(processes, self._switches))
            files = self._files_in_memory(self.tree)
            self.memory_bytes = sum(each.rss_bytes for each in processes) + files
            self._rss.append(self.memory_bytes)
            self._peak = max([self._peak, *(status_value(p, "VmHWM") for p in self.tree)])
            if self._training:
                self._threads = max([self._threads, *(each.threads for each in processes)])
                count = sum(each.name != SANDBOX for each in processes)
                self._processes = max(self._processes, count)
            if is_long:
                self._next_long_s = time.monotonic() + self.long_every_s
                held = unshared_bytes(self.tree)
                if held:
                    self._pss.append(held + files)
                    self._rss_with_pss.append(self.memory_bytes)

    def unshared_bytes(self) -> int:
        """Return the memory of the tree now, shared pages counted once: walks page tables."""
        tree = process_tree(self.root)
        return unshared_bytes(tree) + self._files_in_memory(tree)

    def _files_in_memory(self, tree: Sequence[int]) -> int:
        """Return the bytes of files in the sandbox's memory that no process has mapped."""
        files = scratch_bytes(tree)
        if not files:
            return 0
        mapped = sum(1024 * status_value(pid, "RssShmem") for pid in tree)
        return max(0, files - mapped)

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the tree so far: of its largest process, or of all at one sample."""
        return max([1024 * self._peak, *self._pss])

    def cpu_s(self) -> float:
        """Return the CPU seconds that the tree has used since its processes began."""
        return sum(each.user_s + each.system_s for each in self._processes_now())

    def begin_training(self) -> None:
        """Note that the worker has begun to train."""
        self._train_start = self._moment()
        self._training = True

    def end_training(self) -> None:
        """Note that the worker has trained its last iteration."""
        self.sample()
        self._training = False
        if self._train_start:
            self._trained = self._train_start, self._moment()

    def _note(self, moment: _Moment) -> None:
        """Note a moment as the end so far; once the processes are gone, so are their counters."""
        if self._noted is None or moment.cpu_s >= self._noted.cpu_s:
            self._noted = moment

    def _processes_now(self) -> list[Process]:
        return [each for each in map(read_process, process_tree(self.root)) if each]

    def _moment(
        self, processes: Sequence[Process] | None = None, switches: int | None = None
    ) -> _Moment:
        if processes is None:
            processes = self._processes_now()
        busy, iowait, steal = _machine_times(self.cores)
        return _Moment(
            time_s=time.monotonic(),
            user_s=sum(each.user_s for each in processes),
            system_s=sum(each.system_s for each in processes),
            busy_s=busy,
            iowait_s=iowait,
            steal_s=steal,
            host_s=time.process_time(),
            psi_s=_pressure_s(),
            switches=involuntary_switches([each.pid for each in processes])
            if switches is None
            else switches,
            sent_bytes=interface_bytes(self.interface)
            if self.interface
            else sent_bytes([each.pid for each in processes]),
        )

    def finish(self) -> Usage:
        """Stop sampling and return the usage since ``start``."""
        self._next_long_s = 0.0
        self.sample()
        self._stopped.set()
        self._thread.join()
        end = self._noted or self._moment()
        begin, trained = self._start, self._trained
        if self._noted and self._train_start:
            trained = self._train_start, self._noted
        window = max(end.time_s - begin.time_s, 1e-9)
        available = window * len(self.cores) / 100
        # only a few samples have the PSS: their ratio of PSS to RSS scales all of them
        unshared = sum(self._pss) / (sum(self._rss_with_pss) or 1) if self._pss else 1.0
        average = int(unshared * sum(self._rss) / len(self._rss))
        user, system = end.user_s - begin.user_s, end.system_s - begin.system_s
        iowait = end.iowait_s - begin.iowait_s
        foreign, steal, psi = _interference(*trained, len(self.cores)) if trained else (0, 0, 0)
        return Usage(
            wall_s=window,
            user_s=user,
            system_s=system,
            iowait_s=iowait,
            train_user_s=trained[1].user_s - trained[0].user_s if trained else 0.0,
            train_system_s=trained[1].system_s - trained[0].system_s if trained else 0.0,
            user_pct=user / available,
            system_pct=system / available,
            iowait_pct=iowait / available,
            avg_memory_bytes=average,
            peak_memory_bytes=max(self.peak_bytes, average),
            threads=self._threads,
            processes=self._processes,
            cores_used=_cores_used(*trained) if trained else 0.0,
            sent_bytes=trained[1].sent_bytes - trained[0].sent_bytes if trained else 0,
            foreign_pct=foreign,
            steal_pct=steal,
            psi_pct=psi,
            involuntary_switches=trained[1].switches - trained[0].switches if trained else 0,
        )


def _cores_used(begin: _Moment, end: _Moment) -> float:
    window = end.time_s - begin.time_s
    return (end.cpu_s - begin.cpu_s) / window if window >= _MIN_WINDOW_S else 0.0


def _interference(begin: _Moment, end: _Moment, cores: int) -> tuple[float, float, float]:
    """Return foreign CPU, steal (both % of the cores) and CPU pressure (% of the time)."""
    window = end.time_s - begin.time_s
    if window < _MIN_WINDOW_S:
        return 0.0, 0.0, 0.0
    own = end.cpu_s - begin.cpu_s + end.host_s - begin.host_s
    foreign = max(0.0, end.busy_s - begin.busy_s - own)
    steal = end.steal_s - begin.steal_s
    per_cent = 100 / (window * cores)
    return foreign * per_cent, steal * per_cent, 100 * (end.psi_s - begin.psi_s) / window


def _machine_times(cores: Collection[int]) -> tuple[float, float, float]:
    """Return busy, iowait and steal seconds of the given CPUs since boot."""
    busy = iowait = steal = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        if not line.startswith("cpu") or line[3] == " ":
            if line.startswith("intr"):
                break
            continue
        name, *values = line.split()
        if int(name[3:]) in cores:
            ticks = [int(value) for value in values]
            busy += sum(ticks[_BUSY])
            iowait += ticks[_IOWAIT]
            steal += ticks[_STEAL]
    return busy / TICKS_PER_S, iowait / TICKS_PER_S, steal / TICKS_PER_S


def _pressure_s() -> float:
    """Return the seconds since boot in which some task waited for a CPU; 0 if unknown."""
    with suppress(OSError, ValueError):
        text = Path("/proc/pressure/cpu").read_text(encoding="ascii")
        return int(text.splitlines()[0].rpartition("total=")[2]) / 1e6
    return 0.0
