"""What runs on a node of a Ray cluster: one core set of it, with a framework's worker below."""

from __future__ import annotations

import os
import shutil
import socket
import time

from tuner import measure
from tuner.config.schema import TuneConfig
from tuner.executors.local import LocalExecutor
from tuner.progress import StudyProgress
from tuner.storage.study_folder import is_full, require_space
from tuner.trials.setup import claims_folder, core_sets, fetch, host_facts, make_setup
from tuner.values.errors import RuntimeUnavailable
from tuner.values.trial import Trial, TrialResult, TrialStatus

Answer = tuple[TrialResult, dict[str, bytes]]
"""A result, and what the trial left in its folder, by name."""

_CLAIM_S = 30.0  # a process that is ending holds its cores for a moment yet
_DYING_S = 2.0


class NodeSlot:
    """A core set of this node, claimed against all other studies for as long as this lives.

    The framework's runtime and the data set are made available here on first use, below the
    node's own ``TUNER_HOME``.

    Args:
        config: Of the study.
        study_id: Marks its processes.

    Raises:
        RuntimeUnavailable, DatasetUnavailable: What is needed cannot be had here, or what is
            measured here would be wrong.
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
            self._claim = measure.claim(sets, claims_folder(), most_s=_CLAIM_S)
        except measure.CoresTaken as taken:
            raise RuntimeUnavailable(f"none of {len(sets)} core sets is free: {taken}") from None
        cores = self._claim.cores
        folder = claims_folder() / "-".join(map(str, cores))
        shutil.rmtree(folder, ignore_errors=True)  # what one who was killed left
        folder.mkdir(parents=True)
        if is_full(folder):
            raise RuntimeUnavailable(f"the disk of {folder} is full on {socket.gethostname()}")
        marker = f"{study_id}-{folder.name}-{os.getpid()}"
        self._setup = make_setup(
            config, dataset, runtime, folder=folder, marker=marker, cores=cores
        )
        self._executor = LocalExecutor(self._setup)

    def facts(self) -> tuple[str, str]:
        """The node's fingerprint, and what to call this slot."""
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
            # who goes down with the node kills what runs below, and looks like that for a moment:
            # then this ends before it returns, and the trial is run again elsewhere
            time.sleep(_DYING_S)
        require_space(self._setup.folder, result)
        folder = self._setup.folder / trial.name
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        if not trial.warm:  # a worker that is kept goes on writing to the folder of its first
            shutil.rmtree(folder, ignore_errors=True)
        return result, files

    def cancel(self) -> None:
        """End the running trial; its result is ``INTERRUPTED``."""
        self._executor.cancel()
