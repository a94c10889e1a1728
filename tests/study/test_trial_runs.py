"""What a study does while its trials run."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

from tuner.config.schema import BudgetConfig
from tuner.progress import StudyProgress
from tuner.study.trial_runs import TrialRuns


class _Cluster:
    """An executor that a node joins at each look."""

    slots = 0

    def __getattribute__(self, name):
        if name == "slots":
            _Cluster.slots += 1
        return super().__getattribute__(name)


def make_runs(executor) -> TrialRuns:
    nothing = SimpleNamespace(check=lambda: None, elapsed_s=0.0)
    return TrialRuns(
        lambda: executor, nothing, lambda _result: None, BudgetConfig(), StudyProgress(), nothing
    )


def test_a_node_that_joins_is_used_before_any_trial_ends():
    assert make_runs(_Cluster()).wait([Future()]) == set()


def test_what_has_ended_is_told_apart_from_what_runs():
    ended: Future = Future()
    ended.set_result(None)
    assert make_runs(SimpleNamespace(slots=2)).wait([ended, Future()]) == {ended}
