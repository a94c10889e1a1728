"""The GPUs of this machine: the files by which programs reach them, and which programs do."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DEV = Path("/dev")
_ASKED_S = 20.0


@dataclass(frozen=True)
class _Maker:
    device: str  # a pattern that only a GPU that can compute has
    files: tuple[str, ...]  # patterns of all that a program opens
    libraries: str  # by which programs compute on it


_MAKERS = (
    _Maker("nvidia[0-9]*", ("nvidia*",), r"lib(cuda|cudart)\b"),
    _Maker("kfd", ("kfd", "dri"), r"lib(hsa-runtime64|amdhip64)\b"),  # AMD
)


def gpu_files() -> list[Path]:
    """Return the files by which programs compute on the GPUs of this machine; none without one."""
    patterns = [each for maker in _present() for each in maker.files]
    return sorted({path for each in patterns for path in _DEV.glob(each)})


def loads_gpu_library(mapped: Collection[str]) -> bool:
    """Return whether files that a program has mapped are libraries for a GPU of this machine."""
    wanted = [maker.libraries for maker in _present()]
    return any(re.match(each, Path(path).name) for each in wanted for path in mapped)


def opened_gpu(mapped: Collection[str]) -> bool:
    """Return whether files that a program has mapped are those of a GPU itself."""
    return any(path.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/")) for path in mapped)


def gpu_names() -> str:
    """Return the names of the GPUs and the version of their driver; empty without a GPU."""
    if not gpu_files():
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        if found := shutil.which("nvidia-smi"):
            done = subprocess.run(
                [found, "--query-gpu=name,driver_version", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_ASKED_S,
            )
            if done.returncode == 0 and done.stdout.strip():
                return "; ".join(done.stdout.strip().splitlines())
    return "of unknown kind"


def _present() -> Iterator[_Maker]:
    """Yield the makers of the GPUs of this machine."""
    yield from (each for each in _MAKERS if any(_DEV.glob(each.device)))
