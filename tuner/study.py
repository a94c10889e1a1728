"""One study from its first trial to its report: ask, submit, tell, log; default first; resume."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import yaml

from tuner import measure
from tuner.baseline import BaselineCache
from tuner.config import TuneConfig, objectives_of, parse_constraint, validate
from tuner.errors import NoTrialSucceeded, RuntimeUnavailable
from tuner.executors import Executor, LocalExecutor
from tuner.interrupts import DeferredInterrupts
from tuner.machine_race import MachineRace
from tuner.preparation import Preparation, prepare, results_place
from tuner.progress import StudyProgress, make_progress
from tuner.registry import tuner_home
from tuner.report import write_report
from tuner.results import StudyResult, Verified, default_warnings
from tuner.schedule import Schedule
from tuner.search import FactoredSearch, JointSearch
from tuner.study_folder import write_atomically
from tuner.tracking import Tracker, experiment_name
from tuner.trial import Trial, TrialKind, TrialResult, TrialStatus
from tuner.verification import Verification

_TICK_S = 0.25
_RACE_OF_LEFT = 1 / 3  # most of the time left to search that a turn of the race may take


def tune(
    config: TuneConfig, progress: StudyProgress | None = None, command: str = ""
) -> StudyResult:
    """Run the study that ``config`` describes to its end, going on where it was left.

    Args:
        config: Is checked first.
        progress: Where to show how far it is; made by ``config.progress`` if not given.
        command: What the user would type to go on with the study, for the report.

    Everything measured is kept as it is measured, so an interruption (``KeyboardInterrupt`` is
    raised on after the running trial was ended) costs only the trial that was running.

    Raises:
        ConfigError: A value cannot be used, or another process runs the same study.
        RuntimeUnavailable, DatasetUnavailable: Something needed is not here and cannot be had.
        NoTrialSucceeded: Nothing could be measured.
    """
    validate(config)
    uri, output = results_place(config)
    with contextlib.ExitStack() as stack:
        shown = progress or stack.enter_context(make_progress(config.progress))
        prepared = prepare(config, shown, uri)
        interrupts = stack.enter_context(DeferredInterrupts())
        study = _Study(config, shown, interrupts, prepared, uri, output)
        stack.callback(study.close)
        return study.run(command or _command(config))


class _Study:
    """One study at work; ``run`` is the loop."""

    def __init__(
        self,
        config: TuneConfig,
        progress: StudyProgress,
        interrupts: DeferredInterrupts,
        prepared: Preparation,
        uri: str,
        output: Path,
    ) -> None:
        self.config, self.progress, self.interrupts = config, progress, interrupts
        self.setup, self.folder = prepared.setup, prepared.folder
        self.objectives = objectives_of(config)
        self.schedule = Schedule(config.budget, config.seed, config.baseline)
        self.constraints = [parse_constraint(text) for text in config.constraints]
        self.verification = Verification(
            config,
            self.folder,
            self.objectives,
            self.constraints,
            self.setup.dataset.sizes["test"],
        )
        self.machine = measure.machine_facts(self.setup.cores)
        self.packages = self.setup.runtime.packages()
        self.space, self.default = prepared.space, prepared.default
        self.race = self._make_race() if config.search.name == "factored" else None
        make = FactoredSearch if self.race else JointSearch
        self.search: JointSearch = make(
            self.space,
            self.objectives,
            self.constraints,
            sampler=config.sampler,
            storage=config.storage or f"sqlite:///{self.folder.path}/optuna.db",
            name=self.folder.path.name,
            default=self.default.params,
            seed=config.seed,
        )
        self._compose_anew()
        self.tracker = Tracker(
            uri,
            output,
            experiment=experiment_name(self.setup.framework.name, self.setup.dataset.requested),
            study_id=self.folder.path.name,
            name=f"{self.setup.framework.name} {self.setup.dataset.requested} "
            f"{self.folder.path.name}",
            tags=self._study_tags(),
            params=dataclasses.asdict(config),
        )
        self.executor: Executor = LocalExecutor(self.setup, listener=progress.trial_progress)
        self.trials: list[TrialResult] = []

    def _make_race(self) -> MachineRace:
        return MachineRace(
            self.setup,
            self.space,
            self.default.params,
            measure.fingerprint(self.machine, self.packages),
            tuner_home() / "runtime-maps",
            config=self.config.search,
            budget_s=self.config.budget.time_s,
            check=self.interrupts.check,
            tell=self.progress.task,
        )

    @property
    def points(self) -> list[TrialResult]:
        """All that finalists are picked from: the trials, and what their checkpoints stand for."""
        return [*self.trials, *self.search.derived]

    def _study_tags(self) -> dict[str, str]:
        dataset = self.setup.dataset
        return {
            "framework": self.setup.framework.name,
            "dataset": dataset.name,
            "dataset_requested": dataset.requested,
            "dataset_digest": dataset.digest,
            "dataset_warning": dataset.warning,
            "fingerprint": measure.fingerprint(self.machine, self.packages),
            **{f"machine.{name}": value for name, value in self.machine.items()},
        }

    def close(self) -> None:
        """End what runs and let go of the study."""
        self.executor.close()
        self.folder.close()

    def run(self, command: str) -> StudyResult:
        """Search, verify, report; whatever was done before is not done again."""
        self.command = command
        self._recover()
        if self._is_complete():
            self.progress.message(
                f"study {self.folder.path.name} is complete; a larger budget goes on with it, "
                "resume=never starts it anew"
            )
            return self._result(complete=True, verified=self.verification.summary(self.points))
        self.tracker.begin()
        self.folder.restart_clock()
        if self.folder.facts.get("complete"):  # the budget was raised: verify again at its end
            self.verification.forget()
        self.folder.save(started=self.folder.facts.get("started") or _now())
        try:
            if not self.verification.begun:
                self._search()
            verified = self.verification.run(
                self.points, self._verify, lambda text: self.progress.phase("verify", text)
            )
        except KeyboardInterrupt:
            self.executor.cancel()
            self._finish(self._result(complete=False, verified=()))
            raise
        result = self._result(complete=True, verified=verified)
        self._finish(result)
        self.folder.save(
            complete=True,
            budget={"time_s": self.config.budget.time_s, "trials": self.config.budget.trials},
        )
        return result

    def _is_complete(self) -> bool:
        """Whether the study ended under a budget at least as large as this one."""
        spent = self.folder.facts.get("budget")
        if not self.folder.facts.get("complete") or not spent:
            return False
        budget = self.config.budget
        more_trials = (budget.trials or math.inf) > (spent["trials"] or math.inf)
        return not (budget.time_s > spent["time_s"] or more_trials)

    def _recover(self) -> None:
        """Bring sampler and MLflow up to what the study's folder holds."""
        measure.kill_marked(f"{self.setup.marker}/")
        self.trials = self.folder.results(TrialKind.DEFAULT, TrialKind.SEARCH)
        for leftover in self.folder.path.glob("race-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self.search.recall(self.trials)
        self._compose_anew()
        verified = self.folder.results(TrialKind.VERIFY)
        for result in (*self.trials, *verified):
            self.tracker.log_trial(result, self.folder.trials / result.trial.name)
        if self.trials:
            self.progress.message(
                f"going on with study {self.folder.path.name}: {len(self.trials)} trials and "
                f"{len(verified)} verification runs are kept"
            )

    # -- search ---------------------------------------------------------------------------------

    def _search(self) -> None:
        self._show_search()
        self._note_default()
        while self.schedule.allows(len(self.trials), self.folder.elapsed_s):
            limit_s = self.schedule.limit_s(len(self.trials), self.folder.elapsed_s)
            self._race(limit_s)
            number, params = self.search.ask(limit_s)
            trial = self._new_trial(number, params, limit_s)
            result = self._measure_default(trial) if number == 0 else self._measure(trial)
            self.trials.append(result)
            self.folder.keep(result)
            self.search.tell(result)
            self._log(result)
            self._note_default()
        self._compose_anew()

    def _compose_anew(self) -> None:
        """What was composed early, by all that is known of the paces now."""
        if isinstance(self.search, FactoredSearch) and self.race and self.race.known.probes:
            self.search.learn_runtimes(self.race.known)

    def _note_default(self) -> None:
        """What trial 0 takes of the budget; a full run that is paid once a machine takes none."""
        if self.trials and self.trials[0].measurement and self.config.baseline != "full":
            spent_s = self.trials[0].measurement.wall_time_s
            self.schedule = dataclasses.replace(self.schedule, default_s=spent_s)

    def _race(self, limit_s: float) -> None:
        """Learn what runtime settings cost, while that is worth more than the next trial."""
        if self.race is None or not self.trials:
            return
        assert isinstance(self.search, FactoredSearch)
        if not self.race.known.probes:  # the default's pace first, by which all is planned
            self._race_for(self.search, math.inf)
        least_hope = self.search.least_hope(limit_s)
        if self.race.is_worth(least_hope):
            self._race_for(self.search, least_hope)

    def _race_for(self, search: FactoredSearch, least_hope: float) -> None:
        assert self.race is not None
        self.progress.phase("race", "which runtime settings train fastest")
        left_s = self.schedule.search_end_s - self.folder.elapsed_s
        self.race.run(least_hope, _RACE_OF_LEFT * left_s)
        search.learn_runtimes(self.race.known)
        self._show_search()

    def _show_search(self) -> None:
        self.progress.phase("search", f"{self.setup.framework.title} on {self.setup.dataset.name}")

    def _new_trial(self, number: int, params: Mapping[str, Any], limit_s: float) -> Trial:
        curve = self.search.shortest if isinstance(self.search, FactoredSearch) else 0
        if number == 0:
            return dataclasses.replace(self.schedule.default_trial(params), curve=curve)
        trial = self.schedule.search_trial(number, params, limit_s, self._rivals())
        counted = {each.metric for each in self.objectives}
        counted |= {each.objective.metric for each in self.constraints}
        warm = self.race is not None and not counted & {"avg_memory_bytes", "peak_memory_bytes"}
        return dataclasses.replace(trial, curve=curve, warm=warm)

    def _rivals(self) -> tuple[tuple[float, float], ...]:
        """What a trial must keep up with where accuracy and time are all that counts."""
        if {each.name for each in self.objectives} != {"accuracy", "train_time_s"}:
            return ()
        return tuple(
            (point.train_time_s, point.val_accuracy)
            for each in self.search.front
            if not each.trial.projected
            for point in each.checkpoints
        )

    def _measure_default(self, trial: Trial) -> TrialResult:
        """Trial 0; run in full it is paid once a machine, and not from the budget."""
        if self.config.baseline != "full":
            return self._checked_default(self._measure(trial))
        fingerprint = measure.fingerprint(self.machine, self.packages)
        cache = BaselineCache(tuner_home() / "baselines", self.setup, trial, fingerprint)
        folder = self.folder.trials / trial.name
        result = cache.fetch(folder)
        if result is None:
            result = self._checked_default(self._measure(trial))
            cache.keep(folder, result)
            self.folder.restart_clock()
        else:
            self.progress.message(f"the default's full run of {cache.folder.name} is reused")
        return result

    def _checked_default(self, result: TrialResult) -> TrialResult:
        """Trial 0 as the reference it must be: projected where it could not end in time."""
        if result.status is TrialStatus.UNAVAILABLE:
            raise RuntimeUnavailable(
                f"{self.setup.framework.name}: {result.reason}: "
                f"{(result.log_tail.splitlines() or [''])[-1]}; "
                f"python -m tuner runtimes check {self.setup.framework.name} tests its runtime"
            )
        if result.status is not TrialStatus.STOPPED or result.measurement is None:
            return result
        if result.ended_itself:  # as long as the default ever trains
            return result
        return result.projected("the budget allows no more")

    # -- running and telling --------------------------------------------------------------------

    def _measure(self, trial: Trial) -> TrialResult:
        """Run one trial while the display goes on. Ctrl-C ends it and is raised on."""
        self.interrupts.check()
        self.progress.trial_started(trial)
        future = self.executor.submit(trial)
        while not _is_done(future):
            self.interrupts.check()
            self._tell_budget()
        self._tell_budget()
        return future.result()

    def _tell_budget(self) -> None:
        budget = self.config.budget
        self.progress.budget(self.folder.elapsed_s, budget.time_s, len(self.trials), budget.trials)

    def _verify(self, trial: Trial) -> None:
        result = self._measure(trial)
        self.folder.keep(result)
        self._log(result)

    def _log(self, result: TrialResult) -> None:
        self.progress.trial_finished(result, self.search.front)
        self.tracker.log_trial(result, self.folder.trials / result.trial.name)

    def _result(self, *, complete: bool, verified: tuple[Verified, ...]) -> StudyResult:
        dataset, budget = self.setup.dataset, self.config.budget
        return StudyResult(
            study_id=self.folder.path.name,
            framework=self.setup.framework.name,
            title=self.setup.framework.title,
            dataset=dataset.name,
            dataset_facts=dataset.facts(),
            model=self.config.model,
            objectives=tuple(self.objectives),
            constraints=tuple(map(str, self.constraints)),
            trials=tuple(self.trials),
            derived=tuple(self.search.derived),
            runtimes=self.race.known if self.race and self.race.known.probes else None,
            verifications=tuple(self.folder.results(TrialKind.VERIFY)),
            verified=verified,
            machine=self.machine,
            runtime=self.packages,
            warnings=(*filter(None, [dataset.warning]), *default_warnings(self.trials)),
            started=str(self.folder.facts.get("started", "")),
            elapsed_s=self.folder.elapsed_s,
            budget={
                "name": budget.name,
                "time_s": f"{budget.time_s:g}",
                "trials": str(budget.trials or "no limit"),
            },
            complete=complete,
            command=self.command,
        )

    def _finish(self, result: StudyResult) -> None:
        if result.complete and not any(each.usable for each in result.trials):
            first = result.trials[0]
            raise NoTrialSucceeded(
                f"none of {len(result.trials)} trials succeeded; the default ended as "
                f"{first.status.value}: {first.reason}; logs are in {self.folder.trials}"
            )
        self.progress.phase("report")
        folder = self.folder.path / "report"
        files = write_report(result, folder)
        resolved = yaml.safe_dump(dataclasses.asdict(self.config), sort_keys=False)
        write_atomically(folder / "config.yaml", resolved)
        files.append(folder / "config.yaml")
        tags = {"elapsed_s": f"{result.elapsed_s:.0f}", "trials": str(len(result.trials))}
        self.tracker.finish(files, tags, complete=result.complete)


def _is_done(future: Future[TrialResult]) -> bool:
    return bool(wait([future], timeout=_TICK_S).done)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _command(config: TuneConfig) -> str:
    """The command that goes on with the study."""
    return f"python -m tuner framework={config.framework.name} dataset={config.dataset.name}"
