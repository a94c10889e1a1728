"""The trials of a study on an executor, while the display goes on and Ctrl-C is heard."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cached_property

from tuner.config.schema import BudgetConfig
from tuner.executors import Executor
from tuner.progress import StudyProgress
from tuner.storage.study_folder import StudyRecord
from tuner.study.interrupts import DeferredInterrupts
from tuner.values.trial import Trial, TrialResult

_TICK_S = 0.25


class TrialRuns:
    """Runs the trials of one study.

    Args:
        make_executor: Makes where they run, once the first one is to.
        folder: The study's own, which knows its time.
        track: Writes a result to MLflow.
        budget: Of the study.
        progress: Is told what runs and how far the study is.
        interrupts: Where Ctrl-C is looked for; it is raised from here.

    Attributes:
        count: Trials that count to the budget, as the display shows them.
    """

    def __init__(
        self,
        make_executor: Callable[[], Executor],
        folder: StudyRecord,
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
        """Where trials run."""
        return self._make_executor()

    def begin(self, trial: Trial) -> Future[TrialResult]:
        """Have a trial run as soon as a slot is free."""
        self._interrupts.check()
        self._progress.trial_started(trial)
        return self.executor.submit(trial)

    def wait(self, running: Collection[Future[TrialResult]]) -> set[Future[TrialResult]]:
        """Those that have ended; none if there is room for more before. The display goes on."""
        done: set[Future[TrialResult]] = set()
        slots = self.executor.slots
        while not done and self.executor.slots <= slots:
            self.tick()
            done, _ = wait(running, timeout=_TICK_S, return_when=FIRST_COMPLETED)
        self._show()
        return done

    def measure(self, trial: Trial) -> TrialResult:
        """Run one trial and nothing beside it."""
        future = self.begin(trial)
        while not self.wait([future]):
            pass
        return future.result()

    def measure_all(self, trials: Sequence[Trial], at_once: int) -> Iterator[TrialResult]:
        """Run trials, so many at once, and give each result as soon as it is there."""
        waiting, running = list(trials), set[Future[TrialResult]]()
        while waiting or running:
            while waiting and len(running) < at_once:
                running.add(self.begin(waiting.pop(0)))
            for future in self.wait(running):
                running.remove(future)
                yield future.result()

    def tell(self, result: TrialResult, front: Sequence[TrialResult]) -> None:
        """Show and track what was measured, once it is safe.

        Args:
            result: Of a trial that has ended.
            front: The best that is known with it.
        """
        self._progress.trial_finished(result, front)
        self._track(result)

    def tick(self) -> None:
        """What must go on while there is nothing to do but wait."""
        self._interrupts.check()
        self._show()

    def pause(self) -> None:
        """Let a moment pass."""
        self.tick()
        time.sleep(_TICK_S)

    def _show(self) -> None:
        budget = self._budget
        self._progress.budget(self._folder.elapsed_s, budget.time_s, self.count, budget.trials)

    def cancel(self) -> None:
        """End what runs."""
        if "executor" in vars(self):
            self.executor.cancel()

    def close(self) -> None:
        """End what runs, and give the executor back."""
        if "executor" in vars(self):
            self.executor.close()
