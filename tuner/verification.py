"""The last part of a study: finalists and the default are run again, as its plan says.

The plan is kept in the study's folder when it is made, so that an interrupted verification goes on
with the same finalists, rounds and seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.config import Constraint, TuneConfig
from tuner.pareto import Objective
from tuner.plan import LEAST_ROUNDS, Plan, pick_finalists
from tuner.results import Verified
from tuner.study_folder import StudyFolder
from tuner.trial import Trial, TrialKind, TrialResult
from tuner.verify import summarize


class Verification:
    """What a study verifies.

    Args:
        config: Of the study.
        folder: Of the study: holds the plan and the runs.
        objectives, constraints: Of the study.
        test_images: Size of the test split.
    """

    def __init__(
        self,
        config: TuneConfig,
        folder: StudyFolder,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
        test_images: int,
    ) -> None:
        self._config, self._folder = config, folder
        self._objectives, self._constraints = objectives, constraints
        self._test_images = test_images

    @property
    def begun(self) -> bool:
        """Whether there is a plan: then the search is over."""
        return bool(self._folder.facts.get("plan"))

    def forget(self) -> None:
        """Drop the plan, for a search that goes on under a larger budget."""
        self._folder.save(complete=False, plan=None)

    def run(
        self,
        points: Sequence[TrialResult],
        run: Callable[[Trial], object],
        tell: Callable[[str], None],
    ) -> tuple[Verified, ...]:
        """Run what the plan says and was not run yet, then whatever is in doubt, in time.

        Once the budget is spent, no more than is needed to prove anything.

        Args:
            points: All that finalists are picked from, trial 0 among them.
            run: Runs one trial, and keeps the result in the folder.
            tell: Called with what is being done.
        """
        plan = self._plan(points)
        if plan is None:
            return ()
        tell(f"{len(plan.finalists)} finalists against the default")
        done = {each.trial.number for each in self._runs()}
        for trial in plan.trials():
            turn, _ = plan.place(trial.number)
            if turn >= LEAST_ROUNDS and self._left_s() < 0:  # it took longer than planned
                break
            if trial.number not in done:
                run(trial)
        turns = [plan.place(number)[0] for number in done if number >= plan.first]
        for turn in range(max([plan.rounds - 1, *turns]) + 1, self._config.verify.most_repeats):
            doubtful = plan.doubtful(summarize(plan, self._runs()))
            trials = [plan.trial(turn, index) for index in doubtful]
            if not trials or sum(map(plan.trial_cost_s, trials)) > self._left_s():
                break
            tell(f"{len(trials) - 1} in doubt, once more")
            for trial in trials:
                run(trial)
        return summarize(plan, self._runs())

    def summary(self, points: Sequence[TrialResult]) -> tuple[Verified, ...]:
        """What was verified so far."""
        plan = self._plan(points) if self.begun else None
        return summarize(plan, self._runs()) if plan else ()

    def _runs(self) -> list[TrialResult]:
        return self._folder.results(TrialKind.VERIFY)

    def _left_s(self) -> float:
        return self._config.budget.time_s - self._folder.elapsed_s

    def _plan(self, points: Sequence[TrialResult]) -> Plan | None:
        """The verification to run: the one begun before, or one cut to the time that is left."""
        config = self._config
        default = next((each for each in points if each.trial.number == 0), None)
        if default is None or not default.usable or config.verify.finalists == 0:
            return None
        kept = self._folder.facts.get("plan")
        if kept:
            # whole, for what was composed then may be composed otherwise now
            begun = [TrialResult.from_json(text) for text in kept["finalists"]]
            return self._made(default, begun, kept["rounds"], kept["first"])
        first, rounds = len(self._runs()), config.verify.repeats
        picked = pick_finalists(
            points,
            default,
            self._objectives,
            self._constraints,
            config.verify,
            affordable=lambda chosen: (
                self._made(default, chosen, rounds, first).cost_s() <= self._left_s()
            ),
        )
        if not picked:
            return None
        plan = self._made(default, picked, rounds, first).within(self._left_s())
        finalists = [each.to_json() for each in plan.finalists]
        self._folder.save(plan={"finalists": finalists, "rounds": plan.rounds, "first": first})
        return plan

    def _made(
        self, default: TrialResult, finalists: Sequence[TrialResult], rounds: int, first: int
    ) -> Plan:
        return Plan(
            default,
            tuple(finalists),
            rounds,
            self._config.verify,
            self._config.seed,
            self._test_images,
            first,
            self._objectives,
        )
