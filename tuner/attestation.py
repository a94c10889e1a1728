"""Requested is not effective: whether a trial really ran as its params say.

The host trusts what it sees itself (mapped libraries, threads of the process) and holds what the
worker says against the request as well; either can convict.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from tuner.config import BlasConfig
from tuner.trial import UNSET, Params


def loaded_blas(blas: Mapping[str, BlasConfig], mapped: Collection[str]) -> str:
    """Names of the BLAS libraries whose mark is among the mapped paths, joined by ``+``."""
    seen = [
        name
        for name, config in blas.items()
        if config.loaded and any(re.search(config.loaded, path) for path in mapped)
    ]
    return "+".join(seen)


def attest(
    params: Params,
    blas: Mapping[str, BlasConfig],
    loaded: str,
    threads_seen: int,
    reported: Mapping[str, Any],
) -> str:
    """Why the trial did not run as requested; empty if it did.

    Args:
        params: The request.
        blas: The framework's BLAS libraries by name.
        loaded: What ``loaded_blas`` found.
        threads_seen: Most threads of any process of the trial during training; 0 if unknown.
        reported: What the worker said: ``blas``, ``blas_threads``, ``blas_kernel``, each optional.
    """
    wanted = str(params.get("blas", ""))
    visible = bool(wanted) and bool(blas[wanted].loaded)
    if visible and loaded != wanted:
        return f"BLAS {wanted} was requested but {loaded or 'none that is known'} was mapped"
    if reported.get("blas", wanted) != wanted:
        return f"BLAS {wanted} was requested but the worker reports {reported['blas']}"
    return _attest_threads(params, threads_seen, reported) or _attest_kernel(params, reported)


def _attest_threads(params: Params, seen: int, reported: Mapping[str, Any]) -> str:
    wanted = params.get("threads", UNSET)
    if not isinstance(wanted, int):
        return ""
    said = reported.get("blas_threads", wanted)
    if said != wanted:
        return f"{wanted} threads were requested but the worker's BLAS reports {said}"
    # fewer may be seen: some libraries start threads for each call and end them after it
    if seen > wanted:
        return f"{wanted} threads were requested but {seen} were seen"
    return ""


def _attest_kernel(params: Params, reported: Mapping[str, Any]) -> str:
    wanted = str(params.get("blas_kernel", "auto"))
    said = str(reported.get("blas_kernel", wanted))
    if wanted not in ("auto", UNSET) and said.lower() != wanted.lower():
        return f"BLAS kernel {wanted} was requested but the worker's BLAS reports {said}"
    return ""
