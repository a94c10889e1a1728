"""Attestation: whether a trial really ran as requested by its params.

The host compares the request with what it observes itself (mapped libraries, threads of the
process) and with what the worker reports; a mismatch in either makes the trial invalid.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.config.schema import BlasConfig
from tuner.values.params import UNSET, Params, group_size, workers_of

_AUTO = "auto"
_SPARE_CORES = 0.35  # allowed to the worker's threads other than those that compute


@dataclass(frozen=True)
class Seen:
    """What the host itself observed of a trial.

    Attributes:
        blas_loaded: Result of ``loaded_blas``.
        threads: Most threads of any process of the trial during training; 0 if unknown.
        cores_used: CPU seconds per second of training; 0 if it was too short to tell.
        processes: Most processes of the trial during training; 0 if unknown.
        extra_threads: Threads of the framework besides those that compute; negative if they
            cannot be told apart, so that only ``cores_used`` counts.
    """

    blas_loaded: str
    threads: int
    cores_used: float = 0.0
    extra_threads: int = 0
    processes: int = 0


def loaded_blas(blas: Mapping[str, BlasConfig], mapped: Collection[str]) -> str:
    """Return the names of the BLAS libraries among the mapped paths, joined by ``+``."""
    seen = [
        name
        for name, config in blas.items()
        if config.loaded and any(re.search(config.loaded, path) for path in mapped)
    ]
    return "+".join(seen)


def attest(
    params: Params,
    blas: Mapping[str, BlasConfig],
    seen: Seen,
    reported: Mapping[str, Any],
) -> str:
    """Return why the trial did not run as requested; empty if it did.

    Args:
        params: The requested params.
        blas: The framework's BLAS libraries by name.
        seen: What the host observed.
        reported: What the worker reports to be in effect, by name of the param, each optional.
    """
    wanted = str(params.get("blas", ""))
    visible = wanted in blas and bool(blas[wanted].loaded)
    if visible and seen.blas_loaded != wanted:
        loaded = seen.blas_loaded or "none that is known"
        return f"BLAS {wanted} was requested but {loaded} was mapped"
    whole = {"workers": group_size(params)} if "workers" in params else {}
    for name, value in {**params, **whole}.items():
        said = reported.get(name)
        left_open = value is None or value in (UNSET, _AUTO)
        if said is not None and not left_open and _text(said) != _text(value):
            return f"{name} {value} was requested but the worker reports {said}"
    workers = workers_of(params)
    if 0 < seen.processes < workers:
        return f"{workers} workers were requested but {seen.processes} processes were seen"
    return _attest_threads(params, seen)


def _text(value: object) -> str:
    return str(value).lower()


def _attest_threads(params: Params, seen: Seen) -> str:
    wanted = params.get("threads", UNSET)
    if not isinstance(wanted, int):
        return ""
    workers = workers_of(params)
    # fewer may be seen: some libraries start threads for each call and end them after it; those of
    # a group have more, for what they exchange and to watch each other, which take little CPU time
    alone = group_size(params) == 1
    if alone and seen.extra_threads >= 0 and seen.threads > wanted + seen.extra_threads:
        return f"{wanted} threads were requested but {seen.threads} were seen"
    if seen.cores_used > workers * (wanted + _SPARE_CORES):
        each = f" in each of {workers} workers" if workers > 1 else ""
        return f"{wanted} threads{each} were requested but {seen.cores_used:.1f} cores were used"
    return ""
