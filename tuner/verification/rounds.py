"""What a study verifies, round by round, and how much time it needs for that.

A campaign verifies the next candidate for "no loss", the runtime setting and some trade-offs.
Where runs side by side save time, the candidate's accuracy comes first: times are compared only
once it is proven. The results of a refuted candidate go back into the search, which continues
while there is time for another campaign.

Rounds are saved in the study's folder when they are added, so that an interrupted verification
resumes with the same configurations and seeds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from tuner.config.schema import Constraint, TuneConfig
from tuner.convergence.default_run import KnownDefault
from tuner.storage.study_folder import StudyFacts
from tuner.values.pareto import Objective
from tuner.values.trial import SideBySide, Trial, TrialKind, TrialResult
from tuner.values.verified import Role, Verified
from tuner.verification.finalists import (
    Chances,
    pick_trade_offs,
    promising,
    runtime_only,
    train_time_s,
    worthy_front,
)
from tuner.verification.noninferiority import LookPlan, candidate_alpha
from tuner.verification.plan import (
    CANDIDATES,
    MIN_ROUNDS,
    Entrant,
    Plan,
    look_counts,
)
from tuner.verification.proof import summarize
from tuner.verification.readings import Readings

Beside = Callable[[TrialResult], SideBySide | None]
"""Tells how to measure a point's accuracy side by side with others, see ``Strategy.beside``."""

_FOR_TRADE_OFFS = 0.15  # of the time left, at most, for trade-offs while the search continues
_SECOND_CHANCE = 1.5  # times the time that is reserved, for another candidate if the first fails
_OVERTIME = 0.25  # of the budget, for verification beyond it while nothing is proven
_MIN_OVERTIME_S = 15.0  # the same where the budget is very small


class Verification:
    """Decides which runs verify what.

    Args:
        config: The study's configuration.
        folder: The study's folder, which holds the rounds and the runs.
        objectives: The study's objectives.
        constraints: The study's constraints.
        test_images: Size of the test split.
        min_iterations: Iterations of the shortest training of interest.
        beside: Tells how to measure a point's accuracy side by side with other runs.
    """

    def __init__(
        self,
        config: TuneConfig,
        folder: StudyFacts,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
        test_images: int,
        min_iterations: int,
        beside: Beside = lambda _point: None,
    ) -> None:
        self._config, self._folder = config, folder
        self._objectives, self._constraints = objectives, constraints
        self._test_images, self._min_iterations, self._beside = test_images, min_iterations, beside
        self._plan: Plan | None = None

    # -- what is known --------------------------------------------------------------------------

    def begin(self, known: KnownDefault) -> None:
        """Learn the default to compare with, and the rounds that an earlier session added."""
        kept = self._folder.facts.get("verification") or {"entrants": [], "rounds": []}
        others = [Entrant.from_json(each) for each in kept["entrants"]]
        self._plan = Plan(
            entrants=(Entrant(known.result, Role.DEFAULT), *others),
            rounds=tuple(tuple(order) for order in kept["rounds"]),
            config=self._config.verify,
            seed=self._config.seed,
            test_images=self._test_images,
            accuracies=known.accuracies,
            part=bool(known.part),
            min_iterations=self._min_iterations,
            reference=known.reference,
            objectives=self._objectives,
        )

    def summary(self) -> tuple[Verified, ...]:
        """Return what is verified so far."""
        return summarize(self._plan, self._runs()) if self._plan else ()

    def notes(self) -> tuple[str, ...]:
        """Tell in words what verification showed apart from its figures."""
        return Readings(self._plan, self._runs()).notes() if self._plan else ()

    def next_looks(self) -> LookPlan:
        """Return the looks planned for the next candidate."""
        plan = self._known
        beside = self._beside(plan.default)
        counts = look_counts(plan.config, beside.at_once if beside else 1)
        known = Readings(plan, self._runs()).of_default()
        grown = 0 if len(plan.accuracies) > 1 or beside else 1
        alpha = candidate_alpha(1 - plan.config.confidence, self._tested)
        return LookPlan(tuple(len(known) + grown * each for each in counts), counts, alpha)

    @property
    def proven_speedup(self) -> float:
        """Speed-up of the fastest that is proven to lose nothing; 1 while none is."""
        lossless = (each for each in self.summary() if each.loses_nothing and each.is_faster)
        return max((each.speedup for each in lossless), default=1.0)

    def sure_s(self, points: Sequence[TrialResult]) -> float:
        """Return the least training time (s) sure to lose nothing.

        It is that of a proven configuration, or of the default's own params.
        """
        plan = self._known
        same = [] if Readings(plan, self._runs()).departure else self._runtime_only(points)
        proven_s = train_time_s(plan.default) / self.proven_speedup
        return min([proven_s, *(train_time_s(each.result) for each in same)])

    @property
    def _sought(self) -> Role:
        return Role.ACCURACY if self._config.goal == "accuracy" else Role.NO_LOSS

    @property
    def _known(self) -> Plan:
        assert self._plan is not None
        return self._plan

    @property
    def _tested(self) -> int:
        return sum(each.role in CANDIDATES for each in self._known.entrants)

    def _runs(self) -> list[TrialResult]:
        return self._folder.results(TrialKind.VERIFY)

    # -- what to run ----------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether a campaign is under way and not decided."""
        return bool(self._plan and self._active())

    def whole_runs(self) -> list[TrialResult]:
        """Return the runs to the end, whose curves tell as much as those of trials."""
        return [each for each in self._runs() if each.usable and not each.trial.projected]

    def describe(self) -> str:
        """Describe what the round under way verifies, in a few words."""
        plan = self._known
        order = plan.rounds[-1] if plan.rounds else ()
        names = ", ".join(
            f"{plan.entrants[index].result.trial.title} ({plan.entrants[index].role.value})"
            for index in sorted({*order})
            if index
        )
        what = f"{names} against the default" if 0 in order else f"accuracy of {names}"
        return f"{what}, round {len(plan.rounds)}"

    def pending(self) -> list[Trial]:
        """Return the runs still to do in rounds that were begun."""
        if self._plan is None:
            return []
        done = {each.trial.number for each in self._runs()}
        return [each for each in self._plan.trials() if each.number not in done]

    def reserve_s(self, points: Sequence[TrialResult], chances: Chances) -> float:
        """Return the seconds to reserve for the next campaign, without trade-offs.

        Args:
            points: All points that may be verified.
            chances: Estimates the chances of the points.
        """
        if self._plan is None or not self._config.verify.finalists:
            return 0.0
        picked = self._picked(points, chances, self._max_while_searching_s)
        if not (picked or self._known.rounds):  # every study verifies something
            return self._cost_s(self._least(points))
        if not picked:  # what is found too late to be compared with the default is of no use
            return 2 * MIN_ROUNDS * self._known.cost_s([0])
        return self._cost_s(picked) * (1.0 if self._has_proven else _SECOND_CHANCE)

    @property
    def _has_proven(self) -> bool:
        """Whether a candidate is proven already."""
        seen = Readings(self._known, self._runs())
        roles = [each.role for each in self._known.entrants]
        return any(role in CANDIDATES and seen.verdict(index) for index, role in enumerate(roles))

    @property
    def _max_while_searching_s(self) -> float:
        """Seconds that a campaign may need while the search can still find something faster."""
        return self._config.budget.verify_share * self._config.budget.time_s

    def next_round(
        self, points: Sequence[TrialResult], chances: Chances, left_s: float, *, last: bool
    ) -> list[Trial]:
        """Begin one more round and return its runs; none if nothing is open or time is short.

        Args:
            points: All points that may be verified.
            chances: Estimates the chances of the points.
            left_s: Seconds left of the study's budget.
            last: Whether the search has ended, so that all the time left is for verification.
        """
        if self._plan is None or not self._config.verify.finalists:
            return []
        active = self._active()
        if active:
            plan, order = self._plan, self._order(self._plan, active)
            order = order if self._fits(order, left_s) else ()
        else:
            entrants = self._campaign(points, chances, left_s, last=last)
            plan = self._plan.with_entrants(entrants)
            order = (
                self._order(plan, [*self._owed(), *self._numbers(entrants)]) if entrants else ()
            )
        if not order and last and (timed := self._owed() or self._unsure()):
            order = plan.turned([0, *timed])
            order = order if self._owed() or plan.cost_s(order) <= left_s else ()
        if not order and last and (nearest := Readings(plan, self._runs()).only_tried()):
            order = plan.turned([0, *nearest])
            order = order if plan.times_s(nearest) <= left_s + self._overtime_s else ()
        if not order:
            return []
        self._plan = plan.with_round(order)
        self._save()
        return self.pending()

    def _order(self, plan: Plan, active: Sequence[int]) -> tuple[int, ...]:
        """Return the next round: accuracies side by side while one is open, then times."""
        seen = Readings(plan, self._runs())
        for index in active:
            beside = plan.entrants[index].beside
            if beside and seen.verdict(index) is None:
                return (index,) * beside.at_once
        return plan.turned([0, *active])

    def _fits(self, order: Sequence[int], left_s: float) -> bool:
        """Return whether there is time for a further round, or it must run regardless.

        Fewer than ``MIN_ROUNDS`` would prove nothing, so an entrant of one is owed as many.
        """
        plan = self._known
        if 0 in order:
            owed = any(each and plan.owes(each) for each in order)
            return owed or plan.cost_s(order) <= left_s
        timed_s = plan.times_s([*self._owed(), order[0]])
        allowed_s = left_s + (0.0 if self._has_proven else self._overtime_s)
        return plan.cost_s(order) + timed_s <= allowed_s

    def _numbers(self, entrants: Sequence[Entrant]) -> range:
        """Return the indices that new entrants will have."""
        count = len(self._known.entrants)
        return range(count, count + len(entrants))

    def _save(self) -> None:
        plan = self._known
        self._folder.save(
            verification={
                "entrants": [each.to_json() for each in plan.entrants[1:]],
                "rounds": plan.rounds,
            }
        )

    def _active(self) -> list[int]:
        """Return the undecided entrants of the campaign that is under way."""
        runs = self._runs()
        seen = Readings(self._known, runs)
        open_ = [index for index in range(1, len(seen.rounds)) if self._is_open(index, seen, runs)]
        # the runtime setting waits for others, or for the end
        others = [each for each in open_ if seen.role(each) is not Role.RUNTIME_ONLY]
        return open_ if others else []

    def _is_open(self, index: int, seen: Readings, runs: Sequence[TrialResult]) -> bool:
        """Return whether further rounds of an entrant would tell more."""
        plan, role = self._known, seen.role(index)
        if role is Role.RUNTIME_ONLY:
            return plan.owes(index)
        if role not in CANDIDATES:
            return plan.timed_rounds(index) < plan.max_rounds(index)
        verdict = seen.verdict(index)
        if verdict is None:
            return not plan.has_failed(index, runs)
        return verdict and plan.entrants[index].beside is not None and plan.owes(index)

    def _owed(self) -> list[int]:
        """Return the runtime setting, if rounds that it needs are still to come."""
        plan = self._known
        return [
            index
            for index, each in enumerate(plan.entrants)
            if each.role is Role.RUNTIME_ONLY and plan.owes(index)
        ]

    def _unsure(self) -> list[int]:
        """Return the runtime setting and proven entrants whose times may get further rounds."""
        plan, seen = self._known, Readings(self._known, self._runs())
        return [
            index
            for index, each in enumerate(plan.entrants)
            if plan.timed_rounds(index) < plan.max_rounds(index)
            and (each.role is Role.RUNTIME_ONLY or (each.beside and seen.verdict(index)))
        ]

    # -- what to verify -------------------------------------------------------------------------

    def _campaign(
        self, points: Sequence[TrialResult], chances: Chances, left_s: float, *, last: bool
    ) -> list[Entrant]:
        """Return new entrants for a campaign that there is time for."""
        plan = self._known
        first = not plan.rounds
        allowed_s = min(left_s, self._max_while_searching_s)
        if last:
            allowed_s = left_s + (0.0 if self._has_proven else self._overtime_s)
        picked = self._picked(points, chances, allowed_s)
        for_others_s = left_s if last else _FOR_TRADE_OFFS * left_s
        if any(each.beside for each in picked) and not (last and self._has_proven):
            for_others_s = 0.0  # no times are compared before the candidate's accuracy is proven
        spent_s = self._cost_s(picked)
        if last:
            for_others_s -= spent_s
        known = sum(each.role is Role.TRADE_OFF for each in plan.entrants)
        room = self._config.verify.finalists - known if picked or last else 0
        others = pick_trade_offs(
            points,
            plan.default,
            self._objectives,
            self._constraints,
            room,
            lambda chosen: (
                self._cost_s([*picked, *_as_trade_offs(chosen)]) - spent_s <= for_others_s
            ),
            [each.result for each in (*plan.entrants[1:], *picked)],
        )
        found = [*self._planned(picked, left_s), *_as_trade_offs(others)]
        return found if found or not (first and last) else self._least(points)

    @property
    def _overtime_s(self) -> float:
        """Seconds that verification may take beyond the budget while nothing is proven."""
        return max(_OVERTIME * self._config.budget.time_s, _MIN_OVERTIME_S)

    def _least(self, points: Sequence[TrialResult]) -> list[Entrant]:
        """Return what a study verifies at least, however little time it has left.

        This is the runtime setting, or else what is verified soonest.
        """
        runtime = self._runtime_only(points)
        if runtime and self._cost_s(runtime) <= self._max_while_searching_s + self._overtime_s:
            return runtime
        front = worthy_front(points, [self._known.default], self._objectives, self._constraints)
        found = [*runtime, *_as_trade_offs(front)]
        return sorted(found, key=lambda each: self._cost_s([each]))[:1]

    def _picked(
        self, points: Sequence[TrialResult], chances: Chances, max_s: float = math.inf
    ) -> list[Entrant]:
        """Return the runtime setting, if not verified yet, and the most promising candidate.

        They are returned only as far as they can be verified within ``max_s`` seconds.
        """
        picked: list[Entrant] = []
        if Role.RUNTIME_ONLY not in [each.role for each in self._known.entrants]:
            picked += self._runtime_only(points)
        if self._cost_s(picked) > max_s:
            return []
        for each in self._candidates(points, chances):
            entrant = self._entrant(each)
            if self._cost_s([*picked, entrant]) <= max_s:
                return [*picked, entrant]
        return picked

    def _planned(self, picked: Sequence[Entrant], left_s: float) -> list[Entrant]:
        """Plan as many looks as there is time for: a level that is not spent proves nothing."""
        plan, numbers = self._known.with_entrants(picked), self._numbers(picked)
        left_s += 0.0 if self._has_proven else self._overtime_s
        left_s -= plan.times_s([*self._owed(), *numbers])
        return [
            dataclasses.replace(
                each, rounds=max(1, int(left_s / plan.cost_s((index,) * each.beside.at_once)))
            )
            if each.beside
            else each
            for index, each in zip(numbers, picked, strict=True)
        ]

    def _runtime_only(self, points: Sequence[TrialResult]) -> list[Entrant]:
        found = runtime_only(points, self._known.default, self._constraints)
        return [Entrant(found, Role.RUNTIME_ONLY)] if found else []

    def _candidates(self, points: Sequence[TrialResult], chances: Chances) -> list[TrialResult]:
        """Return points that promise what is sought beyond what is proven, the best first."""
        seen = Readings(self._known, self._runs())
        return promising(
            points,
            chances,
            self._known.default,
            self._constraints,
            tried=[
                (each.result, seen.verdict(index) is True)
                for index, each in enumerate(self._known.entrants)
                if each.role in CANDIDATES
            ],
            sure_s=self.sure_s(points) if self._sought is Role.NO_LOSS else None,
            expected_s=self._expected_s,
        )

    def _entrant(self, point: TrialResult) -> Entrant:
        long = train_time_s(point) > self._config.verify.long_s
        return Entrant(point, self._sought, self._beside(point) if long else None)

    def _expected_s(self, point: TrialResult, chance: float) -> float:
        """Return the expected seconds of verifying a candidate.

        With runs side by side, its times are measured only once it is proven.
        """
        entrant = self._entrant(point)
        whole_s = self._cost_s([entrant])
        plan, numbers = self._known.with_entrants([entrant]), self._numbers([entrant])
        later_s = plan.times_s([*self._owed(), *numbers]) if entrant.beside else 0.0
        return whole_s - (1 - chance) * later_s

    def _cost_s(self, entrants: Sequence[Entrant]) -> float:
        """Return the seconds of the rounds that decide a campaign, and of those owed."""
        plan, numbers = self._known.with_entrants(entrants), self._numbers(entrants)
        return plan.accuracy_s(numbers) + plan.times_s([*self._owed(), *numbers])


def _as_trade_offs(points: Sequence[TrialResult]) -> list[Entrant]:
    return [Entrant(each, Role.TRADE_OFF) for each in points]
