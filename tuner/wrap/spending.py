"""What a running program has spent of its objective, and whether it is plainly beaten."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.measure import ResourceMonitor
from tuner.wrap.objective import Objective
from tuner.wrap.window import Mark, Window, steady_s

_EVERY_S = 0.1  # CPU time is counted in ticks of 10 ms
LONG_EVERY_S = 0.5
"""Seconds between samples of shared memory where memory is the objective and time is not."""


@dataclass
class Spending:
    """Follows what is spent.

    Args:
        objective: What is minimised.
        monitor: Samples the program's processes.
        beaten: Figure of the steps, or of the whole program, above which it is plainly worse than
            the best so far.
        in_steps: Whether the steps of a window are measured.
    """

    objective: Objective
    monitor: ResourceMonitor
    beaten: float
    in_steps: bool
    _cpu_s: float = 0.0
    _next_s: float = 0.0
    _by_step: list[Mark] = field(default_factory=list)
    """CPU seconds that had been used after so many steps."""

    def follow(self, marks: Sequence[Mark], *, at_the_end: bool) -> None:
        """Note the CPU time so far, if it is the objective.

        Args:
            marks: Marks of the program so far.
            at_the_end: Whether the steps to be measured are done, or the program has ended.
        """
        now = time.monotonic()
        if self.objective is not Objective.CPU or (now < self._next_s and not at_the_end):
            return
        self._next_s = now + _EVERY_S
        self._cpu_s = self.monitor.cpu_s()
        if marks and (not self._by_step or marks[-1].step > self._by_step[-1].step):
            self._by_step.append(Mark(marks[-1].step, self._cpu_s))

    def cpu_s(self, window: Window) -> float | None:
        """Return the CPU seconds of the steps in a window, without those of the pauses.

        ``None`` if they are not the objective, or were not followed: a program that tells of many
        steps at once does not show what each took.
        """
        return steady_s(self._by_step, window)

    def is_beaten(self, marks: Sequence[Mark], window: Window | None, took_s: float) -> bool:
        """Return whether the run is plainly worse than the best so far.

        Args:
            marks: Marks of the program so far.
            window: The steps that are measured; ``None`` as long as that is unknown.
            took_s: Seconds since the program began.
        """
        if self.beaten == math.inf:
            return False
        if self.objective is Objective.MEMORY:  # its peak never falls again
            return self.monitor.peak_bytes > self.beaten
        in_time = self.objective is Objective.TIME
        if not self.in_steps:
            return (took_s if in_time else self._cpu_s) > self.beaten
        spent_at = marks if in_time else self._by_step
        if window is None or not spent_at or spent_at[-1].step <= window.first:
            return False
        part = Window(window.first, min(window.last, spent_at[-1].step))
        spent_s = steady_s(spent_at, part) or 0.0
        # a third has to be seen, as the first steps may be slow
        enough = 3 * part.steps >= window.steps or spent_s > self.beaten
        return enough and spent_s * window.steps > self.beaten * part.steps
