"""The part that runs on a node of a Ray cluster: a core set and a framework's worker."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tuner import measure
from tuner.config.schema import ExecutorConfig, TuneConfig
from tuner.executors.local import LocalExecutor
from tuner.progress import StudyProgress
from tuner.storage.study_folder import delete_folder, is_full, require_space
from tuner.trials.outcome import Failure
from tuner.trials.session import WorkerSession
from tuner.trials.setup import claims_folder, core_sets, fetch, host_facts, make_setup
from tuner.trials.spanning import Part
from tuner.values.errors import RuntimeUnavailable
from tuner.values.trial import Trial, TrialResult, TrialStatus

Answer = tuple[Any, dict[str, bytes]]
"""What a slot returns of a trial, its result or more, and the files in its folder by name."""

_CLAIM_S = 30.0  # an ending process still holds its cores for a moment
_DYING_S = 2.0


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node is.

    Attributes:
        node: Ray's id of it.
        address: Address at which the other nodes of the cluster reach it.
        interface: The interface that has it; empty if none has.
    """

    node: str
    address: str
    interface: str


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
        self.folder = claims_folder() / str(self.cores[0])  # which no other slot has
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
        return f"{socket.gethostname()}, CPUs {measure.cores_text(self.cores)}"

    def where(self) -> NodeAddress:
        """Return where this node is."""
        import ray

        util: Any = ray.util
        address = util.get_node_ip_address()
        node = ray.get_runtime_context().get_node_id()
        return NodeAddress(node, address, measure.interface_of(address))

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
        self._sessions: dict[str, WorkerSession] = {}
        self._given_up: dict[str, threading.Event] = {}
        # a worker dies with the thread that started it, and Ray's threads come and go
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sessions")

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

    def free_place(self, address: str) -> str:
        """Return ``address:port``, or ``[address]:port`` by IPv6, where nobody listens now."""
        six = ":" in address
        with socket.create_server(
            (address, 0), family=socket.AF_INET6 if six else socket.AF_INET
        ) as door:
            port = int(door.getsockname()[1])
        return f"[{address}]:{port}" if six else f"{address}:{port}"

    def run_in(self, session: str, trial: Trial, part: Part | None) -> Answer:
        """Run a trial in the session of this name, which begins with its first trial.

        Args:
            session: Name of the session. One that was given up never runs anything again.
            trial: What is trained.
            part: This node's part of the session's group, if that spans several.

        Raises:
            OSError: As ``run`` does.
        """
        return self._thread.submit(self._run_in, session, trial, part).result()

    def _run_in(self, name: str, trial: Trial, part: Part | None) -> Answer:
        session = self._sessions.get(name)
        if session is None:
            setup = dataclasses.replace(self._setup, folder=self.folder / name)
            setup.folder.mkdir()
            session = self._sessions[name] = WorkerSession(setup, trial.params, part)
        given_up = self._given_up.setdefault(name, threading.Event())
        result = session.run(trial, cancel=given_up)
        require_space(self.folder, result)
        folder = session.setup.folder / trial.name
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        return result, files

    def give_up(self, session: str) -> None:
        """End the trial that runs in a session, if one does; its result is ``INTERRUPTED``."""
        self._given_up.setdefault(session, threading.Event()).set()

    def close(self, session: str) -> Failure | None:
        """End a session; return what was wrong with its end, such as a process left running."""
        self.give_up(session)
        return self._thread.submit(self._close, session).result()

    def _close(self, name: str) -> Failure | None:
        session = self._sessions.pop(name, None)
        if session is None:
            return None
        try:
            return session.close()
        finally:
            with contextlib.suppress(OSError):
                delete_folder(session.setup.folder)

    def cancel(self) -> None:
        """End the running trial; its result is ``INTERRUPTED``."""
        self._executor.cancel()
        for name in list(self._sessions):
            self.give_up(name)
