"""Runtimes made of a Debian suite's packages, unpacked into a folder without root.

``mmdebstrap --variant=extract`` runs no maintainer script, so it cannot change this machine. The
folder becomes the root of the worker's sandbox.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from tuner.progress import ProgressCallback
from tuner.runtimes.base import Problem, Runtime
from tuner.runtimes.sandbox import apt_install, sandbox_fault
from tuner.runtimes.wheels import fetch_wheels, unpack_libraries
from tuner.values.errors import RuntimeUnavailable

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_ARCHIVES = Path("var/cache/apt/archives")
_LISTING = "packages.txt"
# lists the unpacked packages, which only this hook is told; $1 is the new root
_LIST_HOOK = f'printf "%s\\n" $MMDEBSTRAP_ESSENTIAL > "$1/{_LISTING}"'
# glibc's own libraries, which only work with the loader of their machine
_GLIBC = re.compile(
    r"(ld|lib(c|m|mvec|dl|pthread|rt|util|resolv|anl|nsl|nss_\w+|thread_db|BrokenLocale"
    r"|SegFault|memusage|pcprofile|c_malloc_debug))[-.]"
)
_DEBS_SHARE = 0.12  # size of the .deb files as a fraction of the disk space needed (Caffe)


class DebianRuntime(Runtime):
    """Packages of a Debian suite, and shared libraries of pip wheels."""

    @property
    def interpreter(self) -> str:
        """The interpreter's path inside the suite."""
        return self.framework.runtime.interpreter

    @property
    def root(self) -> Path:
        """The unpacked suite."""
        return self.folder / "root"

    @property
    def sandboxed(self) -> bool:
        """Always true. Raises ``RuntimeUnavailable`` if a sandbox is impossible or off."""
        name, fault = self.framework.name, sandbox_fault()
        if fault or not self._confined:
            why = fault or "its suite is the sandbox's file system; leave out sandbox=off"
            raise RuntimeUnavailable(f"{name} needs a sandbox to run in: {why}")
        return True

    def packages(self) -> dict[str, str]:
        """Return the versions of the Debian packages and wheels; empty before installation."""
        versions: dict[str, str] = {}
        with suppress(FileNotFoundError):
            for line in (self.root / _LISTING).read_text().split():
                name, version, _ = unquote(Path(line).name).split("_", 2)
                versions[name] = version
        pins = (pin.partition("==") for pin in self.framework.runtime.wheels)
        return versions | ({name: version for name, _, version in pins} if versions else {})

    def missing(self) -> list[Problem]:
        """Return what prevents installing it, or running it once installed."""
        fault = sandbox_fault()
        fact, _, remedy = fault.partition("; ")
        return [*([Problem(fact, remedy)] if fault else []), *super().missing()]

    def _needs(self) -> list[Problem]:
        problems = []
        if not shutil.which("mmdebstrap"):
            remedy = apt_install("mmdebstrap", "bubblewrap")
            problems.append(Problem("mmdebstrap is not on PATH", remedy))
        if self.framework.runtime.wheels and not importlib.util.find_spec("pip"):
            fact = f"pip is not installed for {sys.executable}"
            problems.append(Problem(fact, f"{sys.executable} -m ensurepip"))
        return problems

    def _exposed(self) -> list[Path]:
        return [self.folder / "wheels"]

    def _build(self, progress: ProgressCallback) -> None:
        wheels, hashed = self.framework.runtime.wheels, self.framework.runtime.hashed
        if wheels:
            progress(f"fetching {', '.join(wheels)}", 0.01)
            fetched = fetch_wheels(wheels, self.downloads / "wheels", self._run, hashed)
            unpack_libraries(fetched, self.folder / "wheels")
            for name, target in self.framework.runtime.links.items():
                (self.folder / "wheels" / name).symlink_to(target)
        self._unpack_suite(progress)

    def _unpack_suite(self, progress: ProgressCallback) -> None:
        archives = self.root / _ARCHIVES
        archives.mkdir(parents=True)
        kept = self.downloads / "debs"
        kept.mkdir(parents=True, exist_ok=True)
        for deb in kept.glob("*.deb"):
            deb.rename(archives / deb.name)
        remedy = (
            f"where the mirror has dropped {self.framework.runtime.suite}, set "
            "framework.runtime.mirror= to one that has it, such as Debian's archive"
        )
        self._run(self._mmdebstrap(), remedy, self._watch(progress))
        self._keep_downloads()
        shutil.rmtree(archives)
        shell = self.root / "bin/sh"
        if not shell.exists() and shell.with_name("dash").exists():
            shell.symlink_to("dash")  # as a maintainer script would

    def _mmdebstrap(self) -> list[str]:
        runtime = self.framework.runtime
        # chrootless leaves files that an ordinary user can delete again, unlike unshare
        mode = "root" if os.geteuid() == 0 else "chrootless"
        return [
            *("mmdebstrap", "--variant=extract", f"--mode={mode}"),
            "--skip=check/empty,essential/unlink,cleanup/apt/cache,chroot/mount",
            f"--include={','.join(runtime.packages)}",
            f"--extract-hook={_LIST_HOOK}",
            *(f"--aptopt={line}" for line in _apt_network_settings()),
            *(runtime.suite, str(self.root)),
            *_source_line(runtime.mirror or own_mirror(), runtime.suite),
        ]

    def _watch(self, progress: ProgressCallback) -> Callable[[], None]:
        """Return a callback that estimates progress: by .deb files, then by documentation."""
        archives, documents = self.root / _ARCHIVES, self.root / "usr/share/doc"
        expected = self.framework.runtime.size_mb * 10**6 * _DEBS_SHARE or 1.0
        name = self.framework.title

        def tick() -> None:
            debs = list(archives.rglob("*.deb"))
            if documents.is_dir():
                unpacked = min(1.0, len(list(documents.iterdir())) / (len(debs) or 1))
                progress(f"unpacking {name}", 0.5 + 0.45 * unpacked)
            else:
                fetched = min(1.0, sum(map(_size, debs)) / expected)
                progress(f"fetching {name}", 0.1 + 0.4 * fetched)

        return tick

    def _keep_downloads(self) -> None:
        """Move the .deb files, complete and checked, to where the next attempt finds them."""
        kept = self.downloads / "debs"
        kept.mkdir(parents=True, exist_ok=True)
        for deb in (self.root / _ARCHIVES).glob("*.deb"):
            deb.replace(kept / deb.name)

    def _discard(self) -> None:
        with suppress(OSError):
            self._keep_downloads()
        super()._discard()


def gather_libraries(root: Path, folder: Path) -> None:
    """Link the shared libraries of an unpacked suite, except glibc's, into one flat folder.

    Args:
        root: Root of the suite, on the same file system as ``folder``.
        folder: Made here; each library keeps the names that it has in the suite.
    """
    folder.mkdir()
    for inner in ("lib", "usr/lib"):
        for path in root.glob(f"{inner}/*-linux-gnu/lib*.so.*"):
            target = folder / path.name
            if path.is_file() and not _GLIBC.match(path.name) and not target.exists():
                os.link(path.resolve(), target)


def keep_paths(root: Path, names: Iterable[str], folder: Path) -> None:
    """Move files and folders of an unpacked suite, named by their paths in it, to another root.

    Args:
        root: Root of the suite, on the same file system as ``folder``.
        names: The paths, without the first slash.
        folder: The other root, which need not exist.
    """
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (root / name).rename(target)


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _source_line(mirror: str, suite: str) -> list[str]:
    """Return the source as apt writes it; nothing if mmdebstrap's own default will do."""
    if not mirror or mirror.startswith("deb "):
        return [mirror] if mirror else []
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.is_file() else ""
    return [f"deb {signed}{mirror} {suite} main"]


def _apt_network_settings() -> Iterator[str]:
    """Yield proxies and certificates of this machine's apt, which mmdebstrap would ignore."""
    try:
        done = subprocess.run(
            ["apt-config", "dump"], capture_output=True, text=True, timeout=10, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in done.stdout.splitlines():
        if re.match(r'Acquire::https?::\S+ ".+";', line):
            yield line


def own_mirror(etc: Path = Path("/etc")) -> str:
    """Return the mirror of Debian's main section that this machine's apt uses, or empty.

    Args:
        etc: Folder of ``os-release`` and ``apt/``.
    """
    with suppress(OSError):
        release = (etc / "os-release").read_text()
        named = re.search(r"^VERSION_CODENAME=(\S+)", release, re.MULTILINE)
        suites = {"stable", "oldstable", "testing", "sid", "unstable"}
        suites |= {named[1].strip('"')} if named else set()
        if re.search(r'^ID="?debian"?$', release, re.MULTILINE):
            for site, offered, components in _apt_sources(etc / "apt"):
                if suites & set(offered) and "main" in components:
                    return site
    return ""


def _apt_sources(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield address, suites and components of each package source, in both file formats."""
    for path in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]:
        text = path.read_text() if path.is_file() else ""
        for line in re.findall(r"^deb\s+(?:\[.*?\]\s*)?(\S.*)$", text, re.MULTILINE):
            site, suite, *components = line.partition("#")[0].split()
            yield site, [suite], components
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
            fields = {name.lower(): value.split() for name, value in fields.items()}
            if "deb" in fields.get("types", []) and fields.get("enabled") != ["no"]:
                for site in fields.get("uris", [])[:1]:
                    yield site, fields.get("suites", []), fields.get("components", [])
