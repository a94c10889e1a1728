"""Bounds that the kernel keeps for a worker: its cores, its life, its memory, its files.

Each command in front of the worker becomes the next one, so no process is added. What no such
bound holds, the host watches (``tuner.trials.watch``).
"""

from __future__ import annotations

import functools
import os
import platform
import resource
import shutil
import subprocess
from pathlib import Path

from tuner.measure import user_tasks

_MAX_FILE_BYTES = 2**30
_MAX_TASKS = 4096
_MAX_OPEN_FILES = 16_384  # of one process
_PROBE_BYTES = 256 * 2**20
_PROBE_S = 20.0
_KEYCTL = {"x86_64": 250, "aarch64": 219}  # its number as a system call
# KEYCTL_JOIN_SESSION_KEYRING is 1; of the errors, 1 is EPERM and 38 ENOSYS
_JOIN_EMPTY_KEYRING = """
    exit 126 if syscall(shift() + 0, 1, 0) < 0 && $! != 1 && $! != 38;
    exec { $ARGV[0] } @ARGV;
    exit 127;
"""
_BUS = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")  # where a user's systemd is found
# prints the memory limit of the group it runs in; cgroup v2 has one line in /proc/self/cgroup
_PRINT_LIMIT = 'cat "/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.max"'


def custody(
    cores: tuple[int, ...], memory_bytes: int, file_bytes: int = _MAX_FILE_BYTES
) -> list[str]:
    """Return the command prefix that keeps a worker in bounds.

    The worker dies with the tuner, stays on its cores and is killed first when memory runs out. It
    can neither fill the disk with one file nor dump core, nor open files without end. The limit on
    processes and threads is added to those that the user has now; the kernel does not apply it to
    root. Where systemd allows it, the memory of all its processes is limited too, with all that
    the kernel holds for them.

    Args:
        cores: CPUs it may use.
        memory_bytes: Memory at which the kernel ends it.
        file_bytes: Largest size of a file that it writes.
    """
    soft, hard = (
        _MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else min(limit, _MAX_OPEN_FILES)
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *(_in_scope(memory_bytes) if not memory_fault() else []),
        *_without_keys(),
        *("taskset", "--cpu-list", ",".join(map(str, cores))),
        *("choom", "--adjust", "1000", "--"),
        *("prlimit", f"--fsize={file_bytes}", "--core=0", f"--nofile={soft}:{hard}"),
        *(f"--nproc={user_tasks() + _MAX_TASKS}", "--"),
    ]


def _without_keys() -> list[str]:
    """Return the prefix that gives a command an empty session keyring, see keyctl(2).

    A worker would read the keys of whoever started the tuner, such as Kerberos tickets. It does
    not start if that fails, unless the kernel refuses keyrings to all. Perl is part of Debian.
    """
    number, perl = _KEYCTL.get(platform.machine()), shutil.which("perl")
    return [perl, "-e", _JOIN_EMPTY_KEYRING, str(number)] if number and perl else []


@functools.cache
def memory_fault() -> str:
    """Return why the kernel cannot limit the memory of a worker's processes; empty if it can.

    A scope is started once: systemd may run and yet not have the memory controller.
    """
    if not Path("/run/systemd/system").is_dir():
        return "systemd does not run here"
    try:
        done = subprocess.run(
            [*_in_scope(_PROBE_BYTES), "sh", "-c", _PRINT_LIMIT],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"systemd-run does not run: {error}"
    if done.stdout.strip() == str(_PROBE_BYTES):
        return ""
    said = (done.stderr.strip().splitlines() or ["it sets no limit in a cgroup of version 2"])[-1]
    return f"systemd-run makes no scope with a limit: {said}"


def _in_scope(memory_bytes: int) -> list[str]:
    """Return the prefix that puts a command into a cgroup of its own, made by systemd.

    The worker itself does not learn where the user's systemd is.
    """
    found = {name: os.environ[name] for name in _BUS if name in os.environ}
    return [
        *("env", *(f"{name}={value}" for name, value in found.items())),
        *(shutil.which("systemd-run") or "systemd-run", "--scope", "--quiet", "--collect"),
        *(["--user"] if os.geteuid() else []),
        *(f"--property=MemoryMax={memory_bytes}", "--property=MemorySwapMax=0"),
        *(f"--property=TasksMax={_MAX_TASKS}", "--"),
        *("env", *(f"--unset={name}" for name in found)),
    ]
