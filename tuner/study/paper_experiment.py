"""A paper's table or figure, measured again here: ``experiment=paper_...``.

Every row is trained for some seconds first, which tells its rate, CPU and memory; longer trainings
are projected to all their iterations. Where the table is about accuracy, whole trainings follow,
the shortest first, as far as the budget allows. Rows that train the same share one training.

Each result is stored at once, as in a study: the same command continues an interrupted experiment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial

from tuner import measure
from tuner.config.catalogue import tuner_home
from tuner.config.schema import TuneConfig
from tuner.config.validation import validate
from tuner.datasets.provide import Dataset
from tuner.executors import Executor, LocalExecutor
from tuner.progress import StudyProgress, make_progress
from tuner.report import (
    PaperResult,
    PaperRun,
    needs_test,
    paper_headline,
    paper_metrics,
    write_paper_report,
)
from tuner.storage.study_folder import StudyFolder
from tuner.study.cross_framework import chosen_frameworks
from tuner.study.entrants import Entrant, config_of, prepare_entrant
from tuner.study.interrupts import DeferredInterrupts
from tuner.study.paper_rows import check_paper, plan_rows, reasons_of, without_runtime
from tuner.study.paper_trials import RowTrials
from tuner.study.preparation import load_space, results_place, shown_config
from tuner.study.storage_faults import reported_faults
from tuner.study.trial_runs import TrialRuns
from tuner.tracking import PAPERS, Outbox, TrackedDataset, Tracker, experiment_name
from tuner.trials.session import remove_worker_folders
from tuner.trials.setup import (
    UNCONFINED,
    claim_cores,
    core_sets,
    fetch_dataset,
    host_facts,
    make_setup,
)
from tuner.values.errors import ConfigError, NoTrialSucceeded
from tuner.values.space import SearchSpace
from tuner.values.trial import Trial, TrialKind, TrialResult, TrialStatus

_LEAST_S = 1.0  # of training, in the first turn of a row; with less left none begins
_TRAINED = 0.5  # of a row's part of the budget: the rest is for the worker's start and its tests


def run_paper(config: TuneConfig, command: str = "") -> PaperResult:
    """Run the experiment of ``config.paper`` to its end, continuing it if it was begun before.

    Args:
        config: Validated first. ``frameworks`` restricts the rows; ``framework`` is not used.
        command: Command that continues the experiment, shown in the report.

    Raises:
        ConfigError: A value cannot be used, no row can be run here, or another process runs it.
        DatasetUnavailable: The data set is not here and cannot be obtained.
        NoTrialSucceeded: No row gave any figures.
        KeyboardInterrupt: If interrupted; what was measured is kept.
    """
    validate(config)
    check_paper(config.paper)
    if config.executor.name != "local" or config.executor.jobs_per_host > 1:
        raise ConfigError(
            f"{config.paper.name} needs executor=local with jobs_per_host=1, got "
            f"executor={config.executor.name} with jobs_per_host={config.executor.jobs_per_host}"
        )
    if "accuracy_pct" in config.paper.metrics and config.dataset.figure != "accuracy":
        raise ConfigError(
            f"{config.paper.name} compares accuracies, but {config.dataset.name} is measured by "
            f"its {config.dataset.figure}; choose a data set of images"
        )
    uri, output = results_place(config)
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(make_progress(config.progress))
        dataset = fetch_dataset(config, shown)
        cores = core_sets(config.executor)[0]
        runs = plan_rows(
            config.paper, _spaces(config, dataset), dataset.name, config.model, len(cores)
        )
        entrants = {
            name: prepare_entrant(config, name, dataset, uri, shown)
            for name in dict.fromkeys(each.row.framework for each in runs if not each.reason)
        }
        runs = without_runtime(runs, entrants)
        study_id = _study_id(entrants, runs, needs_test(config.paper.metrics))
        folder = StudyFolder(tuner_home() / PAPERS / study_id, fresh=config.resume == "restart")
        stack.callback(folder.close)
        interrupts = stack.enter_context(DeferredInterrupts())
        with reported_faults(folder.path, ""):
            tracker = Tracker(
                uri,
                output,
                experiment=experiment_name(PAPERS, dataset.requested),
                study_id=f"{config.paper.name}-{study_id}",
                name=f"{config.paper.name} {dataset.requested} {study_id}",
                tags=_tags(config, dataset),
                params=shown_config(config),
                fresh=config.resume == "restart",
                dataset=TrackedDataset(dataset.name, dataset.digest, dataset.origin),
            )
            experiment = _Experiment(
                config, shown, interrupts, folder, dataset, entrants, runs, cores, tracker, stack
            )
            return experiment.run(command)


def _spaces(config: TuneConfig, dataset: Dataset) -> dict[str, SearchSpace]:
    """Return the search spaces of the rows' frameworks, or of those that the user chose."""
    only = chosen_frameworks(config)
    names = dict.fromkeys(each.framework for each in config.paper.rows if each.framework)
    return {
        name: load_space(config_of(config, name), dataset)
        for name in names
        if not only or name in only
    }


def _study_id(entrants: Mapping[str, Entrant], runs: Sequence[PaperRun], tested: bool) -> str:
    """Return a short hash of what is run, the same for tables that need the same trainings."""
    identity = [
        sorted((name, each.study_id) for name, each in entrants.items()),
        [(each.row.framework, dict(each.params)) for each in runs],
        tested,
    ]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]


def _tags(config: TuneConfig, dataset: Dataset) -> dict[str, str]:
    machine = host_facts(config)
    return {
        "kind": "paper",
        "experiment": config.paper.name,
        "paper": config.paper.source,
        "where": config.paper.where,
        "dataset": dataset.name,
        "dataset_requested": dataset.requested,
        "model": config.model,
        "fingerprint": measure.fingerprint(machine),
    }


class _Experiment:
    """One running experiment, and its report."""

    def __init__(
        self,
        config: TuneConfig,
        progress: StudyProgress,
        interrupts: DeferredInterrupts,
        folder: StudyFolder,
        dataset: Dataset,
        entrants: Mapping[str, Entrant],
        runs: Sequence[PaperRun],
        cores: tuple[int, ...],
        tracker: Tracker,
        on_exit: contextlib.ExitStack,
    ) -> None:
        self.config, self.progress, self.interrupts = config, progress, interrupts
        self.folder, self.dataset, self.runs, self.cores = folder, dataset, runs, cores
        metrics = config.paper.metrics
        self.trials = RowTrials(
            runs, config.seed, accurate="accuracy_pct" in metrics, tested=needs_test(metrics)
        )
        self.outbox = Outbox(tracker, lambda _: contextlib.nullcontext(), progress.message)
        self.trainers = {
            name: TrialRuns(
                partial(self._executor, each),
                folder,
                self._track,
                config.budget,
                progress,
                interrupts,
            )
            for name, each in entrants.items()
            if each.runtime
        }
        for each in self.trainers.values():
            on_exit.callback(each.close)

    def _executor(self, entrant: Entrant) -> Executor:
        assert entrant.runtime is not None
        setup = make_setup(
            entrant.config,
            self.dataset,
            entrant.runtime,
            folder=self.folder.trials,
            marker=self.folder.marker,
            cores=self.cores,
        )
        return LocalExecutor(setup, self.progress.trial_progress)

    def _track(self, result: TrialResult) -> None:
        self.outbox.send(result, self.folder.trials / result.trial.name)

    def run(self, command: str) -> PaperResult:
        """Measure what is missing, then report."""
        self._recover()
        self.outbox.begin()
        try:
            self.folder.restart_clock()
            if self._waiting() or self.trials.affordable(self._left_s):
                with claim_cores(self.config.executor, self.progress, self.interrupts.check):
                    self.folder.restart_clock()
                    self._measure()
        except KeyboardInterrupt:
            for each in self.trainers.values():
                each.cancel()
            self._report(command, complete=False)
            raise
        self.folder.save(complete=True)
        result = self._report(command, complete=True)
        if not any(each.measured or each.diverged for each in result.runs):
            failed = [
                f"{each.result.status.value}: {each.result.reason}"
                for each in result.runs
                if each.result
            ]
            raise NoTrialSucceeded(
                f"no row of {self.config.paper.name} gave any figures: "
                f"{'; '.join(dict.fromkeys([*failed, reasons_of(result.runs)]))}; "
                f"logs are in {self.folder.trials}"
            )
        return result

    def _recover(self) -> None:
        """Clean up after earlier sessions, and read what they measured."""
        measure.kill_marked(f"{self.folder.marker}/")
        remove_worker_folders(self.folder.trials)
        found = self.folder.results(TrialKind.PAPER, TrialKind.PROBE)
        self.trials.take_in(found)
        for each in found:
            self._track(each)
        if found:
            self.progress.message(
                f"continuing {self.config.paper.name}: {len(found)} measurements are kept"
            )

    def _measure(self) -> None:
        self.progress.phase("rates", self.config.paper.name)
        while waiting := self._waiting():
            limit_s = max(_LEAST_S, _TRAINED * self._left_s / len(waiting))
            limit_s = min(self.config.verify.long_s, limit_s)
            self._train(waiting[0], self.trials.first(waiting[0], limit_s))
        self.progress.phase("whole trainings", self.config.paper.name)
        while affordable := self.trials.affordable(self._left_s):
            self._train(affordable[0], self.trials.whole(affordable[0]))

    def _waiting(self) -> list[int]:
        """Return the places of the rows that had no turn, while there is time for one."""
        return self.trials.waiting() if self._left_s > _LEAST_S else []

    @property
    def _left_s(self) -> float:
        return self.config.budget.time_s - self.folder.elapsed_s

    def _train(self, place: int, trial: Trial) -> None:
        runs = self.trainers[self.runs[place].row.framework]
        result = runs.measure(trial)
        if result.status is TrialStatus.INTERRUPTED:
            return
        if result.status is TrialStatus.STOPPED and not result.ended_itself and result.usable:
            result = result.projected(result.reason)
        self.folder.keep(result)
        self.trials.take_in([result])
        runs.count += 1
        runs.tell(result, ())

    def _report(self, command: str, *, complete: bool) -> PaperResult:
        runs = self.trials.outcomes(self.config.budget.time_s)
        sizes = self.dataset.sizes
        warnings = [self.dataset.warning, "" if self.config.sandbox else UNCONFINED]
        result = PaperResult(
            paper=self.config.paper,
            study_id=self.folder.path.name,
            dataset=self.dataset.name,
            model=self.config.model,
            runs=runs,
            train_images=sizes["train"],
            test_images=sizes["test"],
            cores=len(self.cores),
            machine=host_facts(self.config),
            warnings=tuple(filter(None, warnings)),
            budget_s=self.config.budget.time_s,
            elapsed_s=self.folder.elapsed_s,
            complete=complete,
            command=command,
        )
        self.progress.phase("report")
        files = write_paper_report(result, self.folder.path / "report" / self.config.paper.name)
        tracked = self.outbox.finish(
            files,
            {"elapsed_s": f"{result.elapsed_s:.0f}", "rows": str(len(runs))},
            complete=complete,
            metrics=paper_metrics(result),
            description="\n\n".join(paper_headline(result)),
        )
        self.progress.message(f"the report is in {files[0].parent}")
        return dataclasses.replace(result, tracked=tracked)
