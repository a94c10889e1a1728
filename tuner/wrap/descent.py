"""The order in which settings are tried: one knob after the other, from none changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.values.params import Params, ParamValue
from tuner.wrap.knobs import Knob

_SLACK = 0.04
"""Relative difference below which two settings count as equally good: runs differ by as much."""

_PAST_THE_BEST = 1.1  # values of an ordered knob beyond one that is this much worse are left out


@dataclass(frozen=True)
class Effect:
    """What one knob changed, with the other knobs as they were then.

    Attributes:
        knob: Its name.
        value: Its best value; ``None`` if the program's own environment is as good.
        gain: How many times less of the objective the program needs with it.
    """

    knob: str
    value: ParamValue
    gain: float


class Descent:
    """Coordinate descent over the knobs.

    It keeps no state but the costs, so it goes on where an interrupted study ended.

    Args:
        knobs: The knobs, those first that usually matter most.
        costs: Figure to minimise of each setting that was tried; infinite if it failed, or was
            given up as worse. The empty setting, the program's own environment, is among them.
    """

    def __init__(self, knobs: Sequence[Knob], costs: Sequence[tuple[Params, float]]) -> None:
        self._knobs = knobs
        self._costs: Mapping[frozenset[tuple[str, ParamValue]], float] = {
            frozenset(setting.items()): cost for setting, cost in costs
        }
        self.best: dict[str, ParamValue] = {}
        self.effects: list[Effect] = []
        self.next: dict[str, ParamValue] | None = next(self._untried(), None)

    @property
    def untried(self) -> list[str]:
        """The names of the knobs with values that are still to be tried."""
        known = {each.knob for each in self.effects}
        return [each.name for each in self._knobs if each.name not in known]

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
                for value in _worth_trying(knob, tried, self._cost(self.best)):
                    setting = _changed(rest, knob, value)
                    cost = self._cost(setting)
                    if cost is None:
                        self._improve(knob, rest, tried)  # as time may end here
                        yield setting
                        return
                    tried[value] = cost
                self._adopt(knob, rest, tried)
            if self.best == before:
                return
            knobs = [each for each in self._knobs if each.ordered]

    def _adopt(
        self, knob: Knob, rest: Mapping[str, ParamValue], tried: Mapping[ParamValue, float]
    ) -> None:
        """Note what a knob changed, once its values were tried, and keep its best value."""
        so_far = self._cost(self.best)
        assert so_far is not None
        value = self._improve(knob, rest, tried)
        if value is None:
            return
        unset = self._cost(rest)
        if knob.name not in {each.knob for each in self.effects}:
            own = (unset or so_far) / tried[value]
            found = own > 1 + _SLACK
            self.effects.append(Effect(knob.name, value if found else None, max(own, 1.0)))

    def _improve(
        self, knob: Knob, rest: Mapping[str, ParamValue], tried: Mapping[ParamValue, float]
    ) -> ParamValue:
        """Change a knob if that is better than the setting so far by more than the noise.

        Returns:
            Its best value; ``None`` if none was tried.
        """
        so_far = self._cost(self.best)
        assert so_far is not None
        value = min(tried, key=lambda each: tried[each], default=None)
        if value is not None and so_far / tried[value] > 1 + _SLACK:
            self.best = _changed(rest, knob, value)
        return value

    def _cost(self, setting: Mapping[str, ParamValue]) -> float | None:
        return self._costs.get(frozenset(setting.items()))


def _changed(
    rest: Mapping[str, ParamValue], knob: Knob, value: ParamValue
) -> dict[str, ParamValue]:
    """Return a setting with one more knob, and what goes along with its value."""
    return {**rest, **knob.along.get(value, {}), knob.name: value}


def _worth_trying(
    knob: Knob, tried: Mapping[ParamValue, float], so_far: float | None
) -> Iterator[ParamValue]:
    """Yield the values of a knob, as long as one of them may be better than those before.

    Those of an ordered knob go from one end to the other. If the first two change nothing, the
    other end comes next: if that changes nothing either, the program does not read the knob.

    Args:
        knob: The knob.
        tried: Costs of the values that were yielded, which the caller adds.
        so_far: Cost of the best setting before.
    """
    values = list(knob.values)
    for place, value in enumerate(values):
        if knob.ordered and _is_past_the_best([tried[each] for each in values[:place]]):
            return
        if knob.ordered and place == 2 and _is_flat(so_far, tried):
            yield values[-1]
            if _is_flat(so_far, tried):
                return
        if value not in tried:
            yield value


def _is_past_the_best(costs: Sequence[float]) -> bool:
    """Return whether the last two values were worse than an earlier one, and not less and less.

    A value that was given up as worse has infinite cost.
    """
    if len(costs) < 3:
        return False
    best = min(costs[:-2])
    return math.isfinite(best) and costs[-1] >= costs[-2] > _PAST_THE_BEST * best


def _is_flat(so_far: float | None, tried: Mapping[ParamValue, float]) -> bool:
    """Return whether no value that was tried changes the cost."""
    costs = [*tried.values()] if so_far is None else [so_far, *tried.values()]
    return max(costs) <= (1 + _SLACK) * min(costs)
