"""The base of all kinds of runtime: their folders, their installation, how a worker starts.

An installation is built in a folder next to its final place, verified there, and renamed: a
folder with the final name is always complete.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from tuner.config.schema import FrameworkConfig
from tuner.progress import ProgressCallback, no_progress
from tuner.runtimes.compiled import own_folder, with_cache, without_cache
from tuner.runtimes.environment import blas_environment, library_path
from tuner.runtimes.logged import end_commands_of, last_words, run_logged
from tuner.runtimes.sandbox import SHARED_NETWORK, sandbox_fault, sandbox_prefix
from tuner.values.errors import RuntimeUnavailable
from tuner.values.exchange import lossy
from tuner.values.params import Params, group_size, nodes_of

_STAMP = "installed.json"
_VERIFY_TIMEOUT_S = 120.0
_LUA = re.compile(r"lua|th$")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something this machine lacks, and the command or setting that helps."""

    fact: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.fact}; {self.remedy}"


class Runtime(abc.ABC):
    """The interpreter and libraries that one framework runs in.

    Attributes:
        framework: Whose runtime it is.
        folder: Where it is installed; named after its definition, so a changed definition is
            another runtime.
        downloads: Folder of files fetched for it, so that a second attempt need not fetch them.
        cache: Folder for what its workers compile, see ``own_cache``. Workers that run other code
            have another one, see ``divide_cache``.
        log: Output of the commands that installed it.
    """

    fetches = True
    """Whether installing brings anything new onto the machine."""

    def __init__(self, framework: FrameworkConfig, home: Path, *, sandbox: bool = True) -> None:
        self.framework, self._confined = framework, sandbox
        self.folder = home / "runtimes" / f"{framework.name}-{_fingerprint(framework)}"
        self.downloads = home / "downloads" / framework.name
        self.cache = home / "caches" / self.folder.name / "check"
        self.log = self.folder.with_name(f"{self.folder.name}.log")

    def divide_cache(self, code: Mapping[str, str]) -> None:
        """Keep what workers of this code compile apart from what others compile.

        A worker loads what earlier ones compiled, so these must have run the same code.

        Args:
            code: Digest of each of the workers' files, by name.
        """
        digest = hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()
        self.cache = self.cache.with_name(digest[:16])

    @property
    @abc.abstractmethod
    def interpreter(self) -> str:
        """The interpreter as the worker sees it. Raises ``RuntimeUnavailable`` if not found."""

    @property
    def root(self) -> Path | None:
        """The file system that the worker sees; ``None`` for the machine's own."""
        return None

    @property
    def sandboxed(self) -> bool:
        """Whether workers run in a sandbox.

        Raises:
            RuntimeUnavailable: If they must, and no sandbox works here.
        """
        fault = sandbox_fault() if self._confined else ""
        if fault:
            raise RuntimeUnavailable(
                f"{self.framework.name} needs a sandbox: {fault}; or set sandbox=off: workers can "
                "then read and write all your files, and every report says so"
            )
        return self._confined

    @abc.abstractmethod
    def packages(self) -> dict[str, str]:
        """Return the installed version of each package, by name."""

    @abc.abstractmethod
    def _build(self, progress: ProgressCallback) -> None:
        """Fill ``folder``, which exists and is empty."""

    def _needs(self) -> list[Problem]:
        """Return what this kind lacks for installation, disk space aside."""
        return []

    def _exposed(self) -> list[Path]:
        """Return files and folders of the runtime that the worker reads outside ``root``."""
        return []

    def installed(self) -> bool:
        """Return whether it is installed, complete and verified. Cheap: looks at one file."""
        return (self.folder / _STAMP).is_file()

    def describe(self) -> str:
        """Describe in a few words where it is, its size on disk and its installation time."""
        if not self.fetches:
            return self.interpreter
        try:
            stamp = json.loads((self.folder / _STAMP).read_text())
            cost = f" ({stamp['size_mb']:,} MB, installed in {stamp['seconds']} s)"
        except (OSError, ValueError, KeyError):  # written by a version without these figures
            cost = ""
        return f"{self.folder}{cost}"

    def missing(self) -> list[Problem]:
        """Return what prevents its installation on this machine; empty if it is installed."""
        return [] if self.installed() else [*self._needs(), *self._disk_space()]

    def environment(self, params: Params) -> dict[str, str]:
        """Return the variables that ``params`` decide, and no others.

        In values, ``{cache}`` stands for the folder of ``own_cache``.

        Raises:
            ConfigError: If the framework has no such BLAS, kernel or number of threads.
        """
        return blas_environment(self.framework, self.folder, params)

    def job_environment(self, params: Params) -> dict[str, str]:
        """Return ``environment`` for a job outside of studies, which has a cache of its own.

        Raises:
            ConfigError: See ``environment``.
        """
        return without_cache(self.environment(params))

    def worker_environment(self, params: Params) -> dict[str, str]:
        """Return the variables of a worker: those of ``environment``, and those of its group.

        Raises:
            ConfigError: See ``environment``.
        """
        size, nodes, kind = group_size(params), nodes_of(params), lossy(params)
        group = {"TUNER_WORKERS": str(size)} if size > 1 else {}
        if nodes > 1:
            group |= {"TUNER_NODES": str(nodes), "TUNER_WORKERS_HERE": str(size // nodes)}
        exchange = {"TUNER_EXCHANGE": kind[0]} if kind else {}
        return {**self.environment(params), **group, **exchange}

    def inherited(self) -> dict[str, str]:
        """Return the variables of this process that workers get: those naming a build's paths."""
        return {}

    def _checked(self) -> dict[str, str]:
        """Return what ``verify`` depends on besides the files of the runtime."""
        return {"check": self.framework.runtime.check, **self._check_environment()}

    def _check_environment(self) -> dict[str, str]:
        # as for workers, a BLAS is always chosen: the loader may find none by itself
        params = {"blas": next(iter(self.framework.blas), None)}
        return {**self.inherited(), **self.environment(params)}

    def command(
        self,
        script: Path,
        *,
        readable: Sequence[Path],
        writable: Sequence[Path],
        network: bool = False,
    ) -> list[str]:
        """Return the argument list that runs ``script``, sandbox included.

        Every path keeps the name it has on this machine.

        Args:
            script: The worker.
            readable: Files and folders it may read.
            writable: Folders it may write to; it starts in the first.
            network: Whether it has this machine's network, and not one of its own.

        Raises:
            RuntimeUnavailable: If the interpreter or the required sandbox is missing.
        """
        apart = [] if any(folder in script.parents for folder in readable) else [script]
        prefix = self._prefix([*readable, *apart], writable, network)
        return [*prefix, self.interpreter, str(script)]

    def verify(self) -> str:
        """Run the framework's check in the sandbox and return the line it prints.

        Raises:
            RuntimeUnavailable: If it fails; the message quotes it and has a remedy.
        """
        name = self.framework.name
        option = "-e" if _LUA.match(Path(self.interpreter).name) else "-c"
        statement = self.framework.runtime.check or "print('ok')"
        try:
            with self.own_cache() as cache:
                done = subprocess.run(
                    [*self._prefix([], cache), self.interpreter, option, statement],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    cwd="/",
                    env=with_cache({**_PLAIN_ENVIRONMENT, **self._check_environment()}, cache),
                    timeout=_VERIFY_TIMEOUT_S,
                    start_new_session=True,  # away from the terminal, which takes typed commands
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RuntimeUnavailable(f"{name}: {error}; {self._repair}") from error
        # a check prints a version; Lua interpreters may exit with 0 after an error
        if done.returncode != 0 or not done.stdout.strip():
            said = last_words(done.stderr or done.stdout)
            raise RuntimeUnavailable(f"{name} does not run: {said}; {self._repair}")
        return (done.stdout.strip().splitlines() or [""])[-1]

    def install(self, progress: ProgressCallback = no_progress) -> None:
        """Install it unless it is installed.

        Of two concurrent processes the second waits and finds it installed.

        Raises:
            RuntimeUnavailable: If that is impossible; no partial installation is left behind.
        """
        if self.installed():
            return
        for problem in self.missing():
            raise RuntimeUnavailable(f"{self.framework.name} cannot be installed: {problem}")
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(progress):
                if not self.installed():
                    self._install(progress)
        except OSError as error:
            raise RuntimeUnavailable(
                f"{self.framework.name} cannot be installed in {self.folder}: {error}; "
                "set TUNER_HOME to a folder that can be written to"
            ) from error

    def remove(self) -> None:
        """Delete it, its outdated definitions and its downloads, as far as they exist."""
        if not self.folder.parent.is_dir():
            return
        with self._locked(no_progress):
            self._clear_leftovers()
            own = re.compile(rf"{re.escape(self.framework.name)}-[0-9a-f]{{8}}")
            for place in (self.folder.parent, self.cache.parent.parent):
                for folder in place.glob("*"):
                    if own.fullmatch(folder.name):
                        delete_tree(folder)
            delete_tree(self.downloads)
            self.log.unlink(missing_ok=True)

    @contextlib.contextmanager
    def own_cache(self) -> Iterator[list[Path]]:
        """Yield the folder for what one worker compiles, or nothing if its framework needs none.

        See ``own_folder``.
        """
        if not self.framework.runtime.cache:
            yield []
            return
        with own_folder(self.cache) as folder:
            yield [folder]

    @property
    def _repair(self) -> str:
        name = self.framework.name
        return f"python -m tuner runtimes remove {name}, then install {name}, renews it"

    def _prefix(
        self, readable: Sequence[Path], writable: Sequence[Path], network: bool = False
    ) -> list[str]:
        if not self.sandboxed:
            return []
        libraries = {
            Path(entry)
            for blas in self.framework.blas.values()
            for entry in library_path(blas, self.folder)
        }
        # inside an unpacked suite the library folders are its own, not those of this machine
        own = [path for path in libraries if self.root is None or self.folder in path.parents]
        seen = [path for path in (*self._exposed(), *own) if path.exists()]
        options = SHARED_NETWORK if network else ()
        return sandbox_prefix(self.root, [*seen, *readable], writable, options=options)

    @contextlib.contextmanager
    def _locked(self, progress: ProgressCallback) -> Iterator[None]:
        lock = filelock.FileLock(self.folder.with_name(f"{self.folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            progress(f"waiting for the process that installs {self.framework.name}", None)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _install(self, progress: ProgressCallback) -> None:
        start = time.monotonic()
        self._clear_leftovers()
        delete_tree(self.folder)
        self.log.unlink(missing_ok=True)
        draft = copy.copy(self)
        draft.folder = self.folder.with_name(f"{self.folder.name}.partial-{os.getpid()}")
        draft.folder.mkdir()
        try:
            draft._build(_never_back(progress))
            progress(f"verifying {self.framework.name}", 0.97)
            stamp = {
                "verified": draft.verify(),
                "interpreter": draft.interpreter,
                "checked": draft._checked(),
                "size_mb": _size_mb(draft.folder),
                "seconds": round(time.monotonic() - start),
            }
            (draft.folder / _STAMP).write_text(json.dumps(stamp))
            draft.folder.rename(self.folder)
        except BaseException:
            draft._discard()
            raise
        progress(f"installed {self.framework.name}", 1.0)

    def _run(
        self, command: Sequence[str], remedy: str = "", tick: Callable[[], None] = lambda: None
    ) -> None:
        """Run a command that works on ``folder``; see ``run_logged``."""
        run_logged(command, self.log, self.folder, tick=tick, remedy=remedy)

    def _discard(self) -> None:
        """Delete an unfinished installation."""
        delete_tree(self.folder)

    def _clear_leftovers(self) -> None:
        """Delete what killed processes left. The lock's holder owns all folders of its name."""
        for folder in self.folder.parent.glob(f"{self.framework.name}-*.partial-*"):
            name, _, pid = folder.name.partition(".partial-")
            if name == self.folder.name or not Path("/proc", pid).exists():
                leftover = copy.copy(self)
                leftover.folder = folder
                end_commands_of(folder)
                leftover._discard()

    def _disk_space(self) -> list[Problem]:
        needed = self.framework.runtime.size_mb
        existing = next(path for path in self.folder.parents if path.is_dir())
        free = shutil.disk_usage(existing).free // 10**6
        if free >= needed:
            return []
        fact = f"needs {needed} MB of disk, {existing} has {free} MB"
        return [Problem(fact, "free some, or set TUNER_HOME to a folder with more")]


_PLAIN_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 - the sandbox's own
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def _fingerprint(framework: FrameworkConfig) -> str:
    """Return a short hash of everything that decides what an installation contains."""
    runtime = framework.runtime
    defined = [platform.machine(), runtime.kind, runtime.suite, runtime.interpreter]
    content = [sorted(runtime.packages), sorted(runtime.wheels), sorted(runtime.links.items())]
    content += [sorted(runtime.libraries)] if runtime.libraries else []
    content += [sorted(runtime.kept)] if runtime.kept else []
    return hashlib.sha256(json.dumps([defined, content]).encode()).hexdigest()[:8]


def _never_back(progress: ProgressCallback) -> ProgressCallback:
    """Return a callback whose fraction never falls, as an estimate may turn out too high."""
    highest = 0.0

    def report(task: str, fraction: float | None) -> None:
        nonlocal highest
        highest = max(highest, fraction or 0.0)
        progress(task, highest)

    return report


def _size_mb(folder: Path) -> int:
    """Return a folder's size on disk in MB (10^6 bytes); a file of several names counts once."""
    blocks = {
        (status.st_dev, status.st_ino): status.st_blocks
        for place, _, files in os.walk(folder)
        for status in (Path(place, name).lstat() for name in files)
    }
    return 512 * sum(blocks.values()) // 10**6


def delete_tree(folder: Path) -> None:
    """Delete a folder, but never across a mount point that a killed installation left."""
    if folder.is_dir():
        subprocess.run(["rm", "-rf", "--one-file-system", "--", str(folder)], check=False)
