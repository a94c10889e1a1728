"""Nodes of a Ray cluster that train a trial together, each with a part of its group of workers."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tuner.executors.node import Answer, NodeAddress
from tuner.trials.outcome import Failure
from tuner.trials.spanning import Part, along, merged
from tuner.values.params import Params, group_size, nodes_of
from tuner.values.trial import Trial, TrialResult

_ANSWER_S = 30.0  # for the other nodes once one has failed: longer than a link counts as lost
_CLOSE_S = 20.0
_TICK_S = 0.25


class NodeLost(Exception):
    """Nodes of a team cannot be reached any more; the message is their names."""


@dataclass(frozen=True)
class Member:
    """A slot of a team: the actor on a node, its display name, and where the node is."""

    actor: Any
    name: str
    where: NodeAddress


@dataclass(order=True)
class Team:
    """Slots on different nodes; the lowest team is taken first, so that runs share machines.

    Attributes:
        rank: Its place among the teams.
        members: The slots; a trial on one node trains on the first.
        placement: Ray's placement group of a team of several nodes.
    """

    rank: tuple[int, int]
    members: tuple[Member, ...] = field(compare=False)
    placement: Any = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Display name."""
        return " and ".join(each.name for each in self.members)

    def run(self, trial: Trial, further: Sequence[object], nodes: int) -> Answer:
        """Run a trial to its end on so many of the nodes.

        A group on several nodes always starts anew, even for a warm trial.

        Args:
            trial: The trial.
            further: What else the slots are told of one that is on one node.
            nodes: Number of nodes.

        Raises:
            NodeLost, RayError: A node was lost, or could not run it.
        """
        import ray

        if nodes == 1:
            return cast("Answer", ray.get(self.members[0].actor.run.remote(trial, *further)))
        session = GroupSession(self, trial.params)
        result, files = session.answer(trial)
        left = session.close()
        if left and result.usable:
            result = dataclasses.replace(result, status=left[0], reason=left[1])
        return result, files

    def cancel(self) -> None:
        """End what runs."""
        for each in self.members:
            each.actor.cancel.remote()

    def kill(self) -> None:
        """End all slots, with whatever they run, and free their CPUs."""
        end([each.actor for each in self.members], self.placement)


def end(actors: Sequence[Any], placement: Any) -> None:
    """End the actors of slots, and free the CPUs of their placement group, if they have one."""
    import ray

    for each in actors:
        ray.kill(each)
    if placement is not None:
        ray.util.remove_placement_group(placement)


class GroupSession:
    """A warm group of workers on nodes of a team; of one worker too.

    Args:
        team: Whose nodes it trains on.
        params: Its runtime setting, as many nodes as are asked for among them.
    """

    def __init__(self, team: Team, params: Params) -> None:
        self._members = team.members[: nodes_of(params)]
        self._each = group_size(params) // nodes_of(params)
        self._name, self._parts = "", list[Part | None]()

    def run(self, trial: Trial) -> TrialResult:
        """Train ``trial``; see ``answer``."""
        result, _ = self.answer(trial)
        return cast("TrialResult", result)

    def answer(self, trial: Trial) -> Answer:
        """Train ``trial`` on all nodes; return the result of all, and the first node's files.

        After a failure, the next trial begins with new workers.

        Raises:
            NodeLost, RayError: A node was lost, or could not run it.
        """
        if not self._name:
            self._begin()
        trials = [trial, *[along(trial)] * (len(self._members) - 1)]
        refs = [
            member.actor.run_in.remote(self._name, each, part)
            for member, each, part in zip(self._members, trials, self._parts, strict=True)
        ]
        try:
            answers = self._gather(refs)
        except BaseException:
            self._give_up()
            raise
        names = [member.name for member in self._members]
        result = merged([result for result, _ in answers], names) if answers[1:] else answers[0][0]
        if not result.usable:
            self.close()
        return result, answers[0][1]

    def _begin(self) -> None:
        import ray

        self._name = f"session-{secrets.token_hex(4)}"
        self._parts = [None]
        if len(self._members) == 1:
            return
        first = self._members[0]
        control = ray.get(first.actor.free_place.remote(first.where.address))
        token = secrets.token_hex(16)
        self._parts = [
            Part(
                first=index * self._each,
                control=control,
                token=token,
                address=member.where.address,
                interface=member.where.interface,
            )
            for index, member in enumerate(self._members)
        ]

    def _gather(self, refs: list[Any]) -> list[Answer]:
        """Return all answers; once one has failed, end the others and wait only so long."""
        import ray

        waiting, deadline = list(refs), float("inf")
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=_TICK_S)
            failed = [each for each in done if not cast("Answer", ray.get(each))[0].usable]
            if failed and deadline == float("inf"):
                deadline = time.monotonic() + _ANSWER_S
                self._give_up()
            if time.monotonic() > deadline and waiting:
                silent = [
                    member.name
                    for member, ref in zip(self._members, refs, strict=True)
                    if ref in waiting
                ]
                raise NodeLost(" and ".join(silent))
        return cast("list[Answer]", ray.get(refs))

    def _give_up(self) -> None:
        for member in self._members:
            member.actor.give_up.remote(self._name)

    def close(self) -> Failure | None:
        """End the workers; return what was wrong with their end.

        A node that does not answer is not waited for.
        """
        import ray
        from ray.exceptions import RayError

        if not self._name:
            return None
        refs = [member.actor.close.remote(self._name) for member in self._members]
        self._name = ""
        with contextlib.suppress(RayError):
            found = cast("list[Failure | None]", ray.get(refs, timeout=_CLOSE_S))
            return next(filter(None, found), None)
        return None
