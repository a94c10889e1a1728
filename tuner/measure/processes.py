"""Processes as ``/proc`` shows them: the tree of a trial, what it maps, what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TICK_S = 1 / TICKS_PER_S
"""What CPU time is counted in, seconds."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SANDBOX = "bwrap"
"""Name of the process around a worker."""
RANK = "TUNER_RANK"
"""Environment variable of the processes that a worker starts to train in a group with it."""
MARKER = "TUNER_TRIAL"
"""Environment variable that every process of a trial inherits, however it detaches itself."""

_DEATH_S = 5.0  # a killed process may take a moment to go, one in uninterruptible sleep longer


@dataclass(slots=True)
class Process:
    """One line of ``/proc/<pid>/stat``; CPU seconds include those of children already reaped."""

    pid: int
    name: str
    user_s: float
    system_s: float
    threads: int
    rss_bytes: int


def read_process(pid: int) -> Process | None:
    """Return the counters of a process; ``None`` if it is gone or dead."""
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
    return Process(
        pid=pid,
        name=name.decode("ascii", "replace"),
        user_s=(user + reaped_user) / TICKS_PER_S,
        system_s=(system + reaped_system) / TICKS_PER_S,
        threads=int(values[17]),
        rss_bytes=int(values[21]) * PAGE_BYTES,
    )


def user_tasks() -> int:
    """Count the tasks (threads of all processes) of this process's user on the machine."""
    own, count = os.geteuid(), 0
    for pid in psutil.pids():
        with suppress(OSError):
            if Path(f"/proc/{pid}").stat().st_uid == own:
                count += status_value(pid, "Threads")
    return count


def started_at(pid: int) -> float:
    """Return when a process started, seconds since boot; 0 if it does not exist.

    Together with the pid it identifies a process, whatever happens to the clock.
    """
    with suppress(OSError):
        rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
        return int(rest.split()[19]) / TICKS_PER_S  # field 22 of proc_pid_stat(5)
    return 0.0


def process_tree(root: int) -> list[int]:
    """Return ``root`` and all its descendants, also those that are dead but not reaped."""
    tree, rest = [], [root]
    while rest:
        pid = rest.pop()
        tree.append(pid)
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - ten times a second
                path = f"/proc/{pid}/task/{task}/children"
                with open(path, "rb") as source:  # noqa: PTH123 - the same
                    rest.extend(int(child) for child in source.read().split())
    return tree


def strangers(root: int) -> dict[int, str]:
    """Return names by pid of the processes below ``root`` except sandbox, worker and its group."""
    names = {each.pid: each.name for each in map(read_process, process_tree(root)) if each}
    for pid, name in list(names.items()):  # from the root down, in the order of the tree
        del names[pid]
        if name != SANDBOX:
            break
    return {pid: name for pid, name in names.items() if not _has_variable(pid, RANK)}


def _has_variable(pid: int, name: str) -> bool:
    with suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return any(entry.startswith(f"{name}=".encode()) for entry in entries)
    return False


def sent_bytes(pids: Sequence[int]) -> int:
    """Return the bytes that processes sent in a network namespace of their own; 0 without one.

    In a sandbox that is what the processes of a group sent to each other.
    """
    for pid in reversed(pids):  # the sandbox around them is outside
        with suppress(OSError):
            if not Path(f"/proc/{pid}/ns/net").samefile("/proc/self/ns/net"):
                return sum(_sent_by_interface(pid).values())
    return 0


def interface_of(address: str) -> str:
    """Return the name of this machine's interface with an address; empty if none has it."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address == address for each in found):
            return name
    return ""


def interface_bytes(name: str) -> int:
    """Return the bytes that an interface of this machine has sent, for whatever process."""
    with suppress(OSError):
        return _sent_by_interface("self").get(name, 0)
    return 0


def _sent_by_interface(pid: int | str) -> dict[str, int]:
    """Return the bytes sent by each interface that a process sees, proc_pid_net(5)."""
    lines = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]
    fields = (line.partition(":") for line in lines)
    return {name.strip(): int(values.split()[8]) for name, _, values in fields}


def mapped_files(pids: Collection[int]) -> set[str]:
    """Return the paths of all files that the processes have mapped, as seen in their sandbox."""
    paths: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                paths.add(line[line.find("/") :] if "/" in line else "")
    return paths - {""}


def status_value(pid: int, name: str) -> int:
    """Return a number of ``/proc/<pid>/status``, memory in kB; 0 if there is none."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_bytes()
        match = re.search(rb"^" + name.encode() + rb":\s*(\d+)", text, re.MULTILINE)
        return int(match[1]) if match else 0
    return 0


def unshared_bytes(pids: Collection[int]) -> int:
    """Return the memory of processes together, pages that they share counted once.

    Count only processes that still hold memory once the last was read: while others end, the
    share of those left grows, so that the shares of all would count the same page repeatedly.
    A process whose pages may not be read counts with all of them.
    """
    shares = {pid: _pss_bytes(pid) for pid in pids}
    left = [each for each in map(read_process, pids) if each and each.rss_bytes]
    return sum(shares[each.pid] or each.rss_bytes for each in left)


def _pss_bytes(pid: int) -> int:
    """Return bytes of memory, each shared page divided among its users; 0 if unknown."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        match = re.search(rb"^Pss:\s*(\d+)", text, re.MULTILINE)
        return 1024 * int(match[1]) if match else 0
    return 0


def involuntary_switches(pids: Collection[int]) -> int:
    """Count how often the processes' threads were made to give up a CPU."""
    count = 0
    for pid in pids:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - the same
                path = Path(f"/proc/{pid}/task/{task}/status")
                match = re.search(rb"nonvoluntary_ctxt_switches:\s*(\d+)", path.read_bytes())
                count += int(match[1]) if match else 0
    return count


def marked_processes(marker: str) -> list[int]:
    """Return the live processes whose environment has ``TUNER_TRIAL=<marker>...``."""
    wanted, found = f"{MARKER}={marker}".encode(), []
    for pid in psutil.pids():
        with suppress(OSError):
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if any(entry.startswith(wanted) for entry in entries):
                found.append(pid)
    return found


def kill_marked(marker: str, patience_s: float = 0.0) -> int:
    """Kill every process of a trial (or, by a prefix, of a study), except this one.

    Wait up to 5 s until they are gone.

    Args:
        marker: Marker of the processes, or a prefix of it.
        patience_s: Seconds that dying processes get to end by themselves.

    Returns:
        The number of processes that had to be killed.
    """
    pids = _wait_until_gone(marker, patience_s)
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    _wait_until_gone(marker, _DEATH_S)
    return len(pids)


def _wait_until_gone(marker: str, limit_s: float) -> list[int]:
    """Wait at most ``limit_s`` seconds; return the processes that are still there."""
    deadline = time.monotonic() + limit_s
    while True:
        pids = [pid for pid in marked_processes(marker) if pid != os.getpid()]
        if not pids or time.monotonic() >= deadline:
            return pids
        time.sleep(0.005)
