"""The search for params: as little time, or memory, without a loss of what is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from tuner.search.constrained import Told, propose
from tuner.values.params import Params, ParamValue
from tuner.values.trial import TrialResult, TrialStatus
from tuner.wrap.goal import Goal
from tuner.wrap.objective import Objective
from tuner.wrap.params import ParamSpace

_DRAWS = 30  # of the sampler, until all params count as tried


class ParamSearch:
    """Proposes params, and ranks those that were tried.

    The objective's figure of a whole run is minimised; to reach less than the program does by
    itself violates the constraint.

    Args:
        space: The params.
        goal: The figure that must not get worse.
        needed: What the program reaches by itself, with more as better.
        runs: All runs with other params so far.
        objective: What is minimised.
        pending: Params that are being tried.

    Attributes:
        needed: What the program reaches by itself, with more as better.
    """

    def __init__(
        self,
        space: ParamSpace,
        goal: Goal,
        needed: float,
        runs: Sequence[TrialResult],
        objective: Objective = Objective.TIME,
        pending: Sequence[Params] = (),
    ) -> None:
        self._space, self._goal, self._runs = space, goal, runs
        self.needed, self._objective, self._pending = needed, objective, pending

    @property
    def finalists(self) -> list[TrialResult]:
        """The runs that lost nothing, the best first."""
        kept = [
            each
            for each in self._runs
            if each.status is TrialStatus.COMPLETE and self._violation(each) <= 0
        ]
        return sorted(kept, key=self._cost)

    @property
    def best(self) -> float:
        """The objective's figure of the best run that lost nothing; infinite without one."""
        return min(map(self._cost, self.finalists), default=math.inf)

    def next(self) -> dict[str, ParamValue] | None:
        """Return the params to try next; ``None`` if none are left that were not tried."""
        tried = [self._space.part_of(each.trial.params) for each in self._runs]
        known = [*tried, *map(self._space.part_of, self._pending)]
        for start in self._space.start:
            if dict(start) not in known:
                return dict(start)
        falls_short = [each for each in map(self._violation, self._runs) if each < math.inf]
        # worse than any that ended well
        failed = 2 * max([*falls_short, abs(self.needed)]) or 1.0
        told = [
            Told(
                params,
                self._cost(each),
                min(self._violation(each), failed),
                each.status is TrialStatus.COMPLETE,
            )
            for params, each in zip(tried, self._runs, strict=True)
        ]
        draws = islice(propose(self._space.space, told), _DRAWS + len(self._pending))
        proposals = map(self._space.rounded, draws)
        return next((each for each in proposals if each not in known), None)

    def _violation(self, run: TrialResult) -> float:
        """Return by how much a run falls short; infinite if it failed."""
        reached = self._goal.of(run) if run.usable else None
        return math.inf if reached is None else self.needed - reached

    def _cost(self, run: TrialResult) -> float:
        """Return the figure of a run, or of what was run of it; infinite if it never began."""
        return self._objective.of_whole(run.measurement) if run.measurement else math.inf
