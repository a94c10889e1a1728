"""The search for params: as fast as possible, without a loss of what the program reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.search.constrained import Told, propose
from tuner.values.trial import ParamValue, TrialResult, TrialStatus
from tuner.wrap.goal import Goal
from tuner.wrap.params import ParamSpace


class ParamSearch:
    """Proposes params, and ranks those that were tried.

    The wall time of a whole run is minimised; to reach less than the program does by itself
    violates the constraint.

    Args:
        space: The params.
        goal: The figure that must not get worse.
        needed: What the program reaches by itself, with more as better.
        runs: All runs with other params so far.
    """

    def __init__(
        self, space: ParamSpace, goal: Goal, needed: float, runs: Sequence[TrialResult]
    ) -> None:
        self._space, self._goal, self._needed, self._runs = space, goal, needed, runs

    @property
    def finalists(self) -> list[TrialResult]:
        """The runs that lost nothing, the fastest first."""
        kept = [
            each
            for each in self._runs
            if each.status is TrialStatus.COMPLETE and self._violation(each) <= 0
        ]
        return sorted(kept, key=_wall_s)

    @property
    def best_s(self) -> float:
        """Wall time of the fastest run that lost nothing; infinite without one."""
        return min(map(_wall_s, self.finalists), default=math.inf)

    def next(self) -> dict[str, ParamValue]:
        """Return the params to try next."""
        tried = [self._space.part_of(each.trial.params) for each in self._runs]
        for start in self._space.start:
            params = {**self._space.default, **start}
            if params not in tried and not self._space.space.refusal(params):
                return params
        falls_short = [each for each in map(self._violation, self._runs) if each < math.inf]
        failed = 2 * max([*falls_short, abs(self._needed)])  # worse than any that ended well
        told = [
            Told(params, _wall_s(each), min(self._violation(each), failed))
            for params, each in zip(tried, self._runs, strict=True)
        ]
        return self._space.rounded(propose(self._space.space, told))

    def _violation(self, run: TrialResult) -> float:
        """Return by how much a run falls short; infinite if it failed."""
        reached = self._goal.of(run) if run.usable else None
        return math.inf if reached is None else self._needed - reached


def _wall_s(run: TrialResult) -> float:
    return run.measurement.wall_time_s if run.measurement else math.inf
