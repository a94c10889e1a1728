"""Packages from pip: pins with their hashes, and shared libraries out of wheels.

The latter are for runtimes that have no pip of their own.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

_LIBRARY = re.compile(r"lib[^/]+\.so(\.\d+)*")
# Intel's wheels: for clusters, GPUs, Xeon Phi, other compilers, 64-bit indices and debuggers
_NOT_FOR_CPU_RUNS = re.compile(
    r"libmkl_(blacs|scalapack|cdft|gf|pgi_thread|tbb_thread|\w*ilp64|\w*avx512_mic)"
    r"|libomptarget|libarcher|libiompstubs|libiomp5_db"
)
PIP_REMEDY = "pip must reach a package index that has the pinned files"


def pip_arguments(pins: Sequence[str], hashed: Sequence[str], folder: Path) -> list[str]:
    """Return arguments that make pip fetch pins and refuse files with unknown hashes.

    If some pin has no hash, as when a platform's build has another name, pip takes what its index
    offers for the pins.

    Args:
        pins: Packages, as ``name==version``.
        hashed: Lines of a requirement file, each a pin and its hashes.
        folder: Folder in which that file may be written.
    """
    known = {line.split()[0] for line in hashed}
    if not known.issuperset(pins):
        return [*pins]
    path = folder / "requirements.txt"
    path.write_text("".join(f"{line}\n" for line in hashed), encoding="ascii")
    return ["--no-deps", "--require-hashes", "-r", str(path)]


def fetch_wheels(
    pins: Sequence[str],
    folder: Path,
    run: Callable[[list[str], str], None],
    hashed: Sequence[str] = (),
) -> list[Path]:
    """Download pinned packages (``name==version``) as wheels; keep those in ``folder``.

    Args:
        pins: Packages to fetch, without dependencies.
        folder: Folder for the wheels.
        run: Runs a command; raises if it fails, with its second argument as the remedy.
        hashed: See ``pip_arguments``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lacking = [pin for pin in pins if not _whole_wheel(pin, folder)]
    if lacking:
        options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off"]
        wanted = [line for line in hashed if line.split()[0] in lacking]
        what = pip_arguments(lacking, wanted, folder)
        command = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), *what]
        run(command, PIP_REMEDY)
    return [wheel for pin in pins for wheel in _wheels(pin, folder)]


def _wheels(pin: str, folder: Path) -> list[Path]:
    name, _, version = pin.partition("==")
    return list(folder.glob(f"{re.sub('[-_.]+', '_', name)}-{version}-*.whl"))


def _whole_wheel(pin: str, folder: Path) -> bool:
    """Return whether the wheel is there; delete a truncated one."""
    for wheel in _wheels(pin, folder):
        if zipfile.is_zipfile(wheel):
            return True
        wheel.unlink()
    return False


def unpack_libraries(wheels: Iterable[Path], folder: Path) -> None:
    """Unpack the wheels' shared libraries, except those no CPU run needs, into a flat folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                name = PurePosixPath(member).name
                if _LIBRARY.fullmatch(name) and not _NOT_FOR_CPU_RUNS.match(name):
                    with archive.open(member) as source, (folder / name).open("wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
