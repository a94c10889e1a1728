"""One study from its first trial to its report: run, track, verify and, if interrupted, resume."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import shlex
from contextlib import AbstractContextManager
from pathlib import Path

import yaml

from tuner import measure
from tuner.config.catalogue import tuner_home
from tuner.config.schema import TuneConfig, objectives_of, parse_constraint
from tuner.config.validation import validate
from tuner.executors import CrowdedExecutor, Executor, LocalExecutor, RaceSession, RayExecutor
from tuner.progress import StudyProgress, make_progress
from tuner.race.machine import MachineRace
from tuner.report import headline, report_lacks_files, study_metrics, write_report
from tuner.search import (
    Driver,
    FactoredSearch,
    JointSearch,
    OptunaStudy,
    Outlook,
    RayTune,
    Strategy,
)
from tuner.storage.databases import Hold, exclusive
from tuner.storage.study_folder import delete_folder, home_id, write_atomically
from tuner.study.default_trial import DefaultTrial
from tuner.study.interrupts import DeferredInterrupts
from tuner.study.loop import StudyLoop
from tuner.study.preparation import Preparation, prepare, results_place, shown_config
from tuner.study.storage_faults import reported_faults
from tuner.study.trial_runs import TrialRuns
from tuner.tracking import Outbox, TrackedDataset, Tracker, experiment_name
from tuner.trials.session import remove_worker_folders
from tuner.trials.setup import UNCONFINED, claim_cores, core_sets, host_facts
from tuner.values.errors import NoTrialSucceeded
from tuner.values.results import StudyResult, default_warnings
from tuner.values.trial import Params, TrialKind, TrialResult
from tuner.verification.rounds import Verification

_UPLOADS_S = 300.0  # longest wait for another driver's uploads before the study begins


def tune(
    config: TuneConfig, progress: StudyProgress | None = None, command: str = ""
) -> StudyResult:
    """Run the study that ``config`` describes to its end, resuming it if it was begun before.

    Args:
        config: Validated first.
        progress: Shows the progress; made from ``config.progress`` if not given.
        command: Command that resumes the study, shown in the report.

    Every result is stored at once, so an interruption loses only the running trial.
    ``KeyboardInterrupt`` is re-raised after that trial has been ended.

    Raises:
        ConfigError: A value cannot be used, or another process runs the same study.
        RuntimeUnavailable, DatasetUnavailable: Something needed is missing and unobtainable.
        NoTrialSucceeded: Nothing could be measured.
    """
    validate(config)
    uri, output = results_place(config)
    with contextlib.ExitStack() as stack:
        shown = progress or stack.enter_context(make_progress(config.progress))
        with reported_faults(output, config.storage):
            prepared = prepare(config, shown, uri)
        stack.callback(prepared.folder.close)
        interrupts = stack.enter_context(DeferredInterrupts())
        with reported_faults(prepared.folder.path, config.storage):
            study = _Study(config, shown, interrupts, prepared, uri, output, stack)
        return study.run(command or _command(config))


class _Study:
    """One running study."""

    def __init__(
        self,
        config: TuneConfig,
        progress: StudyProgress,
        interrupts: DeferredInterrupts,
        prepared: Preparation,
        uri: str,
        output: Path,
        on_exit: contextlib.ExitStack,
    ) -> None:
        self.config, self.progress, self.interrupts = config, progress, interrupts
        self.setup, self.folder = prepared.setup, prepared.folder
        self.objectives = objectives_of(config)
        self.constraints = [parse_constraint(text) for text in config.constraints]
        self.machine = host_facts(config)
        self.packages = self.setup.runtime.packages()
        self.fingerprint = measure.fingerprint(self.machine, self.packages)
        # several drivers can share a storage outside the study's folder; a host name would
        # identify them only as long as a container lives
        name = f"{home_id(tuner_home())}:{self.folder.path.name}"
        self.driver = Driver(name, self.fingerprint) if config.storage else None
        fresh = config.resume == "restart"
        self.space, self.default = prepared.space, prepared.default
        self.stored = OptunaStudy(
            self.space,
            self.objectives,
            self.constraints,
            sampler=config.sampler,
            storage=config.storage or f"sqlite:///{self.folder.path}/optuna.db",
            name=self.folder.path.name,
            default=self.default.params,
            seed=config.seed,
            driver=self.driver,
            fresh=fresh,
        )
        on_exit.callback(self.stored.close)
        if self.stored.crew:
            self.folder.publish = self.stored.crew.publish
        self.race: MachineRace | None = None
        self.search = self._make_strategy()
        with self._uploads_alone():
            self.tracker = Tracker(
                uri,
                output,
                experiment=experiment_name(
                    self.setup.framework.name, self.setup.dataset.requested
                ),
                study_id=self.folder.path.name,
                name=f"{self.setup.framework.name} {self.setup.dataset.requested} "
                f"{self.folder.path.name}",
                tags=self._study_tags(),
                params=shown_config(config),
                fresh=fresh,
                dataset=self._tracked_dataset(),
            )
        # what is half written was left by a crashed driver: no other writes at the same time
        self.outbox = Outbox(self.tracker, self._uploads_alone, progress.message)
        self.runs = TrialRuns(
            self._make_executor, self.folder, self._track, config.budget, progress, interrupts
        )
        on_exit.callback(self.runs.close)
        self.verification = Verification(
            config,
            self.folder,
            self.objectives,
            self.constraints,
            self.setup.dataset.sizes["test"],
            self.search.min_iterations,
            self.search.beside,
        )
        self.loop = StudyLoop(
            config,
            self.setup,
            self.folder,
            self.search,
            self.race,
            DefaultTrial(
                config, self.setup, self.space, self.fingerprint, self.folder, self.runs, progress
            ),
            self.verification,
            Outlook(self.space, config.seed),
            self.runs,
            progress,
        )

    def _uploads_alone(self, wait_s: float = _UPLOADS_S) -> AbstractContextManager[None]:
        """Keep the study's other drivers from writing to MLflow; their search continues."""
        if not self.stored.shared:
            return contextlib.nullcontext()
        return exclusive(self.config.storage, Hold.UPLOADS, wait_s)

    def _make_executor(self) -> Executor:
        if self.config.executor.name == "local":
            _, *others = core_sets(self.config.executor)
            listener = self.progress.trial_progress
            if others:
                return CrowdedExecutor(self.setup, others, listener)
            return LocalExecutor(self.setup, listener)
        self.progress.phase("prepare", "the nodes of the Ray cluster")
        return RayExecutor(
            self.config,
            self.setup,
            self.fingerprint,
            say=self.progress.message,
            check=self.interrupts.check,
            repeats=self.config.measure.repeats,
        )

    def _make_strategy(self) -> Strategy:
        if self.config.search.name == "raytune":
            return JointSearch(self.stored, RayTune(self.stored).ask)
        if self.config.search.name == "joint":
            return JointSearch(self.stored)
        self.race = self._make_race()
        return FactoredSearch(self.stored, self.race, self._cores_for_accuracy)

    @property
    def _cores_for_accuracy(self) -> int:
        """Number of cores on which trials may run side by side if only accuracy counts."""
        here = self.config.executor.name == "local" and len(core_sets(self.config.executor)) == 1
        return len(self.setup.cores) if here else 1

    def _make_race(self) -> MachineRace:
        return MachineRace(
            self.setup,
            self.space,
            self.default.params,
            self.fingerprint,
            tuner_home() / "runtime-maps",
            config=self.config.search,
            budget_s=self.config.budget.time_s,
            check=self.interrupts.check,
            tell=self.progress.task,
            open_session=self._open_on_nodes if self.config.executor.nodes_per_trial > 1 else None,
        )

    def _open_on_nodes(self, params: Params) -> AbstractContextManager[RaceSession]:
        """Open a worker, or a group of them, on the nodes on which trials run."""
        executor = self.runs.executor
        assert isinstance(executor, RayExecutor)
        return executor.session(params)

    def _study_tags(self) -> dict[str, str]:
        dataset = self.setup.dataset
        return {
            "framework": self.setup.framework.name,
            "dataset": dataset.name,
            "dataset_requested": dataset.requested,
            "dataset_digest": dataset.digest,
            "dataset_warning": dataset.warning,
            "fingerprint": self.fingerprint,
            **{f"machine.{name}": value for name, value in self.machine.items()},
        }

    def _tracked_dataset(self) -> TrackedDataset:
        dataset = self.setup.dataset
        return TrackedDataset(dataset.name, dataset.digest, dataset.origin)

    def run(self, command: str) -> StudyResult:
        """Search, verify and report, without repeating what was done before."""
        try:
            with reported_faults(self.folder.path, self.config.storage):
                return self._run(command)
        except Exception as error:
            if self.loop.leads:
                self.tracker.fail(str(error) or type(error).__name__)
            raise

    def _run(self, command: str) -> StudyResult:
        self.command = command
        self._recover()
        if self._is_complete():
            self.progress.message(
                f"study {self.folder.path.name} is complete; a larger budget continues it, "
                "resume=restart starts over"
            )
            result = self._result(complete=True)
            written = self.folder.path / "report"
            if not self.folder.facts.get("tracked", True) or report_lacks_files(written):
                result = self._track_end(result)
            return result
        if self.loop.leads:
            self.outbox.begin()
        try:
            with self._claimed_cores():
                self.folder.restart_clock()
                self.folder.save(
                    complete=False, started=self.folder.facts.get("started") or _now()
                )
                self.loop.run()
                while self._inherits():
                    self.loop.run()
            if not self.loop.leads:
                self.progress.message(
                    f"the search has ended; the driver that leads study {self.folder.path.name} "
                    "verifies and reports"
                )
                return self._result(complete=True)
        except KeyboardInterrupt:
            self.runs.cancel()
            if self.loop.leads:
                self._finish(self._result(complete=False))
            raise
        result = self._finish(self._result(complete=True))
        if self.stored.crew:
            self.stored.crew.note_report(written=True)
        self.folder.save(
            complete=True,
            budget={"time_s": self.config.budget.time_s, "trials": self.config.budget.trials},
        )
        return result

    def _inherits(self) -> bool:
        """Take the lead if the leading driver shows no sign of life; return whether it did."""
        crew = self.stored.crew
        if crew is None or crew.leads or not crew.leader or crew.reported:
            return False
        leader = crew.leader
        self.progress.phase("waiting", "for a sign of life of the driver that leads the study")
        if not crew.outlives(leader, self.runs.pause):
            return False
        with self.stored.alone():
            if crew.leader != leader or crew.reported:
                return False
            crew.lead()
        self.folder.adopt(crew.published)
        self.loop.take_the_lead()
        self.outbox.begin()
        self.progress.message(f"driver {leader} has died; this one leads the study from now on")
        return True

    def _claimed_cores(self) -> AbstractContextManager[object]:
        """Claim this machine's CPUs for this study; the nodes of a cluster claim their own."""
        if self.config.executor.name != "local":
            return contextlib.nullcontext()
        return claim_cores(self.config.executor, self.progress, self.interrupts.check)

    def _is_complete(self) -> bool:
        """Return whether the study ended under a budget at least as large as this one."""
        spent = self.folder.facts.get("budget")
        if not self.folder.facts.get("complete") or not spent:
            return False
        budget = self.config.budget
        more_trials = (budget.trials or math.inf) > (spent["trials"] or math.inf)
        return not (budget.time_s > spent["time_s"] or more_trials)

    def _recover(self) -> None:
        """Clean up after earlier sessions; bring sampler and MLflow up to date with the folder."""
        measure.kill_marked(f"{self.setup.marker}/")
        remove_worker_folders(self.setup.folder)
        for pattern in ("race-*", "beside-*"):
            for leftover in self.folder.path.glob(pattern):
                delete_folder(leftover)
        trials = self.folder.results(TrialKind.DEFAULT, TrialKind.SEARCH)
        failed = trials and trials[0].trial.is_default and not trials[0].usable
        if failed and not self._is_complete():
            # its params are valid, so the cause lay elsewhere and may be fixed by now
            default = trials.pop(0)
            self.folder.set_aside(default)
            self.outbox.forget(default.trial.name)
        verified = self.folder.results(TrialKind.VERIFY)
        self.loop.recall(trials)
        for result in (*trials, *verified):
            self._track(result)
        if self.folder.damaged:
            self.progress.message(
                f"results of {', '.join(self.folder.damaged)} were damaged: they are set aside, "
                "and measured again"
            )
        if trials:
            self.progress.message(
                f"resuming study {self.folder.path.name}: {len(trials)} trials and "
                f"{len(verified)} verification runs are kept"
            )

    def _track(self, result: TrialResult) -> None:
        self.outbox.send(result, self.folder.trials / result.trial.name)

    def _result(self, *, complete: bool) -> StudyResult:
        dataset, budget, known = self.setup.dataset, self.config.budget, self.loop.known
        return StudyResult(
            study_id=self.folder.path.name,
            framework=self.setup.framework.name,
            title=self.setup.framework.title,
            dataset=dataset.name,
            dataset_facts=dataset.facts()
            | ({"default": self.default.source} if dataset.likeness else {}),
            model=self.config.model,
            objectives=tuple(self.objectives),
            constraints=tuple(map(str, self.constraints)),
            trials=tuple(self.loop.trials),
            derived=tuple(self.search.derived),
            runtimes=self.race.known if self.race and self.race.known.probes else None,
            verifications=tuple(self.folder.results(TrialKind.VERIFY)),
            verified=self.verification.summary(),
            machine=self.machine,
            runtime=self.packages,
            warnings=(
                *filter(None, [dataset.warning, "" if self.config.sandbox else UNCONFINED]),
                *default_warnings(self.loop.trials, known.part if known else ""),
            ),
            started=str(self.folder.facts.get("started", "")),
            elapsed_s=self.folder.elapsed_s,
            budget={
                "name": budget.name,
                "time_s": f"{budget.time_s:g}",
                "trials": str(budget.trials or "no limit"),
            },
            complete=complete,
            command=self.command,
            accuracy_margin=self.config.verify.margin(self.setup.dataset.quality),
            reference=known.words if known else "",
            default_part=known.part if known else "",
            notes=self.verification.notes(),
        )

    def _finish(self, result: StudyResult) -> StudyResult:
        if result.complete and not any(each.usable for each in result.trials):
            first = result.trials[0]
            raise NoTrialSucceeded(
                f"none of {len(result.trials)} trials succeeded; the default ended as "
                f"{first.status.value}: {first.reason}; logs are in {self.folder.trials}"
            )
        self.progress.phase("report")
        return self._track_end(result)

    def _track_end(self, result: StudyResult) -> StudyResult:
        """Write the report, and send it with everything that MLflow still lacks."""
        folder = self.folder.path / "report"
        files = write_report(result, folder)
        resolved = yaml.safe_dump(shown_config(self.config), sort_keys=False)
        write_atomically(folder / "config.yaml", resolved)
        files.append(folder / "config.yaml")
        if self.stored.shared:  # a crashed driver may have sent less than it measured
            self.outbox.doubt()
            for each in (*result.trials, *result.verifications):
                self._track(each)
        tags = {"elapsed_s": f"{result.elapsed_s:.0f}", "trials": str(len(result.trials))}
        tracked = self.outbox.finish(
            files,
            tags,
            complete=result.complete,
            metrics=study_metrics(result),
            description="\n\n".join(headline(result)),
        )
        self.folder.save(tracked=tracked)
        if not tracked:
            self.progress.message(
                f"MLflow has not got all of study {self.folder.path.name}; its report is in "
                f"{folder}, and the same command sends what is missing once MLflow answers"
            )
        return dataclasses.replace(result, tracked=tracked)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _command(config: TuneConfig) -> str:
    """Return the command that resumes the study."""
    data = [f"dataset={config.dataset.name}"]
    if config.dataset.path:
        data = [f"dataset.path={config.dataset.path}", f"dataset.name={config.dataset.name}"]
    return shlex.join(["python", "-m", "tuner", f"framework={config.framework.name}", *data])
