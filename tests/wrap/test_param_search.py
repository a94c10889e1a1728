"""The search for params: it gets faster, keeps what the program reaches, and resumes from runs."""

from __future__ import annotations

import dataclasses
import math

from tests.wrap.samples import run
from tuner.values.trial import TrialStatus
from tuner.wrap.goal import Goal
from tuner.wrap.param_search import ParamSearch
from tuner.wrap.params import ParamSpace, read_params

SPACE = read_params(
    {"lr": "log(1e-4, 1)", "batch": "choice(16, 32, 64, 128)", "epochs": "int(1, 10)"}, None
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
    assert search.best_s < OWN.measurement.wall_time_s / 3
    assert all(each.val_accuracy >= OWN.val_accuracy for each in search.finalists)
    times = [each.measurement.wall_time_s for each in search.finalists]
    assert times == sorted(times)
    assert times[0] == search.best_s


def test_it_asks_for_the_same_after_an_interruption():
    runs = [trained({"lr": 0.1, "batch": 32, "epochs": 2}, 1)]
    first, second = (ParamSearch(SPACE, Goal(), 0.8, runs).next() for _ in range(2))
    assert first == second


def test_start_points_come_first():
    space = ParamSpace(
        SPACE.params,
        {"lr": 0.01, "batch": 64, "epochs": 2},
        ({"lr": 0.1}, {"batch": 1000}, {"epochs": 1}),
    )
    first = ParamSearch(space, Goal(), 0.8, []).next()
    assert first == {"lr": 0.1, "batch": 64, "epochs": 2}
    second = ParamSearch(space, Goal(), 0.8, [trained(first, 1)]).next()
    assert second == {"lr": 0.01, "batch": 64, "epochs": 1}  # that between is not in the space


def test_runs_that_failed_or_were_given_up_are_no_finalists():
    params = {"lr": 0.05, "batch": 64, "epochs": 2}
    stopped, crashed, silent = (
        dataclasses.replace(trained(params, 1), status=TrialStatus.STOPPED),
        dataclasses.replace(trained(params, 2), status=TrialStatus.CRASHED, measurement=None),
        dataclasses.replace(trained(params, 3), val_accuracy=None),
    )
    search = ParamSearch(SPACE, Goal(), 0.8, [stopped, crashed, silent])
    assert search.finalists == []
    assert search.best_s == math.inf
    assert search.next() != params
