"""Runtimes that the user has installed: found and checked, never changed."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tuner.progress import ProgressCallback
from tuner.runtimes.base import Problem, Runtime
from tuner.runtimes.sandbox import interpreter_folders
from tuner.values.errors import RuntimeUnavailable


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
        """Whether the command was verified, and it and what it was verified with are the same."""
        with suppress(OSError, ValueError, KeyError):
            stamp = json.loads((self.folder / "installed.json").read_text())
            now = self._find(), self._checked()
            return bool(now == (stamp["interpreter"], stamp["checked"]))
        return False

    def packages(self) -> dict[str, str]:
        """What the check printed when the command was verified: there is no list to read."""
        with suppress(OSError, ValueError):
            stamp = json.loads((self.folder / "installed.json").read_text())
            return {self.framework.name: stamp["verified"]}
        return {}

    def inherited(self) -> dict[str, str]:
        """The variables of this process that workers get, as they name the paths of a build."""
        names = self.framework.runtime.inherit
        return {name: os.environ[name] for name in names if os.environ.get(name)}

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
            f"framework.runtime.interpreter= to its path{self._hint}"
        )
        return [Problem(f"{wanted} was not found", remedy)]

    @property
    def _repair(self) -> str:
        wanted = self.framework.runtime.interpreter
        return (
            f"{wanted} is {self._find()}: make it find {self.framework.title}, or set "
            f"framework.runtime.interpreter= to one that does{self._hint}"
        )

    @property
    def _hint(self) -> str:
        """How the paths of an own build are named."""
        names = self.framework.runtime.inherit
        return f"; the paths of a build are taken from {', '.join(names)}" if names else ""

    def _exposed(self) -> list[Path]:
        given = self.framework.runtime.readable
        return [
            *interpreter_folders(self.interpreter),
            *(Path(each).expanduser() for each in given),
            *self._named_folders(),
        ]

    def _named_folders(self) -> Iterator[Path]:
        """The folders in the inherited variables; those of Lua end in a pattern such as ?.lua."""
        for value in self.inherited().values():
            for entry in re.split("[:;]", value):
                folder = entry.partition("?")[0]
                if folder.startswith("/") and folder != "/":
                    yield Path(folder)

    def _build(self, progress: ProgressCallback) -> None:
        """Nothing to fill: the folder only holds the stamp."""
