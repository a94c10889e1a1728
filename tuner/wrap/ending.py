"""How a program ended, and the figures of its run."""

from __future__ import annotations

import signal

from tuner.config.schema import MeasureConfig
from tuner.measure import Usage
from tuner.trials.outcome import Failure
from tuner.values.trial import Measurement, TrialStatus

MAX_BYTES = 16 * 2**30
"""What a program may write, and the largest size of one of its files."""


def death(code: int) -> Failure | None:
    """Return what is wrong with a program's end; ``None`` if nothing is."""
    if code == 0:
        return None
    number = code - 128
    if number == signal.SIGKILL:
        return TrialStatus.OUT_OF_MEMORY, "killed by the kernel"
    if number == signal.SIGXFSZ:
        return TrialStatus.DISK_FULL, f"a file grew beyond {MAX_BYTES / 2**30:.0f} GiB"
    name = signal.strsignal(number) if 0 < number < signal.NSIG else None
    what = f"{name} (signal {number})" if name else f"exit code {code}"
    return TrialStatus.CRASHED, f"the program ended with {what}"


def measurement(usage: Usage, train_s: float, wall_s: float, limits: MeasureConfig) -> Measurement:
    """Return the figures of a run.

    Args:
        usage: What its processes used.
        train_s: Seconds of the part that is compared.
        wall_s: Seconds of the whole run.
        limits: When it counts as disturbed.
    """
    disturbed = []
    if usage.foreign_pct > limits.max_foreign_pct:
        disturbed.append(f"others used {usage.foreign_pct:.0f} % of its cores")
    if usage.steal_pct > limits.max_steal_pct:
        disturbed.append(f"the hypervisor stole {usage.steal_pct:.0f} %")
    return Measurement(
        setup_time_s=max(0.0, wall_s - train_s),
        train_time_s=train_s,
        test_time_s=0.0,
        wall_time_s=wall_s,
        cpu_user_s=usage.user_s,
        cpu_system_s=usage.system_s,
        cpu_iowait_s=usage.iowait_s,
        cpu_user_pct=usage.user_pct,
        cpu_system_pct=usage.system_pct,
        cpu_iowait_pct=usage.iowait_pct,
        avg_memory_bytes=usage.avg_memory_bytes,
        peak_memory_bytes=usage.peak_memory_bytes,
        foreign_cpu_pct=usage.foreign_pct,
        steal_pct=usage.steal_pct,
        psi_cpu_pct=usage.psi_pct,
        involuntary_switches=usage.involuntary_switches,
        threads_seen=usage.threads,
        cores_used=usage.cores_used,
        disturbed=" and ".join(disturbed),
    )
