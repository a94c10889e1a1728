"""What the host measures around a worker: CPU, memory, threads, libraries, interference.

Everything is read from ``/proc`` (proc(5)) by the host, never believed from the worker. Peaks come
from ``VmHWM``, never from ``ru_maxrss``, which carries the spawner's own peak over ``exec``.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import signal
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tuner.errors import ConfigError

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MARKER = "TUNER_TRIAL"
"""Environment variable that every process of a trial inherits, however it detaches itself."""

_PSS_EVERY_S = 2.0  # smaps_rollup walks the page tables: too dear for every sample
_DEATH_S = 5.0  # a killed process may take a moment to go, one in uninterruptible sleep longer
_MIN_WINDOW_S = 0.5  # CPU time is counted in ticks of 10 ms: shorter windows say nothing
_BUSY = slice(0, 3)  # user, nice, system of a line of /proc/stat
_IOWAIT, _STEAL = 4, 7


def parse_cores(text: str) -> tuple[int, ...]:
    """CPU numbers of a list such as ``0-3,6``; empty means all that this process may use.

    Raises:
        ConfigError: If the text is no such list or names a CPU that is not there.
    """
    available = sorted(os.sched_getaffinity(0))
    if not text.strip():
        return tuple(available)
    cores: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise ConfigError(f"executor.cores {text!r} is no list of CPUs such as 0-3 or 0,2")
        wanted = range(int(match[1]), int(match[2] or match[1]) + 1)
        if not wanted or any(core not in available for core in wanted):
            raise ConfigError(f"executor.cores {text!r} names CPUs beyond those here: {available}")
        cores.update(wanted)
    return tuple(sorted(cores))


def total_memory_bytes() -> int:
    """Memory this process may use: the machine's, or its control group's where that is less."""
    limits = [psutil.virtual_memory().total]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text(encoding="ascii")))
    return min(limits)


def machine_facts(cores: Collection[int]) -> dict[str, str]:
    """What decides how fast this machine is, ready to print."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    model = re.search(r"^model name\s*:\s*(.+)$", cpu, re.MULTILINE)
    flags = cpu_flags()
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": f"{len(cores)} of {os.cpu_count()}",
        "instruction_sets": " ".join(
            each for each in ("avx", "avx2", "fma", "avx512f", "avx512_bf16") if each in flags
        ),
        "virtual": "yes" if "hypervisor" in flags else "no",
        "governor": governor.read_text(encoding="ascii").strip() if governor.exists() else "",
        "memory": f"{total_memory_bytes() / 2**30:.1f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def cpu_flags() -> frozenset[str]:
    """Instruction sets of the CPU by the kernel's names."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    match = re.search(r"^flags\s*:\s*(.+)$", cpu, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def fingerprint(*facts: Mapping[str, str]) -> str:
    """Short hash of facts: equal on equal machines with equal library builds."""
    lines = [f"{name}={each[name]}" for each in facts for name in sorted(each)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def marked_processes(marker: str) -> list[int]:
    """Live processes whose environment carries ``TUNER_TRIAL=<marker>...``."""
    wanted, found = f"{MARKER}={marker}".encode(), []
    for pid in psutil.pids():
        with suppress(OSError):
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if any(entry.startswith(wanted) for entry in entries):
                found.append(pid)
    return found


def kill_marked(marker: str, patience_s: float = 0.0) -> int:
    """Kill every process of a trial (or, by a prefix, of a study) and see it gone.

    Args:
        marker: Whose processes.
        patience_s: Time that processes already dying are given to go by themselves.

    Returns:
        How many had to be killed.
    """
    pids = _wait_until_gone(marker, patience_s)
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    _wait_until_gone(marker, _DEATH_S)
    return len(pids)


def _wait_until_gone(marker: str, limit_s: float) -> list[int]:
    """Processes still there after at most ``limit_s`` seconds."""
    deadline = time.monotonic() + limit_s
    while True:
        pids = [pid for pid in marked_processes(marker) if pid != os.getpid()]
        if not pids or time.monotonic() >= deadline:
            return pids
        time.sleep(0.005)


@dataclass(slots=True)
class _Process:
    """One line of ``/proc/<pid>/stat``, in seconds and bytes."""

    pid: int
    name: str
    user_s: float
    system_s: float
    threads: int
    rss_bytes: int


def _read_process(pid: int) -> _Process | None:
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    name, _, rest = raw.partition(b"(")[2].rpartition(b")")
    values = rest.split()
    if values[0] in b"ZX":
        return None
    # own time and that of children already reaped, fields 14 to 17 of proc_pid_stat(5)
    user, system, reaped_user, reaped_system = (int(value) for value in values[11:15])
    return _Process(
        pid=pid,
        name=name.decode("ascii", "replace"),
        user_s=(user + reaped_user) / TICKS_PER_S,
        system_s=(system + reaped_system) / TICKS_PER_S,
        threads=int(values[17]),
        rss_bytes=int(values[21]) * PAGE_BYTES,
    )


def process_tree(root: int) -> list[int]:
    """``root`` and all its living descendants."""
    tree, rest = [], [root]
    while rest:
        pid = rest.pop()
        tree.append(pid)
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - ten times a second
                path = f"/proc/{pid}/task/{task}/children"
                with open(path, "rb") as source:  # noqa: PTH123
                    rest.extend(int(child) for child in source.read().split())
    return tree


def strangers(root: int) -> dict[int, str]:
    """Names, by process number, of what runs below ``root`` beside the sandbox and the worker."""
    names = {each.pid: each.name for each in map(_read_process, process_tree(root)) if each}
    for pid, name in list(names.items()):  # from the root down, in the order of the tree
        del names[pid]
        if name != "bwrap":
            break
    return names


def mapped_files(pids: Collection[int]) -> set[str]:
    """Paths of all files mapped by the processes, as they see them."""
    paths: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                paths.add(line[line.find("/") :] if "/" in line else "")
    return paths - {""}


def _status_value(pid: int, name: str) -> int:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_bytes()
        match = re.search(rb"^" + name.encode() + rb":\s*(\d+)", text, re.MULTILINE)
        return int(match[1]) if match else 0
    return 0


def _pss_bytes(pid: int) -> int | None:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        match = re.search(rb"^Pss:\s*(\d+)", text, re.MULTILINE)
        return int(match[1]) * 1024 if match else None
    return None


def _involuntary_switches(pids: Collection[int]) -> int:
    count = 0
    for pid in pids:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                path = Path(f"/proc/{pid}/task/{task}/status")
                match = re.search(rb"nonvoluntary_ctxt_switches:\s*(\d+)", path.read_bytes())
                count += int(match[1]) if match else 0
    return count


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

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process tree used between two moments, and what happened beside it.

    Seconds and bytes; percentages are of the cores of the trial over the same time. Figures of
    the training alone: ``train_user_s``, ``train_system_s``, ``threads`` and the interference.
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
    foreign_pct: float
    steal_pct: float
    psi_pct: float
    involuntary_switches: int


@dataclass
class ResourceMonitor:
    """Samples the process tree below ``root`` in a thread of its own.

    Use as ``start``, then ``begin_training`` and ``end_training`` as the worker reports them,
    then ``finish``, which returns the usage since ``start``.

    Args:
        root: Process whose tree is measured.
        cores: CPUs the tree owns; interference is what others do on these.
        interval_s: Seconds between samples.
    """

    root: int
    cores: Collection[int]
    interval_s: float = 0.1
    memory_bytes: int = 0
    """Memory of the tree at the latest sample (RSS)."""
    tree: list[int] = field(default_factory=list)
    """Processes of the latest sample."""
    _rss: list[int] = field(default_factory=list)
    _pss: list[int] = field(default_factory=list)
    _rss_with_pss: list[int] = field(default_factory=list)
    _peak: int = 0
    _threads: int = 0
    _training: bool = False
    _train_start: _Moment | None = None
    _trained: tuple[_Moment, _Moment] | None = None

    def start(self) -> None:
        """Begin a measurement; earlier figures are forgotten."""
        self._rss, self._pss, self._rss_with_pss = [], [], []
        self._peak, self._threads = 0, 0
        self._training, self._trained, self._train_start = False, None, None
        self._lock = threading.Lock()
        self._next_pss_s = 0.0
        self._start = self._moment()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self.interval_s):
            self.sample()

    def sample(self) -> None:
        """Look at the tree once; the thread calls this, and so may anyone."""
        with self._lock:
            self.tree = process_tree(self.root)
            processes = [each for each in map(_read_process, self.tree) if each]
            self.memory_bytes = sum(each.rss_bytes for each in processes)
            self._rss.append(self.memory_bytes)
            self._peak = max([self._peak, *(_status_value(p, "VmHWM") for p in self.tree)])
            if self._training:
                self._threads = max([self._threads, *(each.threads for each in processes)])
            if time.monotonic() >= self._next_pss_s:
                self._next_pss_s = time.monotonic() + _PSS_EVERY_S
                shares = [_pss_bytes(pid) for pid in self.tree]
                if None not in shares[-1:]:
                    self._pss.append(sum(share or 0 for share in shares))
                    self._rss_with_pss.append(self.memory_bytes)

    def begin_training(self) -> None:
        """The worker has begun to train."""
        self._train_start = self._moment()
        self._training = True

    def end_training(self) -> None:
        """The worker has trained its last iteration."""
        self.sample()
        self._training = False
        if self._train_start:
            self._trained = self._train_start, self._moment()

    def _moment(self) -> _Moment:
        processes = [each for each in map(_read_process, process_tree(self.root)) if each]
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
            switches=_involuntary_switches([each.pid for each in processes]),
        )

    def finish(self) -> Usage:
        """Stop sampling. Returns the usage since ``start``."""
        self._next_pss_s = 0.0
        self.sample()
        self._stopped.set()
        self._thread.join()
        end = self._moment()
        begin, trained = self._start, self._trained
        window = max(end.time_s - begin.time_s, 1e-9)
        available = window * len(self.cores) / 100
        # few samples know what is shared with other processes: all others are scaled by these
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
            peak_memory_bytes=max(self._peak * 1024, *self._pss, average),
            threads=self._threads,
            foreign_pct=foreign,
            steal_pct=steal,
            psi_pct=psi,
            involuntary_switches=trained[1].switches - trained[0].switches if trained else 0,
        )


def _interference(begin: _Moment, end: _Moment, cores: int) -> tuple[float, float, float]:
    """Foreign CPU, steal (both % of the cores) and CPU pressure (% of the time)."""
    window = end.time_s - begin.time_s
    if window < _MIN_WINDOW_S:
        return 0.0, 0.0, 0.0
    own = end.cpu_s - begin.cpu_s + end.host_s - begin.host_s
    foreign = max(0.0, end.busy_s - begin.busy_s - own)
    steal = end.steal_s - begin.steal_s
    per_cent = 100 / (window * cores)
    return foreign * per_cent, steal * per_cent, 100 * (end.psi_s - begin.psi_s) / window


def _machine_times(cores: Collection[int]) -> tuple[float, float, float]:
    """Busy, iowait and steal seconds of the given CPUs since boot."""
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
    """Seconds since boot in which some task waited for a CPU; 0 where the kernel does not say."""
    with suppress(OSError, ValueError):
        text = Path("/proc/pressure/cpu").read_text(encoding="ascii")
        return int(text.splitlines()[0].rpartition("total=")[2]) / 1e6
    return 0.0
