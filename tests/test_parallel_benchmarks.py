"""The benchmark of groups of processes: what it measures, and what it says of the race."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import parallel
from parallel import Measurements, fastest_of_each_layout, measure_in_turns, settings_of

from tuner.config.catalogue import find_setting_file
from tuner.values.space import SearchSpace
from tuner.values.trial import TrialStatus

CORES = (0, 1)
SLOWER = {("blas", "eigen"): 2.0, ("xla", True): 1.5, ("inter_op_threads", 1): 1.1}
"""Times as long as an iteration takes with these values."""


def iteration_s(params):
    """Seconds of an iteration, made up: two threads are better than two workers."""
    factor = 1.0
    for each in params.items():
        factor *= SLOWER.get(each, 1.0)
    threads = 2 if params["threads"] == "unset" else params["threads"]
    busy = params["workers"] * threads
    return 1e-4 * params["batch_size"] * factor / min(busy, 2) + 2e-3 * (params["workers"] - 1)


class Sessions:
    """Opens sessions that train at once, and notes what they trained."""

    def __init__(self, monkeypatch):
        self.opened, self.trained, self.open = [], [], 0
        self.broken = lambda _params: False
        monkeypatch.setattr(parallel, "open_session", self)

    @contextlib.contextmanager
    def __call__(self, _bench, params):
        self.opened.append(params)
        self.open += 1
        yield self
        self.open -= 1

    def run(self, trial):
        self.trained.append(trial.params)
        count = int(trial.params["iterations"])
        status = TrialStatus.CRASHED if self.broken(trial.params) else TrialStatus.COMPLETE
        return SimpleNamespace(
            status=status,
            usable=status is TrialStatus.COMPLETE,
            reason="it broke",
            iterations=count,
            measurement=SimpleNamespace(
                train_time_s=count * iteration_s(trial.params),
                peak_memory_bytes=2**20,
                cores_used=1.0,
                sent_bytes=count * 7000 * (int(trial.params["workers"]) - 1),
                disturbed="",
            ),
        )


@pytest.fixture
def sessions(monkeypatch):
    return Sessions(monkeypatch)


def bench_of(framework):
    path = find_setting_file("search_spaces", framework)
    space = SearchSpace.load(path, cores=len(CORES), dataset=parallel.DATASET, model="lenet")
    return SimpleNamespace(
        space=space,
        default=space.default(parallel.DATASET, "lenet").params,
        setup=SimpleNamespace(cores=CORES),
    )


@pytest.fixture
def bench(monkeypatch):
    made = bench_of("tensorflow")
    monkeypatch.setattr(parallel, "workbench", lambda *_: contextlib.nullcontext(made))
    return made


def layout(setting):
    return setting["workers"], setting["threads"]


@pytest.mark.parametrize(
    ("framework", "exchanges"),
    [
        ("mxnet", {"exact", "async", "2bit"}),
        ("torch", {"exact", "fp16", "powersgd"}),
        ("cntk", {"exact", "1bit"}),
        ("chainer", {None}),
    ],
)
def test_each_exchange_is_measured_within_the_cores_and_beyond(framework, exchanges):
    settings = settings_of(bench_of(framework))
    assert len(settings) == len({str(each) for each in settings})
    for wanted in ((2, 1), (2, 2)):
        found = {each.get("exchange") for each in settings if layout(each) == wanted}
        assert found == exchanges


def test_each_layout_is_measured_at_the_fastest_setting_that_was_raced(bench):
    settings = settings_of(bench)
    raced = [each for each in settings if each["workers"] == 1 or each["threads"] == 1]
    raced.sort(key=lambda each: iteration_s({**each, "batch_size": 64}))
    found = fastest_of_each_layout(settings, raced, 1)
    assert sorted(map(str, map(layout, found))) == sorted({str(layout(each)) for each in settings})
    for each in found:
        assert each["blas"] == "onednn"
        assert each["xla"] is False
        assert each["inter_op_threads"] == "unset"
    assert len(fastest_of_each_layout([], raced, 2)) == 2 * 4


def test_a_layout_that_was_not_raced_gets_what_suits_as_many_workers(bench):
    settings = settings_of(bench)
    one, two = (
        next(each for each in settings if layout(each) == wanted and each["xla"] == xla)
        for wanted, xla in (((1, 2), False), ((2, 1), True))
    )
    over = fastest_of_each_layout(settings, [one, two], 1)
    assert [each["xla"] for each in over if layout(each) == (2, 2)] == [True]


def test_sessions_stay_open_over_the_rounds(bench, sessions):
    finalists = fastest_of_each_layout(settings_of(bench), settings_of(bench), 1)
    sessions.broken = lambda params: layout(params) == (1, 2)
    found = Measurements(bench, 0.5)
    measure_in_turns(found, finalists, 3)
    assert len(sessions.opened) == len(finalists) == 5
    assert sessions.open == 0
    measured = [str(layout(each)) for each in sessions.trained[5:]]
    assert len(measured) == 3 * 4, "what failed is not tried again"
    assert measured[:4] != measured[4:8], "another one is first in each round"
    assert list(found.faults.values()) == ["CRASHED: it broke"]


@pytest.mark.parametrize("every", [False, True])
def test_the_choice_of_the_race_is_held_against_what_was_measured(bench, sessions, every):
    found = parallel.compare("tensorflow", 2, 0.5, every=every)
    assert (found["chosen"]["workers"], found["chosen_of_fastest"]) == (1, pytest.approx(1.0))
    assert {(each["workers"], each["threads"]) for each in found["groups"]} == {
        (1, 1), (1, 2), (1, "unset"), (2, 1), (2, 2),
    }  # fmt: skip
    two = next(each for each in found["groups"] if (each["workers"], each["threads"]) == (2, 1))
    one = {**found["chosen"], "batch_size": 64}
    took_s = iteration_s({**two["setting"], "batch_size": 64})
    assert two["speedup"] == pytest.approx(iteration_s({**one, "threads": 1}) / took_s)
    assert two["efficiency"] == pytest.approx(two["speedup"] / 2)
    assert two["against_one"] == pytest.approx(iteration_s(one) / took_s)
    assert two["sent_bytes"] == pytest.approx(7000)
    assert found["race_of_trained"] < 0.1
    everything = settings_of(bench)
    paces = [iteration_s({**each, "batch_size": 64}) for each in everything]
    assert found["settings"] <= len(everything)
    whole = bench.default["iterations"] * sum(paces)
    assert found["trained_s"] == pytest.approx(whole) if every else found["trained_s"] < whole
    assert ("raced or measured" in "".join(parallel.lines(found))) is not every
