"""Runtimes that the user has installed: found and checked, never changed."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from tuner.errors import RuntimeUnavailable
from tuner.progress import ProgressCallback
from tuner.runtimes.base import Problem, Runtime
from tuner.runtimes.sandbox import interpreter_folders


class SystemRuntime(Runtime):
    """A command of this machine: a path, a name on PATH, or ``{python}``, the tuner's own."""

    fetches = False

    @property
    def interpreter(self) -> str:
        """Absolute path of the command. Raises ``RuntimeUnavailable`` if there is none."""
        found = self._find()
        if not found:
            raise RuntimeUnavailable(f"{self.framework.name}: {self._needs()[0]}")
        return found

    def installed(self) -> bool:
        """Whether the command was verified and is the same still."""
        with suppress(OSError, ValueError):
            stamp = json.loads((self.folder / "installed.json").read_text())
            return bool(self._find() == stamp["interpreter"])
        return False

    def packages(self) -> dict[str, str]:
        """What the check printed when the command was verified: there is no list to read."""
        with suppress(OSError, ValueError):
            stamp = json.loads((self.folder / "installed.json").read_text())
            return {self.framework.name: stamp["verified"]}
        return {}

    def _find(self) -> str:
        wanted = self.framework.runtime.interpreter.replace("{python}", sys.executable)
        found = shutil.which(wanted)
        return str(Path(found).absolute()) if found else ""

    def _needs(self) -> list[Problem]:
        if self._find():
            return []
        wanted = self.framework.runtime.interpreter
        remedy = (
            f"install {self.framework.title} and put {wanted} on PATH, or set "
            "framework.runtime.interpreter= to its path"
        )
        return [Problem(f"{wanted} was not found", remedy)]

    @property
    def _repair(self) -> str:
        wanted = self.framework.runtime.interpreter
        return (
            f"{wanted} is {self._find()}: make it find {self.framework.title}, or set "
            "framework.runtime.interpreter= to one that does"
        )

    def _exposed(self) -> list[Path]:
        given = self.framework.runtime.readable
        return [
            *interpreter_folders(self.interpreter),
            *(Path(each).expanduser() for each in given),
        ]

    def _build(self, progress: ProgressCallback) -> None:
        """Nothing to fill: the folder only holds the stamp."""
