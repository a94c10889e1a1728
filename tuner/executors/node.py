"""The part that runs on a node of a Ray cluster: a core set and a framework's worker."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from tuner import measure
from tuner.config.schema import ExecutorConfig, TuneConfig
from tuner.executors.local import LocalExecutor
from tuner.progress import StudyProgress
from tuner.storage.study_folder import delete_folder, is_full, require_space
from tuner.trials.setup import claims_folder, core_sets, fetch, host_facts, make_setup
from tuner.values.errors import RuntimeUnavailable
from tuner.values.trial import Trial, TrialResult, TrialStatus

Answer = tuple[Any, dict[str, bytes]]
"""What a slot returns of a trial, its result or more, and the files in its folder by name."""

_CLAIM_S = 30.0  # an ending process still holds its cores for a moment
_DYING_S = 2.0


class CoreSlot:
    """A core set of this node, claimed against all other studies while this object lives.

    Args:
        executor: Which CPUs trials may use.
        study_id: Marks the study's processes.

    Attributes:
        cores: The CPUs.
        folder: An empty folder of this slot.
        marker: Identifies the processes of this slot's trials.

    Raises:
        RuntimeUnavailable: If measurements here would be wrong, or nothing is free.
    """

    def __init__(self, executor: ExecutorConfig, study_id: str) -> None:
        nice = os.nice(0)
        if nice > 0:
            raise RuntimeUnavailable(
                f"Ray's workers run at nice {nice} here; start Ray with RAY_worker_niceness=0"
            )
        sets = core_sets(executor)
        try:
            self._claim = measure.claim(sets, claims_folder(), max_s=_CLAIM_S)
        except measure.CoresTaken as taken:
            raise RuntimeUnavailable(f"none of {len(sets)} core sets is free: {taken}") from None
        self.cores = self._claim.cores
        self.folder = claims_folder() / "-".join(map(str, self.cores))
        delete_folder(self.folder)  # left by a killed process
        self.folder.mkdir(parents=True)
        if is_full(self.folder):
            raise RuntimeUnavailable(
                f"the disk of {self.folder} is full on {socket.gethostname()}"
            )
        self.marker = f"{study_id}-{self.folder.name}-{os.getpid()}"

    @property
    def name(self) -> str:
        """A name to display."""
        return f"{socket.gethostname()}, CPUs {self.folder.name}"

    def files_of(self, result: TrialResult) -> dict[str, bytes]:
        """Return the files in a trial's folder by name; delete it unless its worker is kept.

        Raises:
            OSError: If this node's disk is full or broken; the trial is not to blame.
        """
        if result.status is TrialStatus.OUT_OF_MEMORY:
            # a node that goes down kills its workers, which looks like this for a moment: this
            # process then ends before it returns, and the trial runs again elsewhere
            time.sleep(_DYING_S)
        require_space(self.folder, result)
        folder = self.folder / result.trial.name
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        if not result.trial.warm:  # a kept worker still writes to the folder of its first trial
            delete_folder(folder)
        return files


class NodeSlot(CoreSlot):
    """A core set of this node and a framework's worker.

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
        super().__init__(config.executor, study_id)
        self._config = config
        dataset, runtime = fetch(config, StudyProgress())
        self._setup = make_setup(
            config, dataset, runtime, folder=self.folder, marker=self.marker, cores=self.cores
        )
        self._executor = LocalExecutor(self._setup)

    def facts(self) -> tuple[str, str]:
        """Return the node's fingerprint and a display name of this slot."""
        packages = self._setup.runtime.packages()
        return measure.fingerprint(host_facts(self._config), packages), self.name

    def run(self, trial: Trial) -> Answer:
        """Run a trial to its end.

        Raises:
            OSError: If this node's disk is full or broken; the trial is not to blame.
        """
        result = self._executor.submit(trial).result()
        return result, self.files_of(result)

    def cancel(self) -> None:
        """End the running trial; its result is ``INTERRUPTED``."""
        self._executor.cancel()
