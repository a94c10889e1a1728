"""What this machine has and lacks for each framework, with a remedy for all it lacks."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.config.catalogue import tuner_home
from tuner.config.schema import ExecutorConfig, FrameworkConfig
from tuner.runtimes import (
    Runtime,
    apt_install,
    find_runtime,
    forbids_nesting,
    sandbox_fault,
)
from tuner.trials.custody import memory_fault
from tuner.trials.setup import core_sets
from tuner.values.errors import TunerError

MACHINE = "machine"
_OLDEST_PYTHON = (3, 11)
_CUSTODY_TOOLS = ("setpriv", "taskset", "choom", "prlimit")
_MIN_FREE_MB = 1000
_MIN_MEMORY_MB = 2000


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the machine or a framework.

    Attributes:
        subject: ``machine`` or the framework's name.
        ok: Whether all is well.
        fact: What was found, on one line.
        remedy: What helps if it is not ok; else empty.
        optional: Whether only the user can provide it, so that a machine is well without it.
    """

    subject: str
    ok: bool
    fact: str
    remedy: str = ""
    optional: bool = False


def diagnose(frameworks: Sequence[FrameworkConfig], home: Path | None = None) -> list[Finding]:
    """Examine the machine and each framework's runtime; change and install nothing.

    Args:
        frameworks: Frameworks to examine.
        home: Cache folder of the runtimes; ``tuner_home()`` if not given.
    """
    place = home or tuner_home()
    findings = [*_machine(place)]
    for framework in frameworks:
        optional = False
        try:
            runtime = find_runtime(framework, place)
            optional = not runtime.fetches
            found = _framework(runtime)
        except TunerError as error:
            fact, _, remedy = str(error).rpartition("; ")
            found = [Finding(framework.name, False, fact or remedy, fact and remedy)]
        findings += [dataclasses.replace(each, optional=optional) for each in found]
    return findings


def is_well(findings: Sequence[Finding]) -> bool:
    """Return whether nothing is lacking except what only the user can provide."""
    return all(each.ok or each.optional for each in findings)


def format_findings(findings: Sequence[Finding]) -> str:
    """Format one aligned line each: ``ok``, ``lacks`` or ``absent``, subject, fact, remedy."""
    width = max((len(each.subject) for each in findings), default=0)
    return "\n".join(
        f"{_verdict(each):6}  {each.subject:{width}}  {each.fact}"
        + (f": {each.remedy}" if each.remedy else "")
        for each in findings
    )


def _verdict(finding: Finding) -> str:
    if finding.ok:
        return "ok"
    return "absent" if finding.optional else "lacks"


def _finding(ok: bool, fact: str, remedy: str) -> Finding:
    return Finding(MACHINE, ok, fact, "" if ok else remedy)


def _machine(home: Path) -> Iterator[Finding]:
    wanted = ".".join(map(str, _OLDEST_PYTHON))
    yield _finding(
        sys.version_info >= _OLDEST_PYTHON,
        f"Python {platform.python_version()}",
        f"use Python {wanted} or later",
    )
    yield Finding(MACHINE, True, f"{len(core_sets(ExecutorConfig())[0])} cores")
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**6
    yield _finding(
        memory_mb >= _MIN_MEMORY_MB,
        f"{memory_mb} MB of memory",
        f"a study needs {_MIN_MEMORY_MB} MB",
    )
    yield _disk(home)
    yield from _confinement()


def _disk(home: Path) -> Finding:
    existing = next(path for path in (home, *home.parents) if path.is_dir())
    free_mb = shutil.disk_usage(existing).free // 10**6
    remedy = "set TUNER_HOME to a folder that can be written to and has space"
    if not os.access(existing, os.W_OK):
        return Finding(MACHINE, False, f"{home} cannot be written to", remedy)
    return _finding(free_mb >= _MIN_FREE_MB, f"{free_mb} MB free in {home}", remedy)


def _confinement() -> Iterator[Finding]:
    lacking = [tool for tool in _CUSTODY_TOOLS if not shutil.which(tool)]
    yield _finding(
        not lacking,
        f"{', '.join(lacking)} not on PATH" if lacking else f"{', '.join(_CUSTODY_TOOLS)} found",
        apt_install("util-linux"),
    )
    fact, _, remedy = sandbox_fault().partition("; ")
    yield _finding(not fact, fact or f"bwrap makes sandboxes; {_nesting()}", remedy)
    yield Finding(MACHINE, True, _process_limit())
    yield Finding(MACHINE, True, _memory_limit())
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


def _nesting() -> str:
    if forbids_nesting():
        return "a worker cannot make namespaces inside its sandbox"
    return "a worker can make namespaces inside its sandbox, and use memory that is not counted"


def _process_limit() -> str:
    if os.geteuid() == 0:
        return "worker processes are monitored; the kernel's own limit does not apply to root"
    return "worker processes are monitored, and limited by the kernel (RLIMIT_NPROC)"


def _memory_limit() -> str:
    fault = memory_fault()
    if fault:
        return f"worker memory is monitored; the kernel does not limit it ({fault})"
    return "worker memory is monitored, and limited by the kernel (a scope of systemd)"


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
    if not runtime.fetches:
        return [Finding(name, True, f"{kind}: {runtime.verify()}")]
    size = f" ({config.size_mb} MB)" if config.size_mb else ""
    return [Finding(name, True, f"{kind}: can be installed{size}, on first use")]
