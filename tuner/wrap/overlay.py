"""Folders that a program sees as they are, while what it changes in them is kept apart.

See overlayfs(5) of Linux. A mount namespace of its own makes that possible without root.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

MERGED = "merged"
_LAYERS = ("upper", "work", MERGED)
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
# mounts each folder (named by ".", so that any name will do) on one that keeps changes apart, and
# goes on as the command that follows
_MOUNT = f"""
    while [ "$1" != -- ]; do
        layers="lowerdir=.,upperdir=$2/upper,workdir=$2/work"
        cd "$1" && mount -t overlay overlay -o "userxattr,$layers" "$2/{MERGED}" || exit 125
        shift 2
    done
    shift && exec "$@"
"""
_PROBE_S = 20.0


def overlay_prefix(places: Mapping[Path, Path]) -> list[str]:
    """Return the words before a command that sees folders with its own changes in them.

    Args:
        places: Where the changes of each folder are kept. The command sees the folder, changes
            included, as ``MERGED`` in that place, which is made here.
    """
    for place in places.values():
        for name in _LAYERS:
            (place / name).mkdir(parents=True, exist_ok=True)
    pairs = [str(each) for pair in places.items() for each in pair]
    return [*_NAMESPACE, "sh", "-c", _MOUNT, "overlay", *pairs, "--"]


def overlay_fault(home: Path) -> str:
    """Return why changes of a folder cannot be kept apart in ``home``; empty if they can."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix="overlay-") as name:
            done = subprocess.run(
                [*overlay_prefix({Path(name): Path(name)}), "true"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROBE_S,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"changes of its folder cannot be kept apart in {home}: {error}"
    said = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[0]
    if done.returncode == 0:
        return ""
    return (
        f"changes of its folder cannot be kept apart in {home} ({said}); TUNER_HOME= may name a "
        "folder on ext4, xfs or tmpfs, as an overlay file system such as a container's takes none"
    )
