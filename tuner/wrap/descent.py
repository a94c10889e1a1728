"""The order in which settings are tried: one knob after the other, from none changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.values.trial import Params, ParamValue
from tuner.wrap.knobs import Knob

SLACK = 0.04
"""Relative difference below which two settings count as equally fast: runs differ by as much."""

_PAST_THE_BEST = 1.1  # values of an ordered knob beyond one that is this much slower are left out


@dataclass(frozen=True)
class Effect:
    """What one knob changed, with the other knobs as they were then.

    Attributes:
        knob: Its name.
        value: Its fastest value; ``None`` if the program's own environment is as fast.
        speedup: How many times as fast this makes the program.
    """

    knob: str
    value: ParamValue
    speedup: float


class Descent:
    """Coordinate descent over the knobs.

    It keeps no state but the times, so it goes on where an interrupted study ended.

    Args:
        knobs: The knobs, those first that usually matter most.
        times: Seconds of each setting that was tried; infinite if it failed, or was given up as
            too slow. The empty setting, the program's own environment, is among them.
    """

    def __init__(self, knobs: Sequence[Knob], times: Sequence[tuple[Params, float]]) -> None:
        self._knobs = knobs
        self._times: Mapping[frozenset[tuple[str, ParamValue]], float] = {
            frozenset(setting.items()): seconds for setting, seconds in times
        }
        self.best: dict[str, ParamValue] = {}
        self.effects: list[Effect] = []
        self.next: dict[str, ParamValue] | None = next(self._untried(), None)

    def _untried(self) -> Iterator[dict[str, ParamValue]]:
        """Yield the next setting to try, after following those that were tried.

        Other knobs may change how many threads are best, so these are tried again at the end.
        """
        knobs = self._knobs
        while True:
            before = self.best
            for knob in knobs:
                rest = {name: value for name, value in self.best.items() if name != knob.name}
                tried: dict[ParamValue, float] = {}
                for value in knob.values:
                    if knob.ordered and _is_past_the_best(tried):
                        break
                    setting = {**rest, knob.name: value}
                    seconds = self._time(setting)
                    if seconds is None:
                        yield setting
                        return
                    tried[value] = seconds
                self._adopt(knob, rest, tried)
            if self.best == before:
                return
            knobs = [each for each in self._knobs if each.ordered]

    def _adopt(
        self, knob: Knob, rest: Mapping[str, ParamValue], tried: Mapping[ParamValue, float]
    ) -> None:
        """Change a knob if that is faster than the setting so far by more than the noise."""
        so_far_s = self._time(self.best)
        assert so_far_s is not None
        value = min(tried, key=lambda each: tried[each], default=None)
        if value is None:
            return
        gain = so_far_s / tried[value]
        unset_s = self._time(rest)
        if gain > 1 + SLACK:
            self.best = {**rest, knob.name: value}
        if knob.name not in {each.knob for each in self.effects}:
            own = (unset_s or so_far_s) / tried[value]
            found = own > 1 + SLACK
            self.effects.append(Effect(knob.name, value if found else None, max(own, 1.0)))

    def _time(self, setting: Mapping[str, ParamValue]) -> float | None:
        return self._times.get(frozenset(setting.items()))


def _is_past_the_best(tried: Mapping[ParamValue, float]) -> bool:
    """Return whether the last two values were slower and slower than an earlier one."""
    times = list(tried.values())
    if len(times) < 3:
        return False
    best = min(times[:-2])
    finite = math.isfinite(best)
    return finite and times[-1] > times[-2] > _PAST_THE_BEST * best
