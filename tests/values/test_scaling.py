"""The model of larger groups: what it recovers, what it does not know, and how sure it is."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.values.errors import ConfigError
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.scaling import (
    Link,
    Pace,
    Scaling,
    TooFewLayouts,
    Topology,
    fastest,
    paces,
    read_topology,
)
from tuner.values.trial import Interval

BATCHES = (16, 64, 512)
OWN_S, IMAGE_S, STEP_S, BYTE_S = 1e-3, 2e-4, 1e-4, 3e-3


def true_s(workers: int, batch: int, topology: Topology = Topology.RING) -> float:
    """Seconds of an iteration that follows the model."""
    images = -(-batch // workers)
    exchanged = STEP_S * topology.steps(workers) + BYTE_S * topology.volume(workers)
    return OWN_S + IMAGE_S * images + exchanged


def pace(workers: int, threads: object, batch: int, seconds: float, spread: float = 0.02) -> Pace:
    setting = {"blas": "fast", "workers": workers, "threads": threads}
    took = Interval(seconds, seconds * (1 - spread), seconds * (1 + spread))
    return Pace(setting, batch, took)


def measured(
    *workers: int, topology: Topology = Topology.RING, noise: float = 0.0, seed: int = 0
) -> list[Pace]:
    random = np.random.default_rng(seed)
    return [
        pace(each, 1, batch, true_s(each, batch, topology) * np.exp(noise * random.normal()))
        for each in workers
        for batch in BATCHES
    ]


@pytest.mark.parametrize("topology", Topology)
def test_larger_groups_are_predicted_from_groups_of_several_sizes(topology):
    model = Scaling(measured(1, 2, 3, topology=topology), topology)
    for workers in (4, 16, 64):
        found = model.iteration_s(workers, 1, 128)
        assert found.value == pytest.approx(true_s(workers, 128, topology), rel=0.01)
        assert found.low < found.value < found.high


@pytest.mark.parametrize("topology", Topology)
def test_groups_of_one_size_leave_open_what_their_exchange_costs(topology):
    model = Scaling(measured(1, 2, topology=topology), topology)
    assert model.iteration_s(2, 1, 64).value == pytest.approx(true_s(2, 64, topology), rel=0.01)
    known, open_ = Scaling(measured(1, 2, 3, topology=topology), topology), model
    for workers in (8, 64):
        wide, narrow = (each.iteration_s(workers, 1, 128) for each in (open_, known))
        assert wide.low < true_s(workers, 128, topology) < wide.high
        assert wide.high / wide.low > 1.5 * narrow.high / narrow.low


def test_a_link_adds_its_latency_a_step_and_the_time_of_the_bytes():
    gradients = 2e6
    for topology, steps, sent in (
        (Topology.RING, 14, 2 * 7 / 8 * gradients),
        (Topology.SERVER, 2, 2 * 7 * gradients),  # the first worker is on the server's host
    ):
        model = Scaling(measured(1, 2, 3, topology=topology), topology, gradients)
        here = model.iteration_s(8, 1, 64).value
        over = model.iteration_s(8, 1, 64, Link.read("1gbit", 0.5)).value
        assert over - here == pytest.approx(steps * 5e-4 + 8 * sent / 1e9)


def test_one_process_sends_nothing():
    model = Scaling(measured(1, 2), Topology.RING)
    slow = Link.read("1kbit", 1000)
    assert model.iteration_s(1, 1, 64, slow) == model.iteration_s(1, 1, 64)
    with pytest.raises(TooFewLayouts, match="how many bytes an iteration sends was not measured"):
        model.iteration_s(2, 1, 64, slow)


def test_threads_of_one_process_serve_every_member_of_a_group():
    shorter = {2: 0.6, "unset": 0.7}
    single = [
        pace(1, threads, batch, OWN_S + share * IMAGE_S * batch)
        for threads, share in shorter.items()
        for batch in BATCHES
    ]
    model = Scaling([*measured(1, 2, 3), *single], Topology.RING)
    assert set(model.threads) == {1, 2, "unset"}
    for threads, share in shorter.items():
        expected = true_s(4, 64) - (1 - share) * IMAGE_S * 16
        assert model.iteration_s(4, threads, 64).value == pytest.approx(expected, rel=0.01)


def test_a_slow_layout_that_was_probed_once_is_enough_beside_others():
    """The race probes what is plainly slow at one batch size alone."""
    single = [pace(1, 2, batch, OWN_S + 0.6 * IMAGE_S * batch) for batch in BATCHES]
    once = [pace(each, 1, 64, true_s(each, 64)) for each in (1, 2)]
    model = Scaling([*single, *once], Topology.RING)
    here = model.iteration_s(2, 1, 512)
    assert here.value == pytest.approx(true_s(2, 512), rel=0.01)
    assert model.iteration_s(8, 2, 64).low < true_s(8, 64) - 0.4 * IMAGE_S * 8


@pytest.mark.parametrize(
    ("known", "fact"),
    [
        ([], "nothing was measured with 1 threads"),
        (measured(1)[:1], "one more to check the model by"),
        (measured(1), "too few layouts"),
        (measured(2), "too few layouts"),
        ([*measured(2), pace(1, "unset", 64, 0.01)], "too few layouts"),
        ([*measured(1)[:2], *measured(2)[:1]], "one more to check the model by"),
        ([*measured(1), pace(2, 2, 64, 0.01)], "too few layouts"),
    ],
)
def test_what_the_layouts_do_not_determine_is_not_predicted(known, fact):
    with pytest.raises(TooFewLayouts, match=fact):
        Scaling(known, Topology.RING).iteration_s(4, 1, 64)


def test_more_workers_than_images_are_refused():
    with pytest.raises(TooFewLayouts, match="64 workers cannot share a batch of 32"):
        Scaling(measured(1, 2), Topology.RING).iteration_s(64, 1, 32)


def test_threads_that_no_one_measured_are_refused():
    with pytest.raises(TooFewLayouts, match="nothing was measured with 3 threads"):
        Scaling(measured(1, 2, 3), Topology.RING).iteration_s(4, 3, 64)


@pytest.mark.parametrize("odd", [1e-9, 1e5])
def test_odd_paces_still_give_finite_times(odd):
    known = [*measured(1, 2)[:-1], pace(2, 1, 512, odd)]
    found = Scaling(known, Topology.RING, 1e6).iteration_s(64, 1, 64, Link.read("1gbit", 0))
    assert 0 < found.low <= found.value <= found.high < 1e12


def test_no_cost_is_below_zero():
    faster = [pace(2, 1, batch, 0.3 * true_s(1, batch)) for batch in BATCHES]
    model = Scaling([*measured(1), *faster], Topology.RING)
    times = [model.iteration_s(workers, 1, 64).value for workers in (1, 2, 4, 64)]
    assert min(times) > 0
    assert times == sorted(times, reverse=True), "sending is free, and never earns time"


def test_the_interval_holds_what_is_measured_later_as_often_as_it_says():
    noise, held, trials = 0.05, 0, 60
    for seed in range(trials):
        model = Scaling(measured(1, 2, 3, noise=noise, seed=seed), Topology.RING)
        later = true_s(4, 64) * np.exp(noise * np.random.default_rng(1000 + seed).normal())
        found = model.iteration_s(4, 1, 64)
        held += found.low <= later <= found.high
    assert held >= 0.85 * trials


def test_the_interval_is_no_narrower_than_what_was_measured():
    exact = [pace(each.workers, 1, each.batch_size, each.iteration_s.value, 0.3)
             for each in measured(1, 2, 3)]  # fmt: skip
    doubtful = Scaling(exact, Topology.RING).iteration_s(4, 1, 64)
    assert doubtful.high / doubtful.low > 1.5


def test_the_same_answer_comes_whenever_it_is_asked_for():
    one, other = (Scaling(measured(1, 2, noise=0.05), Topology.RING) for _ in range(2))
    assert one.iteration_s(16, 1, 64) == other.iteration_s(16, 1, 64)


def test_of_a_layout_the_fastest_setting_counts():
    slow = Pace({"blas": "slow", "workers": 1, "threads": 1}, 64, Interval(1.0, 0.9, 1.1))
    assert slow not in fastest([*measured(1), slow])
    assert len(fastest([*measured(1), slow])) == len(BATCHES)


def test_paces_are_what_was_probed():
    setting = {"workers": 1, "threads": 1}
    known = RuntimeMap([PaceProbe(setting, 16, 0.01), PaceProbe({"workers": 2}, 64, 0.02)])
    found = paces(known)
    assert [(each.workers, each.threads, each.batch_size) for each in found] == [
        (1, 1, 16), (2, None, 64),
    ]  # fmt: skip
    assert found[0].iteration_s.value == pytest.approx(0.01)


def test_a_ring_and_a_server_send_what_is_known_of_them():
    assert [Topology.RING.sent(each) for each in (1, 2, 4)] == pytest.approx([0, 2, 6])
    assert [Topology.SERVER.sent(each) for each in (1, 2, 4)] == pytest.approx([0, 4, 8])


@pytest.mark.parametrize(
    ("text", "bits_s"),
    [("1gbit", 1e9), ("2.5gbit", 2.5e9), ("100mbit", 1e8), ("9600bit", 9600), ("1tbit", 1e12)],
)
def test_a_bandwidth_is_in_the_units_of_tc(text, bits_s):
    assert Link.read(text, 0.25) == Link(bits_s, 2.5e-4)


@pytest.mark.parametrize("text", ["", "1", "0gbit", "-1gbit", "1GB", "gbit", "1 gbit", "1gbit\n"])
def test_what_is_no_bandwidth_is_refused(text):
    with pytest.raises(ConfigError, match="bandwidth must be such as 100mbit or 10gbit, got"):
        Link.read(text, 0.25)


@pytest.mark.parametrize("latency", [-1, float("nan"), float("inf"), 1e5])
def test_what_is_no_latency_is_refused(latency):
    with pytest.raises(ConfigError, match="latency_ms must be from 0 to 10000, got"):
        Link.read("1gbit", latency)


def test_an_unknown_topology_is_refused():
    assert read_topology("server") is Topology.SERVER
    with pytest.raises(ConfigError, match="must be one of ring, server, got 'star'"):
        read_topology("star")
