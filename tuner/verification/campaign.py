"""What the next campaign verifies: the runtime setting, the best candidate, and trade-offs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tuner.config.schema import Constraint, TuneConfig
from tuner.values.pareto import Objective
from tuner.values.space import SearchSpace
from tuner.values.trial import SideBySide, TrialResult
from tuner.values.verified import Role
from tuner.verification.entrant import CANDIDATES, Entrant
from tuner.verification.finalists import (
    MIN_CHANCE,
    Chances,
    pick_trade_offs,
    promising,
    runtime_only,
    stopped,
    train_time_s,
    worthy_front,
)
from tuner.verification.plan import MIN_ROUNDS, Plan, most_rounds
from tuner.verification.readings import Readings
from tuner.verification.stops import Training, earlier_stops, later_ends, training_of

Beside = Callable[[TrialResult], SideBySide | None]
"""Tells how to measure a point's accuracy side by side with others, see ``Strategy.beside``."""

_FOR_TRADE_OFFS = 0.15  # of the time left, at most, for trade-offs while the search continues
_SECOND_CHANCE = 1.5  # times the time that is reserved, for another candidate if the first fails
_MORE_CHANCES, _CHEAP = 4.0, 0.25  # the same where that is less than this share of the budget
_MORE_ROUNDS, _CHEAP_PROOF = 2, 0.125  # times the usual rounds, for this share of the budget
_FOR_LAST = 0.5  # of the budget, at most, for a last campaign that ends the search
_SLACK = 1.1  # times what that is expected to take
_OVERTIME = 0.25  # of the budget, for verification beyond it while nothing is proven
_MIN_OVERTIME_S = 15.0  # the same where the budget is very small


@dataclass(frozen=True)
class Aims:
    """What a study wants verified.

    Attributes:
        config: The study's configuration.
        objectives: The study's objectives.
        constraints: Limits of the configurations that are of interest.
        space: The study's search space.
        beside: Tells how to measure a point's accuracy side by side with other runs.
    """

    config: TuneConfig
    objectives: Sequence[Objective]
    constraints: Sequence[Constraint]
    space: SearchSpace
    beside: Beside

    @property
    def while_searching_s(self) -> float:
        """Seconds that a campaign may need while the search can still find something faster."""
        return self.config.budget.verify_share * self.config.budget.time_s

    @property
    def overtime_s(self) -> float:
        """Seconds that verification may take beyond the budget while nothing is proven."""
        return max(_OVERTIME * self.config.budget.time_s, _MIN_OVERTIME_S)

    def runtime_only(self, plan: Plan, points: Sequence[TrialResult]) -> list[Entrant]:
        """Return the default's own params at the fastest setting, if another is faster."""
        found = runtime_only(points, plan.default, self.constraints)
        return [Entrant(found, Role.RUNTIME_ONLY)] if found else []

    def stopped(self, plan: Plan, points: Sequence[TrialResult]) -> list[Entrant]:
        """Return the default stopped earlier, if its reference proves that it loses nothing."""
        stop = plan.recorded_stop if self.config.goal == "no_loss" else None
        found = stopped(points, plan.default, stop, self.constraints) if stop else None
        return [Entrant(found, Role.STOPPED)] if found else []


class Campaign:
    """Chooses the configurations of the next campaign.

    Args:
        aims: What the study wants verified.
        seen: What verification showed so far.
        points: All points that may be verified.
        chances: Estimates the chances of the points.
        sure_s: Shortest training time (s) already known to lose no accuracy.
    """

    def __init__(
        self,
        aims: Aims,
        seen: Readings,
        points: Sequence[TrialResult],
        chances: Chances,
        sure_s: float,
    ) -> None:
        self._aims, self._seen, self._plan = aims, seen, seen.plan
        self._points, self._chances, self._sure_s = points, chances, sure_s

    @property
    def _overtime_s(self) -> float:
        return 0.0 if self._seen.has_proven else self._aims.overtime_s

    def reserve_s(self, left_s: float) -> float:
        """Return the seconds to reserve for the campaign, without trade-offs.

        While nothing is proven, a last campaign may take half of the budget and the overtime. So
        much is reserved that the best candidate of that length can be verified.

        Args:
            left_s: Seconds left of the study's budget.
        """
        usual_s, overtime_s = self._usual_reserve_s(), self._overtime_s
        most_s = min(left_s, _FOR_LAST * self._aims.config.budget.time_s) + overtime_s
        last = self._picked(most_s) if overtime_s else []
        if _has_candidate(last):
            return max(usual_s, _SLACK * self._cost_s(last) - overtime_s)
        return usual_s

    def _usual_reserve_s(self) -> float:
        """Return the seconds to reserve for a campaign while the search can go on after it."""
        picked = self._picked(self._aims.while_searching_s)
        if not (picked or self._plan.rounds):  # every study verifies something
            return self._cost_s(self._least())
        if not picked:  # what is found too late to be compared with the default is of no use
            return 2 * MIN_ROUNDS * self._plan.cost_s([0])
        cost_s = self._cost_s(picked)
        if self._seen.has_proven:
            return cost_s
        cheap_s = min(_MORE_CHANCES * cost_s, _CHEAP * self._aims.config.budget.time_s)
        return max(_SECOND_CHANCE * cost_s, cheap_s)

    def entrants(self, left_s: float, *, last: bool) -> list[Entrant]:
        """Return what there is time to verify.

        While the search can go on, that is nothing without a candidate: the default's own training
        is certain to be as accurate, and shares the default's runs with a candidate's.

        Args:
            left_s: Seconds left of the study's budget.
            last: Whether the search has ended, so that all the time left is for verification.
        """
        plan, seen = self._plan, self._seen
        allowed_s = min(left_s, self._aims.while_searching_s)
        if last:
            allowed_s = left_s + self._overtime_s
        picked = self._planned(self._picked(allowed_s, last=last), left_s)
        if not last and not _has_candidate(picked):
            return []
        for_others_s = left_s if last else _FOR_TRADE_OFFS * left_s
        if any(each.beside for each in picked) and not (last and seen.has_proven):
            for_others_s = 0.0  # no times are compared before the candidate's accuracy is proven
        spent_s = self._cost_s(picked)
        if last:  # the next candidate comes first, if this one may fail
            unsure = not seen.has_proven and _has_candidate(picked)
            for_others_s -= (2 if unsure else 1) * spent_s
        planned = self._with_stops(picked)
        known = sum(each.role is Role.TRADE_OFF for each in plan.entrants)
        room = self._aims.config.verify.finalists - known if picked or last else 0
        others = pick_trade_offs(
            self._points,
            plan.default,
            self._aims.objectives,
            self._aims.constraints,
            room,
            lambda chosen: (
                self._cost_s([*picked, *self._as_trade_offs(chosen)]) - spent_s <= for_others_s
            ),
            [point for each in (*plan.entrants[1:], *planned) for point in each.points],
        )
        found = [*planned, *self._as_trade_offs(others)]
        return found if found or plan.rounds or not last else self._least()

    def _least(self) -> list[Entrant]:
        """Return what a study verifies at least, however little time it has left.

        This is the default's own training, faster or shorter, or else what is verified soonest.
        """
        aims = self._aims
        allowed_s = aims.while_searching_s + aims.overtime_s
        own = self._of_default(allowed_s, in_parts=True)
        if own and self._cost_s(own) <= allowed_s:
            return own
        front = worthy_front(self._points, [self._plan.default], aims.objectives, aims.constraints)
        found = [*own, *self._as_trade_offs(front)]
        return sorted(found, key=lambda each: self._cost_s([each]))[:1]

    def _of_default(self, max_s: float, *, in_parts: bool) -> list[Entrant]:
        """Return the default's own training, faster or shorter, as far as not verified yet.

        A shorter one is of no use if a faster candidate is proven.
        """
        roles = [each.role for each in self._plan.entrants]
        stopped = self._aims.stopped(self._plan, self._points)
        found = [
            *self._runtime_only(max_s, in_parts=in_parts),
            *(each for each in stopped if train_time_s(each.result) <= self._sure_s),
        ]
        return [each for each in found if each.role not in roles]

    def _runtime_only(self, max_s: float, *, in_parts: bool) -> list[Entrant]:
        """Return the runtime setting, if there is one that is faster.

        Its whole runs add accuracies of the default. Where these take longer than ``max_s``
        seconds, parts of its training show its speed, and whether it learns as the default does.
        """
        found = self._aims.runtime_only(self._plan, self._points)
        comparable = in_parts and self._plan.reference is not None
        if comparable and self._cost_s(found) > max_s:
            return [dataclasses.replace(each, in_parts=True) for each in found]
        return found

    def _picked(self, max_s: float, *, last: bool = False) -> list[Entrant]:
        """Return the default's own training, faster or shorter, and the most promising candidate.

        They are returned only as far as they are not verified yet, and can be within ``max_s``
        seconds.
        """
        picked = self._of_default(max_s, in_parts=last)
        if self._cost_s(picked) > max_s:
            return []
        for _, each in self._candidates:
            entrant = self._entrant(each)
            for own in (picked, self._without_stop(picked, entrant, max_s)):
                if self._cost_s([*own, entrant]) <= max_s:
                    return [*own, entrant]
        return picked

    def _without_stop(
        self, own: Sequence[Entrant], candidate: Entrant, max_s: float
    ) -> Sequence[Entrant]:
        """Leave the stopped default out if there is time for it once the candidate has failed."""
        least_s = self._plan.with_entrants([candidate]).accuracy_s(self._numbers([candidate]))
        if not least_s or least_s + self._cost_s(own) > max_s:
            return own
        return [each for each in own if each.role is not Role.STOPPED]

    def _planned(self, picked: Sequence[Entrant], left_s: float) -> list[Entrant]:
        """Plan as many looks as there is time for: a level that is not spent proves nothing.

        The stopped default waits until the candidate has failed if that leaves time for more.
        """
        left_s += self._overtime_s
        options = [list(picked)]
        if picked and picked[-1].role is Role.NO_LOSS:
            *own, candidate = picked
            options.append([*self._without_stop(own, candidate, left_s), candidate])
        planned = [self._with_rounds(each, left_s) for each in options]
        return max(planned, key=lambda found: sum(each.rounds for each in found))

    def _with_rounds(self, picked: Sequence[Entrant], left_s: float) -> list[Entrant]:
        """Plan the rounds of accuracies side by side, with time left for what comes after them.

        These are the rounds of their times, or those of the default's own training that waits.
        """
        plan, numbers = self._plan.with_entrants(picked), self._numbers(picked)
        roles = [each.role for each in picked]
        own = self._of_default(left_s, in_parts=False)
        waiting_s = self._cost_s([each for each in own if each.role not in roles])
        left_s -= max(plan.times_s([*self._plan.owed, *numbers]), waiting_s)
        return [
            dataclasses.replace(each, rounds=self._rounds_in(left_s, plan, index))
            if each.beside
            else each
            for index, each in zip(numbers, picked, strict=True)
        ]

    def _with_stops(self, entrants: Sequence[Entrant]) -> list[Entrant]:
        """Add earlier stops to a candidate.

        Each costs an evaluation of both splits in every run, so it must be likely enough.
        """
        return [
            dataclasses.replace(each, stops=self._likely_stops(each.result))
            if each.role is Role.NO_LOSS
            else each
            for each in entrants
        ]

    def _likely_stops(self, point: TrialResult) -> tuple[TrialResult, ...]:
        stops = self._stops_of(point)
        chances = zip(stops, self._chances(stops), strict=True)
        return tuple(stop for stop, chance in chances if chance >= MIN_CHANCE)

    def _stops_of(self, point: TrialResult) -> list[TrialResult]:
        """Return the earlier stops of which runs of a candidate would tell."""
        return earlier_stops(point, self._by_training[training_of(point.params)])

    @cached_property
    def _by_training(self) -> Mapping[Training, Sequence[TrialResult]]:
        found: dict[Training, list[TrialResult]] = {}
        for each in self._ends:
            found.setdefault(training_of(each.params), []).append(each)
        return found

    @cached_property
    def _ends(self) -> Sequence[TrialResult]:
        """Where candidates may end: at the points, and beyond them if speed is sought."""
        if self._aims.config.goal != "no_loss":
            return self._points
        return [*self._points, *later_ends(self._points, self._aims.space)]

    def _rounds_in(self, left_s: float, plan: Plan, index: int) -> int:
        """Return how many rounds of accuracies side by side to plan, at least one.

        There are more than usual as long as they are cheap.
        """
        beside = plan.entrants[index].beside
        assert beside is not None
        round_s = plan.cost_s((index,) * beside.at_once)
        usual = most_rounds(self._aims.config.verify)
        cheap = int(_CHEAP_PROOF * self._aims.config.budget.time_s / round_s)
        most = min(max(usual, cheap), _MORE_ROUNDS * usual)
        return max(1, min(most, int(left_s / round_s)))

    @property
    def promise(self) -> float:
        """What the candidate is worth that promises most; 0 without one."""
        return max((worth for worth, _ in self._candidates), default=0.0)

    @cached_property
    def _candidates(self) -> list[tuple[float, TrialResult]]:
        """Points that promise what is sought beyond what is proven, in order, each with it."""
        for_speed = self._aims.config.goal == "no_loss"
        return promising(
            self._ends,
            self._chances,
            self._plan.default,
            self._aims.constraints,
            learns_by=self._aims.space.learns_by,
            tried=[
                (point, self._seen.verdict(index, stop) is True)
                for index, each in enumerate(self._plan.entrants)
                if each.role in CANDIDATES
                for stop, point in enumerate(each.points)
            ],
            sure_s=self._sure_s if for_speed else None,
            stops=self._stops_of,
        )

    def _entrant(self, point: TrialResult) -> Entrant:
        sought = Role.NO_LOSS if self._aims.config.goal == "no_loss" else Role.ACCURACY
        beside = self._aims.beside(point)
        return Entrant(point, sought, beside, most_rounds(self._aims.config.verify))

    def _as_trade_offs(self, points: Sequence[TrialResult]) -> list[Entrant]:
        rounds = most_rounds(self._aims.config.verify)
        return [Entrant(each, Role.TRADE_OFF, rounds=rounds) for each in points]

    def _cost_s(self, entrants: Sequence[Entrant]) -> float:
        """Return the seconds of the rounds that decide a campaign, and of those owed."""
        plan, numbers = self._plan.with_entrants(entrants), self._numbers(entrants)
        return plan.accuracy_s(numbers) + plan.times_s([*self._plan.owed, *numbers])

    def _numbers(self, entrants: Sequence[Entrant]) -> range:
        """Return the indices that new entrants will have."""
        count = len(self._plan.entrants)
        return range(count, count + len(entrants))


def _has_candidate(entrants: Sequence[Entrant]) -> bool:
    return any(each.role in CANDIDATES for each in entrants)
