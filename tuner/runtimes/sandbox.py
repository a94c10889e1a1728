"""The sandbox a worker runs in: no network, own processes, and only its own folder writable.

It exposes only listed paths: what programs load, and what the worker was given. No home folder,
socket or password is among them. It is the same for every kind of runtime. ``bwrap`` needs neither
root nor a daemon, and adds no process that computes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# where the sandbox mounts empty file systems
_TMP, _SHARED_MEMORY = Path("/tmp"), Path("/dev/shm")  # noqa: S108 - the sandbox's own
# folders of a suite that the sandbox itself provides, or that no program loads from
_NOT_MOUNTED = frozenset(
    ("dev", "proc", "sys", "tmp", "run", "home", "root", "mnt", "media", "srv", "boot")
)
# of this machine, for runtimes without a suite of their own: programs and what they load,
_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
# and the settings that they read: library paths, users, time zone
_SETTINGS = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "passwd"),
    *("group", "nsswitch.conf"),
)
_SCRATCH_BYTES = 2**30  # size of /tmp, and of /dev/shm: both are memory
_ISOLATION = ("--unshare-all", "--cap-drop", "ALL", "--die-with-parent")
SHARED_NETWORK = ("--share-net",)
"""Options of ``bwrap`` that give a command this machine's network, abstract sockets included."""
# a tmpfs in a namespace of the worker's own would be memory that nobody counts; bwrap from 0.8 on,
# and not in every container
_NO_NESTING = ("--unshare-user", "--disable-userns")
_seen_to_work: dict[str, tuple[str, ...]] = {}
"""By ``bwrap`` path, what isolates here; a fault may pass, so it is not remembered."""


def apt_install(*packages: str) -> str:
    """Return the command that installs Debian packages on this machine."""
    return f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install -y {' '.join(packages)}"


def sandbox_fault() -> str:
    """Return why ``bwrap`` cannot be used on this machine, with the remedy; empty if it works."""
    found = shutil.which("bwrap")
    if found is None:
        return f"bwrap is not on PATH; {apt_install('bubblewrap')}"
    if found in _seen_to_work:
        return ""
    fault = ""
    try:
        for isolation in ((*_ISOLATION, *_NO_NESTING), _ISOLATION):
            fault = _probe(found, isolation)
            if not fault:
                _seen_to_work[found] = isolation
                break
    except (OSError, subprocess.TimeoutExpired) as error:
        # may pass, so it is no reason to go on with less isolation
        return f"{found} does not run: {error}"
    return fault


def forbids_nesting() -> bool:
    """Return whether sandboxes keep their worker from making user namespaces of its own."""
    return not sandbox_fault() and _seen_to_work[shutil.which("bwrap") or ""] != _ISOLATION


def _probe(bwrap: str, isolation: Sequence[str]) -> str:
    """Start it once, as containers may forbid it; return what does."""
    done = subprocess.run(
        [bwrap, *_host_mounts(), *_kernel_mounts(), *isolation, "true"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=20,
    )
    if done.returncode == 0:
        return ""
    said = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    return f"{bwrap} is not allowed to make a sandbox ({said}); {_permission(bwrap)}"


def _permission(bwrap: str) -> str:
    """Return what would allow user namespaces here, according to what forbids them."""
    for setting, forbidden, remedy in (
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            f"put 'profile bwrap {bwrap} flags=(unconfined) {{ userns, }}' into "
            "/etc/apparmor.d/bwrap and load it with apparmor_parser -r, or "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=1000"),
    ):
        with contextlib.suppress(OSError):
            if (Path("/proc/sys") / setting).read_text().strip() == forbidden:
                return remedy
    return (
        "start the container with --security-opt seccomp=unconfined "
        "--security-opt apparmor=unconfined, or with --privileged"
    )


def sandbox_prefix(
    root: Path | None,
    readable: Sequence[Path],
    writable: Sequence[Path],
    *,
    elsewhere: Mapping[Path, Path] | None = None,
    start: Path | None = None,
    devices: Sequence[Path] = (),
    options: Sequence[str] = (),
) -> list[str]:
    """Return the ``bwrap`` command line to put in front of a command.

    The command inherits environment, standard streams, CPU set and limits. When ``bwrap`` or the
    caller ends, it ends together with everything it started.

    Args:
        root: Unpacked suite used as its file system; ``None`` for the programs of this machine.
        readable: Files and folders mounted read-only, at the paths they have on this machine.
        writable: Folders mounted writable, likewise. Of nested paths, the mode of the inner one
            applies inside it.
        elsewhere: Folders of this machine that are mounted writable at other paths, by that path.
        start: Folder that the command starts in; by default the first writable one.
        devices: Files below ``/dev``, and folders of such, that it may use besides the usual ones.
        options: Further options of ``bwrap``.
    """
    binds = _binds(root, readable, writable, elsewhere or {})
    inner = [target for _, _, target in binds]
    programs = _host_mounts() if root is None else _suite_mounts(root, inner)
    mounts = [*programs, *_kernel_mounts(devices)]
    for option, source, target in binds:
        mounts += [option, str(source), str(target)]
    mounts += ["--remount-ro", "/"]
    start = start or (writable[0] if writable else Path("/"))
    bwrap = shutil.which("bwrap") or "bwrap"
    isolation = _seen_to_work.get(bwrap, _ISOLATION)
    return [bwrap, *mounts, *isolation, *options, "--chdir", str(start), "--"]


def interpreter_folders(interpreter: str) -> list[Path]:
    """Return the installation folders of an interpreter and of its symbolic links' targets.

    The user's home folder is none, nor is ``~/.local``, though a program may be in their ``bin``;
    that is itself then, with the libraries beside it.
    """
    chain, path = [Path(interpreter)], Path(interpreter)
    while path.is_symlink():
        path = path.parent / path.readlink()
        chain.append(path)
    prefixes = [_prefix_of(each) for each in chain]
    home, local = Path.home(), Path.home() / ".local"
    found = [
        path if prefix in (home, *home.parents, local) else prefix
        for path, prefix in zip(chain, prefixes, strict=True)
    ]
    libraries = [each / "lib" for each in prefixes if each == local and (each / "lib").is_dir()]
    return [each for each in (*found, *libraries) if len(each.parts) > 2]


def _prefix_of(program: Path) -> Path:
    """Return the installation folder of a program; itself if it is but a link to one.

    A folder of links, such as ``~/.local/bin``, is in one that holds anything. ``shims`` are the
    scripts by which pyenv starts a version of an interpreter, which are all in its own folder.
    """
    prefix = program.parent.parent
    installed = not program.is_symlink() or (prefix / "pyvenv.cfg").is_file()
    return prefix if installed and program.parent.name in ("bin", "shims") else program


def _host_mounts() -> Iterator[str]:
    for path in (Path("/") / name for name in _PROGRAMS):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for path in (Path("/etc") / name for name in _SETTINGS):
        if path.exists():
            yield from ("--ro-bind", str(path), str(path))


def _kernel_mounts(devices: Sequence[Path] = ()) -> Iterator[str]:
    size = ("--size", str(_SCRATCH_BYTES))
    yield from ("--dev", "/dev", *size, "--tmpfs", str(_SHARED_MEMORY))
    for each in devices:
        yield from ("--dev-bind", str(each), str(each))
    yield from ("--remount-ro", "/dev")
    # glibc, OpenMP and MKL read the CPU topology in /sys
    yield from ("--proc", "/proc", "--ro-bind", "/sys", "/sys", *size, "--tmpfs", str(_TMP))
    # the settings of the host's kernel, which its root could write, core_pattern among them
    yield from ("--ro-bind", "/proc/sys", "/proc/sys")


def _suite_mounts(root: Path, inner: Sequence[Path]) -> Iterator[str]:
    for entry in sorted(root.iterdir()):
        if entry.name not in _NOT_MOUNTED:
            yield from _expand(entry, Path("/") / entry.name, inner)


def _expand(source: Path, target: Path, inner: Sequence[Path]) -> Iterator[str]:
    """Mount a folder of the suite, in parts if something of the machine goes inside it.

    A mount point cannot be made in a read-only folder; a tuner installed below ``/usr`` needs
    one.
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
    root: Path | None,
    readable: Sequence[Path],
    writable: Sequence[Path],
    elsewhere: Mapping[Path, Path],
) -> list[tuple[str, Path, Path]]:
    """Return option, source and target of each mount, outer folders first."""
    options: dict[Path, tuple[str, Path]] = {}
    for option, paths in (("--ro-bind", readable), ("--bind", writable)):
        for path in map(Path.absolute, paths):
            for target in _targets(root, path):
                options[target] = (option, path)
            if root is None and path.is_symlink():  # a program finds its files by the link
                options[path] = ("--symlink", path.resolve())
    options |= {target: ("--bind", source) for target, source in elsewhere.items()}
    links = [target for target, (option, _) in options.items() if option == "--symlink"]
    for link in links:  # there already, below a folder that is mounted
        if any(parent in options for parent in link.parents):
            del options[link]
    return [
        (option, source, target)
        for target, (option, source) in sorted(
            options.items(), key=lambda each: len(each[0].parts)
        )
        if root is not None or option == "--bind" or not _is_there(target, writable)
    ]


def _targets(root: Path | None, path: Path) -> set[Path]:
    """Return where to mount a path: without a suite also where its symbolic links lead."""
    return {path} if root is not None else {path, path.resolve()}


def _is_there(path: Path, writable: Sequence[Path]) -> bool:
    """Return whether a path is among this machine's programs, and in no writable folder."""
    inside = any(folder.resolve() in path.parents for folder in writable)
    return len(path.parts) > 1 and path.parts[1] in _PROGRAMS and not inside
