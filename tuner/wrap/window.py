"""A window of steps: which steps of a training are timed, and how long they take."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_WARM_UP_S, _WARM_UP_STEPS = 1.0, 3  # after the first mark, whichever is longer
_MIN_STEPS = 5  # of a window
_FIRST_PART = 0.8  # of a window that is shortened
_PAUSE = 5.0  # times the usual time of as many steps: longer intervals hold a pause
_MIN_PAUSE_S = 0.25  # a shorter interval holds none
_MAX_PAUSES = 0.05  # of the intervals: if more are long, they are no pauses


@dataclass(frozen=True, slots=True)
class Mark:
    """So many steps of a program were done at this time, in seconds of one clock.

    The clock is the program's own, the host's, or the CPU time that the program has used.
    """

    step: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """The steps whose time is measured: those after ``first``, up to and including ``last``."""

    first: int
    last: int

    @property
    def steps(self) -> int:
        """Number of steps in it."""
        return self.last - self.first

    def shortened(self) -> Window:
        """Return its first part, for programs that end soon after it and not always alike."""
        return Window(self.first, self.first + max(_MIN_STEPS, int(_FIRST_PART * self.steps)))


def steady_s(marks: Sequence[Mark], window: Window) -> float | None:
    """Return the seconds of the steps in a window, without the pauses between them.

    A pause is an interval many times as long as is usual per step: an evaluation or a checkpoint.
    Times at the ends of the window are interpolated between marks. ``None`` if the marks do not
    cover the window.
    """
    if not marks or marks[0].step > window.first or marks[-1].step < window.last:
        return None
    points = [
        Mark(window.first, _time_at(marks, window.first)),
        *(each for each in marks if window.first < each.step < window.last),
        Mark(window.last, _time_at(marks, window.last)),
    ]
    parts = [
        (after.step - before.step, after.time_s - before.time_s)
        for before, after in itertools.pairwise(points)
    ]
    usual = statistics.median(seconds / steps for steps, seconds in parts)
    limits = [max(_PAUSE * usual * steps, _MIN_PAUSE_S) for steps, _ in parts]
    pauses = sum(seconds > limit for (_, seconds), limit in zip(parts, limits, strict=True))
    if pauses > max(1, _MAX_PAUSES * len(parts)):  # some steps just take longer
        return points[-1].time_s - points[0].time_s
    return sum(
        usual * steps if seconds > limit else seconds
        for (steps, seconds), limit in zip(parts, limits, strict=True)
    )


def _time_at(marks: Sequence[Mark], step: int) -> float:
    after = next(index for index, each in enumerate(marks) if each.step >= step)
    later = marks[after]
    if later.step == step or not after:
        return later.time_s
    before = marks[after - 1]
    share = (step - before.step) / (later.step - before.step)
    return before.time_s + share * (later.time_s - before.time_s)


def choose_window(marks: Sequence[Mark], measured_s: float) -> Window | None:
    """Return the steps to measure: after a warm-up, and enough of them; ``None`` if too few.

    Args:
        marks: Marks of the program as it is.
        measured_s: Seconds that it should take to do these steps.
    """
    if len(marks) < 2:
        return None
    begin = next(
        (
            each
            for each in marks[1:]
            if each.time_s - marks[0].time_s >= _WARM_UP_S
            and each.step - marks[0].step >= _WARM_UP_STEPS
        ),
        None,
    )
    if begin is None or marks[-1].step - begin.step < _MIN_STEPS:
        return None
    window = Window(begin.step, marks[-1].step)
    seconds = steady_s(marks, window)
    return window if seconds is not None and seconds >= measured_s else None
