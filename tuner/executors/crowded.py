"""Trials on a host that runs others of the same kind at the same time."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence

from tuner.executors.local import LocalExecutor
from tuner.trials.session import TrialSetup, run_trial
from tuner.trials.watch import Listener
from tuner.values.trial import Trial, TrialResult, TrialStatus

_PATIENCE_S = 120.0  # longest wait for the concurrent trainings to begin


class CrowdedExecutor(LocalExecutor):
    """Runs each trial while others train the same, each on its own cores.

    Only the trial itself is measured. It begins once the others are training, and they continue
    until it has ended.

    Args:
        setup: Setup of the trial.
        others: CPUs of each concurrent training.
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
        with self._company(trial) as ended:
            result = super()._run_once(trial)
        if ended and result.usable:
            reason = f"a training beside it ended first: {ended[0]}"
            result = dataclasses.replace(result, status=TrialStatus.INVALID, reason=reason)
        return result

    @contextlib.contextmanager
    def _company(self, trial: Trial) -> Iterator[list[str]]:
        """Train beside the trial; yield why any of these trainings ended before it, if one did."""
        over, ended = threading.Event(), list[str]()
        training = [threading.Event() for _ in self._beside]
        threads = [
            threading.Thread(target=_accompany, args=(setup, trial, begun, over, ended))
            for setup, begun in zip(self._beside, training, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            for begun in training:
                begun.wait(_PATIENCE_S)
            yield ended
        finally:
            over.set()
            for thread in threads:
                thread.join()


def _accompany(
    setup: TrialSetup,
    trial: Trial,
    begun: threading.Event,
    over: threading.Event,
    ended: list[str],
) -> None:
    """Repeat the training of ``trial`` until it is over; after a failure, say why it has ended."""
    same = dataclasses.replace(
        trial,
        share=1.0,
        train_time_limit_s=None,
        rivals=(),
        curve=0,
        warm=False,
        test=False,
    )
    try:
        while not over.is_set():
            result = run_trial(setup, same, listener=lambda *_: begun.set(), cancel=over)
            if not (result.usable or over.is_set()):
                ended.append(result.reason)
                break
    except Exception as error:  # it ends this thread alone
        ended.append(str(error))
    begun.set()
