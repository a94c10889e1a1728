"""The machine a trial runs on: its CPUs, its memory, and what else decides how fast it is."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tuner.values.errors import ConfigError

_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def parse_cores(text: str, name: str = "executor.cores") -> tuple[int, ...]:
    """Return the CPU numbers of a list such as ``0-3,6``; empty means all this process may use.

    Of a container whose quota pays for fewer, these are the first ones, as many as it pays for,
    rounded up: with more threads than that, all of them are halted again and again.

    Args:
        text: The list.
        name: What the user calls it, for error messages.

    Raises:
        ConfigError: If the text is not such a list or names a CPU that is not available.
    """
    available = sorted(os.sched_getaffinity(0))
    if not text.strip():
        paid = min(cpu_quota(), len(available))
        return tuple(available[: max(1, math.ceil(paid))])
    cores: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise ConfigError(f"{name} {text!r} is not a list of CPUs such as 0-3 or 0,2")
        wanted = range(int(match[1]), int(match[2] or match[1]) + 1)
        if not wanted or any(core not in available for core in wanted):
            raise ConfigError(f"{name} {text!r} names CPUs beyond those here: {available}")
        cores.update(wanted)
    return tuple(sorted(cores))


def cores_text(cores: Collection[int]) -> str:
    """Return CPU numbers as a list that ``parse_cores`` reads, such as ``0-3,6``."""
    found: list[list[int]] = []
    for core in sorted(cores):
        if found and found[-1][-1] == core - 1:
            found[-1].append(core)
        else:
            found.append([core])
    return ",".join(f"{each[0]}-{each[-1]}" if each[1:] else f"{each[0]}" for each in found)


def cpu_quota(groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> float:
    """Return how many CPUs' time the kernel grants this process; infinite without a limit.

    It is the least quota of its cgroup and of those around it: ``cpu.max`` of version 2, or
    ``cpu.cfs_quota_us`` over ``cpu.cfs_period_us`` of version 1 (the kernel's cgroup-v2.rst and
    sched-bwc.rst).

    Args:
        groups: Where the kernel shows all cgroups; in a container, only its own.
        own: File that names those of this process.
    """
    quotas = [math.inf]
    with suppress(OSError, ValueError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                root = groups / "cpu" if controllers else groups
                inner = Path(path.strip("/"))
                quotas += [_quota_of(root / each) for each in (inner, *inner.parents)]
    return min(quotas)


def _quota_of(group: Path) -> float:
    """Return the CPUs that the time of one cgroup is worth; infinite without a limit."""
    with suppress(OSError, ValueError):  # "max" is no number
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = (
            (group / f"cpu.cfs_{each}_us").read_text(encoding="ascii")
            for each in ("quota", "period")
        )
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


def total_memory_bytes() -> int:
    """Return the memory this process may use: the machine's, or its cgroup's if that is less."""
    limits = [psutil.virtual_memory().total]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text(encoding="ascii")))
    return min(limits)


def machine_facts(cores: Collection[int]) -> dict[str, str]:
    """Return the facts that decide how fast this machine is, ready to print."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    model = re.search(r"^model name\s*:\s*(.+)$", cpu, re.MULTILINE)
    flags = cpu_flags()
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    quota = cpu_quota()
    limited = quota < len(os.sched_getaffinity(0))
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": f"{len(cores)} of {os.cpu_count()}",
        **({"cpu_quota": f"{quota:g}"} if limited else {}),
        "instruction_sets": " ".join(
            each for each in ("avx", "avx2", "fma", "avx512f", "avx512_bf16") if each in flags
        ),
        "virtual": "yes" if "hypervisor" in flags else "no",
        "governor": governor.read_text(encoding="ascii").strip() if governor.exists() else "",
        "memory": f"{total_memory_bytes() / 2**30:.1f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def cpu_flags() -> frozenset[str]:
    """Return the instruction sets of the CPU by the kernel's names."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    match = re.search(r"^flags\s*:\s*(.+)$", cpu, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def fingerprint(*facts: Mapping[str, str]) -> str:
    """Return a short hash of facts: equal on equal machines with equal library builds."""
    lines = [f"{name}={each[name]}" for each in facts for name in sorted(each)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
