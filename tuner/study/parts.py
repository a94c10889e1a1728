"""The parts of a study: made from its configuration, and connected to each other."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path

from tuner import measure
from tuner.config.catalogue import tuner_home
from tuner.config.schema import TuneConfig, objectives_of, parse_constraint
from tuner.executors import CrowdedExecutor, Executor, LocalExecutor, RaceSession, RayExecutor
from tuner.progress import StudyProgress
from tuner.race.machine import MachineRace
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
from tuner.storage.study_folder import home_id
from tuner.study.default_trial import DefaultTrial
from tuner.study.interrupts import DeferredInterrupts
from tuner.study.loop import StudyLoop
from tuner.study.preparation import Preparation, shown_config
from tuner.study.trial_runs import TrialRuns
from tuner.tracking import Outbox, TrackedDataset, Tracker, experiment_name
from tuner.trials.setup import core_sets, host_facts
from tuner.values.params import Params
from tuner.values.trial import TrialResult
from tuner.verification.rounds import Verification

_UPLOADS_S = 300.0  # longest wait for another driver's uploads before the study begins


class Parts:
    """The parts of one study.

    Args:
        config: The study's configuration.
        prepared: What it starts from.
        progress: Shows what is being done.
        interrupts: Checked for Ctrl-C wherever it is safe to stop.
        uri: MLflow's address.
        output: Folder of MLflow's artifacts.
        on_exit: Closes what was opened.

    Attributes:
        config: The study's configuration.
        progress: Shows what is being done.
        interrupts: Checked for Ctrl-C.
        setup: What all trials share.
        folder: The study's folder.
        default: The framework's default for this data set and model.
        objectives: What is optimised.
        constraints: What configurations must keep to.
        machine: Facts of this machine.
        packages: Versions of the runtime's packages.
        stored: The trials of all drivers, in Optuna's storage.
        race: Finds the fastest runtime settings; ``None`` if the search does without.
        search: Decides what to try next.
        tracker: Writes to MLflow.
        outbox: What MLflow has not got yet.
        runs: Runs the trials.
        verification: Decides which runs prove what was found.
        loop: Asks for trials until the time is up.
    """

    def __init__(
        self,
        config: TuneConfig,
        prepared: Preparation,
        progress: StudyProgress,
        interrupts: DeferredInterrupts,
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
        self._fingerprint = measure.fingerprint(self.machine, self.packages)
        # several drivers can share a storage outside the study's folder; a host name would
        # identify them only as long as a container lives
        name = f"{home_id(tuner_home())}:{self.folder.path.name}"
        driver = Driver(name, self._fingerprint) if config.storage else None
        self._space, self.default = prepared.space, prepared.default
        self.stored = OptunaStudy(
            self._space,
            self.objectives,
            self.constraints,
            sampler=config.sampler,
            storage=config.storage or f"sqlite:///{self.folder.path}/optuna.db",
            name=self.folder.path.name,
            default=self.default.params,
            seed=config.seed,
            driver=driver,
            fresh=config.resume == "restart",
        )
        on_exit.callback(self.stored.close)
        if self.stored.crew:
            self.folder.publish = self.stored.crew.publish
        self.race: MachineRace | None = None
        self.search = self._make_strategy()
        with self._uploads_alone():
            self.tracker = self._make_tracker(uri, output)
        # what is half written was left by a crashed driver: no other writes at the same time
        self.outbox = Outbox(self.tracker, self._uploads_alone, progress.message)
        self.runs = TrialRuns(
            self._make_executor, self.folder, self.track, config.budget, progress, interrupts
        )
        on_exit.callback(self.runs.close)
        self.verification = Verification(
            config,
            self.folder,
            self.objectives,
            self.constraints,
            self._space,
            self.setup.dataset.sizes["test"],
            self.search.min_iterations,
            self.search.beside,
            self.setup.dataset.sizes["validation"],
        )
        self.loop = StudyLoop(
            config,
            self.setup,
            self.folder,
            self.search,
            self.race,
            DefaultTrial(
                config,
                self.setup,
                self._space,
                self._fingerprint,
                self.folder,
                self.runs,
                progress,
            ),
            self.verification,
            Outlook(self._space, config.seed),
            self.runs,
            progress,
        )

    def _make_tracker(self, uri: str, output: Path) -> Tracker:
        dataset, framework = self.setup.dataset, self.setup.framework.name
        name = self.folder.path.name
        return Tracker(
            uri,
            output,
            experiment=experiment_name(framework, dataset.requested),
            study_id=name,
            name=f"{framework} {dataset.requested} {name}",
            tags={
                "framework": framework,
                "dataset": dataset.name,
                "dataset_requested": dataset.requested,
                "dataset_digest": dataset.digest,
                "dataset_warning": dataset.warning,
                "fingerprint": self._fingerprint,
                **{f"machine.{each}": value for each, value in self.machine.items()},
            },
            params=shown_config(self.config),
            fresh=self.config.resume == "restart",
            dataset=TrackedDataset(dataset.name, dataset.digest, dataset.origin),
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
            self._fingerprint,
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
            self._space,
            self.default.params,
            self._fingerprint,
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

    def track(self, result: TrialResult) -> None:
        """Send a result that has been stored to MLflow."""
        self.outbox.send(result, self.folder.trials / result.trial.name)
