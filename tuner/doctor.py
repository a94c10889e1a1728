"""What this machine has and lacks for each framework, and the remedy of everything it lacks."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.config import FrameworkConfig
from tuner.errors import TunerError
from tuner.registry import tuner_home
from tuner.runtimes import Runtime, apt_install, find_runtime, sandbox_fault

MACHINE = "machine"
_OLDEST_PYTHON = (3, 11)
_BINDING_TOOLS = ("setpriv", "taskset", "choom", "prlimit")
_LEAST_FREE_MB = 1000
_LEAST_MEMORY_MB = 2000


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the machine or a framework.

    Attributes:
        subject: ``machine`` or the framework's name.
        ok: Whether all is well.
        fact: What was found, on one line.
        remedy: What helps where it is not ok; else empty.
    """

    subject: str
    ok: bool
    fact: str
    remedy: str = ""


def diagnose(frameworks: Sequence[FrameworkConfig], home: Path | None = None) -> list[Finding]:
    """Look at the machine and at each framework's runtime; nothing is changed or installed.

    Args:
        frameworks: Those to look at.
        home: Cache folder of the runtimes; ``tuner_home()`` if not given.
    """
    place = home or tuner_home()
    findings = [*_machine(place)]
    for framework in frameworks:
        try:
            findings += _framework(find_runtime(framework, place))
        except TunerError as error:
            fact, _, remedy = str(error).rpartition("; ")
            findings.append(Finding(framework.name, False, fact or remedy, fact and remedy))
    return findings


def format_findings(findings: Sequence[Finding]) -> str:
    """A line each, aligned: ``ok`` or ``lacks``, whose it is, the fact, and the remedy."""
    width = max((len(each.subject) for each in findings), default=0)
    return "\n".join(
        f"{'ok' if each.ok else 'lacks':5}  {each.subject:{width}}  {each.fact}"
        + (f": {each.remedy}" if each.remedy else "")
        for each in findings
    )


def _finding(ok: bool, fact: str, remedy: str) -> Finding:
    return Finding(MACHINE, ok, fact, "" if ok else remedy)


def _machine(home: Path) -> Iterator[Finding]:
    wanted = ".".join(map(str, _OLDEST_PYTHON))
    yield _finding(
        sys.version_info >= _OLDEST_PYTHON,
        f"Python {platform.python_version()}",
        f"use Python {wanted} or later",
    )
    yield Finding(MACHINE, True, f"{len(os.sched_getaffinity(0))} cores")
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**6
    yield _finding(
        memory_mb >= _LEAST_MEMORY_MB,
        f"{memory_mb} MB of memory",
        f"a study needs {_LEAST_MEMORY_MB} MB",
    )
    yield _disk(home)
    yield from _programs()


def _disk(home: Path) -> Finding:
    existing = next(path for path in (home, *home.parents) if path.is_dir())
    free_mb = shutil.disk_usage(existing).free // 10**6
    remedy = "set TUNER_HOME to a folder that can be written to and has space"
    if not os.access(existing, os.W_OK):
        return Finding(MACHINE, False, f"{home} cannot be written to", remedy)
    return _finding(free_mb >= _LEAST_FREE_MB, f"{free_mb} MB free in {home}", remedy)


def _programs() -> Iterator[Finding]:
    lacking = [tool for tool in _BINDING_TOOLS if not shutil.which(tool)]
    yield _finding(
        not lacking,
        f"{', '.join(lacking)} not on PATH" if lacking else f"{', '.join(_BINDING_TOOLS)} found",
        apt_install("util-linux"),
    )
    fact, _, remedy = sandbox_fault().partition("; ")
    yield _finding(not fact, fact or "bwrap makes sandboxes", remedy)
    found = shutil.which("mmdebstrap")
    yield _finding(
        bool(found),
        "mmdebstrap found" if found else "mmdebstrap is not on PATH",
        apt_install("mmdebstrap", "bubblewrap"),
    )
    readable = os.access(f"/proc/{os.getpid()}/maps", os.R_OK)
    yield _finding(
        readable,
        "/proc can be read" if readable else "/proc cannot be read",
        "mount it (mount -t proc proc /proc): loaded libraries are seen there",
    )


def _framework(runtime: Runtime) -> list[Finding]:
    config = runtime.framework.runtime
    name, kind = runtime.framework.name, config.kind
    problems = runtime.missing()
    if problems:
        return [Finding(name, False, f"{kind}: {each.fact}", each.remedy) for each in problems]
    if runtime.installed():
        return [Finding(name, True, f"{kind}: installed in {runtime.folder}")]
    if config.install == "never" and runtime.fetches:
        remedy = f"python -m tuner runtimes install {name}"
        return [Finding(name, False, f"{kind}: not installed, and install=never", remedy)]
    size = f" ({config.size_mb} MB)" if config.size_mb else ""
    return [Finding(name, True, f"{kind}: can be installed{size}, on first use")]
