"""The search under a constraint: what the sampler is told of runs that were not complete."""

from __future__ import annotations

from itertools import islice

import optuna
import pytest

from tuner.search import constrained
from tuner.search.constrained import Told, propose
from tuner.values.ranges import Range
from tuner.values.space import SearchSpace

SPACE = SearchSpace("the program", {"x": Range(0.0, 1.0, integer=False)}, ())


@pytest.fixture
def study(monkeypatch):
    found = []
    create = optuna.create_study

    def created(**options):
        found.append(create(**options))
        return found[-1]

    monkeypatch.setattr(constrained.optuna, "create_study", created)
    return found


def test_a_run_that_was_ended_early_is_pruned_with_what_it_had_cost(study):
    runs = [Told({"x": 0.2}, 5.0, -0.1), Told({"x": 0.4}, 3.0, 0.4, complete=False)]
    next(propose(SPACE, runs))
    complete, ended = study[0].trials[:2]
    assert (complete.state, complete.value) == (optuna.trial.TrialState.COMPLETE, 5.0)
    assert (ended.state, ended.intermediate_values) == (optuna.trial.TrialState.PRUNED, {0: 3.0})


def test_runs_that_were_ended_early_do_not_lead_the_search():
    kept = [Told({"x": 0.1 + each / 1000}, 10.0 + each, -0.1) for each in range(8)]
    ended = [Told({"x": 0.9 + each / 1000}, 9.0, -0.1, complete=False) for each in range(8)]
    drawn = [params["x"] for params in islice(propose(SPACE, [*kept, *ended]), 8)]
    assert sum(each < 0.5 for each in drawn) > 4
    misled = [Told(each.params, each.cost, each.violation) for each in ended]
    drawn = [params["x"] for params in islice(propose(SPACE, [*kept, *misled]), 8)]
    assert sum(each > 0.5 for each in drawn) > 4
