"""One-line errors for faults that stop a study: a full disk, a lost database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tuner.search import STORAGE_FAULTS
from tuner.storage.databases import fault_of
from tuner.values.addresses import without_password
from tuner.values.errors import DISK_FAULTS, StorageAway


@contextlib.contextmanager
def reported_faults(folder: Path, storage: str) -> Iterator[None]:
    """Turn a fault of the disk or database into a one-line error; stored results stay stored.

    Args:
        folder: The study's folder.
        storage: Address of its database, if that is not in the folder.

    Raises:
        StorageAway: If a file or the database cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise
        place, why = error.filename or folder, error.strerror
    except STORAGE_FAULTS as error:
        place, why = without_password(storage) or folder, fault_of(error)
    else:
        return
    raise StorageAway(
        f"study {folder.name} stopped, as {place} cannot be written ({why}); what it has measured "
        "is kept, and the same command resumes it"
    )
