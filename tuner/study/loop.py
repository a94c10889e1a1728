"""The main loop of a study: default, race, trials and verification, until the time is up.

The strategy says what to search next, and the verification says which runs would prove
something; the loop decides whose turn it is. The search gets all the time that the next
verification campaign does not need. It continues after a campaign if there is time for another.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from tuner.config.schema import LONGER, TuneConfig, objectives_of
from tuner.convergence.default_run import KnownDefault
from tuner.progress import StudyProgress
from tuner.search import (
    Aim,
    Outlook,
    Probe,
    Races,
    Step,
    Stop,
    Strategy,
    Target,
    Train,
    Verify,
    View,
)
from tuner.storage.study_folder import StudyFacts
from tuner.study.default_trial import DefaultTrial
from tuner.study.schedule import Schedule
from tuner.study.trial_runs import TrialRuns
from tuner.trials.session import TrialSetup
from tuner.values.params import batch_size_of, iterations_of
from tuner.values.results import timed
from tuner.values.trial import Trial, TrialResult
from tuner.verification.rounds import Verification

_PERSISTENT = 0.3  # least persistence at which stops luckier than their neighbours are sought
_PART_OF_INTEREST = (1 / 6, 2 / 3)  # of the default's images: where stops may lose nothing
_OTHERS_GRACE_S = 30.0  # for what a trial needs besides its training


class StudyLoop:
    """Asks for trials, runs them, stores their results and tells the strategy.

    Args:
        config: The study's configuration.
        setup: What the study's trials share.
        folder: The study's record.
        strategy: Decides what to try next.
        race: Finds the fastest runtime settings, if the search combines trials with them.
        default: Measures the default.
        verification: Decides which runs prove what was found.
        outlook: Estimates how likely points are to be proven.
        runs: Runs the trials and tracks their results.
        progress: Shows what is being done.

    Attributes:
        trials: All trials of the study by number, including those of other drivers.
        known: What is known of the default; ``None`` until trial 0 has ended.
    """

    def __init__(
        self,
        config: TuneConfig,
        setup: TrialSetup,
        folder: StudyFacts,
        strategy: Strategy,
        race: Races | None,
        default: DefaultTrial,
        verification: Verification,
        outlook: Outlook,
        runs: TrialRuns,
        progress: StudyProgress,
    ) -> None:
        self._config, self._setup, self._folder = config, setup, folder
        self._strategy, self._race, self._default = strategy, race, default
        self._verification, self._outlook = verification, outlook
        self._runs, self._progress = runs, progress
        self._objectives = objectives_of(config)
        self._schedule = Schedule(config.budget, config.seed, config.baseline)
        self._what = f"{setup.framework.title} on {setup.dataset.name}"
        self._shown = ("", "")
        self._stopped = ""  # why the strategy had nothing to try when it was last asked
        self.trials: list[TrialResult] = []
        self.known: KnownDefault | None = None

    @property
    def leads(self) -> bool:
        """Whether this driver verifies and reports."""
        crew = self._strategy.study.crew
        return crew is None or crew.leads

    @property
    def points(self) -> list[TrialResult]:
        """All points that may be verified: timed trials, and points derived from checkpoints."""
        return list(timed(self.trials, self._strategy.derived))

    def recall(self, own: Sequence[TrialResult]) -> None:
        """Resume where this driver's earlier session, which measured ``own``, stopped."""
        self.trials = list(own)
        self._strategy.recall(own)
        self._hear_of_others()
        self._strategy.learn_paces()
        self._note_default(self._default.recall(own))

    def take_the_lead(self) -> None:
        """Take over the verification of all drivers' findings from a crashed leader."""
        self._note_default(self._default.recall(self.trials))

    def run(self) -> None:
        """Run until nothing is left to do or time is up, then wait for what still runs."""
        if self.leads:
            self._strategy.study.end(over=False)
        running: set[Future[TrialResult]] = set()
        try:
            self._fill(running)
            while running:
                for future in list(self._runs.wait(running))[:1]:  # its slot is free: fill it
                    running.remove(future)
                    self._take_in(future.result())
                self._fill(running)
        except KeyboardInterrupt:
            self._store_ended(running)
            raise
        if self.leads:
            self._strategy.study.end()
            self._wait_for_others()
        self._strategy.learn_paces()  # and recompose what was composed early

    def _store_ended(self, running: Collection[Future[TrialResult]]) -> None:
        """Store the trials that had ended by an interruption: it loses only what still runs."""
        for future in running:
            if future.done() and future.exception() is None:
                self.trials.append(future.result())
                self._folder.keep(future.result())
        self.trials.sort(key=lambda each: each.trial.number)

    def _show(self, phase: str, detail: str) -> None:
        """Show what is being done, once."""
        if self._shown != (phase, detail):
            self._shown = phase, detail
            self._progress.phase(phase, detail)

    # -- whose turn it is -----------------------------------------------------------------------

    def _fill(self, running: set[Future[TrialResult]]) -> None:
        """Start what comes next while slots are free; run all but trials alone, to their end."""
        while len(running) < max(self._runs.executor.slots, self._strategy.lanes):
            match self._next(len(running)):
                case Train(0, params):
                    self._begin_with(params)
                case Train() as asked:
                    self._show("search", self._what)
                    running.add(self._runs.begin(self._new_trial(asked)))
                case _ if running:  # they would disturb each other
                    return
                case Probe() as turn:
                    self._run_race(turn)
                case Verify(trials):
                    self._run_round(trials)
                case Stop():
                    return

    def _next(self, running: int) -> Step:
        """Choose a due verification round, the search while there is time, or what is left.

        Nothing is verified before trial 0. Runs that an interruption left out of a round come
        before anything else.
        """
        verifies = self.leads and self.known is not None and not running
        due = self._verification.pending() if verifies else []
        if verifies and not due and self._verification.open:
            due = self._round(last=False)
        if due:
            return Verify(tuple(due))
        step = self._search_step(running)
        if step is None and verifies:
            rounds = self._round(last=False) if self._again() else []
            rounds = rounds or self._round(last=True)
            return Verify(tuple(rounds)) if rounds else Stop("nothing is left to verify")
        return step or Stop("running trials must end first")

    def _search_step(self, running: int) -> Step | None:
        """Return what the strategy would do; ``None`` if there is no time or nothing to do."""
        if not self._may_search(running):
            return None
        step = self._strategy.next(self._view(running))
        match step:
            case Stop(reason):
                if not running and reason != self._stopped:
                    self._progress.message(f"the search pauses: {reason}")
                self._stopped = reason
                return None
        self._stopped = ""
        return step

    def _may_search(self, running: int) -> bool:
        begun = self._begun() + running
        return not self._strategy.study.over and self._schedule.allows(begun, self._left_s())

    def _left_s(self) -> float:
        """Return the seconds left to search before verification needs its time."""
        return self._budget_left_s - self._reserve_s()

    @property
    def _budget_left_s(self) -> float:
        return self._schedule.left_s(self._folder.elapsed_s)

    def _reserve_s(self) -> float:
        """Return the seconds that verification needs next; until known, a share of the budget."""
        if self.known is None or not self.leads:
            return self._schedule.verify_s
        return self._verification.reserve_s(self.points, self._chances, self._budget_left_s)

    def _again(self) -> bool:
        """Return whether there is time to search and verify again after the next campaign."""
        left_s = self._budget_left_s - 2 * self._reserve_s()
        return self._schedule.allows(self._begun(), left_s)

    def _view(self, running: int) -> View:
        left_s = self._left_s()
        return View(
            limit_s=self._schedule.limit_s(len(self.trials), left_s),
            left_s=left_s,
            running=running,
            default_known=self._begun() > 0,
            aim=self._aim(),
        )

    # -- no loss --------------------------------------------------------------------------------

    def _target(self) -> Target | None:
        """Return what a point must reach to lose nothing; ``None`` if that cannot be known."""
        known = self.known
        if known is None or not known.whole or not self.leads:
            return None
        if not self._config.verify.finalists:
            return None
        params, quality = known.result.params, known.result.quality
        sure_s = self._verification.sure_s(self.points)
        if sure_s <= 0:  # ended before its time could be read
            return None
        return Target(
            val_accuracy=known.result.val_accuracy or 0.0,
            test_accuracy=statistics.fmean(known.accuracies),
            deviation=known.deviation,
            test_images=self._setup.dataset.sizes["test"],
            val_images=self._setup.dataset.sizes["validation"],
            sure_s=sure_s,
            images=float(iterations_of(params) * batch_size_of(params)),
            looks=self._verification.next_looks(),
            noise=self._outlook.noise,
            margin=0.0 if self._for_accuracy else self._config.verify.margin(quality),
            quality=quality,
            proof_s=self._verification.proof_s(self._budget_left_s),
            at_once=self._verification.at_once,
        )

    def _aim(self) -> Aim | None:
        """Return what the search aims at: the target, and what it must surpass."""
        target = self._target()
        if target is None:
            return None
        return Aim(
            target=target,
            incumbent=self._incumbent(target),
            accuracy=self._for_accuracy,
            max_images=(LONGER if self._for_accuracy else 1.0) * target.images,
            max_s=self._schedule.provable_s(self._budget_left_s + self._verification.overtime_s),
            further=tuple(self._further()),
        )

    def _incumbent(self, target: Target) -> float:
        """Return the best gain to expect of the known points beyond what is sure; at least 0."""
        if not self._for_accuracy:
            return self._verification.promise(self.points, self._chances)
        points = [each for each in self.points if each.usable and each.metrics["train_time_s"] > 0]
        errors = self._outlook.log_errors(points)
        return max([0.0, *(target.default_log_error - each for each in errors)])

    def _further(self) -> list[TrialResult]:
        """Return trainings besides the trials whose curves are known."""
        recorded = self.known.recorded if self.known else []
        return [*recorded, *self._verification.whole_runs()]

    @property
    def _for_accuracy(self) -> bool:
        return self._config.goal != "no_loss"

    def _chances(self, points: Sequence[TrialResult]) -> list[float]:
        """Return how likely each point is to be proven to lose nothing."""
        target = self._target()
        if target is None:
            return [0.0] * len(points)
        self._outlook.learn([*self.trials, *self._further()], target)
        return self._outlook.chances(points, target)

    # -- verification ---------------------------------------------------------------------------

    def _round(self, *, last: bool) -> list[Trial]:
        return self._verification.next_round(
            self.points, self._chances, self._budget_left_s, last=last
        )

    def _run_round(self, trials: Sequence[Trial]) -> None:
        self._show("verify", self._verification.describe())
        for result in self._runs.measure_all(trials):
            self._folder.keep(result)
            self._runs.tell(result, self._strategy.front)

    # -- trials ---------------------------------------------------------------------------------

    def _begin_with(self, params: Mapping[str, Any]) -> None:
        """Measure the default and set up everything that depends on it."""
        self._show("default", self._what)
        known = self._default.measure(params, self._race)
        self._take_in(known.result)
        self._note_default(known)

    def _note_default(self, known: KnownDefault | None) -> None:
        if known is None or not known.result.usable or not self.leads:
            return
        self.known = known
        self._verification.begin(known)

    def _run_race(self, turn: Probe) -> None:
        assert self._race is not None
        self._show("race", "which runtime settings train fastest")
        self._race.run(turn.max_s)
        self._strategy.learn_paces()

    def _new_trial(self, asked: Train) -> Trial:
        limit_s = self._schedule.limit_s(len(self.trials), self._left_s())
        trial = self._schedule.search_trial(asked.number, asked.params, limit_s, self._rivals())
        return dataclasses.replace(
            trial,
            curve=self._strategy.min_iterations,
            finely=self._looked_at_finely(asked.params),
            warm=self._strategy.warm,
            accuracy_only=asked.pace_s > 0,
            pace_s=asked.pace_s,
        )

    def _looked_at_finely(self, params: Mapping[str, Any]) -> tuple[int, int]:
        """Return the iterations between which stops are evaluated finely; (0, 0) for none."""
        target = self._target()
        if target is None or self._outlook.persistence < _PERSISTENT:
            return 0, 0
        batch = batch_size_of(params)
        first, last = (round(share * target.images / batch) for share in _PART_OF_INTEREST)
        return first, min(last, iterations_of(params))

    def _rivals(self) -> tuple[tuple[float, float], ...]:
        """Return the times and accuracies that a trial must keep up with.

        There are none unless accuracy and training time are the only objectives. Where no loss is
        sought, accuracies count only up to what suffices for it: the best of many looks is the
        luckiest.
        """
        names = {each.name for each in self._objectives}
        if names != {self._setup.dataset.quality.name, "train_time_s"}:
            return ()
        target = None if self._for_accuracy else self._target()
        enough = target.val_accuracy - target.margin if target else 1.0
        return tuple(
            (point.train_time_s, min(point.val_accuracy, enough))
            for each in self._strategy.front
            if not each.trial.projected
            for point in each.checkpoints
        )

    def _take_in(self, result: TrialResult) -> None:
        """Store a result and learn from it."""
        self.trials.append(result)
        self._folder.keep(result)
        self._strategy.tell(result)
        self._runs.tell(result, self._strategy.front)
        self._hear_of_others()
        self._runs.tick()

    # -- other drivers of the study -------------------------------------------------------------

    def _hear_of_others(self) -> None:
        """Take in what other drivers have measured, and take over trials of crashed ones."""
        for number in self._strategy.study.release():
            self._progress.message(f"trial {number} runs again, because its driver has died")
        for each in self._strategy.study.hear_of_others():
            self._strategy.tell(each)
            self.trials.append(each)
        self.trials.sort(key=lambda each: each.trial.number)
        self._runs.count = len(self.trials)

    def _begun(self) -> int:
        """Return the number of trials, including those that other drivers are running."""
        return len(self.trials) + len(self._strategy.study.unfinished_of_others())

    def _wait_for_others(self) -> None:
        """Wait for other drivers to end their trials, for as long as one may take."""
        limit_s = self._schedule.limit_s(len(self.trials), self._left_s())
        until = time.monotonic() + limit_s + _OTHERS_GRACE_S
        while self._strategy.study.unfinished_of_others() and time.monotonic() < until:
            self._runs.pause()
            self._strategy.study.release()
        self._hear_of_others()
