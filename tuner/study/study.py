"""One study from its first trial to its report: run, track, verify and, if interrupted, resume."""

from __future__ import annotations

import contextlib
import datetime
import math
import shlex
from contextlib import AbstractContextManager

from tuner import measure
from tuner.config.schema import TuneConfig
from tuner.config.validation import validate
from tuner.progress import StudyProgress, make_progress
from tuner.report.wording import count
from tuner.storage.study_folder import delete_folder
from tuner.study.conclusion import Conclusion
from tuner.study.interrupts import DeferredInterrupts
from tuner.study.parts import Parts
from tuner.study.preparation import prepare, results_place
from tuner.study.storage_faults import reported_faults
from tuner.trials.session import remove_worker_folders
from tuner.trials.setup import claim_cores
from tuner.values.results import StudyResult
from tuner.values.trial import TrialKind


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
            parts = Parts(config, prepared, shown, interrupts, uri, output, stack)
        return _Study(parts, command or _command(config)).run()


class _Study:
    """One running study."""

    def __init__(self, parts: Parts, command: str) -> None:
        self._parts, self._conclusion = parts, Conclusion(parts, command)
        self._config, self._progress = parts.config, parts.progress
        self._folder, self._runs, self._loop = parts.folder, parts.runs, parts.loop

    def run(self) -> StudyResult:
        """Search, verify and report, without repeating what was done before."""
        try:
            with reported_faults(self._folder.path, self._config.storage):
                return self._run()
        except Exception as error:
            if self._loop.leads:
                self._parts.tracker.fail(str(error) or type(error).__name__)
            raise

    def _run(self) -> StudyResult:
        self._recover()
        if self._is_complete():
            self._progress.message(
                f"study {self._folder.path.name} is complete; a larger budget continues it, "
                "resume=restart starts over"
            )
            return self._conclusion.renew()
        if self._loop.leads:
            self._parts.outbox.begin()
        try:
            with self._claimed_cores():
                self._folder.restart_clock()
                self._folder.save(
                    complete=False, started=self._folder.facts.get("started") or _now()
                )
                self._loop.run()
                while self._inherits():
                    self._loop.run()
            if not self._loop.leads:
                self._progress.message(
                    f"the search has ended; the driver that leads study {self._folder.path.name} "
                    "verifies and reports"
                )
                return self._conclusion.result(complete=True)
        except KeyboardInterrupt:
            self._runs.cancel()
            if self._loop.leads:
                self._conclusion.finish(complete=False)
            raise
        result = self._conclusion.finish(complete=True)
        if self._parts.stored.crew:
            self._parts.stored.crew.note_report(written=True)
        self._folder.save(
            complete=True,
            budget={"time_s": self._config.budget.time_s, "trials": self._config.budget.trials},
        )
        return result

    def _inherits(self) -> bool:
        """Take the lead if the leading driver shows no sign of life; return whether it did."""
        crew = self._parts.stored.crew
        if crew is None or crew.leads or not crew.leader or crew.reported:
            return False
        leader = crew.leader
        self._progress.phase("waiting", "for a sign of life of the driver that leads the study")
        if not crew.outlives(leader, self._runs.pause):
            return False
        with self._parts.stored.alone():
            if crew.leader != leader or crew.reported:
                return False
            crew.lead()
        self._folder.adopt(crew.published)
        self._loop.take_the_lead()
        self._parts.outbox.begin()
        self._progress.message(f"driver {leader} has died; this one leads the study from now on")
        return True

    def _claimed_cores(self) -> AbstractContextManager[object]:
        """Claim this machine's CPUs for this study; the nodes of a cluster claim their own."""
        if self._config.executor.name != "local":
            return contextlib.nullcontext()
        return claim_cores(self._config.executor, self._progress, self._parts.interrupts.check)

    def _is_complete(self) -> bool:
        """Return whether the study ended under a budget at least as large as this one."""
        spent = self._folder.facts.get("budget")
        if not self._folder.facts.get("complete") or not spent:
            return False
        budget = self._config.budget
        more_trials = (budget.trials or math.inf) > (spent["trials"] or math.inf)
        return not (budget.time_s > spent["time_s"] or more_trials)

    def _recover(self) -> None:
        """Clean up after earlier sessions; bring sampler and MLflow up to date with the folder."""
        measure.kill_marked(f"{self._parts.setup.marker}/")
        remove_worker_folders(self._parts.setup.folder)
        for pattern in ("race-*", "beside-*"):
            for leftover in self._folder.path.glob(pattern):
                delete_folder(leftover)
        trials = self._folder.results(TrialKind.DEFAULT, TrialKind.SEARCH)
        failed = trials and trials[0].trial.is_default and not trials[0].usable
        if failed and not self._is_complete():
            # its params are valid, so the cause lay elsewhere and may be fixed by now
            default = trials.pop(0)
            self._folder.set_aside(default)
            self._parts.outbox.forget(default.trial.name)
        verified = self._folder.results(TrialKind.VERIFY)
        self._loop.recall(trials)
        for result in (*trials, *verified):
            self._parts.track(result)
        if self._folder.damaged:
            self._parts.outbox.forget(*self._folder.damaged)
            self._progress.message(
                f"results of {', '.join(self._folder.damaged)} were damaged: they are set aside, "
                "and measured again"
            )
        if trials:
            self._progress.message(
                f"resuming study {self._folder.path.name}, which has "
                f"{count(len(trials), 'trial')} and {count(len(verified), 'verification run')}"
            )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _command(config: TuneConfig) -> str:
    """Return the command that resumes the study."""
    data = [f"dataset={config.dataset.name}"]
    if config.dataset.path:
        data = [f"dataset.path={config.dataset.path}", f"dataset.name={config.dataset.name}"]
    return shlex.join(["python", "-m", "tuner", f"framework={config.framework.name}", *data])
