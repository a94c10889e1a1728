"""The slots of a study on the nodes of a Ray cluster: found, opened, lent and given up."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tuner.executors.connection import REACH_S, Asked, alive_nodes, reason_of, shared
from tuner.executors.node import CoreSlot, NodeAddress
from tuner.executors.places import Places, apart, on_node, teams_of
from tuner.executors.team import Member, Team, end
from tuner.values.errors import RuntimeUnavailable

_MOST_OPENING = 512  # at once
_LOOK_S = 10.0  # between two checks for new nodes
_TICK_S = 0.25


class TeamPool:
    """Teams of slots, of one slot each where no trial trains on several nodes.

    Slots are opened beside what runs, as that takes as long as the installation on their node.

    Args:
        config: The study's configuration; ``config.executor`` says how large a team is.
        marker: Marks the study's processes.
        cpus: Number of CPUs of a slot.
        fingerprint: What a node's must be for its slots to be used.
        say: Told which nodes are not used.
        slot: The class whose objects run trials on the nodes.

    Attributes:
        most: Largest number of nodes of a team.
        cancelled: Whether nothing may be taken any more.
    """

    def __init__(
        self,
        config: Asked,
        marker: str,
        cpus: int,
        fingerprint: str,
        say: Callable[[str], None],
        slot: type[CoreSlot],
    ) -> None:
        self.most, self.cancelled = config.executor.nodes_per_trial, False
        self._told, self._marker, self._cpus = shared(config), marker, cpus
        self._fingerprint, self._say, self._slot = fingerprint, say, slot
        self._threads = ThreadPoolExecutor(_MOST_OPENING, thread_name_prefix="ray-slot")
        self._changed = threading.Condition()
        self._free: list[Team] = []
        self._busy: list[Team] = []
        self._actors: list[Any] = []
        self._opening = 0
        self._seen: dict[str, int] = {}  # nodes in the order of arrival
        self._teams = 0  # on several nodes: opened or refused, and not lost
        self._ranks = itertools.count()  # teams of one rank would be taken for each other
        self._looked = -_LOOK_S
        self._refused: list[str] = []

    @property
    def size(self) -> int:
        """Number of teams now."""
        return len(self._free) + len(self._busy)

    def open(self, check: Callable[[], None]) -> None:
        """Open slots and wait for at least one; the others join when they are ready.

        Args:
            check: Called meanwhile; an exception it raises ends that.

        Raises:
            RuntimeUnavailable: If no node can run trials.
        """
        self._look_for_nodes()
        with self._changed:
            while not self.size and self._opening:
                check()
                self._changed.wait(_TICK_S)
        if not self.size:
            why = "; ".join(self._refused) or "there is none with enough CPUs"
            raise RuntimeUnavailable(f"no node of the Ray cluster can run trials: {why}")

    def take(self, check: Callable[[], None] = lambda: None) -> Team | None:
        """Take the lowest free team; return ``None`` once cancelled."""
        while not self.cancelled:
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

    def give_back(self, team: Team) -> None:
        """Make a team free again."""
        with self._changed:
            self._busy.remove(team)
            self._free.append(team)
            self._changed.notify_all()

    def lose(self, team: Team) -> None:
        """Give up a team; open a new one if there are still nodes for it."""
        team.kill()  # it may only have been unreachable
        with self._changed:
            self._busy.remove(team)
            if self.most > 1:
                self._teams -= 1
                self._look_for_nodes(at_once=True)
            else:
                (member,) = team.members
                alive = {each["NodeID"] for each in alive_nodes()}
                if member.where.node in alive and not self.cancelled:
                    self._opening += 1
                    self._threads.submit(self._open_slot, member.where.node, team.rank)
                else:
                    self._seen.pop(member.where.node, None)
            self._changed.notify_all()

    def _look_for_nodes(self, *, at_once: bool = False) -> None:
        """Open slots on new nodes."""
        with self._changed:
            recent = time.monotonic() - self._looked < _LOOK_S
            if self.cancelled or (recent and not at_once):
                return
            self._looked = time.monotonic()
            if self.most > 1:
                self._look_for_teams()
                return
            for node in alive_nodes():
                if node["NodeID"] in self._seen:
                    continue
                rank = self._seen[node["NodeID"]] = max(self._seen.values(), default=-1) + 1
                room = self._room(node)
                self._opening += room
                for index in range(room):
                    self._threads.submit(self._open_slot, node["NodeID"], (rank, index))

    def _room(self, node: Mapping[str, Any]) -> int:
        """Return how many slots a node has."""
        return int(node["Resources"].get("CPU", 0)) // self._cpus

    def _look_for_teams(self) -> None:
        """Open as many teams as the nodes allow, each as large as they allow."""
        rooms = [room for room in map(self._room, alive_nodes()) if room]
        size = min(self.most, len(rooms))
        for team in [each for each in self._free if len(each.members) < size]:
            self._free.remove(team)
            team.kill()
            self._teams -= 1
        while size and self._teams < teams_of(size, rooms):
            self._teams += 1
            self._opening += 1
            self._threads.submit(self._open_team, size, (next(self._ranks), 0))

    def _team_size(self) -> int:
        """Return how many nodes a team can have now."""
        return min(self.most, sum(bool(self._room(each)) for each in alive_nodes()))

    def _open_slot(self, node: str, rank: tuple[int, int]) -> None:
        """Open a slot on a node."""
        self._open(f"node {node[:8]}", 1, rank, lambda: on_node(node))

    def _open_team(self, size: int, rank: tuple[int, int]) -> None:
        """Open slots on so many different nodes at once, so that two studies cannot block them."""
        self._open(f"{size} nodes", size, rank, lambda: apart(size, self._cpus))

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
            elif self.most > 1 and self._team_size() < size:
                self._teams -= 1
                self._look_for_nodes(at_once=True)
            else:
                self._refused.append(refusal)
            self._changed.notify_all()
        if refusal and not self.cancelled:
            self._say(f"not used: {refusal}")

    def _start(self, place: Any) -> Any:
        """Start the actor of a slot."""
        import ray

        remote: Any = ray.remote(self._slot)
        actor = remote.options(
            num_cpus=self._cpus,
            max_concurrency=2,  # one runs a trial, one can cancel it
            scheduling_strategy=place,
        ).remote(self._told, self._marker)
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
                if self.cancelled or (len(actors) > 1 and self._team_size() < len(actors)):
                    raise
                continue
            return [(*each, node) for each, node in zip(known, known[len(facts) :], strict=False)]

    def cancel(self) -> None:
        """End what the teams run; nothing is taken or opened any more."""
        self.cancelled = True
        with self._changed:
            for team in self._busy:
                team.cancel()

    def close(self) -> None:
        """End all slots, once cancelled."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        for team in (*self._free, *self._busy):
            team.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
