"""Whether a run with other params may still reach what is needed, by its curve so far."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.trials.stopping import can_extend
from tuner.values.trial import Checkpoint
from tuner.wrap.goal import Goal

Curve = Sequence[tuple[float, float]]
"""Seconds since the program began, and the figure that it told then."""


@dataclass(frozen=True)
class Hope:
    """What a curve is compared with.

    Attributes:
        goal: The figure that must not get worse.
        needed: What the program reaches by itself, with more as better.
        best: The curve of the best run so far that lost nothing.
        end_s: Seconds since its begin at which a run is over at the latest.
    """

    goal: Goal
    needed: float
    best: Curve
    end_s: float

    def is_lost(self, curve: Curve) -> bool:
        """Return whether a run is behind the best curve and will not catch up before its end.

        The rule is that of ``can_extend``, whose errors fall as a power of time. To reach more
        than is needed is worth nothing, so the best curve counts up to there. It is lowered by the
        noise: what counts as no loss, or the deepest fall between its points if that is more.
        A maximised figure outside 0 to 1 has no known error, so its runs are never given up.
        """
        best, own = self._signed(self.best), self._signed(curve)
        if not best or not own:
            return False
        falls = [before - after for (_, before), (_, after) in itertools.pairwise(best)]
        noise = max([self.goal.allowance(self.needed), *falls])
        aims = [(time_s, min(figure, self.needed) - noise) for time_s, figure in best]
        told = [figure for _, figure in (*best, *own)]
        top, scale, known = 0.0, 1.0, all(0 <= each <= 1 for each in told)
        if not self.goal.maximize:  # errors are then parts of the first figure of the best curve
            top, scale, known = 1.0, abs(best[0][1]), best[0][1] < 0 and max(told) <= 0
        if not known:
            return False
        checkpoints = [
            Checkpoint(place, time_s, None, top + figure / scale)
            for place, (time_s, figure) in enumerate(own, 1)
        ]
        rivals = [(time_s, top + figure / scale) for time_s, figure in aims]
        return not can_extend(checkpoints, rivals, self.end_s)

    def _signed(self, curve: Curve) -> list[tuple[float, float]]:
        """Return a curve with more as better."""
        sign = 1 if self.goal.maximize else -1
        return [(time_s, sign * figure) for time_s, figure in curve]


def at_pace(curve: Curve, ratio: float, start_s: float) -> list[tuple[float, float]]:
    """Return a curve as another runtime setting would show it, which changes the pace alone.

    Args:
        curve: The curve.
        ratio: Seconds that the same steps take at the other setting, over those at this one.
        start_s: Seconds until the steps begin, which stay as they are.
    """
    return [
        (time_s if time_s <= start_s else start_s + ratio * (time_s - start_s), figure)
        for time_s, figure in curve
    ]
