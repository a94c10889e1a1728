"""The time of a study of a program: its length, its runs' limits, and what the proof needs."""

from __future__ import annotations

from tuner.values.params import Params
from tuner.wrap.comparison import MIN_PAIRS
from tuner.wrap.objective import Objective
from tuner.wrap.record import Record
from tuner.wrap.request import Request

_PAIRS = 10  # of interleaved runs, if there is time
_PAIRS_WITH_PARAMS = 30  # as accuracy differs more from seed to seed than time from run to run
_KEPT_PAIRS = 5  # for which the search leaves time: three have an interval twice as wide
_RESERVED = 0.4  # of the budget, at most, for these
_RACED = 0.25  # of the budget, at most, for runtime settings where there are params too
_IN_RUNS = 10.0  # length of a study in whole runs, unless it is given
_IN_RUNS_WITH_PARAMS = 30.0
_IN_STEPS_S = 300.0  # length of a study whose runs can be cut short
_LEAST_S = 60.0  # length of any study that nobody asked to be shorter
_MEASURED = 1 / 60  # of the budget: steps of one run
_MEASURED_S = (1.0, 30.0)
_AROUND_S = 0.3  # of each run, outside the program
_SLOWEST = 20.0  # times as long as the first run: then a run hangs


class Schedule:
    """Shares out the time of a study between its search and its proof.

    Args:
        request: What is asked for.
        record: What was measured so far.
    """

    def __init__(self, request: Request, record: Record) -> None:
        self._request, self._record = request, record

    @property
    def measured_s(self) -> float:
        """Seconds of steps that one run measures."""
        budget_s = self._request.budget_s or _IN_STEPS_S
        return min(max(_MEASURED * budget_s, _MEASURED_S[0]), _MEASURED_S[1])

    @property
    def budget_s(self) -> float:
        """Length of the study, once the first run has ended."""
        if self._request.budget_s:
            return self._request.budget_s
        if self._request.program.params:
            return max(_IN_STEPS_S, _IN_RUNS_WITH_PARAMS * self.first_s)
        in_runs_s = max(_LEAST_S, _IN_RUNS * self.first_s)
        if not self._record.seen.window:
            return in_runs_s
        return max(_IN_STEPS_S, in_runs_s) if self.proves_by_whole_runs else _IN_STEPS_S

    @property
    def left_s(self) -> float:
        """Seconds until the study should be over; negative after that."""
        return self.budget_s - self._record.folder.elapsed_s

    @property
    def first_s(self) -> float:
        """Wall time of the first run."""
        measured = self._record.first.measurement
        assert measured is not None
        return measured.wall_time_s

    @property
    def limit_s(self) -> float:
        """Wall time after which a run hangs."""
        return _SLOWEST * self.first_s + 60

    def search_limit_s(self, kept_s: float) -> float:
        """Return the wall time of a run of the search, which leaves time for what follows.

        A run that is slow is ended as beaten, unless something else than time is minimised.

        Args:
            kept_s: Seconds for what follows the search.
        """
        if self._request.objective is Objective.TIME:
            return self.limit_s
        return min(self.limit_s, self.left_s - kept_s)

    def cost_s(self, train_s: float) -> float:
        """Return the wall time of a run whose measured part takes this long."""
        return self._record.seen.start_s + train_s + _AROUND_S

    def kept_s(self, best_s: float, *, found: bool) -> float:
        """Return the seconds that the search for a runtime setting leaves for what follows.

        Args:
            best_s: Seconds that the measured part of a run takes at the best setting so far.
            found: Whether there is something to prove by now; else the fewest pairs are enough.
        """
        if self._request.program.params:
            return (1 - _RACED) * self.budget_s
        pairs = _KEPT_PAIRS if found else MIN_PAIRS
        return min(2 * pairs * self.cost_s(best_s), _RESERVED * self.budget_s)

    def kept_with_params_s(self, best_s: float) -> float:
        """Return the seconds that the search for params leaves for the proof.

        Args:
            best_s: Wall time of a run with the best params so far.
        """
        return min(_PAIRS_WITH_PARAMS * (self.first_s + best_s), _RESERVED * self.budget_s)

    @property
    def proves_by_whole_runs(self) -> bool:
        """Whether accuracy is read, which a part of a run does not show."""
        return self._record.reached is not None

    def affordable_pairs(self, setting: Params, first: bool) -> int:
        """Return how many pairs of runs there is time for; enough for a proof of the first."""
        record = self._record
        took = next(each for each in record.tried if each.trial.params == setting)
        pair_s = sum(self.cost_s(Objective.TIME.of(each)) for each in (record.first, took))
        most = _PAIRS
        if self.proves_by_whole_runs:
            assert took.measurement is not None
            params = self._request.program.params.part_of(setting)
            whole = params or not record.seen.window
            most = _PAIRS_WITH_PARAMS if params else _PAIRS
            # a runtime setting's run was ended once its steps were measured
            pair_s = self.first_s + (took.measurement.wall_time_s if whole else self.first_s)
        pairs = min(most, int(self.left_s / pair_s))
        return max(MIN_PAIRS, pairs) if first else pairs * (pairs >= MIN_PAIRS)
