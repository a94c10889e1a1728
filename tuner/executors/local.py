"""Trials on this machine: one at a time, or side by side if only their accuracy counts.

``run_undisturbed`` repeats a disturbed measurement, for the other executors too.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tuner.trials.session import TrialSetup, WorkerSession, run_trial
from tuner.trials.watch import Listener
from tuner.values.params import iterations_of
from tuner.values.trial import Measurement, Trial, TrialResult, TrialStatus

_RATE_S = 5.0  # for about this long, the rate of a disturbed long run is measured again


class LocalExecutor:
    """Runs trials on this machine: timed ones one at a time, each on all cores of the setup.

    Trials of which only the accuracy counts run side by side, one per core.

    The worker of a warm trial is kept for the next one that needs its environment. A disturbed
    measurement is repeated up to ``measure.repeats`` times; of a long run, only the rate is
    measured again. Discarded measurements stay with the result.

    Args:
        setup: What the trials share.
        listener: Told of the running trial's progress, from the executor's thread.
    """

    slots = 1

    def __init__(self, setup: TrialSetup, listener: Listener | None = None) -> None:
        self.setup, self.listener = setup, listener
        self._cancel = threading.Event()
        self._kept: WorkerSession | None = None
        self._lanes: list[LocalExecutor] = []
        self._last: Future[TrialResult] | None = None
        # One thread that lives as long as the executor: a worker dies with the thread
        # that started it.
        self._pool = ThreadPoolExecutor(self.slots, thread_name_prefix="executor")

    def submit(self, trial: Trial) -> Future[TrialResult]:
        """Start ``trial`` once its cores are free: one if only its accuracy counts, else all."""
        if trial.accuracy_only and len(self.setup.cores) > 1:
            return self._lane().submit(trial)
        self._last = self._pool.submit(self._run, trial)
        return self._last

    def _lane(self) -> LocalExecutor:
        """Return an executor of one core, a free one if there is any."""
        if not self._lanes:
            memory = self.setup.memory_limit_bytes // len(self.setup.cores)
            self._lanes = [
                LocalExecutor(
                    dataclasses.replace(self.setup, cores=(core,), memory_limit_bytes=memory),
                    self.listener,
                )
                for core in self.setup.cores
            ]
        return min(self._lanes, key=LocalExecutor._is_busy)

    def _is_busy(self) -> bool:
        return self._last is not None and not self._last.done()

    def _run(self, trial: Trial) -> TrialResult:
        repeats = 0 if trial.accuracy_only else self.setup.measure.repeats
        return run_undisturbed(self._run_once, trial, repeats)

    def _run_once(self, trial: Trial) -> TrialResult:
        if not trial.warm:
            self._let_go()
            return run_trial(self.setup, trial, listener=self.listener, cancel=self._cancel)
        environment = self.setup.runtime.worker_environment(trial.params)
        if self._kept is None or self._kept.environment != environment:
            self._let_go()
            self._kept = WorkerSession(self.setup, trial.params)
        return self._kept.run(trial, listener=self.listener, cancel=self._cancel)

    def _let_go(self) -> None:
        kept, self._kept = self._kept, None
        if kept:
            kept.close()

    def cancel(self) -> None:
        """End the running trials; their results are ``INTERRUPTED``."""
        self._cancel.set()
        for each in self._lanes:
            each.cancel()

    def close(self) -> None:
        """Cancel the running trials and wait for the workers to end."""
        self.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._let_go()
        for each in self._lanes:
            each.close()


def run_undisturbed(
    run: Callable[[Trial], TrialResult], trial: Trial, repeats: int
) -> TrialResult:
    """Run ``trial``; repeat it up to ``repeats`` times while its measurement is disturbed.

    The accuracy of the first run is kept, since interference distorts only times. Its checkpoints
    and its wall time get the rate of the repeat.
    """
    result = run(trial)
    for attempt in range(1, repeats + 1):
        before = result.measurement
        if not result.usable or before is None or not before.disturbed:
            break
        again = run(_repeat_of(result, attempt))
        if again.status is TrialStatus.INTERRUPTED:
            return again
        if not again.usable or again.measurement is None:
            break
        result = dataclasses.replace(
            _at_rate_of(result, before, again.measurement), discarded=(*result.discarded, before)
        )
    return result


def _at_rate_of(result: TrialResult, before: Measurement, again: Measurement) -> TrialResult:
    """Return a result whose training took ``again`` in place of ``before``."""
    asked = iterations_of(result.trial.params)
    trained = result.iterations / asked if result.trial.projected else 1.0
    saved_s = trained * (before.train_time_s - again.train_time_s)
    factor = again.train_time_s / before.train_time_s if before.train_time_s else 1.0
    timed = dataclasses.replace(
        again,
        wall_time_s=max(again.train_time_s * trained, before.wall_time_s - saved_s),
        avg_memory_bytes=before.avg_memory_bytes,
        peak_memory_bytes=before.peak_memory_bytes,
    )
    looks = tuple(
        dataclasses.replace(each, train_time_s=factor * each.train_time_s)
        for each in result.checkpoints
    )
    return dataclasses.replace(result, measurement=timed, checkpoints=looks)


def _repeat_of(result: TrialResult, attempt: int) -> Trial:
    """Return the trial that measures ``result`` again; for a long one, only its rate."""
    trial, measured = result.trial, result.measurement
    assert measured is not None
    share = min(trial.share, max(0.02, _RATE_S / max(measured.train_time_s, 1e-9)))
    # the figures of a share are projected to all iterations, even if it was stopped
    params = trial.params if trial.projected else result.params
    return dataclasses.replace(
        trial,
        repeat=attempt,
        params=params,
        train_time_limit_s=None,
        rivals=(),
        share=share,
        test=False,
    )
