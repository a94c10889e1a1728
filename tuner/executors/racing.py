"""Warm workers of a race on the nodes of a cluster, all of them on the same team of slots."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from tuner.executors.team import GroupSession, NodeLost, Team
from tuner.values.params import Params, nodes_of
from tuner.values.trial import Trial, TrialResult, TrialStatus

LOSSES = 3
"""A trial that was lost this often is taken to kill its nodes."""


class Teams(Protocol):
    """What lends the team of a race."""

    def racing(self) -> Team | None:
        """Return the team of all open sessions; ``None`` once cancelled."""

    def lose_racing(self, team: Team) -> None:
        """Give up the team of the sessions, which go on with another one."""


class RaceSession:
    """A warm worker, or a group of them, of a race; it moves to other nodes if these are lost."""

    def __init__(self, executor: Teams, params: Params) -> None:
        self._executor, self._params = executor, params
        self._team: Team | None = None
        self._session: GroupSession | None = None

    def run(self, trial: Trial) -> TrialResult:
        """Train once more in the same workers."""
        from ray.exceptions import RayError

        for _ in range(LOSSES):
            team = self._executor.racing()
            if team is None:
                return TrialResult(trial, TrialStatus.INTERRUPTED, "the tuner was stopped")
            if fault := too_few(trial, nodes_of(trial.params), team):
                # not the setting's fault: another race may have the nodes
                return dataclasses.replace(fault, status=TrialStatus.INTERRUPTED)
            if self._session is None or self._team is not team:
                self._team, self._session = team, GroupSession(team, self._params)
            try:
                return self._session.run(trial)
            except (RayError, NodeLost):
                self._session = None
                self._executor.lose_racing(team)
        return TrialResult(trial, TrialStatus.CRASHED, f"{LOSSES} slots were lost under it")

    def close(self) -> None:
        """End the workers."""
        if self._session is not None:
            self._session.close()


def too_few(trial: Trial, needed: int, team: Team) -> TrialResult | None:
    """Return the result of a trial that needs more nodes than are left, if it does."""
    left = len(team.members)
    if needed <= left:
        return None
    reason = f"it needs {needed} nodes of the Ray cluster, which has {left} left"
    return TrialResult(trial, TrialStatus.CRASHED, reason)
