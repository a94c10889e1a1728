"""The sandbox a worker runs in: no network, own processes, and only its own folder writable.

It is the same for every kind of runtime. ``bwrap`` needs neither root nor a daemon, and adds no
process that computes.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

_TMP = Path("/tmp")  # noqa: S108 - where the sandbox mounts an empty file system
# of an unpacked suite: provided by the sandbox itself, or nothing a program loads
_NOT_MOUNTED = frozenset(
    ("dev", "proc", "sys", "tmp", "run", "home", "root", "mnt", "media", "srv", "boot")
)
_ISOLATION = ("--unshare-all", "--cap-drop", "ALL", "--die-with-parent")


def apt_install(*packages: str) -> str:
    """The command that installs Debian packages on this machine."""
    return f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install -y {' '.join(packages)}"


def sandbox_fault() -> str:
    """Why ``bwrap`` cannot be used on this machine, with the remedy; empty where it works."""
    found = shutil.which("bwrap")
    if found is None:
        return f"bwrap is not on PATH; {apt_install('bubblewrap')}"
    return _probe(found)


@functools.cache
def _probe(bwrap: str) -> str:
    """Really start it once: in containers it may be there but forbidden."""
    try:
        done = subprocess.run(
            [bwrap, *_host_mounts(), *_ISOLATION, "true"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{bwrap} does not run: {error}"
    if done.returncode == 0:
        return ""
    said = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    return (
        f"{bwrap} is not allowed to make a sandbox ({said}); allow user namespaces (sysctl "
        "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0), "
        "or start the container with --privileged"
    )


def sandbox_prefix(
    root: Path | None, readable: Sequence[Path], writable: Sequence[Path]
) -> list[str]:
    """The ``bwrap`` command line in front of a command.

    The command inherits environment, standard streams, CPU set and limits, and ends together
    with whatever it started when ``bwrap`` or the caller ends. It starts in the first writable
    folder.

    Args:
        root: Unpacked suite used as its file system; ``None`` for the machine's own, read-only.
        readable: Files and folders mounted read-only, at the paths they have on this machine.
        writable: Folders mounted writable, likewise. Where one path holds another, the inner
            one's mode holds for what is in it.
    """
    binds = _binds(root, readable, writable)
    inner = [target for _, _, target in binds]
    mounts = _host_mounts() if root is None else [*_suite_mounts(root, inner)]
    for option, source, target in binds:
        mounts += [option, str(source), str(target)]
    if root is not None:
        mounts += ["--remount-ro", "/"]
    start = str(writable[0]) if writable else "/"
    bwrap = shutil.which("bwrap") or "bwrap"
    return [bwrap, *mounts, *_ISOLATION, "--chdir", start, "--"]


def interpreter_folders(interpreter: str) -> list[Path]:
    """Installation folders of an interpreter and of those its symbolic links lead to.

    Only what the sandbox's empty ``/tmp`` would hide has to be mounted; the rest is there.
    """
    chain, path = [Path(interpreter)], Path(interpreter)
    while path.is_symlink():
        path = path.parent / path.readlink()
        chain.append(path)
    prefixes = [each.parent.parent if each.parent.name == "bin" else each for each in chain]
    return [each for each in prefixes if len(each.parts) > 2]


def _host_mounts() -> list[str]:
    return [*("--ro-bind", "/", "/", "--dev", "/dev"), *("--proc", "/proc", "--tmpfs", str(_TMP))]


def _suite_mounts(root: Path, inner: Sequence[Path]) -> Iterator[str]:
    for entry in sorted(root.iterdir()):
        if entry.name not in _NOT_MOUNTED:
            yield from _expand(entry, Path("/") / entry.name, inner)
    yield from ("--dev", "/dev", "--proc", "/proc")
    # glibc, OpenMP and MKL read the CPU topology there
    yield from ("--ro-bind", "/sys", "/sys", "--tmpfs", str(_TMP))


def _expand(source: Path, target: Path, inner: Sequence[Path]) -> Iterator[str]:
    """Mount a folder of the suite; in parts where something of the machine goes inside it.

    A mount point cannot be made in a read-only folder: a tuner installed below ``/usr`` needs it.
    """
    if source.is_symlink():
        yield from ("--symlink", str(source.readlink()), str(target))
    elif source.is_dir() and any(target in path.parents for path in inner):
        yield from ("--dir", str(target))
        for entry in sorted(source.iterdir()):
            yield from _expand(entry, target / entry.name, inner)
    elif target not in inner:
        yield from ("--ro-bind", str(source), str(target))


def _binds(
    root: Path | None, readable: Sequence[Path], writable: Sequence[Path]
) -> list[tuple[str, Path, Path]]:
    """Option, source and target of each mount, outer folders first."""
    options: dict[Path, tuple[str, Path]] = {}
    for option, paths in (("--ro-bind", readable), ("--bind", writable)):
        for path in map(Path.absolute, paths):
            for target in _targets(root, path):
                options[target] = (option, path)
    return [
        (option, source, target)
        for target, (option, source) in sorted(
            options.items(), key=lambda each: len(each[0].parts)
        )
        if root is not None or option == "--bind" or _hidden(target) or _inside(target, writable)
    ]


def _targets(root: Path | None, path: Path) -> set[Path]:
    """Where to mount a path: the machine's own root has the symbolic links on the way to it."""
    if root is not None:
        return {path}
    return {path.resolve()} | ({path} if _hidden(path) else set())


def _hidden(path: Path) -> bool:
    return _TMP in path.parents


def _inside(path: Path, folders: Sequence[Path]) -> bool:
    return any(folder.resolve() in path.parents for folder in folders)
