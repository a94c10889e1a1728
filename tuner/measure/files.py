"""What the files that processes hold take in memory and on the disk, as ``/proc`` shows it."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_BLOCK_BYTES = 512  # of st_blocks, stat(2)


def scratch_bytes(pids: Collection[int]) -> int:
    """Return the memory that files take in the file systems of the processes' own sandboxes."""
    found: dict[int, int] = {}
    for pid, name in itertools.product(pids, ("tmp", "dev/shm")):
        with suppress(OSError):
            inside = Path(f"/proc/{pid}/root") / name
            device = inside.stat().st_dev
            if device != (Path("/") / name).stat().st_dev:
                space = os.statvfs(inside)
                found[device] = (space.f_blocks - space.f_bfree) * space.f_frsize
    return sum(found.values())


@dataclass(frozen=True, slots=True)
class NamelessFiles:
    """What files without a name take: deleted ones that are still open, and ``memfd`` ones.

    Attributes:
        open: Number of open files, those with a name included.
        disk_bytes, memory_bytes: What those without a name take on the disk and in memory.
    """

    open: int = 0
    disk_bytes: int = 0
    memory_bytes: int = 0


def nameless_files(pids: Collection[int], most: int) -> NamelessFiles:
    """Return what open files without a name take; looking ends beyond ``most`` open files."""
    count = 0
    memory: dict[tuple[int, int], int] = {}
    disk: dict[tuple[int, int], int] = {}
    for pid in pids:
        with suppress(OSError):
            for each in Path(f"/proc/{pid}/fd").iterdir():
                count += 1
                if count > most:
                    break
                with suppress(OSError):
                    status = each.stat()
                    if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                        kind = memory if str(each.readlink()).startswith("/memfd:") else disk
                        size = status.st_blocks * _BLOCK_BYTES
                        kind[status.st_dev, status.st_ino] = size
    return NamelessFiles(count, sum(disk.values()), sum(memory.values()))
