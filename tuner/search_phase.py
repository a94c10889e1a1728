"""The search of one study: default first, then race and trials, until its share of the budget."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from tuner.baseline import BaselineCache
from tuner.config import TuneConfig, objectives_of, parse_constraint
from tuner.errors import RuntimeUnavailable
from tuner.machine_race import MachineRace
from tuner.progress import StudyProgress
from tuner.registry import tuner_home
from tuner.runner import TrialSetup
from tuner.schedule import Schedule
from tuner.search import FactoredSearch, JointSearch
from tuner.study_folder import StudyFolder
from tuner.trial import Trial, TrialResult, TrialStatus
from tuner.trial_runs import TrialRuns

_TICK_S = 0.25
_OTHERS_GRACE_S = 30.0  # for what a trial takes beside its training
_RACE_OF_LEFT = 1 / 3  # most of the time left to search that a turn of the race may take


class SearchPhase:
    """Asks, runs, keeps and tells.

    Args:
        config: Of the study.
        setup: What its trials share.
        fingerprint: Of this machine and the runtime's packages.
        folder: The study's own.
        search: What to try next.
        race: What finds the fastest runtime settings, where the search composes with them.
        runs: What runs trials and keeps them.
        progress: Is told what is being done.

    Attributes:
        trials: All trials of the study by number, those of other drivers included.
    """

    def __init__(
        self,
        config: TuneConfig,
        setup: TrialSetup,
        fingerprint: str,
        folder: StudyFolder,
        search: JointSearch,
        race: MachineRace | None,
        runs: TrialRuns,
        progress: StudyProgress,
    ) -> None:
        self._config, self._setup, self._fingerprint = config, setup, fingerprint
        self._folder, self._search, self._race = folder, search, race
        self._runs, self._progress = runs, progress
        self._objectives = objectives_of(config)
        self._constraints = [parse_constraint(text) for text in config.constraints]
        self._schedule = Schedule(config.budget, config.seed, config.baseline)
        self.trials: list[TrialResult] = []

    @property
    def leads(self) -> bool:
        """Whether trial 0 is this driver's own, and with it verification and report."""
        return not self._search.shared or (self._folder.trials / "default-0000").exists()

    def recall(self, own: Sequence[TrialResult]) -> None:
        """Go on where an earlier session of this driver stopped, which measured ``own``."""
        self.trials = list(own)
        self._search.recall(own)
        self._hear_of_others()
        self._compose_anew()

    def run(self) -> None:
        """Search until the budget ends; what is running then is waited for."""
        if self.leads:
            self._search.end(over=False)
        self._show()
        self._note_default()
        running: set[Future[TrialResult]] = set()
        while True:
            self._fill(running)
            if not running:
                break
            for future in list(self._runs.wait(running))[:1]:  # its slot is free: fill it first
                running.remove(future)
                self._take_in(future.result())
        if self.leads:
            self._search.end()
            self._wait_for_others()
        self._compose_anew()

    def _show(self) -> None:
        self._progress.phase(
            "search", f"{self._setup.framework.title} on {self._setup.dataset.name}"
        )

    # -- trials ---------------------------------------------------------------------------------

    def _fill(self, running: set[Future[TrialResult]]) -> None:
        """Begin trials while slots are free and the budget allows; trial 0 alone, to its end."""
        while len(running) < self._runs.executor.slots and self._goes_on(len(running)):
            limit_s = self._limit_s()
            if self._wants_race(limit_s):
                if running:  # they would disturb each other
                    return
                self._run_race(limit_s)
            number, params = self._search.ask(limit_s)
            trial = self._new_trial(number, params, limit_s)
            if number == 0:
                self._take_in(self._measure_default(trial))
            else:
                running.add(self._runs.begin(trial))

    def _goes_on(self, running: int) -> bool:
        begun = self._begun() + running
        return not self._search.over and self._schedule.allows(begun, self._folder.elapsed_s)

    def _limit_s(self) -> float:
        """The longest that the next trial may train."""
        return self._schedule.limit_s(len(self.trials), self._folder.elapsed_s)

    def _new_trial(self, number: int, params: Mapping[str, Any], limit_s: float) -> Trial:
        curve = self._search.shortest if isinstance(self._search, FactoredSearch) else 0
        if number == 0:
            return dataclasses.replace(self._schedule.default_trial(params), curve=curve)
        trial = self._schedule.search_trial(number, params, limit_s, self._rivals())
        counted = {each.metric for each in self._objectives}
        counted |= {each.objective.metric for each in self._constraints}
        warm = self._race is not None and not counted & {"avg_memory_bytes", "peak_memory_bytes"}
        return dataclasses.replace(trial, curve=curve, warm=warm)

    def _rivals(self) -> tuple[tuple[float, float], ...]:
        """What a trial must keep up with where accuracy and time are all that counts."""
        if {each.name for each in self._objectives} != {"accuracy", "train_time_s"}:
            return ()
        return tuple(
            (point.train_time_s, point.val_accuracy)
            for each in self._search.front
            if not each.trial.projected
            for point in each.checkpoints
        )

    def _take_in(self, result: TrialResult) -> None:
        """Keep what was measured, and learn from it."""
        self.trials.append(result)
        self._folder.keep(result)
        self._search.tell(result)
        self._runs.tell(result, self._search.front)
        self._hear_of_others()
        self._note_default()

    # -- the default ----------------------------------------------------------------------------

    def _measure_default(self, trial: Trial) -> TrialResult:
        """Trial 0; run in full it is paid once a machine, and not from the budget."""
        if self._config.baseline != "full":
            return self._checked_default(self._runs.measure(trial))
        cache = BaselineCache(tuner_home() / "baselines", self._setup, trial, self._fingerprint)
        folder = self._folder.trials / trial.name
        result = cache.fetch(folder)
        if result is None:
            result = self._checked_default(self._runs.measure(trial))
            cache.keep(folder, result)
            self._folder.restart_clock()
        else:
            self._progress.message(f"the default's full run of {cache.folder.name} is reused")
        return result

    def _checked_default(self, result: TrialResult) -> TrialResult:
        """Trial 0 as the reference it must be: projected where it could not end in time."""
        if result.status is TrialStatus.UNAVAILABLE:
            name = self._setup.framework.name
            raise RuntimeUnavailable(
                f"{name}: {result.reason}: {(result.log_tail.splitlines() or [''])[-1]}; "
                f"python -m tuner runtimes check {name} tests its runtime"
            )
        if result.status is not TrialStatus.STOPPED or result.measurement is None:
            return result
        if result.ended_itself:  # as long as the default ever trains
            return result
        return result.projected("the budget allows no more")

    def _note_default(self) -> None:
        """What trial 0 takes of the budget; a full run that is paid once a machine takes none."""
        default = next((each for each in self.trials if each.trial.number == 0), None)
        if default and default.measurement and self._config.baseline != "full":
            spent_s = default.measurement.wall_time_s if self.leads else 0.0
            self._schedule = dataclasses.replace(self._schedule, default_s=spent_s)

    # -- the race -------------------------------------------------------------------------------

    def _compose_anew(self) -> None:
        """What was composed early, by all that is known of the paces now."""
        if isinstance(self._search, FactoredSearch) and self._race and self._race.known.probes:
            self._search.learn_runtimes(self._race.known)

    def _wants_race(self, limit_s: float) -> bool:
        """Whether learning what runtime settings cost is worth more than the next trial."""
        if self._race is None or not self._begun():
            return False
        assert isinstance(self._search, FactoredSearch)
        if not self._race.known.probes:  # the default's pace first, by which all is planned
            return True
        return self._race.is_worth(self._search.least_hope(limit_s))

    def _run_race(self, limit_s: float) -> None:
        assert self._race is not None
        assert isinstance(self._search, FactoredSearch)
        if not self._race.known.probes:
            self._run_race_for(self._race, self._search, math.inf)
        if self._wants_race(limit_s):
            self._run_race_for(self._race, self._search, self._search.least_hope(limit_s))

    def _run_race_for(self, race: MachineRace, search: FactoredSearch, least_hope: float) -> None:
        self._progress.phase("race", "which runtime settings train fastest")
        left_s = self._schedule.search_end_s - self._folder.elapsed_s
        race.run(least_hope, _RACE_OF_LEFT * left_s)
        search.learn_runtimes(race.known)
        self._show()

    # -- other drivers of the study -------------------------------------------------------------

    def _hear_of_others(self) -> None:
        """Take in what other drivers have measured."""
        self.trials += self._search.hear_of_others()
        self.trials.sort(key=lambda each: each.trial.number)
        self._runs.count = len(self.trials)

    def _begun(self) -> int:
        """How many trials there are, those included that other drivers are about."""
        return len(self.trials) + len(self._search.unfinished_of_others())

    def _wait_for_others(self) -> None:
        """Let them end their trials, as long as one may take."""
        until = time.monotonic() + self._limit_s() + _OTHERS_GRACE_S
        while self._search.unfinished_of_others() and time.monotonic() < until:
            self._runs.tick()
            time.sleep(_TICK_S)
        self._hear_of_others()
