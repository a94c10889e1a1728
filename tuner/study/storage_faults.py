"""One-line errors for faults that stop a study: a full disk, a lost database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tuner.search import STORAGE_FAULTS
from tuner.storage.databases import fault_of
from tuner.values.addresses import without_password
from tuner.values.errors import DISK_FAULTS, PASSING_FAULTS, StorageAway


@contextlib.contextmanager
def reported_faults(folder: Path, storage: str) -> Iterator[None]:
    """Turn a fault of the disk or database into a one-line error; stored results stay stored.

    Args:
        folder: Where the study writes, if an error does not say.
        storage: Address of its database, if that is not in the folder.

    Raises:
        StorageAway: If a file or the database cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in PASSING_FAULTS:
            raise
        fault = f"{error.filename or folder} cannot be written ({error.strerror})"
        if error.errno not in DISK_FAULTS:
            fault = f"this machine lacks something ({error.strerror})"
    except STORAGE_FAULTS as error:
        place = without_password(storage) or folder
        fault = f"{place} cannot be written ({fault_of(error)})"
    else:
        return
    raise StorageAway(
        f"the study stopped, as {fault}; what it has measured is kept, and the same command "
        "resumes it"
    )
