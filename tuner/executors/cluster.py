"""Trials on a Ray cluster (https://docs.ray.io): Ray finds the machines and carries the results.

Each slot is an actor that owns a core set of a node and runs a framework's worker as a child
process (Ray's own processes cannot host another Python). Slots on machines that differ from this
one are not used: times are comparable only between machines of the same kind. Where trials may
train on several nodes together, each has a team of such slots for itself, on different nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from tuner.executors.connection import Asked, connect, reason_of
from tuner.executors.local import run_undisturbed
from tuner.executors.node import CoreSlot, NodeSlot
from tuner.executors.pool import TeamPool
from tuner.executors.racing import LOSSES, RaceSession, too_few
from tuner.executors.team import NodeLost, Team
from tuner.values.errors import RuntimeUnavailable
from tuner.values.params import Params, nodes_of
from tuner.values.trial import Trial, TrialResult, TrialStatus

_MOST_TRIALS = 512  # at once


class Place(Protocol):
    """What this machine knows of the trials of a study, whoever runs them."""

    @property
    def folder(self) -> Path:
        """Folder for the trials' files."""

    @property
    def marker(self) -> str:
        """Marks the study's processes."""

    @property
    def cores(self) -> tuple[int, ...]:
        """CPUs of a trial, as they are numbered here."""


class RayExecutor:
    """Runs trials on the nodes of a Ray cluster that are like this machine.

    Nodes that join later are used too. A trial whose node is lost runs again elsewhere. Progress
    within a trial is not reported.

    With ``executor.nodes_per_trial`` above 1 a trial has a team of so many nodes, even where it
    uses but one of them; of fewer once no more are left. Only trials on more nodes than are left
    fail then.

    Args:
        config: The study's configuration; ``config.executor`` selects the cluster.
        setup: Setup of trials on this machine.
        fingerprint: Fingerprint of this machine and the runtime's packages.
        say: Told which nodes are not used, and which are lost.
        check: Called while nodes prepare; an exception it raises ends that.
        slot: The class whose objects run trials on the nodes.
        repeats: Most repeats of a disturbed trial on several nodes; one node repeats its own.

    Raises:
        ConfigError: If there is no cluster at the address.
        RuntimeUnavailable: If no node can run trials.
    """

    def __init__(
        self,
        config: Asked,
        setup: Place,
        fingerprint: str,
        say: Callable[[str], None],
        check: Callable[[], None],
        slot: type[CoreSlot] = NodeSlot,
        repeats: int = 0,
    ) -> None:
        self._setup, self._say, self._check, self._repeats = setup, say, check, repeats
        self._own = connect(config.executor)
        self._threads = ThreadPoolExecutor(_MOST_TRIALS, thread_name_prefix="ray")
        cpus = len(setup.cores)
        self._teams = TeamPool(config, setup.marker, cpus, fingerprint, say, slot)
        self._racing: Team | None = None
        self._racers = 0  # sessions on that team
        try:
            self._teams.open(check)
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """Number of trials that may run at once now."""
        return self._teams.size

    def submit(self, trial: Trial, *further: object) -> Future[Any]:
        """Start ``trial`` as soon as a slot is free.

        Args:
            trial: The trial.
            *further: What else the slot's class is told of it.

        Returns:
            The trial's result, as the slot's class returns it.
        """
        return self._threads.submit(self._run, trial, *further)

    def _run(self, trial: Trial, *further: object) -> Any:
        if self._nodes_of(trial) == 1:
            return self._run_once(trial, *further)
        repeats = 0 if trial.accuracy_only else self._repeats
        return run_undisturbed(self._run_once, trial, repeats)

    def _nodes_of(self, trial: Trial) -> int:
        """Return on how many nodes a trial trains; a program's own ``nodes`` says nothing."""
        return nodes_of(trial.params) if self._teams.most > 1 else 1

    def _run_once(self, trial: Trial, *further: object) -> Any:
        from ray.exceptions import RayError, RayTaskError

        nodes = self._nodes_of(trial)
        for _ in range(LOSSES):
            team = self._teams.take()
            if team is None:
                break
            if fault := too_few(trial, nodes, team):
                self._teams.give_back(team)
                return fault
            try:
                result, files = team.run(trial, further, nodes)
            except RayTaskError as error:
                if not isinstance(error.cause, OSError):
                    raise RuntimeUnavailable(f"{team.name}: {reason_of(error)}") from error
                self._teams.lose(team)
                self._say(f"{team.name} cannot run {trial.name}, which runs again: {error.cause}")
                continue
            except (RayError, NodeLost) as error:  # slot, node or network
                self._teams.lose(team)
                if self._teams.cancelled:
                    break
                lost = str(error) if isinstance(error, NodeLost) else team.name
                self._say(f"{lost} was lost while it ran {trial.name}, which runs again")
                continue
            self._teams.give_back(team)
            self._keep(trial, files)
            return result
        else:
            return TrialResult(trial, TrialStatus.CRASHED, f"{LOSSES} slots were lost under it")
        return TrialResult(trial, TrialStatus.INTERRUPTED, "the tuner was stopped")

    def _keep(self, trial: Trial, files: Mapping[str, bytes]) -> None:
        folder = self._setup.folder / trial.name
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)

    # -- the race -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def session(self, params: Params) -> Iterator[RaceSession]:
        """Open a warm worker on a node, or a group of them on nodes, for one runtime setting.

        All that are open at the same time share a team, which no trial has meanwhile.
        """
        session = RaceSession(self, params)
        self._racers += 1
        try:
            yield session
        finally:
            session.close()
            self._racers -= 1
            if not self._racers and self._racing is not None:
                team, self._racing = self._racing, None
                self._teams.give_back(team)

    def racing(self) -> Team | None:
        """Return the team of all open sessions; ``None`` once cancelled."""
        self._racing = self._racing or self._teams.take(self._check)
        return self._racing

    def lose_racing(self, team: Team) -> None:
        """Give up the team of the sessions, which go on with another one."""
        if self._racing is team:
            self._racing = None
            self._teams.lose(team)
            self._say(f"{team.name} was lost in the race")

    # -- the end --------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End every running trial; their results are ``INTERRUPTED``."""
        self._teams.cancel()

    def close(self) -> None:
        """Cancel the trials and leave the cluster; one that was started here ends."""
        import ray

        self.cancel()
        self._teams.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._own:
            ray.shutdown()
