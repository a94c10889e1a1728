"""Shared libraries out of pip wheels, for a runtime that has no pip of its own."""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

_LIBRARY = re.compile(r"lib[^/]+\.so(\.\d+)*")
# Intel's wheels: for clusters, GPUs, other compilers, 64-bit indices, debuggers and profilers
_NOT_FOR_CPU_RUNS = re.compile(
    r"libmkl_(blacs|scalapack|cdft|gf|pgi_thread|tbb_thread|\w*ilp64)|libomptarget|libarcher"
    r"|libiompstubs|libiomp5_db|libtbb(bind|malloc_proxy|\.so)"
)


def fetch_wheels(
    pins: Sequence[str], folder: Path, run: Callable[[list[str], str], None]
) -> list[Path]:
    """Download pinned packages (``name==version``) as wheels; those in ``folder`` are kept.

    Args:
        pins: What to fetch, without dependencies.
        folder: Where to.
        run: Runs a command, given what helps when it fails, and raises then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lacking = [pin for pin in pins if not _whole_wheel(pin, folder)]
    if lacking:
        options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off"]
        command = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), *lacking]
        run(command, "pip needs to reach its package index")
    return [wheel for pin in pins for wheel in _wheels(pin, folder)]


def _wheels(pin: str, folder: Path) -> list[Path]:
    name, _, version = pin.partition("==")
    return list(folder.glob(f"{re.sub('[-_.]+', '_', name)}-{version}-*.whl"))


def _whole_wheel(pin: str, folder: Path) -> bool:
    """Whether it is there; one that was cut off is deleted."""
    for wheel in _wheels(pin, folder):
        if zipfile.is_zipfile(wheel):
            return True
        wheel.unlink()
    return False


def unpack_libraries(wheels: Iterable[Path], folder: Path) -> None:
    """Put the wheels' shared libraries, but those no CPU run can need, into one flat folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                name = PurePosixPath(member).name
                if _LIBRARY.fullmatch(name) and not _NOT_FOR_CPU_RUNS.match(name):
                    with archive.open(member) as source, (folder / name).open("wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
