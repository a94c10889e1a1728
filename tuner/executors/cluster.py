"""Trials on a Ray cluster (https://docs.ray.io): Ray finds the machines and carries the results.

Each slot is an actor that owns a core set of a node and runs a framework's worker as a child
process (Ray's own processes cannot host another Python). Slots on machines that differ from this
one are not used: times are comparable only between machines of the same kind. Where trials may
train on several nodes together, each has a team of such slots for itself, on different nodes.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from tuner.executors.connection import REACH_S, Asked, alive_nodes, connect, reason_of, shared
from tuner.executors.local import run_undisturbed
from tuner.executors.node import CoreSlot, NodeAddress, NodeSlot
from tuner.executors.places import Places, apart, on_node, teams_of
from tuner.executors.racing import LOSSES, RaceSession, too_few
from tuner.executors.team import Member, NodeLost, Team, end
from tuner.values.errors import RuntimeUnavailable
from tuner.values.params import Params, nodes_of
from tuner.values.trial import Trial, TrialResult, TrialStatus

_MAX_SLOTS = 512
_LOOK_S = 10.0  # between two checks for new nodes
_TICK_S = 0.25


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
        self._slot, self._repeats = slot, repeats
        self._setup, self._fingerprint, self._say = setup, fingerprint, say
        self._check, self._most = check, config.executor.nodes_per_trial
        self._own = connect(config.executor)
        self._told = shared(config)
        self._pool = ThreadPoolExecutor(_MAX_SLOTS, thread_name_prefix="ray")
        self._changed = threading.Condition()
        self._free: list[Team] = []
        self._busy: list[Team] = []
        self._actors: list[Any] = []
        self._opening = 0
        self._seen: dict[str, int] = {}  # nodes in the order of arrival
        self._teams = 0  # on several nodes: opened or refused, and not lost
        self._ranks = itertools.count()  # teams of one rank would be taken for each other
        self._racing: Team | None = None
        self._racers = 0  # sessions on that team
        self._looked = -_LOOK_S
        self._cancelled = False
        self._refused: list[str] = []
        try:
            self._look_for_nodes()
            self._wait_for_first(check)
        except BaseException:
            self.close()
            raise

    def _wait_for_first(self, check: Callable[[], None]) -> None:
        """Wait for at least one slot; the others join when they are ready."""
        with self._changed:
            while not self.slots and self._opening:
                check()
                self._changed.wait(_TICK_S)
        if not self.slots:
            why = "; ".join(self._refused) or "there is none with enough CPUs"
            raise RuntimeUnavailable(f"no node of the Ray cluster can run trials: {why}")

    @property
    def slots(self) -> int:
        """Number of trials that may run at once now."""
        return len(self._free) + len(self._busy)

    def submit(self, trial: Trial, *further: object) -> Future[Any]:
        """Start ``trial`` as soon as a slot is free.

        Args:
            trial: The trial.
            *further: What else the slot's class is told of it.

        Returns:
            The trial's result, as the slot's class returns it.
        """
        return self._pool.submit(self._run, trial, *further)

    def _run(self, trial: Trial, *further: object) -> Any:
        if self._nodes_of(trial) == 1:
            return self._run_once(trial, *further)
        repeats = 0 if trial.accuracy_only else self._repeats
        return run_undisturbed(self._run_once, trial, repeats)

    def _nodes_of(self, trial: Trial) -> int:
        """Return on how many nodes a trial trains; a program's own ``nodes`` says nothing."""
        return nodes_of(trial.params) if self._most > 1 else 1

    def _run_once(self, trial: Trial, *further: object) -> Any:
        from ray.exceptions import RayError, RayTaskError

        nodes = self._nodes_of(trial)
        for _ in range(LOSSES):
            team = self._take()
            if team is None:
                break
            if fault := too_few(trial, nodes, team):
                self._give_back(team)
                return fault
            try:
                result, files = team.run(trial, further, nodes)
            except RayTaskError as error:
                if not isinstance(error.cause, OSError):
                    raise RuntimeUnavailable(f"{team.name}: {reason_of(error)}") from error
                self._lose(team)
                self._say(f"{team.name} cannot run {trial.name}, which runs again: {error.cause}")
                continue
            except (RayError, NodeLost) as error:  # slot, node or network
                self._lose(team)
                if self._cancelled:
                    break
                lost = str(error) if isinstance(error, NodeLost) else team.name
                self._say(f"{lost} was lost while it ran {trial.name}, which runs again")
                continue
            self._give_back(team)
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
                self._give_back(team)

    def racing(self) -> Team | None:
        """Return the team of all open sessions; ``None`` once cancelled."""
        self._racing = self._racing or self._take(self._check)
        return self._racing

    def lose_racing(self, team: Team) -> None:
        """Give up the team of the sessions, which go on with another one."""
        if self._racing is team:
            self._racing = None
            self._lose(team)
            self._say(f"{team.name} was lost in the race")

    # -- slots ----------------------------------------------------------------------------------

    def _take(self, check: Callable[[], None] = lambda: None) -> Team | None:
        """Take the lowest free team; return ``None`` once cancelled."""
        while not self._cancelled:
            check()
            self._look_for_nodes()
            with self._changed:
                if not self._free:
                    self._changed.wait(_TICK_S)
                if self._free:
                    team = min(self._free)
                    self._free.remove(team)
                    self._busy.append(team)
                    return team
                if not self._busy and not self._opening:
                    raise RuntimeUnavailable("every node of the Ray cluster was lost")
        return None

    def _give_back(self, team: Team) -> None:
        with self._changed:
            self._busy.remove(team)
            self._free.append(team)
            self._changed.notify_all()

    def _lose(self, team: Team) -> None:
        """Give up a team; open a new one if there are still nodes for it."""
        team.kill()  # it may only have been unreachable
        with self._changed:
            self._busy.remove(team)
            if self._most > 1:
                self._teams -= 1
                self._look_for_nodes(at_once=True)
            else:
                (member,) = team.members
                alive = {each["NodeID"] for each in alive_nodes()}
                if member.where.node in alive and not self._cancelled:
                    self._opening += 1
                    self._pool.submit(self._open_slot, member.where.node, team.rank)
                else:
                    self._seen.pop(member.where.node, None)
            self._changed.notify_all()

    def _look_for_nodes(self, *, at_once: bool = False) -> None:
        """Open slots on new nodes."""
        with self._changed:
            recent = time.monotonic() - self._looked < _LOOK_S
            if self._cancelled or (recent and not at_once):
                return
            self._looked = time.monotonic()
            if self._most > 1:
                self._look_for_teams()
                return
            for node in alive_nodes():
                if node["NodeID"] in self._seen:
                    continue
                rank = self._seen[node["NodeID"]] = max(self._seen.values(), default=-1) + 1
                room = self._room(node)
                self._opening += room
                for index in range(room):
                    self._pool.submit(self._open_slot, node["NodeID"], (rank, index))

    def _room(self, node: Mapping[str, Any]) -> int:
        """Return how many slots a node has."""
        return int(node["Resources"].get("CPU", 0)) // len(self._setup.cores)

    def _look_for_teams(self) -> None:
        """Open as many teams as the nodes allow, each as large as they allow."""
        rooms = [room for room in map(self._room, alive_nodes()) if room]
        size = min(self._most, len(rooms))
        for team in [each for each in self._free if len(each.members) < size]:
            self._free.remove(team)
            team.kill()
            self._teams -= 1
        while size and self._teams < teams_of(size, rooms):
            self._teams += 1
            self._opening += 1
            self._pool.submit(self._open_team, size, (next(self._ranks), 0))

    def _team_size(self) -> int:
        """Return how many nodes a team can have now."""
        return min(self._most, sum(bool(self._room(each)) for each in alive_nodes()))

    def _open_slot(self, node: str, rank: tuple[int, int]) -> None:
        """Open a slot on a node."""
        self._open(f"node {node[:8]}", 1, rank, lambda: on_node(node))

    def _open_team(self, size: int, rank: tuple[int, int]) -> None:
        """Open slots on so many different nodes at once, so that two studies cannot block them."""
        self._open(f"{size} nodes", size, rank, lambda: apart(size, len(self._setup.cores)))

    def _open(
        self, name: str, size: int, rank: tuple[int, int], places: Callable[[], Places]
    ) -> None:
        """Open so many slots at places, which takes as long as the installation there."""
        refusal, team, placement = "", None, None
        actors = list[Any]()
        try:
            each_at, placement = places()
            actors += map(self._start, each_at)
            team = self._team(name, actors, rank, placement)
        except Exception as error:  # whatever it is: it would be waited for without end
            refusal = str(error)
            if not isinstance(error, RuntimeUnavailable):
                refusal = f"{name}: {type(error).__name__}: {reason_of(error)}"
            with contextlib.suppress(Exception):  # as the first fault is the one to tell
                end(actors, placement)
        with self._changed:
            self._opening -= 1
            if team:
                self._free.append(team)
            elif self._most > 1 and self._team_size() < size:
                self._teams -= 1
                self._look_for_nodes(at_once=True)
            else:
                self._refused.append(refusal)
            self._changed.notify_all()
        if refusal and not self._cancelled:
            self._say(f"not used: {refusal}")

    def _start(self, place: Any) -> Any:
        """Start the actor of a slot."""
        import ray

        remote: Any = ray.remote(self._slot)
        actor = remote.options(
            num_cpus=len(self._setup.cores),
            max_concurrency=2,  # one runs a trial, one can cancel it
            scheduling_strategy=place,
        ).remote(self._told, self._setup.marker)
        self._actors.append(actor)
        return actor

    def _team(
        self, name: str, actors: Sequence[Any], rank: tuple[int, int], placement: Any
    ) -> Team:
        """Return the team of these slots, once they are open.

        Raises:
            RuntimeUnavailable: If they cannot be used; the message begins with a name.
        """
        from ray.exceptions import GetTimeoutError, RayError

        try:
            found = self._facts(actors)
        except GetTimeoutError:
            raise RuntimeUnavailable(f"{name}: there are fewer now") from None
        except RayError as error:
            raise RuntimeUnavailable(f"{name}: {reason_of(error)}") from error
        for fingerprint, slot, _ in found:
            if fingerprint != self._fingerprint:
                raise RuntimeUnavailable(f"{slot} is another kind of machine ({fingerprint})")
        members = (
            Member(actor, slot, where)
            for actor, (_, slot, where) in zip(actors, found, strict=True)
        )
        return Team(rank, tuple(members), placement)

    def _facts(self, actors: Sequence[Any]) -> list[tuple[str, str, NodeAddress]]:
        """Return fingerprint, name and node of each slot, once all are open.

        Raises:
            RayError: If one cannot be opened, or there are too few nodes for it any more.
        """
        import ray
        from ray.exceptions import GetTimeoutError

        facts = [actor.facts.remote() for actor in actors]
        nodes = [actor.where.remote() for actor in actors]
        while True:
            try:
                known: Any = ray.get([*facts, *nodes], timeout=REACH_S)
            except GetTimeoutError:
                if self._cancelled or (len(actors) > 1 and self._team_size() < len(actors)):
                    raise
                continue
            return [(*each, node) for each, node in zip(known, known[len(facts) :], strict=False)]

    # -- the end --------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End every running trial; their results are ``INTERRUPTED``."""
        self._cancelled = True
        with self._changed:
            for team in self._busy:
                team.cancel()

    def close(self) -> None:
        """Cancel the trials and leave the cluster; one that was started here ends."""
        import ray

        self.cancel()
        for actor in self._actors:
            ray.kill(actor)
        for team in (*self._free, *self._busy):
            team.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._own:
            ray.shutdown()
