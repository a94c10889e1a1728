"""The machine a trial runs on: its CPUs, its memory, and what else decides how fast it is."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tuner.values.errors import ConfigError


def parse_cores(text: str, name: str = "executor.cores") -> tuple[int, ...]:
    """Return the CPU numbers of a list such as ``0-3,6``; empty means all this process may use.

    Args:
        text: The list.
        name: What the user calls it, for error messages.

    Raises:
        ConfigError: If the text is not such a list or names a CPU that is not available.
    """
    available = sorted(os.sched_getaffinity(0))
    if not text.strip():
        return tuple(available)
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
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": f"{len(cores)} of {os.cpu_count()}",
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
