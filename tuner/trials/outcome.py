"""The outcome of a trial: status and figures, from the worker's events and the host's view."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tuner.config.schema import FrameworkConfig, MeasureConfig
from tuner.measure import Usage
from tuner.trials.attestation import Seen, attest, loaded_blas
from tuner.trials.protocol import EventLog, trained_iterations
from tuner.values.params import iterations_of
from tuner.values.trial import (
    ENDED_ITSELF,
    Measurement,
    Trial,
    TrialKind,
    TrialResult,
    TrialStatus,
)

Failure = tuple[TrialStatus, str]
"""A status that is not ``COMPLETE``, and why."""

_ERROR_KINDS = {
    "diverged": TrialStatus.DIVERGED,
    "out_of_memory": TrialStatus.OUT_OF_MEMORY,
    "disk_full": TrialStatus.DISK_FULL,
    "impossible": TrialStatus.IMPOSSIBLE,
}
_EXIT_CODES = {
    2: (TrialStatus.IMPOSSIBLE, "the framework refuses these params"),
    3: (TrialStatus.UNAVAILABLE, "the framework cannot be imported"),
}
_SIGNALS = {
    signal.SIGXFSZ: (TrialStatus.DISK_FULL, "a file grew beyond 1 GiB"),
    signal.SIGKILL: (TrialStatus.OUT_OF_MEMORY, "killed by the kernel"),
}
_LAST_WORDS = (
    (TrialStatus.OUT_OF_MEMORY, r"bad_alloc|Cannot allocate memory|MemoryError|[Oo]ut of memory"),
    (TrialStatus.DISK_FULL, r"No space left on device|File too large"),
)


@dataclass(frozen=True)
class Observation:
    """All that is known of a trial that is over.

    Attributes:
        trial, framework, classes: The request, the framework and the number of classes.
        limits: When a measurement counts as disturbed.
        log: The worker's events.
        usage: Resources that its process tree used.
        mapped: Files that its processes had mapped when training ended.
        failure: Why the host gave it up; ``None`` if it did not.
        stopping: Why the host asked it to stop; empty if it did not.
        exit_code: Exit code of the worker; ``None`` while it lives.
        tail: Last lines of the worker's own output.
    """

    trial: Trial
    framework: FrameworkConfig
    classes: int
    limits: MeasureConfig
    log: EventLog
    usage: Usage
    mapped: Collection[str]
    failure: Failure | None
    stopping: str
    exit_code: int | None
    tail: str


def conclude(seen: Observation) -> TrialResult:
    """Return the result of a trial; figures are kept even if they may not be used."""
    log = seen.log
    measurement = _measurement(seen) if log.ended else None
    status, reason = seen.failure or _status(seen, measurement)
    return TrialResult(
        trial=seen.trial,
        status=status,
        reason=reason,
        iterations=log.iteration,
        val_accuracy=log.result["val_accuracy"] if log.result else None,
        test_accuracy=log.result.get("test_accuracy") if log.result else None,
        checkpoints=tuple(log.checkpoints),
        measurement=measurement,
        versions={key: str(value) for key, value in (log.ready or {}).items() if key != "event"},
        log_tail="" if status.usable else seen.tail,
        quality=log.quality,
    )


def _status(seen: Observation, measurement: Measurement | None) -> Failure:
    log = seen.log
    if log.error:
        kind = str(log.error["kind"])
        return _ERROR_KINDS.get(kind, TrialStatus.CRASHED), str(log.error["message"])
    if log.result is None:
        return _death(seen)
    if measurement is None or not (log.ready and log.setup_time_s is not None):
        return TrialStatus.INVALID, "a result came without ready, train_begin and train_end"
    if log.result["val_accuracy"] is None and seen.trial.kind is not TrialKind.PROBE:
        return (
            TrialStatus.INVALID,
            f"a result came without the {log.quality.name} that was asked for",
        )
    if log.train_time_s > measurement.wall_time_s:
        return TrialStatus.INVALID, (
            f"{log.train_time_s:.2f} s of training are reported "
            f"but the trial took {measurement.wall_time_s:.2f} s"
        )
    framework = seen.framework
    facts = Seen(
        blas_loaded=loaded_blas(framework.blas, seen.mapped),
        threads=measurement.threads_seen,
        cores_used=measurement.cores_used,
        processes=measurement.processes_seen,
        extra_threads=framework.extra_threads,
    )
    doubt = attest(seen.trial.params, framework.blas, facts, log.attested)
    if doubt:
        return TrialStatus.INVALID, doubt
    if log.iteration < trained_iterations(seen.trial):
        why = seen.stopping or ENDED_ITSELF
        return TrialStatus.STOPPED, f"stopped after {log.iteration} iterations: {why}"
    return TrialStatus.COMPLETE, ""


def _death(seen: Observation) -> Failure:
    """Return the status of a worker that died silently, from its exit code and last output."""
    code = seen.exit_code or 0
    if code in _EXIT_CODES:
        return _EXIT_CODES[code]
    number = -code if code < 0 else code - 128  # the sandbox passes signals on as 128 + n
    if number in _SIGNALS:
        return _SIGNALS[signal.Signals(number)]
    for status, pattern in _LAST_WORDS:
        if re.search(pattern, seen.tail):
            return status, seen.tail.splitlines()[-1]
    name = signal.strsignal(number) if 0 < number < signal.NSIG else None
    death = f"the worker died: {name} (signal {number})" if name else f"worker exit code {code}"
    last = seen.log.loss
    blind = math.log(seen.classes)
    if name and seen.log.iteration and (last is None or last > 2 * blind):
        return TrialStatus.DIVERGED, f"{death} after its loss had grown to {last}"
    return TrialStatus.CRASHED, death


def _measurement(seen: Observation) -> Measurement:
    """Return the figures of the whole trial, projected if only a share was trained."""
    log, usage, limits = seen.log, seen.usage, seen.limits
    factor = 1.0
    if seen.trial.share < 1:
        factor = iterations_of(seen.trial.params) / max(log.iteration, 1)
    return Measurement(
        setup_time_s=log.setup_time_s or 0.0,
        train_time_s=log.train_time_s * factor,
        test_time_s=float(log.result["test_time_s"]) if log.result else 0.0,
        wall_time_s=usage.wall_s,
        cpu_user_s=usage.user_s + usage.train_user_s * (factor - 1),
        cpu_system_s=usage.system_s + usage.train_system_s * (factor - 1),
        sent_bytes=round(usage.sent_bytes * factor),
        # a library linked into the framework has no file of its own: the worker's report counts
        blas_loaded=loaded_blas(seen.framework.blas, seen.mapped)
        or str(log.attested.get("blas", "")),
        **figures_of(usage, limits),
    )


def figures_of(usage: Usage, limits: MeasureConfig) -> dict[str, Any]:
    """Return the figures of a measurement that are the same however long a run trained.

    Args:
        usage: Resources that its process tree used.
        limits: When it counts as disturbed.
    """
    disturbed = []
    if usage.foreign_pct > limits.max_foreign_pct:
        disturbed.append(f"others used {usage.foreign_pct:.0f} % of its cores")
    if usage.steal_pct > limits.max_steal_pct:
        disturbed.append(f"the hypervisor stole {usage.steal_pct:.0f} %")
    return {
        "cpu_iowait_s": usage.iowait_s,
        "cpu_user_pct": usage.user_pct,
        "cpu_system_pct": usage.system_pct,
        "cpu_iowait_pct": usage.iowait_pct,
        "avg_memory_bytes": usage.avg_memory_bytes,
        "peak_memory_bytes": usage.peak_memory_bytes,
        "foreign_cpu_pct": usage.foreign_pct,
        "steal_pct": usage.steal_pct,
        "psi_cpu_pct": usage.psi_pct,
        "involuntary_switches": usage.involuntary_switches,
        "threads_seen": usage.threads,
        "processes_seen": usage.processes,
        "cores_used": usage.cores_used,
        "disturbed": " and ".join(disturbed),
    }
