"""What a study does while its trials run."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tuner.config.schema import BudgetConfig
from tuner.progress import StudyProgress
from tuner.study.trial_runs import TrialRuns
from tuner.values.trial import Trial


class _Cluster:
    """An executor that a node joins at each look."""

    slots = 0

    def __getattribute__(self, name):
        if name == "slots":
            _Cluster.slots += 1
        return super().__getattribute__(name)


def make_runs(executor, check=lambda: None) -> TrialRuns:
    nothing = SimpleNamespace(check=check, elapsed_s=0.0)
    return TrialRuns(
        lambda: executor, nothing, lambda _result: None, BudgetConfig(), StudyProgress(), nothing
    )


def test_a_node_that_joins_is_used_before_any_trial_ends():
    assert make_runs(_Cluster()).wait([Future()]) == set()


def test_what_has_ended_is_told_apart_from_what_runs():
    ended: Future = Future()
    ended.set_result(None)
    assert make_runs(SimpleNamespace(slots=2)).wait([ended, Future()]) == {ended}


def test_what_has_ended_is_not_lost_to_an_interruption():
    def interrupted():
        raise KeyboardInterrupt

    runs, ended = make_runs(SimpleNamespace(slots=2), interrupted), Future()
    ended.set_result(None)
    assert runs.wait([ended, Future()]) == {ended}
    with pytest.raises(KeyboardInterrupt):
        runs.wait([Future()])


class _Cores:
    """An executor whose trials end once as many run as are expected at once."""

    slots = 1

    def __init__(self, *expected: int) -> None:
        self._expected, self._running = list(expected), list[tuple[Trial, Future]]()

    def submit(self, trial: Trial) -> Future:
        future: Future = Future()
        self._running.append((trial, future))
        if len(self._running) == self._expected[0]:
            self._expected.pop(0)
            for each, ended in self._running:
                ended.set_result(each)
            self._running.clear()
        return future


def test_a_round_of_accuracies_runs_side_by_side_and_times_one_by_one():
    alone = [Trial(number, {}) for number in range(2)]
    beside = [Trial(number, {}, accuracy_only=True) for number in range(2, 5)]
    runs = make_runs(_Cores(1, 1, 3))
    found = list(runs.measure_all([*alone, *beside]))
    assert sorted(each.number for each in found) == list(range(5))
    assert {each.number for each in found[:2]} == {0, 1}
