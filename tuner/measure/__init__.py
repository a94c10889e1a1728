"""What the host measures around a worker: CPU, memory, threads, libraries, interference.

The host reads everything from ``/proc`` (proc(5)) and trusts no figure from the worker. Peaks come
from ``VmHWM``, not from ``ru_maxrss``, which carries the spawning process's peak over ``exec``.
"""

from __future__ import annotations

from tuner.measure.claims import SCOPE, Claim, CoresTaken, claim
from tuner.measure.files import NamelessFiles, nameless_files
from tuner.measure.gpus import gpu_files, gpu_names, loads_gpu_library, opened_gpu
from tuner.measure.machine import (
    cores_text,
    cpu_flags,
    fingerprint,
    machine_facts,
    parse_cores,
    total_memory_bytes,
)
from tuner.measure.monitor import ResourceMonitor, Usage
from tuner.measure.processes import (
    MARKER,
    TICK_S,
    interface_of,
    kill_marked,
    mapped_files,
    marked_processes,
    process_tree,
    started_at,
    strangers,
    user_tasks,
)

__all__ = [
    "SCOPE",
    "Claim",
    "CoresTaken",
    "claim",
    "parse_cores",
    "cores_text",
    "total_memory_bytes",
    "machine_facts",
    "cpu_flags",
    "fingerprint",
    "gpu_files",
    "gpu_names",
    "loads_gpu_library",
    "opened_gpu",
    "MARKER",
    "TICK_S",
    "interface_of",
    "process_tree",
    "started_at",
    "strangers",
    "user_tasks",
    "mapped_files",
    "marked_processes",
    "kill_marked",
    "NamelessFiles",
    "nameless_files",
    "Usage",
    "ResourceMonitor",
]
