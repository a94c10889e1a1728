"""CPUs claimed by one process at a time, so that no two studies of a machine disturb each other.

A claim on a CPU is an abstract UNIX socket (unix(7)) that its holder has bound. The kernel lets
only one process bind a name, frees it when the process dies for any reason, and reveals its pid.
Each claim also locks a file: containers with separate networks do not see the socket, but they may
share the file's folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import psutil
from filelock import FileLock, Timeout

SCOPE = "TUNER_CLAIMS"
"""Environment variable: studies with different values of it do not wait for each other."""

_POLL_S = 0.5
_BACKLOG = 4096  # each question of who holds a CPU takes a place in it for ever
_UNKNOWN = "another process"
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid, see SO_PEERCRED in unix(7)


class CoresTaken(Exception):
    """A requested CPU is claimed by another process."""

    def __init__(self, core: int, holder: str) -> None:
        super().__init__(f"CPU {core} is claimed by {holder}")
        self.holder = holder


def claim(
    sets: Sequence[Sequence[int]],
    folder: Path,
    *,
    max_s: float = float("inf"),
    check: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda _: None,
) -> Claim:
    """Claim the first of ``sets`` that is free, waiting until one is.

    Args:
        sets: Sets of CPU numbers; every CPU of the chosen set is claimed.
        folder: Folder of the lock files, shared by all that compete for these CPUs; created if
            missing.
        max_s: Longest wait, seconds.
        check: Called while waiting; an exception that it raises ends the wait.
        tell: Called with a line about each claim that blocks this one, once per claim.

    Raises:
        CoresTaken: If no set became free in time.
    """
    deadline, told = time.monotonic() + max_s, ""
    while True:
        for cores in sets:
            try:
                return Claim(cores, folder)
            except CoresTaken as taken:
                last = taken
        if time.monotonic() > deadline:
            raise last
        if str(last) != told and not (told and last.holder == _UNKNOWN):
            told = str(last)
            tell(told)
        check()
        time.sleep(_POLL_S)


class Claim:
    """CPUs that are claimed until this object is closed or its process dies.

    Args:
        cores: CPU numbers; all of them are claimed, or none.
        folder: See ``claim``.

    Raises:
        CoresTaken: If another process has claimed one of them.
    """

    def __init__(self, cores: Sequence[int], folder: Path) -> None:
        self.cores = tuple(cores)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            for core in cores:
                held = stack.enter_context(_socket())
                try:
                    held.bind(_name(core))
                except OSError as error:
                    _refuse(core, error)
                held.listen(_BACKLOG)
                name = f"cpu-{core}{os.environ.get(SCOPE, '')}.lock"
                lock = FileLock(folder / name, thread_local=False)
                try:
                    stack.enter_context(lock.acquire(timeout=0))
                except Timeout:
                    raise CoresTaken(core, f"another user of {folder}") from None
            self._held = stack.pop_all()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the CPUs."""
        self._held.close()


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _name(core: int) -> str:
    return f"\0tuner/{os.environ.get(SCOPE, '')}/cpu-{core}"


def _refuse(core: int, error: OSError) -> NoReturn:
    if error.errno != errno.EADDRINUSE:
        raise error
    raise CoresTaken(core, " ".join(_describe_holder(core))) from None


def _describe_holder(core: int) -> Iterator[str]:
    """Describe who has claimed a CPU, as far as that can be seen."""
    pid = 0
    with contextlib.suppress(OSError), _socket() as asking:
        asking.setblocking(False)
        asking.connect(_name(core))
        raw = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(raw)
    yield f"process {pid}" if pid else _UNKNOWN
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid) if pid else None
        if process:
            words = [word for word in process.cmdline() if "://" not in word]  # no passwords
            yield f"of {process.username()} ({' '.join(words)})"
