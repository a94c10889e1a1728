"""Folders for what workers compile: each belongs to one worker at a time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout


@contextlib.contextmanager
def own_folder(parent: Path) -> Iterator[Path]:
    """Yield a numbered folder that nobody else has meanwhile, the first that is free.

    A later caller gets it with what is in it. Theano, for one, lets its processes share a folder,
    but reads it without a lock, and knows the owner of the lock by a process number, which means
    nothing in another sandbox.

    Args:
        parent: Made if it is missing.
    """
    for number in itertools.count():
        folder = parent / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        # a worker may be started by one thread and ended by another
        lock = FileLock(f"{folder}.lock", thread_local=False)
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
            break
    try:
        yield folder
    finally:
        lock.release()


def with_cache(variables: Mapping[str, str], cache: Sequence[Path]) -> dict[str, str]:
    """Return variables with the folder in place of ``{cache}``.

    Args:
        variables: Values that may hold ``{cache}``.
        cache: The folder, or nothing if none is used.
    """
    filled = dict(variables)
    for folder in cache:
        filled = {name: value.replace("{cache}", str(folder)) for name, value in filled.items()}
    return filled


def without_cache(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables as a job outside of studies needs them: without the cache of workers.

    Workers load what is in their cache, so nobody else may compile into it; and a job elsewhere
    has no such folder. Of a value that is a list with commas, the entries that name it are left
    out.

    Args:
        variables: Values that may hold ``{cache}``.
    """
    kept = {
        name: ",".join(each for each in value.split(",") if "{cache}" not in each)
        for name, value in variables.items()
    }
    return {name: value for name, value in kept.items() if value or not variables[name]}
