"""Runtimes made of an interpreter version, pinned pip requirements and further libraries."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tuner.progress import ProgressCallback
from tuner.runtimes.base import Problem, Runtime, delete_tree
from tuner.runtimes.debian import DebianRuntime, gather_libraries, keep_paths
from tuner.runtimes.sandbox import interpreter_folders
from tuner.runtimes.wheels import PIP_REMEDY, pip_arguments
from tuner.values.errors import RuntimeUnavailable

_ASK = "import sys; print('.'.join(map(str, sys.version_info[:3])) + '. ' + sys.executable)"


class VenvRuntime(Runtime):
    """A virtual environment on the Python version that the framework needs."""

    @property
    def interpreter(self) -> str:
        """The environment's own interpreter."""
        return str(self.folder / "bin" / "python")

    def packages(self) -> dict[str, str]:
        """Return the versions of the installed distributions, by name."""
        return {
            name: version
            for path in sorted(self.folder.glob("lib/python*/site-packages/*.dist-info"))
            for name, _, version in [path.name.removesuffix(".dist-info").partition("-")]
        }

    def _needs(self) -> list[Problem]:
        runtime = self.framework.runtime
        problems = self._suite()._needs() if runtime.libraries else []
        version = runtime.interpreter
        if find_python(version) or find_uv():
            return problems
        return [*problems, _lacks(version)]

    def _exposed(self) -> list[Path]:
        return [self.folder, *interpreter_folders(self.interpreter)]

    def _build(self, progress: ProgressCallback) -> None:
        title = self.framework.title
        progress(f"making a virtual environment for {title}", 0.02)
        base = self._base_python()
        try:
            self._run([base, "-m", "venv", str(self.folder)])
        except RuntimeUnavailable:  # Python before 3.3, or Debian's without ensurepip
            remedy = f"install the module venv with ensurepip, or virtualenv, for {base}"
            self._run([base, "-m", "virtualenv", "--clear", str(self.folder)], remedy)
        self._add_libraries(progress)
        packages = self.framework.runtime.packages
        if not packages:
            return
        expected = self.framework.runtime.size_mb * 10**6 or 1

        def tick() -> None:
            done = min(1.0, _tree_bytes(self.folder / "lib") / expected)
            progress(f"installing {title}", 0.1 + 0.85 * done)

        options = ["--cache-dir", str(self.downloads / "pip"), "--disable-pip-version-check"]
        what = pip_arguments(packages, self.framework.runtime.hashed, self.folder)
        self._run([self.interpreter, "-m", "pip", "install", *options, *what], PIP_REMEDY, tick)

    def _add_libraries(self, progress: ProgressCallback) -> None:
        """Add shared libraries that the requirements need but lack, from a Debian release."""
        runtime = self.framework.runtime
        if not runtime.libraries:
            return
        suite = self._suite()
        suite._unpack_suite(progress)
        folder = self.folder / "libraries"
        gather_libraries(suite.root, folder)
        keep_paths(suite.root, runtime.kept, self.folder / "suite")
        delete_tree(suite.root)
        for name, target in runtime.links.items():
            (folder / name).symlink_to(target)

    def _suite(self) -> DebianRuntime:
        runtime = self.framework.runtime
        wanted = dataclasses.replace(runtime, packages=runtime.libraries, wheels=[])
        suite = DebianRuntime(dataclasses.replace(self.framework, runtime=wanted), self.folder)
        suite.folder, suite.downloads, suite.log = self.folder, self.downloads, self.log
        return suite

    def _base_python(self) -> str:
        version = self.framework.runtime.interpreter
        found, uv = find_python(version), find_uv()
        if not found and uv:
            self._run([uv, "python", "install", version])
            found = _output_of([uv, "python", "find", "--no-project", version])
        if not found:
            raise RuntimeUnavailable(f"{self.framework.name}: {_lacks(version)}")
        return found


def _lacks(version: str) -> Problem:
    remedy = (
        f"put python{version} on PATH, or pyenv install {version}, or install uv, which fetches it"
    )
    return Problem(f"no working Python {version} was found", remedy)


def find_uv() -> str:
    """Return the path of uv, on PATH or else beside this interpreter; empty if there is none.

    ``make install`` puts it beside the interpreter, which is on PATH only in an activated
    environment.
    """
    beside = str(Path(sys.executable).parent)
    return shutil.which("uv") or shutil.which("uv", path=beside) or ""


def find_python(version: str) -> str:
    """Return the path of a working interpreter of this version; empty if there is none.

    Candidates are this interpreter, ``python<version>`` on PATH, and pyenv's versions.
    """
    for candidate in _candidates(version):
        said = _output_of([candidate, "-c", _ASK])
        if said.startswith(f"{version}."):
            return said.partition(" ")[2]
    return ""


def _candidates(version: str) -> Iterator[str]:
    if ".".join(map(str, sys.version_info[:3])).startswith(f"{version}."):
        yield sys.executable
    short = ".".join(version.split(".")[:2])
    for folder in os.get_exec_path():
        if (path := Path(folder, f"python{short}")).is_file():
            yield str(path)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = (pyenv / "versions").glob(f"{version}*/bin/python")
    for path in sorted(found, key=lambda each: _numbers(each.parts[-3]), reverse=True):
        yield str(path)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _output_of(command: list[str]) -> str:
    """Return what a command prints; empty if it fails, as pyenv's shims of other versions do."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _tree_bytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(path, name).lstat().st_size
            except FileNotFoundError:
                continue
    return total
