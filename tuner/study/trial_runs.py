"""Trials of a study on an executor, with a live display and a check for Ctrl-C."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cached_property

from tuner.config.schema import BudgetConfig
from tuner.executors import Executor
from tuner.progress import StudyProgress
from tuner.storage.study_folder import StudyFacts
from tuner.study.interrupts import DeferredInterrupts
from tuner.values.trial import Trial, TrialResult

_TICK_S = 0.25


class TrialRuns:
    """Runs the trials of one study.

    Args:
        make_executor: Makes the executor when the first trial is to run.
        folder: The study's record, which knows its elapsed time.
        track: Writes a result to MLflow.
        budget: The study's budget.
        progress: Shows what runs and how far the study is.
        interrupts: Defers Ctrl-C; the methods of this class raise it as ``KeyboardInterrupt``.

    Attributes:
        count: Number of trials charged to the budget, for the display.
    """

    def __init__(
        self,
        make_executor: Callable[[], Executor],
        folder: StudyFacts,
        track: Callable[[TrialResult], None],
        budget: BudgetConfig,
        progress: StudyProgress,
        interrupts: DeferredInterrupts,
    ) -> None:
        self._make_executor, self._track = make_executor, track
        self._folder, self._budget = folder, budget
        self._progress, self._interrupts = progress, interrupts
        self.count = 0

    @cached_property
    def executor(self) -> Executor:
        """The executor that runs the trials."""
        return self._make_executor()

    def begin(self, trial: Trial) -> Future[TrialResult]:
        """Start a trial as soon as a slot is free."""
        self._interrupts.check()
        self._progress.trial_started(trial)
        return self.executor.submit(trial)

    def wait(self, running: Collection[Future[TrialResult]]) -> set[Future[TrialResult]]:
        """Wait until a trial ends or the executor gains a slot; update the display meanwhile.

        What has ended already is returned before any Ctrl-C is raised, or it would be lost.

        Returns:
            The trials that have ended; empty if there is only a new slot.
        """
        done, _ = wait(running, timeout=0)
        slots = self.executor.slots
        while not done and self.executor.slots <= slots:
            self.tick()
            done, _ = wait(running, timeout=_TICK_S, return_when=FIRST_COMPLETED)
        self._show()
        return done

    def measure(self, trial: Trial) -> TrialResult:
        """Run one trial and wait for its result."""
        future = self.begin(trial)
        while not self.wait([future]):
            pass
        return future.result()

    def measure_all(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Run trials one by one, but side by side those of which only the accuracy counts.

        Yields the results in the order of completion.
        """
        for beside, group in itertools.groupby(trials, key=lambda each: each.accuracy_only):
            waiting, running = list(group), set[Future[TrialResult]]()
            at_once = len(waiting) if beside else 1  # the executor has a core for each
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.add(self.begin(waiting.pop(0)))
                for future in self.wait(running):
                    running.remove(future)
                    yield future.result()

    def tell(self, result: TrialResult, front: Sequence[TrialResult]) -> None:
        """Show and track a result that has been stored.

        Args:
            result: Result of a trial that has ended.
            front: The best results known, including this one.
        """
        self._progress.trial_finished(result, front)
        self._track(result)

    def tick(self) -> None:
        """Check for Ctrl-C and update the display while waiting."""
        self._interrupts.check()
        self._show()

    def pause(self) -> None:
        """Tick, then wait a moment."""
        self.tick()
        time.sleep(_TICK_S)

    def _show(self) -> None:
        budget = self._budget
        self._progress.budget(self._folder.elapsed_s, budget.time_s, self.count, budget.trials)

    def cancel(self) -> None:
        """End the running trials."""
        if "executor" in vars(self):
            self.executor.cancel()

    def close(self) -> None:
        """End the running trials and close the executor."""
        if "executor" in vars(self):
            self.executor.close()
