"""How a program ended, and the figures of its run."""

from __future__ import annotations

import signal

from tuner.config.schema import MeasureConfig
from tuner.measure import Usage
from tuner.trials.outcome import Failure, figures_of
from tuner.values.trial import Measurement, TrialStatus

MAX_BYTES = 16 * 2**30
"""What a program may write, and the largest size of one of its files."""


def exit_failure(code: int) -> Failure | None:
    """Return what is wrong with a program's end; ``None`` if nothing is.

    Args:
        code: Its exit code, or 128 and the number of the signal that ended it.
    """
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


def measurement(
    usage: Usage,
    train_s: float,
    train_cpu_s: float | None,
    wall_s: float,
    limits: MeasureConfig,
) -> Measurement:
    """Return the figures of a run.

    Args:
        usage: What its processes used.
        train_s: Seconds of the part that is compared.
        train_cpu_s: CPU seconds of this part; ``None`` if they were not followed.
        wall_s: Seconds of the whole run.
        limits: When it counts as disturbed.
    """
    return Measurement(
        setup_time_s=max(0.0, wall_s - train_s),
        train_time_s=train_s,
        train_cpu_s=train_cpu_s,
        test_time_s=0.0,
        wall_time_s=wall_s,
        cpu_user_s=usage.user_s,
        cpu_system_s=usage.system_s,
        **figures_of(usage, limits),
    )
