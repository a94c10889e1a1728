"""What keeps a study from going on, said in one line: a full disk, a database that is gone."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from tuner.databases import without_password
from tuner.errors import StorageError
from tuner.search import STORAGE_FAULTS

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


@contextlib.contextmanager
def keeping(folder: Path, storage: str) -> Iterator[None]:
    """Say in one line that nothing can be kept any more; what is kept stays so.

    Args:
        folder: Of the study.
        storage: Address of its database, if that is not in the folder.

    Raises:
        StorageError: Where a file or the database cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        place, why = error.filename or folder, error.strerror
    except STORAGE_FAULTS as error:
        place, why = without_password(storage) or folder, _what_the_database_said(error)
    else:
        return
    raise StorageError(
        f"study {folder.name} stopped, as {place} cannot be written ({why}); what it has measured "
        "is kept, and the same command goes on with it"
    )


def _what_the_database_said(error: BaseException) -> str:
    """The first line of the fault that a library has wrapped up in advice on how it is used."""
    each: BaseException | None = error
    while each is not None and not isinstance(each, DBAPIError):
        each = each.__cause__
    said = each.orig if isinstance(each, DBAPIError) else error
    return (str(said).splitlines() or [type(said).__name__])[0]
