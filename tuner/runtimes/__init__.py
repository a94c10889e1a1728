"""Runtimes: the interpreter and libraries a framework runs in, installed when first needed.

``find_runtime`` returns a framework's runtime, ``ensure_installed`` makes it available, and
``Runtime.command`` with ``Runtime.environment`` say how a worker starts in it.
"""

from __future__ import annotations

from pathlib import Path

from tuner.config.catalogue import tuner_home
from tuner.config.schema import FrameworkConfig
from tuner.progress import ProgressCallback, no_progress
from tuner.runtimes.base import Problem, Runtime
from tuner.runtimes.compiled import with_cache
from tuner.runtimes.debian import DebianRuntime
from tuner.runtimes.logged import last_words
from tuner.runtimes.sandbox import apt_install, forbids_nesting, sandbox_fault
from tuner.runtimes.system import SystemRuntime
from tuner.runtimes.venv import VenvRuntime
from tuner.values.errors import ConfigError, RuntimeUnavailable

__all__ = [
    "Runtime",
    "Problem",
    "find_runtime",
    "ensure_installed",
    "forbids_nesting",
    "sandbox_fault",
    "apt_install",
    "last_words",
    "with_cache",
]

_KINDS: dict[str, type[Runtime]] = {
    "debian": DebianRuntime,
    "venv": VenvRuntime,
    "system": SystemRuntime,
}


def find_runtime(
    framework: FrameworkConfig, home: Path | None = None, *, sandbox: bool = True
) -> Runtime:
    """Return the runtime of a framework, installed or not.

    Args:
        framework: Framework whose runtime it is.
        home: Cache folder of the runtimes; ``tuner_home()`` if not given.
        sandbox: Whether its workers must run in a sandbox.

    Raises:
        ConfigError: If its kind is unknown.
    """
    kind = framework.runtime.kind
    if kind not in _KINDS:
        raise ConfigError(f"runtime.kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    return _KINDS[kind](framework, (home or tuner_home()).absolute(), sandbox=sandbox)


def ensure_installed(runtime: Runtime, progress: ProgressCallback = no_progress) -> None:
    """Install the runtime if it is not installed.

    Raises:
        RuntimeUnavailable: If it cannot be installed, or may not be (``runtime.install=never``).
    """
    if runtime.installed():
        return
    name = runtime.framework.name
    if runtime.framework.runtime.install == "never" and runtime.fetches:
        raise RuntimeUnavailable(
            f"the runtime of {name} is not installed and framework.runtime.install=never; "
            f"python -m tuner runtimes install {name} installs it"
        )
    runtime.install(progress)
