"""The runs with other params: which comes next, and when it is given up."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.values.params import Params
from tuner.values.trial import TrialResult
from tuner.wrap.aim import Aim
from tuner.wrap.hope import Hope, at_pace
from tuner.wrap.objective import Objective
from tuner.wrap.param_search import ParamSearch
from tuner.wrap.record import Record
from tuner.wrap.request import Request
from tuner.wrap.schedule import Schedule

_SLACK = 0.1
"""Relative difference below which whole runs count as equally long: equal ones differ as much.

What a run would have reached stays unknown if it is ended without being slower."""


class ParamRuns:
    """Plans the runs of a study with other params than the program's own.

    It keeps no state but the record, so it goes on where an interrupted study ended.

    Args:
        request: What is asked for.
        record: What was measured so far.
        schedule: The time of the study.
    """

    def __init__(self, request: Request, record: Record, schedule: Schedule) -> None:
        self._program, self._objective = request.program, request.objective
        self._record, self._schedule = record, schedule

    @property
    def finalists(self) -> list[Params]:
        """The settings with other params that lost nothing, the best first."""
        return [each.trial.params for each in self._search().finalists]

    def next(self, setting: Params, pending: Sequence[Params]) -> tuple[Params, Aim] | None:
        """Return the next setting with other params, and what its run is to show.

        Args:
            setting: The runtime setting to try them at.
            pending: Settings that are being tried.

        Returns:
            ``None`` if there is no time, or no params are left that were not tried.
        """
        search, schedule = self._search(pending), self._schedule
        next_s = self._next_s(search)
        kept_s = schedule.kept_with_params_s(next_s)
        if schedule.left_s - next_s < kept_s:
            return None
        params = search.next()
        if params is None:
            return None
        limit_s, beaten = schedule.search_limit_s(kept_s), self._beaten(search)
        end_s = min(limit_s, beaten) if self._objective is Objective.TIME else limit_s
        hope = self._hope(search, setting, end_s)
        aim = Aim(whole=True, beaten=beaten, time_limit_s=limit_s, hope=hope)
        return {**setting, **params}, aim

    def _search(self, pending: Sequence[Params] = ()) -> ParamSearch:
        params, needed = self._program.params, self._record.reached
        runs = [each for each in self._record.tried if params.part_of(each.trial.params)]
        assert needed is not None
        return ParamSearch(params, self._program.goal, needed, runs, self._objective, pending)

    def _best(self, search: ParamSearch) -> TrialResult:
        """Return the best run that lost nothing: at first the program as it is."""
        return next(iter(search.finalists), self._record.first)

    def _next_s(self, search: ParamSearch) -> float:
        """Return about how long the next run with other params takes, wall time."""
        best = self._best(search).measurement
        assert best is not None
        choose = min if self._objective is Objective.TIME else max
        return choose(self._schedule.first_s, best.wall_time_s)

    def _beaten(self, search: ParamSearch) -> float:
        """Return the figure of a whole run above which other params are worse."""
        first = self._record.first.measurement
        assert first is not None
        return (1 + _SLACK) * min(self._objective.of_whole(first), search.best)

    def _hope(self, search: ParamSearch, setting: Params, end_s: float) -> Hope:
        """Return what a curve at a runtime setting is compared with."""
        best = self._best(search)
        params = self._program.params.part_of(best.trial.params)
        its_setting = {
            name: each for name, each in best.trial.params.items() if name not in params
        }
        raced = self._record.raced
        here_s, there_s = (
            next(Objective.TIME.of(each) for each in raced if each.trial.params == chosen)
            for chosen in (setting, its_setting)
        )
        curve = at_pace(best.curve, here_s / there_s, self._record.seen.start_s)
        return Hope(self._program.goal, search.needed, curve, end_s)
