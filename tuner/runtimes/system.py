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
        """Return whether the command was verified and neither it nor its settings changed."""
        with suppress(OSError, ValueError, KeyError):
            stamp = json.loads((self.folder / "installed.json").read_text())
            now = self._find(), self._checked()
            return bool(now == (stamp["interpreter"], stamp["checked"]))
        return False

    def packages(self) -> dict[str, str]:
        """Return what the check printed at verification: there is no list of packages to read."""
        with suppress(OSError, ValueError):
            stamp = json.loads((self.folder / "installed.json").read_text())
            return {self.framework.name: stamp["verified"]}
        return {}

    def inherited(self) -> dict[str, str]:
        """Return the variables of this process that workers get: those naming a build's paths."""
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
        """Hint on how to name the paths of the user's own build; may be empty."""
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
        """Yield the folders in the inherited variables; Lua's end in a pattern such as ?.lua."""
        for value in self.inherited().values():
            for entry in re.split("[:;]", value):
                folder = entry.partition("?")[0]
                if folder.startswith("/") and folder != "/":
                    yield Path(folder)

    def _build(self, progress: ProgressCallback) -> None:
        """Do nothing: the folder only holds the stamp."""
