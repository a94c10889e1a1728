"""The trials of a paper's rows: which are still to run, and what each row gave."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from tuner.report import PaperRun
from tuner.values.trial import Trial, TrialKind, TrialResult, TrialStatus

_KILL_FACTOR, _KILL_EXTRA_S = 5.0, 300.0


class RowTrials:
    """The trials of all rows; rows are known by their place, trials are numbered from 1.

    A row's first turn has its place's number, its whole training a number beyond all rows. Rows
    that train the same share the trials of the first of them.

    Args:
        runs: The rows, with the params to train them with.
        seed: Seed of every trial.
        accurate: Whether rows are compared by accuracy, which only whole trainings tell.
        tested: Whether trials are evaluated on the test split.
    """

    def __init__(
        self, runs: Sequence[PaperRun], seed: int, *, accurate: bool, tested: bool
    ) -> None:
        self._runs, self._seed, self._accurate, self._tested = runs, seed, accurate, tested
        self._results: dict[int, TrialResult] = {}

    def take_in(self, results: Iterable[TrialResult]) -> None:
        """Note what trials gave."""
        self._results |= {each.trial.number: each for each in results}

    def waiting(self) -> list[int]:
        """Return the places of the rows that had no turn, each training once."""
        return [each for each in self._places() if self._number(each) not in self._results]

    def affordable(self, left_s: float) -> list[int]:
        """Return the places of the rows whose whole training fits ``left_s``, shortest first."""
        wanted = self._projected() if self._accurate else ()
        return sorted((each for each in wanted if self._cost_s(each) <= left_s), key=self._cost_s)

    def first(self, place: int, limit_s: float) -> Trial:
        """Return a row's first turn, which trains for at most ``limit_s`` seconds."""
        return Trial(
            number=self._number(place),
            params=self._runs[place].params,
            kind=TrialKind.PAPER if self._tested else TrialKind.PROBE,
            seed=self._seed,
            train_time_limit_s=limit_s,
            time_limit_s=_KILL_FACTOR * limit_s + _KILL_EXTRA_S,
            test=self._tested,
        )

    def whole(self, place: int) -> Trial:
        """Return a row's whole training."""
        return dataclasses.replace(
            self.first(place, 0.0),
            number=self._whole_number(place),
            train_time_limit_s=None,
            time_limit_s=_KILL_FACTOR * self._cost_s(place) + _KILL_EXTRA_S,
        )

    def outcomes(self, budget_s: float) -> tuple[PaperRun, ...]:
        """Return all rows with their results; what is missing did not fit ``budget_s`` seconds."""
        return tuple(self._outcome(place, budget_s) for place in range(len(self._runs)))

    def _number(self, place: int) -> int:
        """Return the trial's number of a row: that of the first row that trains the same."""
        mine = self._runs[place]
        same = (
            each.row.framework == mine.row.framework and each.params == mine.params
            for each in self._runs
        )
        return 1 + next(number for number, found in enumerate(same) if found)

    def _whole_number(self, place: int) -> int:
        return self._number(place) + len(self._runs)

    def _places(self) -> Iterator[int]:
        """Yield the places of the rows that can be run, each training once."""
        for place, each in enumerate(self._runs):
            if not each.reason and self._number(place) == place + 1:
                yield place

    def _projected(self) -> Iterator[int]:
        """Yield the places of rows of which only a part has been trained."""
        for place in self._places():
            first = self._results.get(self._number(place))
            part = first and first.usable and first.trial.projected
            if part and self._whole_number(place) not in self._results:
                yield place

    def _cost_s(self, place: int) -> float:
        """Return the seconds that a row's whole training takes, its start and tests included."""
        first = self._results[self._number(place)]
        measured = first.measurement
        assert measured is not None
        trained_s = measured.train_time_s * first.trial.share
        return measured.train_time_s + max(0.0, measured.wall_time_s - trained_s)

    def _outcome(self, place: int, budget_s: float) -> PaperRun:
        """Return a row with its result: of its whole training, if that gave anything."""
        run = self._runs[place]
        if run.reason:
            return run
        result = self._results.get(self._number(place))
        whole = self._results.get(self._whole_number(place))
        if whole and (whole.usable or whole.status is TrialStatus.DIVERGED):
            result = whole
        if result is None:
            reason = f"not measured within {budget_s:,.0f} s; a larger budget.time_s= continues"
            return dataclasses.replace(run, reason=reason)
        labels = [*run.labels, *self._labels(result, place)]
        return dataclasses.replace(run, result=result, labels=tuple(labels))

    def _labels(self, result: TrialResult, place: int) -> Iterator[str]:
        if not result.usable or result.measurement is None:
            return
        if result.trial.projected:
            yield f"time from {100 * result.trial.share:.2g} % of its iterations"
            if self._accurate:
                yield f"its accuracy needs a training of about {self._cost_s(place):,.0f} s"
        if result.ended_itself:
            yield f"ended by itself after {result.iterations:,} iterations"
        if result.measurement.disturbed:
            yield f"disturbed: {result.measurement.disturbed}"
