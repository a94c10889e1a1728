"""Which further rounds of what a study verifies already would tell more."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.values.trial import TrialResult
from tuner.values.verified import Role
from tuner.verification.entrant import CANDIDATES, OF_DEFAULT
from tuner.verification.plan import Plan
from tuner.verification.proof import summarize
from tuner.verification.readings import Readings

_CLEAR = 0.01  # p-value below which what seems faster needs no further rounds
_TWICE = 2  # times the least rounds, at most, to prove that it is faster


class FurtherRounds:
    """Tells which entrants of a plan need further rounds. Entrants are given by their index.

    Args:
        plan: The plan of the runs.
        runs: The runs that have ended.
    """

    def __init__(self, plan: Plan, runs: Sequence[TrialResult]) -> None:
        self._plan, self._runs, self._seen = plan, runs, Readings(plan, runs)

    def active(self) -> list[int]:
        """Return the undecided entrants of the campaign that is under way."""
        seen = self._seen
        open_ = [index for index in range(1, len(seen.rounds)) if self._is_open(index)]
        # the default's own training waits for others, or for the end
        others = [each for each in open_ if seen.role(each) not in OF_DEFAULT]
        return open_ if others else []

    def _is_open(self, index: int) -> bool:
        """Return whether further rounds of an entrant would tell more."""
        plan, seen = self._plan, self._seen
        role = seen.role(index)
        if role in OF_DEFAULT:
            return plan.owes(index)
        if role not in CANDIDATES:
            return plan.timed_rounds(index) < plan.max_rounds(index)
        if seen.is_undecided(index) and index not in seen.failed:
            return True
        return bool(seen.verdict(index) and plan.entrants[index].beside and plan.owes(index))

    def order(self, active: Sequence[int]) -> tuple[int, ...]:
        """Return the next round: accuracies side by side while one is open, then times."""
        plan, seen = self._plan, self._seen
        for index in active:
            beside = plan.entrants[index].beside
            if not beside or not seen.is_undecided(index):
                continue
            # what is proven is timed before more is asked of it
            if seen.verdict(index) is None or not plan.owes(index):
                return (index,) * beside.at_once
        return plan.turned([0, *active])

    def must_go_on(self, active: Sequence[int]) -> bool:
        """Return whether something is active for more than earlier stops of what is proven.

        These wait until the search has no time left.
        """
        plan, seen = self._plan, self._seen
        return any(
            not (plan.entrants[each].stops and seen.verdict(each)) or plan.owes(each)
            for each in active
        )

    def doubtful(self) -> list[int]:
        """Return what loses nothing and seems faster, if further rounds may prove that.

        That is the runtime setting, or a proven candidate. Whole runs are few, and the default's
        own setting is often unsteady, so it may take twice as many as the least.
        Before them, only a clear result is final: then the level of the last look stays as it is
        (Peto et al. 1976, doi:10.1038/bjc.1976.220).
        """
        plan, seen = self._plan, self._seen
        unclear = [
            each.params
            for each in summarize(plan, self._runs)
            if (versus := each.against_default)
            and versus.speedup.value > 1
            and versus.speedup_p > _CLEAR
        ]
        return [
            index
            for index, each in enumerate(plan.entrants)
            if (
                each.role is Role.RUNTIME_ONLY or (each.role in CANDIDATES and seen.verdict(index))
            )
            and any(point.params in unclear for point in each.points)
            and plan.least_rounds(index)
            <= plan.timed_rounds(index)
            < _TWICE * plan.least_rounds(index)
        ]

    def unsure(self) -> list[int]:
        """Return the default's own training and proven entrants that may get further rounds."""
        plan, seen = self._plan, self._seen
        return [
            index
            for index, each in enumerate(plan.entrants)
            if plan.timed_rounds(index) < plan.max_rounds(index)
            and (each.role in OF_DEFAULT or (each.beside and seen.verdict(index)))
        ]
