"""Trials as they run on a host that others like them share."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence

from tuner.executors.local import LocalExecutor
from tuner.trials.session import TrialSetup, run_trial
from tuner.trials.watch import Listener
from tuner.values.trial import Trial, TrialResult

_PATIENCE_S = 120.0  # until those beside a trial have begun to train


class CrowdedExecutor(LocalExecutor):
    """Runs each trial beside others that train the same, each on cores of its own.

    Only the trial itself is measured. It begins once the others train, and they go on until it
    has ended.

    Args:
        setup: Of the trial.
        others: CPUs of each of those beside it.
        listener: Told of the running trial's progress, from the executor's thread.
    """

    def __init__(
        self,
        setup: TrialSetup,
        others: Sequence[tuple[int, ...]],
        listener: Listener | None = None,
    ) -> None:
        super().__init__(setup, listener)
        folders = [setup.folder.parent / f"beside-{index}" for index in range(1, len(others) + 1)]
        self._beside = [
            dataclasses.replace(
                setup, cores=cores, folder=folder, marker=f"{setup.marker}/{folder.name}"
            )
            for cores, folder in zip(others, folders, strict=True)
        ]

    def _run_once(self, trial: Trial) -> TrialResult:
        with self._company(trial):
            return super()._run_once(trial)

    @contextlib.contextmanager
    def _company(self, trial: Trial) -> Iterator[None]:
        over = threading.Event()
        training = [threading.Event() for _ in self._beside]
        threads = [
            threading.Thread(target=_accompany, args=(setup, trial, begun, over))
            for setup, begun in zip(self._beside, training, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            for begun in training:
                begun.wait(_PATIENCE_S)
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()


def _accompany(
    setup: TrialSetup, trial: Trial, begun: threading.Event, over: threading.Event
) -> None:
    """Train what ``trial`` trains again and again until it is over; what fails once is left."""
    same = dataclasses.replace(
        trial,
        share=1.0,
        train_time_limit_s=None,
        rivals=(),
        curve=0,
        warm=False,
        test=False,
    )
    usable = True
    while usable and not over.is_set():
        usable = run_trial(setup, same, listener=lambda *_: begun.set(), cancel=over).usable
    begun.set()
