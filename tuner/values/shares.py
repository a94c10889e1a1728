"""How many processes, threads and nodes a training may have, by what it owns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.values.params import ParamValue

_MOST_WORKERS = 64  # processes of a group, also where there are fewer CPUs


def counts(cores: int) -> tuple[int, ...]:
    """Return the powers of two up to a number of CPUs, and that number itself."""
    return (
        *sorted({2**power for power in range(cores.bit_length()) if 2**power <= cores} | {cores}),
    )


def shares(cores: int) -> dict[int, str | list[ParamValue]]:
    """Return the numbers of threads by that of the processes that share the CPUs, most first."""
    found: dict[int, str | list[ParamValue]] = {1: "per_core"}
    for workers in range(2, max(cores, _MOST_WORKERS) + 1):
        found[workers] = [*reversed(counts(max(1, cores // workers)))]
    return found


def with_nodes(entries: Mapping[str, dict[str, Any]], nodes: int) -> dict[str, dict[str, Any]]:
    """Return the entries of params, and ``nodes`` before them: numbers of nodes up to this one.

    What depends on whether there are several ``workers``, such as their ``exchange``, depends on
    whether there are several nodes then: there each worker is one of several.
    """
    found = {"nodes": {"type": "categorical", "choices": [*counts(nodes)]}}
    for name, entry in entries.items():
        shared = entry.get("given") == "workers" and entry.get("cases") != "per_worker"
        found[name] = {**entry, "given": "nodes"} if shared else entry
    return found
