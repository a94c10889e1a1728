"""The processes of a program, apart from those that start and confine it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tuner.measure import process_tree


def program_processes(root: int, *, confined: bool) -> list[int]:
    """Return the processes of a program.

    Args:
        root: The process that started it all.
        confined: Whether the program runs in a sandbox.
    """
    tree = process_tree(root)[1:]
    if not confined:
        return tree
    own = _namespace("self")
    return [each for each in tree if _namespace(each) not in (0, own) and not _confines(each)]


def process_environment(pid: int) -> Mapping[str, str]:
    """Return the environment that a process was started with; empty if it cannot be seen."""
    with suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
        return dict(each.partition("=")[::2] for each in entries if "=" in each)
    return {}


def _namespace(pid: int | str) -> int:
    """Return the number of a process's PID namespace; 0 if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    return 0


def _confines(pid: int) -> bool:
    """Return whether a process is the sandbox's own first one."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() == "bwrap"
    return True
