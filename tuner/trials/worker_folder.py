"""The folder that a worker writes to, used by the host without trusting its content.

A worker may replace any file by a link, a pipe, a device or a folder. The host therefore accesses
files through a handle of the folder, follows no link, never blocks, and reads only regular files
up to a given size. What it cannot do there is a ``ProtocolError``, unless the disk is at fault.
Whatever has to last is kept elsewhere, where no worker writes.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from tuner.values.errors import DISK_FAULTS, ProtocolError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
BLOCK_BYTES = 512
"""Of ``st_blocks``, stat(2)."""
_DEEPEST = 50
_MAX_TURNS = 20_000  # each deletes one level of nested folders
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkerFolder:
    """A folder that one worker may write to while it lives.

    Args:
        path: Created here; what an earlier one of that name left is deleted. Its parent must be
            out of every worker's reach, and is closed to other users: a worker can set any mode.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        path.mkdir(exist_ok=True)
        with _open_folder(path) as handle:
            self._handle = os.dup(handle)
        self.clear()

    def __enter__(self) -> WorkerFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.remove()

    def write(self, name: str, text: str) -> None:
        """Create a file.

        Raises:
            ProtocolError: If anything has that name, or the worker forbids it.
        """
        with _blamed_on_worker(name), self._new(name) as target:
            target.write(text)

    def touch(self, name: str) -> None:
        """Create an empty file, unless anything has that name.

        Raises:
            ProtocolError: If the worker forbids it.
        """
        with _blamed_on_worker(name), contextlib.suppress(FileExistsError):
            self._new(name).close()

    def _new(self, name: str) -> IO[str]:
        return os.fdopen(os.open(name, _MAKE, 0o644, dir_fd=self._handle), "w")

    def read(self, name: str, max_bytes: int, offset: int = 0) -> bytes:
        """Return at most ``max_bytes`` of a file from ``offset`` on; empty if there is no file.

        Raises:
            ProtocolError: If it is not a regular file, or the host may not read it.
        """
        with _blamed_on_worker(name):
            try:
                handle = os.open(name, _READ, dir_fd=self._handle)
            except FileNotFoundError:
                return b""
            try:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise ProtocolError(f"{name} is not a regular file")
                return os.pread(handle, max_bytes, offset)
            finally:
                os.close(handle)

    def size(self, max_entries: int) -> tuple[int, int]:
        """Return the number of files and folders in it, and the bytes they take on the disk.

        Counting ends beyond ``max_entries``, or where folders are nested too deeply.

        Raises:
            ProtocolError: If the worker forbids it.
        """
        with contextlib.suppress(OSError):
            os.fchmod(self._handle, 0o700)
        return _size(self._handle, max_entries)

    def clear(self) -> None:
        """Delete its content, whatever permissions the worker set."""
        _clear(self._handle)

    def remove(self) -> None:
        """Delete the folder."""
        self.clear()
        os.close(self._handle)
        with contextlib.suppress(OSError):  # a worker that still lives may have added something
            self.path.rmdir()


def empty_if_large(path: Path, max_entries: int, max_bytes: int) -> None:
    """Delete the content of a folder that workers write to if it has more than that."""
    with contextlib.suppress(FileNotFoundError), _open_folder(path) as handle:
        try:
            entries, size = _size(handle, max_entries)
        except ProtocolError:
            entries, size = max_entries + 1, 0
        if entries > max_entries or size > max_bytes:
            _clear(handle)


@contextlib.contextmanager
def _blamed_on_worker(name: str) -> Iterator[None]:
    """Turn what a worker can cause (a link, a socket, no permission) into a protocol error."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FAULTS:
            raise
        raise ProtocolError(f"{name} cannot be used as a file: {error.strerror}") from None


def _clear(folder: int) -> None:
    """Delete the content of a folder, by its handle; a worker still alive may add to it again.

    Folders in an inner folder are moved up first, so that deep nesting cannot prevent deletion.
    """
    for turn in range(_MAX_TURNS):
        gone = [
            _delete(folder, *each, f"moved-{turn}-{number}")
            for number, each in enumerate(_entries(folder))
        ]
        if not any(gone):
            return


def _delete(folder: int, name: str, is_folder: bool, moved: str) -> bool:
    """Delete one entry; move folders in it to ``folder``. Return whether it was deleted."""
    try:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            return True
        with _open_folder(name, folder) as inner:
            for index, (deeper, nested) in enumerate(_entries(inner)):
                if nested:
                    to = f"{moved}-{index}"
                    os.rename(deeper, to, src_dir_fd=inner, dst_dir_fd=folder)
                else:
                    os.unlink(deeper, dir_fd=inner)
        os.rmdir(name, dir_fd=folder)
    except OSError:
        return False
    return True


def _size(folder: int, max_entries: int, depth: int = 0) -> tuple[int, int]:
    count = size = 0
    if depth > _DEEPEST:
        return max_entries + 1, 0
    inner: list[str] = []
    with os.scandir(folder) as entries:
        for each in entries:
            count += 1
            with _unless_deleted():
                size += each.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
                if each.is_dir(follow_symlinks=False):
                    inner.append(each.name)
            if count > max_entries:
                return count, size
    for name in inner:
        with _unless_deleted(), _open_folder(name, folder) as handle:
            more, bytes_more = _size(handle, max_entries - count, depth + 1)
            count, size = count + more, size + bytes_more
        if count > max_entries:
            break
    return count, size


@contextlib.contextmanager
def _unless_deleted() -> Iterator[None]:
    """Pass over what the worker deletes or replaces meanwhile, but not over what it forbids."""
    try:
        yield
    except PermissionError:
        raise ProtocolError("the worker forbids the host to look into its folder") from None
    except OSError:
        pass


def _entries(folder: int) -> list[tuple[str, bool]]:
    """Return the names in a folder, and whether each is a folder itself."""
    with contextlib.suppress(OSError):
        os.fchmod(folder, 0o700)
    with os.scandir(folder) as entries:
        return [(each.name, each.is_dir(follow_symlinks=False)) for each in entries]


@contextlib.contextmanager
def _open_folder(name: str | Path, folder: int | None = None) -> Iterator[int]:
    """Open a folder, whatever permissions the worker set; yield its handle.

    Args:
        name: Its path, or its name in ``folder``.
        folder: Handle of the folder that it is in.
    """
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        Path(f"/proc/self/fd/{path}").chmod(0o700)  # fchmod takes no such handle
    finally:
        os.close(path)
    handle = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)
