"""The proof: the program as it is and the best settings run in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tuner.storage.study_folder import StudyFolder
from tuner.values.params import Params
from tuner.values.trial import Trial, TrialKind, TrialResult
from tuner.verification.noninferiority import candidate_alpha
from tuner.wrap.comparison import CONFIDENCE, Pair, compare, is_hopeless
from tuner.wrap.objective import Objective
from tuner.wrap.program import Program
from tuner.wrap.result import Tested

_FIRST_SEED = 1001  # of runs whose seed no search has used
_PER_SETTING = 100  # numbers of runs


class Proving:
    """Compares settings with the program as it is, one after the other.

    The plan of each comparison is stored before it begins, so a study that was interrupted
    carries it out as it was.

    Args:
        folder: The study's folder.
        program: The program.
        objective: What is minimised.
        measure: Runs and keeps a trial.
    """

    def __init__(
        self,
        folder: StudyFolder,
        program: Program,
        objective: Objective,
        measure: Callable[[Trial], TrialResult],
    ) -> None:
        self._folder, self._program, self._measure = folder, program, measure
        self._objective = objective

    @property
    def begun(self) -> bool:
        """Whether a comparison was planned."""
        return bool(self._plans)

    @property
    def tested(self) -> list[Tested]:
        """The settings that were compared so far, in order."""
        return [self._tested(place) for place in range(len(self._plans))]

    @property
    def _plans(self) -> list[dict[str, Any]]:
        return list(self._folder.facts.get("proofs", ()))

    def run(self, finalists: Sequence[Params], affordable: Callable[[Params, bool], int]) -> None:
        """Compare settings, until one is proven or no time is left.

        Args:
            finalists: The settings, the most promising first.
            affordable: Returns how many pairs of runs of a setting there is time for; its second
                argument tells whether it is the first setting.
        """
        place = 0
        while True:
            plans = self._plans
            if place == len(plans):
                known = [each["setting"] for each in plans]
                setting = next((each for each in finalists if each not in known), None)
                pairs = 0 if setting is None else affordable(setting, not plans)
                if not pairs:
                    return
                self._folder.save(proofs=[*plans, {"setting": setting, "pairs": pairs}])
            self._compare(place)
            tested = self._tested(place)
            if tested.proven or (tested.changes_params and tested.always_alike):
                return
            place += 1

    def _compare(self, place: int) -> None:
        """Carry out the runs of a plan that are missing."""
        plan, first = self._plans[place], _PER_SETTING * place
        if self._tested(place).failed:
            return
        done = set(self._runs())
        changes_params = bool(self._program.params.part_of(plan["setting"]))
        for number in range(first, first + 2 * int(plan["pairs"])):
            hopeless = changes_params and number % 2 == 0 and self._is_hopeless(place)
            if hopeless:
                return
            if {number, number ^ 1} <= done:  # both of a pair, or it is run again
                continue
            # own, changed, changed, own: so a drift of the machine's speed cancels out
            own = number % 4 in (0, 3)
            setting = {} if own else plan["setting"]
            trial = Trial(number, setting, TrialKind.VERIFY, seed=_FIRST_SEED + number)
            if math.isinf(self._objective.of(self._measure(trial))):
                return

    def _is_hopeless(self, place: int) -> bool:
        planned = int(self._plans[place]["pairs"])
        goal = self._program.goal
        return is_hopeless(self._pairs(place), goal, planned, self._alpha(place))

    def _alpha(self, place: int) -> float:
        """Return the level of a comparison: all of a study err at most as often as one alone."""
        alpha = 1 - CONFIDENCE
        return candidate_alpha(alpha, place) if self._program.params else alpha

    def _tested(self, place: int) -> Tested:
        plan = self._plans[place]
        runs, cost = self._runs(), self._objective.of
        numbers = range(_PER_SETTING * place, _PER_SETTING * (place + 1))
        of_plan = [runs[each] for each in numbers if each in runs]
        failed = next((each for each in of_plan if math.isinf(cost(each))), None)
        changed, pairs = bool(self._program.params.part_of(plan["setting"])), self._pairs(place)
        # a look before the end would prove by chance more often than the level says
        done = len(pairs) == int(plan["pairs"]) or (changed and self._is_hopeless(place))
        goal, alpha = self._program.goal, self._alpha(place)
        proof = compare(pairs, goal, alpha, self._objective) if done and not failed else None
        return Tested(plan["setting"], proof, failed, changed)

    def _runs(self) -> dict[int, TrialResult]:
        return {each.trial.number: each for each in self._folder.results(TrialKind.VERIFY)}

    def _pairs(self, place: int) -> list[Pair]:
        runs, found = self._runs(), []
        first = _PER_SETTING * place
        for number in range(first, first + 2 * int(self._plans[place]["pairs"]), 2):
            both = [runs[each] for each in (number, number + 1) if each in runs]
            both.sort(key=lambda each: bool(each.trial.params))
            if len(both) == 2 and all(math.isfinite(self._objective.of(each)) for each in both):
                found.append((both[0], both[1]))
        return found
