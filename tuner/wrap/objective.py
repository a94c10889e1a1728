"""What a study of a program minimises: its time, its CPU time, or its memory."""

from __future__ import annotations

import enum
import math

from tuner.measure import TICK_S
from tuner.progress import format_seconds
from tuner.values.errors import ConfigError
from tuner.values.trial import Measurement, TrialResult, TrialStatus


class Objective(enum.Enum):
    """The figure of a run that is minimised."""

    TIME = "time"
    """Seconds of the steps that are measured, or of the whole run."""
    CPU = "cpu"
    """CPU seconds (user and system) of all processes over the same."""
    MEMORY = "memory"
    """Bytes of memory of all processes at their peak, up to the last step that is measured."""

    def of(self, run: TrialResult) -> float:
        """Return the figure of what is compared; infinite if the run failed or was given up."""
        measured = run.measurement
        if run.status is not TrialStatus.COMPLETE or measured is None:
            return math.inf
        if self is Objective.CPU:
            used_s = measured.train_cpu_s
            return math.inf if used_s is None else max(used_s, TICK_S)
        figure = measured.train_time_s if self is Objective.TIME else measured.peak_memory_bytes
        return figure or math.inf

    @property
    def depends_on_others(self) -> bool:
        """Whether other work on the machine changes the figure, as it does all but memory."""
        return self is not Objective.MEMORY

    def is_disturbed(self, run: TrialResult) -> bool:
        """Return whether other work on the machine changed the figure of a run."""
        return self.depends_on_others and bool(run.measurement and run.measurement.disturbed)

    def least_spread(self, cost: float) -> float:
        """Return the least relative deviation between runs to assume.

        CPU time is counted in ticks, so a few runs may agree by chance.

        Args:
            cost: The figure of a run.
        """
        return TICK_S / cost if self is Objective.CPU else 0.0

    def of_whole(self, measured: Measurement) -> float:
        """Return the figure of a whole run, or of what was run of it."""
        if self is Objective.TIME:
            return measured.wall_time_s
        if self is Objective.MEMORY:
            return measured.peak_memory_bytes
        return measured.cpu_user_s + measured.cpu_system_s

    @property
    def unit(self) -> str:
        """Heading of a column of figures."""
        return {"time": "seconds", "cpu": "CPU seconds", "memory": "MiB"}[self.value]

    @property
    def used(self) -> str:
        """What less is used of."""
        return {"time": "time", "cpu": "CPU time", "memory": "memory"}[self.value]

    @property
    def better(self) -> str:
        """What a better setting does, after "proven to"."""
        return "be faster" if self is Objective.TIME else f"use less {self.used}"

    def shown(self, figure: float) -> str:
        """Return a figure for readers, without its unit."""
        return f"{figure / 2**20:,.0f}" if self is Objective.MEMORY else format_seconds(figure)


def read_objective(text: str, word: str) -> Objective:
    """Return the objective that a text names.

    Args:
        text: Its name.
        word: What the text was given as, such as ``--objective``.

    Raises:
        ConfigError: If there is none of this name.
    """
    try:
        return Objective(text)
    except ValueError:
        known = ", ".join(each.value for each in Objective)
        raise ConfigError(f"{word} must be one of {known}, got {text!r}") from None
