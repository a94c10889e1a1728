"""What this machine has and lacks for each framework, with the remedy."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.config import FrameworkConfig, tuner_home
from tuner.errors import RuntimeUnavailable
from tuner.measure import total_memory_bytes
from tuner.runtimes import as_root, find_runtime, sandbox_fault

_TOOLS = ("setpriv", "taskset", "choom", "prlimit")
_LEAST_FREE_MB = 4000


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about this machine; ``remedy`` says what to do where it is not ``ok``."""

    subject: str
    ok: bool
    fact: str
    remedy: str = ""


def diagnose(frameworks: Sequence[FrameworkConfig], home: Path | None = None) -> list[Finding]:
    """Look at the machine and at each framework's runtime; installs nothing."""
    findings = _machine(home or tuner_home())
    for framework in frameworks:
        findings += _framework(framework, home)
    return findings


def _machine(home: Path) -> list[Finding]:
    place = next(each for each in (home, *home.parents) if each.exists())
    free_mb = shutil.disk_usage(place).free // 2**20
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    fault = sandbox_fault()
    memory = total_memory_bytes() / 2**30
    return [
        Finding("machine", True, f"{len(os.sched_getaffinity(0))} cores, {memory:.1f} GiB memory"),
        Finding(
            "python", sys.version_info >= (3, 11), sys.version.split()[0], "use 3.11 or newer"
        ),
        Finding(
            "cache",
            os.access(place, os.W_OK) and free_mb >= _LEAST_FREE_MB,
            f"{home}, {free_mb} MB free",
            f"point TUNER_HOME at a writable folder with {_LEAST_FREE_MB} MB",
        ),
        Finding(
            "sandbox",
            not fault,
            fault or "bwrap works",
            as_root("apt-get", "install", "-y", "bubblewrap"),
        ),
        Finding(
            "tools",
            not missing,
            f"{', '.join(missing)} missing" if missing else ", ".join(_TOOLS),
            as_root("apt-get", "install", "-y", "util-linux"),
        ),
        Finding(
            "interference",
            Path("/proc/pressure/cpu").exists(),
            "the kernel reports CPU pressure"
            if Path("/proc/pressure/cpu").exists()
            else "the kernel reports no CPU pressure; other signs are used",
            "boot with psi=1",
        ),
    ]


def _framework(framework: FrameworkConfig, home: Path | None) -> list[Finding]:
    runtime = find_runtime(framework, home)
    kind = framework.runtime.kind
    problems = runtime.problems()
    if problems:
        found = []
        for problem in problems:
            fact, _, remedy = problem.partition("; ")
            found.append(Finding(framework.name, False, f"{kind} runtime: {fact}", remedy))
        return found
    if not runtime.installed():
        fact = f"{kind} runtime can be installed ({framework.runtime.size_mb} MB), on first use"
        return [Finding(framework.name, True, fact)]
    try:
        return [Finding(framework.name, True, f"{kind} runtime works: {runtime.verify()}")]
    except RuntimeUnavailable as error:
        remedy = f"python -m tuner runtimes remove {framework.name}"
        return [Finding(framework.name, False, str(error), remedy)]


def format_findings(findings: Sequence[Finding]) -> str:
    """One aligned line a finding: state, subject, fact and, where something lacks, the remedy."""
    width = max(len(each.subject) for each in findings)
    lines = []
    for each in findings:
        remedy = "" if each.ok else f"  ->  {each.remedy}"
        state = "ok   " if each.ok else "lacks"
        lines.append(f"{state}  {each.subject:{width}}  {each.fact}{remedy}")
    return "\n".join(lines)
