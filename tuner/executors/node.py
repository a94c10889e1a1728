"""The part that runs on a node of a Ray cluster: a core set and a framework's worker."""

from __future__ import annotations

import os
import socket
import time

from tuner import measure
from tuner.config.schema import TuneConfig
from tuner.executors.local import LocalExecutor
from tuner.progress import StudyProgress
from tuner.storage.study_folder import delete_folder, is_full, require_space
from tuner.trials.setup import claims_folder, core_sets, fetch, host_facts, make_setup
from tuner.values.errors import RuntimeUnavailable
from tuner.values.trial import Trial, TrialResult, TrialStatus

Answer = tuple[TrialResult, dict[str, bytes]]
"""A result, and the files in the trial's folder by name."""

_CLAIM_S = 30.0  # an ending process still holds its cores for a moment
_DYING_S = 2.0


class NodeSlot:
    """A core set of this node, claimed against all other studies while this object lives.

    The framework's runtime and the data set are provided on first use, below the node's own
    ``TUNER_HOME``.

    Args:
        config: The study's configuration.
        study_id: Marks the study's processes.

    Raises:
        RuntimeUnavailable, DatasetUnavailable: Something needed cannot be obtained here, or
            measurements here would be wrong.
    """

    def __init__(self, config: TuneConfig, study_id: str) -> None:
        nice = os.nice(0)
        if nice > 0:
            raise RuntimeUnavailable(
                f"Ray's workers run at nice {nice} here; start Ray with RAY_worker_niceness=0"
            )
        self._config = config
        dataset, runtime = fetch(config, StudyProgress())
        sets = core_sets(config.executor)
        try:
            self._claim = measure.claim(sets, claims_folder(), max_s=_CLAIM_S)
        except measure.CoresTaken as taken:
            raise RuntimeUnavailable(f"none of {len(sets)} core sets is free: {taken}") from None
        cores = self._claim.cores
        folder = claims_folder() / "-".join(map(str, cores))
        delete_folder(folder)  # left by a killed process
        folder.mkdir(parents=True)
        if is_full(folder):
            raise RuntimeUnavailable(f"the disk of {folder} is full on {socket.gethostname()}")
        marker = f"{study_id}-{folder.name}-{os.getpid()}"
        self._setup = make_setup(
            config, dataset, runtime, folder=folder, marker=marker, cores=cores
        )
        self._executor = LocalExecutor(self._setup)

    def facts(self) -> tuple[str, str]:
        """Return the node's fingerprint and a display name of this slot."""
        packages = self._setup.runtime.packages()
        fingerprint = measure.fingerprint(host_facts(self._config), packages)
        return fingerprint, f"{socket.gethostname()}, CPUs {self._setup.folder.name}"

    def run(self, trial: Trial) -> Answer:
        """Run a trial to its end.

        Raises:
            OSError: If this node's disk is full or broken; the trial is not to blame.
        """
        result = self._executor.submit(trial).result()
        if result.status is TrialStatus.OUT_OF_MEMORY:
            # a node that goes down kills its workers, which looks like this for a moment: this
            # process then ends before it returns, and the trial runs again elsewhere
            time.sleep(_DYING_S)
        require_space(self._setup.folder, result)
        folder = self._setup.folder / trial.name
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        if not trial.warm:  # a kept worker still writes to the folder of its first trial
            delete_folder(folder)
        return result, files

    def cancel(self) -> None:
        """End the running trial; its result is ``INTERRUPTED``."""
        self._executor.cancel()
