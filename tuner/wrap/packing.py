"""The folder of a program, packed for the nodes of a cluster.

A node uses the program's folder if it is the same there, as on a file system that the nodes
share. Otherwise it gets a copy, which the sandbox shows at the path of the folder.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from tuner.values.errors import RuntimeUnavailable
from tuner.wrap.program import Program

_MAX_SENT_BYTES = 64 * 2**20
_MAX_FILES = 20_000  # that are sent, or compared
_NOT_OF_THE_PROGRAM = ("__pycache__", ".git", "mlruns", "mlartifacts")
_DATABASE = "mlflow.db"  # and its journals: they change while the study runs


def state_of(program: Program) -> str:
    """Return what tells a program's folder from others: its files, by size and time of change.

    A program without a sandbox may change its folder, so only the files of its command count then.
    """
    if not program.confined:
        return repr(program.identity()["files"])
    found = []
    for path in islice(_files(program.folder), _MAX_FILES):
        known = path.lstat()
        name = str(path.relative_to(program.folder))
        found.append((name, known.st_size, known.st_mtime_ns))
    return hashlib.sha256(repr(found).encode()).hexdigest()


def pack(folder: Path) -> bytes:
    """Return a folder as an archive; empty if it is too large to be sent."""
    files = list(islice(_files(folder), _MAX_FILES + 1))
    if len(files) > _MAX_FILES or sum(each.lstat().st_size for each in files) > _MAX_SENT_BYTES:
        return b""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for each in files:
            archive.add(each, str(each.relative_to(folder)), recursive=False)
    return packed.getvalue()


def place_program(program: Program, state: str, archive: bytes, place: Path) -> Program:
    """Return a program as it runs on this node: in its own folder, or in a copy.

    Args:
        program: The program, with what it brings along.
        state: What ``state_of`` returned on the machine of the tuner.
        archive: What ``pack`` returned there.
        place: Folder for a copy.

    Raises:
        RuntimeUnavailable: If the folder is not the same here, and a copy cannot be used.
    """
    if program.folder.is_dir() and state_of(program) == state:
        return program
    if not program.confined:
        raise RuntimeUnavailable(
            f"{program.folder} has not the same program; a copy is used in a sandbox only"
        )
    if not archive:
        raise RuntimeUnavailable(
            f"{program.folder} is not the same as on the machine of the tuner, and too large to "
            f"be sent (more than {_MAX_SENT_BYTES / 2**20:.0f} MiB or {_MAX_FILES:,} files)"
        )
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as packed:
        packed.extractall(place, filter="tar")  # as it comes from the user's own tuner
    assert program.brought is not None
    outside = tuple(each for each in program.readable if not each.is_relative_to(program.folder))
    return replace(program, readable=outside, brought=replace(program.brought, copy=place))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a program's folder, links included, without what the tuner writes."""
    for parent, folders, names in os.walk(folder):
        links = [each for each in folders if Path(parent, each).is_symlink()]
        folders[:] = sorted({*folders} - {*links, *_NOT_OF_THE_PROGRAM})
        for name in sorted([*names, *links]):
            path = Path(parent, name)
            if not name.startswith(_DATABASE) and (path.is_file() or path.is_symlink()):
                yield path
