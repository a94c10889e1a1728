"""The folder that a worker writes to, and how the host uses it without trusting what is there.

A worker may put a link, a pipe, a device or a folder in the place of any file. So the host goes
through a handle of the folder, follows no link, waits for nobody, reads regular files alone, and
no more of one than it asks for. Whatever has to last is kept elsewhere, where no worker writes.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from types import TracebackType

from tuner.errors import ProtocolError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkerFolder:
    """A folder that one worker may write to while it lives.

    Args:
        path: Made here; what an earlier one of that name left is deleted. Its parent must be out
            of every worker's reach.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, _FOLDER)
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
        """Make a file. Raises ``FileExistsError`` if anything of that name is there."""
        with os.fdopen(os.open(name, _MAKE, 0o644, dir_fd=self._handle), "w") as target:
            target.write(text)

    def touch(self, name: str) -> None:
        """Make an empty file, unless anything of that name is there."""
        with contextlib.suppress(FileExistsError):
            self.write(name, "")

    def read(self, name: str, most: int, offset: int = 0) -> bytes:
        """At most so many bytes of a file from ``offset`` on; none where there is no file.

        Raises:
            ProtocolError: If it is no regular file, or the host may not read it.
        """
        try:
            handle = os.open(name, _READ, dir_fd=self._handle)
        except FileNotFoundError:
            return b""
        except OSError as error:  # a link, a socket, or without permission
            raise ProtocolError(f"{name} is no file that can be read: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ProtocolError(f"{name} is no regular file")
            return os.pread(handle, most, offset)
        finally:
            os.close(handle)

    def clear(self) -> None:
        """Delete all that is in it, whatever the worker forbade."""
        _clear(self._handle)

    def remove(self) -> None:
        """Delete it."""
        self.clear()
        os.close(self._handle)
        with contextlib.suppress(OSError):  # a worker that still lives may have added something
            self.path.rmdir()


def _clear(folder: int) -> None:
    """Delete all in a folder, by its handle; a worker that still lives may undo it."""
    with contextlib.suppress(OSError):
        os.fchmod(folder, 0o700)
    with os.scandir(folder) as entries:
        names = [(each.name, each.is_dir(follow_symlinks=False)) for each in entries]
    for name, is_folder in names:
        with contextlib.suppress(OSError):
            if not is_folder:
                os.unlink(name, dir_fd=folder)
                continue
            _allow(name, folder)
            inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                _clear(inner)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)


def _allow(name: str, folder: int) -> None:
    """Give the host access to a folder that the worker made unreadable."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        Path(f"/proc/self/fd/{handle}").chmod(0o700)  # fchmod takes no such handle
    finally:
        os.close(handle)
