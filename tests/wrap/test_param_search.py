"""The search for params: it gets faster, keeps what the program reaches, and resumes from runs."""

from __future__ import annotations

import dataclasses
import math

from tests.wrap.samples import run
from tuner.values.trial import TrialStatus
from tuner.wrap.goal import Goal
from tuner.wrap.objective import Objective
from tuner.wrap.param_search import ParamSearch
from tuner.wrap.params import ParamSpace, read_params

SPACE = read_params(
    {"lr": "log(1e-4, 1)", "batch": "choice(16, 32, 64, 128)", "epochs": "int(1, 10)"}, None, 2
)


def trained(params, number: int):
    """Return a run of a made-up program: what it reaches, and how long it takes."""
    distance = abs(math.log10(params["lr"] / 0.05))
    accuracy = 0.9 - 0.04 * distance - 0.05 / params["epochs"]
    seconds = 10 * params["epochs"] / math.sqrt(params["batch"] / 64)
    return run(seconds, accuracy=accuracy, number=number, params=params)


OWN = trained({"lr": 0.001, "batch": 64, "epochs": 5}, 0)


def test_it_finds_params_that_are_much_faster_and_lose_nothing():
    runs = []
    for number in range(1, 26):
        params = ParamSearch(SPACE, Goal(), OWN.val_accuracy, runs).next()
        assert SPACE.space.refusal(params) == ""
        runs.append(trained(params, number))
    search = ParamSearch(SPACE, Goal(), OWN.val_accuracy, runs)
    assert search.best < OWN.measurement.wall_time_s / 3
    assert all(each.val_accuracy >= OWN.val_accuracy for each in search.finalists)
    times = [each.measurement.wall_time_s for each in search.finalists]
    assert times == sorted(times)
    assert times[0] == search.best


def test_it_asks_for_the_same_after_an_interruption():
    runs = [trained({"lr": 0.1, "batch": 32, "epochs": 2}, 1)]
    first, second = (ParamSearch(SPACE, Goal(), 0.8, runs).next() for _ in range(2))
    assert first == second


def test_several_at_once_are_all_different():
    runs = [trained({"lr": 0.1, "batch": 32, "epochs": 2}, 1)]
    pending = [{"lr": 0.1, "batch": 64, "epochs": 2, "threads": 1}]  # at a runtime setting
    space = ParamSpace(SPACE.params, {}, ({"lr": 0.1, "batch": 64, "epochs": 2},))
    for _ in range(40):
        proposed = ParamSearch(space, Goal(), 0.8, runs, pending=pending).next()
        assert proposed not in map(space.part_of, pending)
        pending.append(proposed)


def test_start_points_come_first():
    starts = {"lr": 0.1, "batch": 64, "epochs": 2}, {"lr": 0.01, "batch": 64, "epochs": 1}
    space = ParamSpace(SPACE.params, {}, starts)
    runs = []
    for start in starts:
        params = ParamSearch(space, Goal(), 0.8, runs).next()
        assert params == start
        runs.append(trained(params, len(runs) + 1))
    assert ParamSearch(space, Goal(), 0.8, runs).next() not in starts


def test_it_ends_when_all_params_were_tried():
    space = read_params({"batch": "choice(16, 32)", "epochs": "int(1, 2)"}, None, 2)
    runs = []
    while (params := ParamSearch(space, Goal(), 0.8, runs).next()) is not None:
        assert len(runs) < 4
        runs.append(trained({"lr": 0.05, **params}, len(runs) + 1))
    assert len(runs) >= 3


def test_a_run_that_failed_is_no_finalist_where_nothing_is_needed():
    crashed = dataclasses.replace(
        trained({"lr": 0.05, "batch": 64, "epochs": 2}, 1),
        status=TrialStatus.CRASHED, measurement=None,
    )  # fmt: skip
    search = ParamSearch(SPACE, Goal(), 0.0, [crashed])
    assert (search.finalists, search.best) == ([], math.inf)
    assert search.next() is not None


def test_runs_that_failed_or_were_given_up_are_no_finalists():
    params = {"lr": 0.05, "batch": 64, "epochs": 2}
    stopped, crashed, silent = (
        dataclasses.replace(trained(params, 1), status=TrialStatus.STOPPED),
        dataclasses.replace(trained(params, 2), status=TrialStatus.CRASHED, measurement=None),
        dataclasses.replace(trained(params, 3), val_accuracy=None),
    )
    search = ParamSearch(SPACE, Goal(), 0.8, [stopped, crashed, silent])
    assert search.finalists == []
    assert search.best == math.inf
    assert search.next() != params


def test_memory_is_minimised_whatever_the_time():
    def trained_in(params, number):
        reached = 0.9 if params["rows"] >= 20 else 0.5
        used = {"params": params, "memory": params["rows"] * 2**20, "accuracy": reached}
        return run(1000.0 / params["rows"], number=number, **used)

    space = read_params({"rows": "int(1, 200)"}, None, 2)
    runs = [trained_in({"rows": 100}, 1)]
    for number in range(2, 22):
        search = ParamSearch(space, Goal(), 0.9, runs, Objective.MEMORY)
        runs.append(trained_in(search.next(), number))
    search = ParamSearch(space, Goal(), 0.9, runs, Objective.MEMORY)
    rows = [each.trial.params["rows"] for each in search.finalists]
    assert rows == sorted(rows)
    assert 20 <= rows[0] < 50
    assert search.best == rows[0] * 2**20
