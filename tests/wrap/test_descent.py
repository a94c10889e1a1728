"""The descent: finds the fastest setting, drops what has no effect, and resumes from its times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest

from tuner.wrap.descent import Descent
from tuner.wrap.knobs import Knob, parse_knob

THREADS = Knob("threads", "", {each: {} for each in (16, 8, 4, 2, 1)}, ordered=True)
ALLOCATOR, POLICY = parse_knob("A=keep,huge"), parse_knob("P=active,passive")
Cost = Callable[[Mapping], float]


def finish(knobs: list[Knob], cost: Cost) -> tuple[Descent, list[dict]]:
    times: list[tuple[dict, float]] = [({}, cost({}))]
    while (setting := Descent(knobs, times).next) is not None:
        assert setting not in [each for each, _ in times], "tried twice"
        times.append((setting, cost(setting)))
    return Descent(knobs, times), [each for each, _ in times[1:]]


def test_the_fastest_values_are_combined():
    def cost(setting: Mapping) -> float:
        threads = {16: 3.0, 8: 2.0, 4: 1.0, 2: 1.2, 1: 2.0}[setting.get("threads", 16)]
        return threads * (0.8 if setting.get("A") == "keep" else 1.0)

    found, _ = finish([THREADS, ALLOCATOR, POLICY], cost)
    assert found.best == {"threads": 4, "A": "keep"}
    effects = {each.knob: (each.value, round(each.gain, 2)) for each in found.effects}
    assert effects == {"threads": (4, 3.0), "A": ("keep", 1.25), "P": (None, 1.0)}


def test_noise_changes_nothing():
    found, tried = finish([THREADS, ALLOCATOR], lambda setting: 1.0 - 0.01 * len(setting))
    assert found.best == {}
    assert {each.value for each in found.effects} == {None}
    ends = [{"threads": each} for each in (16, 8, 1)]
    assert tried == [*ends, {"A": "keep"}, {"A": "huge"}], "both ends tell of what is not read"


@pytest.mark.parametrize(("one", "best"), [(1.3, {"threads": 2}), (math.inf, {"threads": 2})])
def test_numbers_of_threads_between_ends_that_differ_are_tried(one, best):
    costs = {16: 1.0, 8: 1.0, 4: 0.9, 2: 0.8, 1: one}
    found, tried = finish([THREADS], lambda setting: costs[setting.get("threads", 16)])
    assert found.best == best
    assert [each["threads"] for each in tried] == [16, 8, 1, 4, 2]


@pytest.mark.parametrize("limit", [math.inf, 1.3], ids=["measured", "given up"])
def test_numbers_of_threads_far_beyond_the_best_are_left_out(limit):
    def cost(setting: Mapping) -> float:
        took = 16 / setting.get("threads", 16)
        return took if took <= limit else math.inf

    found, tried = finish([THREADS], cost)
    assert found.best == {}
    assert tried == [{"threads": 16}, {"threads": 8}, {"threads": 4}]


def test_knobs_whose_values_were_not_all_tried_are_told():
    times = [({}, 1.0), ({"threads": 16}, 1.0), ({"threads": 8}, 1.0)]
    assert Descent([THREADS, ALLOCATOR], times).untried == ["threads", "A"]
    assert Descent([THREADS, ALLOCATOR], [*times, ({"threads": 1}, 1.0)]).untried == ["A"]
    assert finish([THREADS, ALLOCATOR], lambda _: 1.0)[0].untried == []


def test_the_best_so_far_is_known_though_a_knob_has_values_left():
    times = [({}, 1.44), ({"threads": 16}, 1.0)]
    assert Descent([THREADS, ALLOCATOR], times).best == {"threads": 16}
    assert Descent([THREADS, ALLOCATOR], [({}, 1.0), ({"threads": 16}, 1.0)]).best == {}


@pytest.mark.parametrize("bad", [1.5, math.inf])
def test_a_setting_that_fails_is_never_the_best(bad):
    found, tried = finish([ALLOCATOR], lambda setting: bad if setting else 1.0)
    assert found.best == {}
    assert len(tried) == 2


def test_threads_are_tried_again_once_others_have_changed():
    def cost(setting: Mapping) -> float:
        if setting.get("P") == "passive":
            return 0.4 if setting.get("threads") == 2 else 0.5
        return {16: 1.0}.get(setting.get("threads", 16), 2.0)

    found, _ = finish([Knob("threads", "", {16: {}, 2: {}}, ordered=True), POLICY], cost)
    assert found.best == {"P": "passive", "threads": 2}


def test_workers_are_tried_with_their_share_of_the_cores():
    workers = Knob("workers", "", {1: {}, 2: {}}, ordered=True, along={2: {"threads": 8}})

    def cost(setting: Mapping) -> float:
        count, threads = setting.get("workers", 1), setting.get("threads", 16)
        return 3.0 if count * threads > 16 else 16 / threads / count**1.5

    found, tried = finish([THREADS, workers], cost)
    assert found.best == {"workers": 2, "threads": 8}
    assert {"workers": 2, "threads": 16} in tried, "threads are tried again with two workers"
    effects = {each.knob: each.value for each in found.effects}
    assert effects == {"threads": None, "workers": 2}
