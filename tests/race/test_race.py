"""Tests of ``tuner.race.race`` with workers that only reckon: their clock is the race's."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import statistics
from collections import defaultdict

import pytest

from tests.report_samples import make_measurement
from tuner.config.catalogue import find_setting_file
from tuner.race.race import Race
from tuner.values.runtime_map import RuntimeMap
from tuner.values.space import SearchSpace
from tuner.values.trial import TrialKind, TrialResult, TrialStatus

FLAGS = ("avx2", "avx512f")
START_S = 1.2
LIBRARY = {
    "openblas-pthread": 1.0, "openblas-openmp": 1.02, "mkl": 0.9, "blis": 8.0, "atlas": 2.5,
    "reference": 60.0,
}  # fmt: skip


def seconds(params) -> float:
    """Caffe's ways: threads that pay only in large batches, kernels that differ a little."""
    batch = params["batch_size"]
    threads = 2 if params["threads"] in ("unset", 2) else 1
    parallel = 1.0 if threads == 1 else 0.55 + 20.0 / batch
    kernel = {"SkylakeX": 0.85, "Haswell": 0.97}.get(params["blas_kernel"], 1.0)
    return 1e-4 * (10 + batch) * LIBRARY[params["blas"]] * parallel * kernel


class Machine:
    """Time that passes only by training, and all that was done in it."""

    def __init__(self, spread=0.0, slowdown=lambda _now: 1.0, lying=(), disturbed=0):
        self.now = 0.0
        self.noise = random.Random(3)
        self.spread, self.slowdown, self.lying, self.disturbed = (
            spread, slowdown, lying, disturbed,
        )  # fmt: skip
        self.spent = defaultdict(float)

    @contextlib.contextmanager
    def session(self, params):
        self.now += START_S
        self.spent[params["blas"]] += START_S
        yield self

    def run(self, trial) -> TrialResult:
        assert trial.kind is TrialKind.PROBE
        params = trial.params
        pace = seconds(params) * self.slowdown(self.now)
        pace *= math.exp(self.noise.gauss(0, self.spread))
        done = max(1, min(params["iterations"], math.ceil(trial.train_time_limit_s / pace)))
        self.now += done * pace
        self.spent[params["blas"]] += done * pace
        words = ""
        if self.disturbed:
            self.disturbed -= 1
            pace, words = 3 * pace, "others used 80 % of its cores"
        status = TrialStatus.COMPLETE if done == params["iterations"] else TrialStatus.STOPPED
        if params["blas"] in self.lying:
            status = TrialStatus.INVALID
        measurement = dataclasses.replace(
            make_measurement(done * pace), train_time_s=done * pace, disturbed=words
        )
        return TrialResult(trial, status, "", iterations=done, measurement=measurement)


@pytest.fixture
def space():
    path = find_setting_file("search_spaces", "caffe")
    return SearchSpace.load(path, cores=2, cpu_flags=FLAGS, dataset="mnist", model="default")


def race(space, machine, budget_s=300.0, **changes):
    return open_race(space, machine, budget_s, **changes).run()


def open_race(space, machine, budget_s=300.0, **changes):
    default = space.default("mnist", "default").params
    return Race(space, default, machine.session, budget_s, clock=lambda: machine.now, **changes)


def truly_fastest(space, batch):
    every = [
        {"blas": blas, "threads": threads, "blas_kernel": kernel}
        for blas in space.params["blas"].values({})
        for threads in space.params["threads"].values({"blas": blas})
        for kernel in space.params["blas_kernel"].values({"blas": blas})
    ]
    return min(seconds({**each, "batch_size": batch}) for each in every)


@pytest.mark.parametrize(("spread", "slack"), [(0.0, 1.03), (0.04, 1.03), (0.1, 1.1)])
@pytest.mark.parametrize("batch", [16, 64, 512])
def test_the_winner_is_the_fastest_or_hardly_slower(space, batch, spread, slack):
    found = race(space, Machine(spread)).fastest(batch)
    assert seconds({**found, "batch_size": batch}) <= slack * truly_fastest(space, batch)


def test_a_value_that_pays_only_with_what_is_decided_later_is_found(monkeypatch):
    """As PyTorch's threads, of which two gain much, but not beside channels_last."""

    def entangled(params) -> float:
        factors = {"contiguous": {2: 1.0}, "channels_last": {2: 1.0, "unset": 0.7}}
        batch, layout = params["batch_size"], params["memory_format"]
        ahead = 0.95 if (layout == "contiguous") == (batch < 64) else 1.0
        engine = 3.0 if params["blas"] == "native" else 1.0
        return 1e-4 * batch * ahead * engine * factors[layout].get(params["threads"], 1.6)

    monkeypatch.setattr(f"{__name__}.seconds", entangled)
    path = find_setting_file("search_spaces", "torch")
    torch = SearchSpace.load(path, cores=2, cpu_flags=FLAGS, dataset="mnist", model="default")
    torch = dataclasses.replace(torch, start=())  # which would tell
    default = torch.default("mnist", "default").params
    machine = Machine(0.03)
    found = Race(torch, default, machine.session, 300.0, clock=lambda: machine.now).run()
    for batch in (16, 64, 256):
        best = found.fastest(batch)
        assert (best["threads"], best["memory_format"]) == ("unset", "channels_last")


@pytest.fixture
def over_link(monkeypatch):
    """PyTorch on one node or two, which exchange gradients in so many seconds at any batch."""

    def open_(exchange_s, **changes) -> Race:
        def linked(params) -> float:
            nodes, engine = params["nodes"], 3.0 if params["blas"] == "native" else 1.0
            return 2.4e-4 * params["batch_size"] * engine / nodes + exchange_s * (nodes - 1)

        monkeypatch.setattr(f"{__name__}.seconds", linked)
        path = find_setting_file("search_spaces", "torch")
        torch = SearchSpace.load(path, cores=1, dataset="mnist", model="default", nodes=2)
        default = torch.default("mnist", "default").params
        machine = Machine(0.03)
        return Race(torch, default, machine.session, 300.0, clock=lambda: machine.now, **changes)

    return open_


def test_a_group_that_is_slow_at_small_batches_is_found_at_large_ones(over_link):
    found = over_link(0.04).run()
    assert [found.fastest(batch)["nodes"] for batch in (16, 64, 512)] == [1, 1, 2]


@pytest.mark.parametrize(("then_s", "now_s"), [(0.4, 0.04), (0.04, 0.4)])
def test_a_recorded_map_is_forgotten_where_the_network_is_another_one_now(
    over_link, then_s, now_s
):
    """One node is the fastest at the first batch over either, and as fast as it was."""
    known = RuntimeMap.from_json(over_link(then_s).run().to_json())
    again = over_link(now_s, known=known, recorded=True)
    again.run(0.0)
    assert not again.over
    assert len(known.settings) == 1, "the default's alone"
    again.run()
    assert known.fastest(512)["nodes"] == (2 if now_s < then_s else 1)


def test_a_recorded_map_is_kept_where_the_network_is_the_same(over_link):
    known = RuntimeMap.from_json(over_link(0.04).run().to_json())
    again, probes = over_link(0.04, known=known, recorded=True), len(known.probes)
    again.run(0.0)
    assert again.over
    assert len(known.probes) == probes


def test_what_noise_leaves_undecided_is_probed_again_and_the_plainly_slow_is_not(space):
    found = race(space, Machine(0.1))
    counts = defaultdict(list)
    for setting in found.settings:
        own = [each for each in found.probes if each.setting == setting and each.batch_size == 64]
        counts[setting["blas"]].append(len(own))
    assert counts["reference"] == counts["blis"] == [1]
    assert max(counts[found.fastest(64)["blas"]]) >= 2


def test_a_core_taken_away_crowns_nobody_who_needs_two(space):
    """Settings of two threads are slowed down alone, as by a neighbour: others are not praised."""

    class Shared(Machine):
        def run(self, trial):
            two = trial.params["threads"] in ("unset", 2)
            self.slowdown = lambda now: 2.0 if two and now > 20 else 1.0
            return super().run(trial)

    found = race(space, Shared(0.02))
    for probe in found.probes:
        if probe.setting["threads"] == 1:
            truth = seconds({**probe.setting, "batch_size": probe.batch_size})
            assert probe.iteration_s == pytest.approx(truth, rel=0.25)


def test_all_settings_are_members_and_the_default_is_one(space):
    found = race(space, Machine())
    default = space.default("mnist", "default").params
    assert found.settings[0] == {name: default[name] for name in space.runtime}
    for setting in found.settings:
        assert space.refusal({**default, **setting}) == ""


def test_a_setting_60_times_slower_costs_two_seconds(space):
    machine = Machine()
    race(space, machine)
    assert machine.spent["reference"] - START_S <= 2.0
    assert machine.spent["blis"] - START_S <= 2.0, "beaten before its kernels were tried"
    assert machine.now < 120


def test_a_machine_that_slows_down_crowns_nobody_else(space):
    for start in (5.0, 15.0, 25.0, 35.0):
        machine = Machine(0.02, slowdown=lambda now, start=start: 1.6 if now > start else 1.0)
        found = race(space, machine).fastest(64)
        assert seconds({**found, "batch_size": 64}) <= 1.1 * truly_fastest(space, 64)


def test_a_default_of_two_threads_that_is_slowed_down_praises_nobody(space):
    """What was measured beside it would be put to a pace that no setting ever had."""

    class Unsteady(Machine):
        def run(self, trial):
            two = trial.params["threads"] in ("unset", 2)
            self.slowdown = lambda now: 2.0 if two and now > 3 else 1.0
            return super().run(trial)

    found = race(space, Unsteady(0.02))
    for probe in found.probes:
        if probe.setting["threads"] == 1:
            truth = seconds({**probe.setting, "batch_size": probe.batch_size})
            assert probe.iteration_s == pytest.approx(truth, rel=0.1)


@pytest.mark.slow
def test_noise_praises_nobody_for_coming_late(space, monkeypatch):
    """All settings are as fast. A chance minimum must not make what is measured later faster."""
    monkeypatch.setattr(f"{__name__}.seconds", lambda params: 1e-4 * (10 + params["batch_size"]))
    falls = []
    for seed in range(6):
        machine = Machine(0.15)
        machine.noise = random.Random(seed)
        probes = [each for each in race(space, machine).probes if each.batch_size == 64]
        logs = [math.log(each.iteration_s) for each in probes]
        half = len(logs) // 2
        falls.append(statistics.fmean(logs[:half]) - statistics.fmean(logs[half:]))
    assert abs(statistics.fmean(falls)) < 0.1


def test_disturbed_probes_are_counted_and_measured_again(space):
    found = race(space, Machine(disturbed=2))  # the first worker's first two
    assert found.disturbed == 1
    at = found.iteration_s(found.settings[0], 64).value
    assert at == pytest.approx(seconds({**found.settings[0], "batch_size": 64}), rel=0.05)


def test_a_lying_worker_never_wins(space):
    found = race(space, Machine(lying=("mkl",)))
    assert all(each["blas"] != "mkl" for each in found.settings)
    assert any(setting["blas"] == "mkl" and "INVALID" in why for setting, why in found.faults)


def test_the_budget_ends_it_with_what_is_known(space):
    machine = Machine()
    started = open_race(space, machine, budget_s=8.0)
    found = started.run(max_s=8.0)
    assert found.probes
    assert machine.now < 8.0 + 2 * START_S + 4
    started.run()
    assert started.over
    assert not found.settled
    assert len(found.settings) < len(race(space, Machine()).settings)


@pytest.mark.parametrize("budget_s", [0.5, 3.0, 300.0])
def test_a_slow_default_leaves_time_for_its_neighbours(monkeypatch, budget_s):
    """As Torch7's LeNet over OpenBLAS: one thread is 14 times as fast as what is unset."""

    def crowded(params) -> float:
        factor = {"unset": 14.0, 1: 1.0}.get(params["threads"], 8.0)
        return 0.019 / 64 * params["batch_size"] * factor

    monkeypatch.setattr(f"{__name__}.seconds", crowded)
    path = find_setting_file("search_spaces", "torch7")
    slow = SearchSpace.load(path, cores=2, cpu_flags=FLAGS, dataset="mnist", model="lenet")
    slow = dataclasses.replace(slow, start=())
    default = slow.default("mnist", "lenet").params
    machine = Machine()
    racing = Race(slow, default, machine.session, budget_s, clock=lambda: machine.now)
    racing.run(0.0)
    assert machine.now < START_S + 5, "few iterations where they are slow"
    assert not racing.over
    found = racing.run()
    tried = {name: {each[name] for each in found.settings} for name in slow.runtime}
    assert 1 in tried["threads"]
    for name, param in slow.runtime.items():
        assert len(tried[name]) > 1 or len(param.values(default)) < 2
    assert found.fastest(64)["threads"] == 1


def test_a_setting_whose_trials_fail_between_two_turns_is_left_alone(space):
    machine = Machine()
    racing = open_race(space, machine)
    while not racing.over:
        racing.run(max_s=0.1)
        known = racing.known
        for _ in range(2):
            known.note_failure(known.fastest(64))
    assert len({str(each) for each in known.probed}) == len(known.probed)
    assert len(known.settings) == 1


def test_an_interrupt_ends_it(space):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        race(space, Machine(), check=stop)


def test_it_goes_on_where_its_time_for_a_turn_ended_it(space):
    machine = Machine()
    running = open_race(space, machine)
    known = []
    for max_s in (0.5, 5.0, math.inf):
        running.run(max_s)
        known.append(len(running.known.settings))
    assert 1 <= known[0] < known[1] < known[2]
    assert running.over
    assert running.known.settled


def test_in_pieces_it_finds_the_same_as_at_once(space):
    whole, machine = race(space, Machine()), Machine()
    pieces = open_race(space, machine)
    for max_s in (0.5, 1.0, 2.0, math.inf):
        machine.now += 100.0  # others' time is not its own
        pieces.run(max_s)
    assert pieces.known.settings == whole.settings
    assert pieces.known.fastest(64) == whole.fastest(64)


def test_what_is_settled_is_not_raced_for_again(space):
    machine = Machine()
    found = race(space, machine)
    again = open_race(space, machine, known=RuntimeMap.from_json(found.to_json()))
    assert again.over
    unsettled = RuntimeMap(found.probes)
    more = open_race(space, machine, known=unsettled)
    assert not more.over
    start, before = machine.now, len(unsettled.settings)
    more.run()
    assert more.known.settled
    assert len(more.known.settings) <= before + 6
    assert machine.now - start < 0.5 * start


def test_a_recorded_map_is_kept_where_the_machine_is_as_fast_as_then(space):
    machine = Machine(spread=0.03)
    found = race(space, machine)
    again = open_race(space, machine, known=RuntimeMap.from_json(found.to_json()), recorded=True)
    assert not again.over, "it is not seen to hold yet"
    start, probes = machine.now, len(found.probes)
    again.run(0.0)
    assert again.over
    assert len(again.known.probes) == probes
    assert machine.now - start < 2 * (START_S + 1.0)


@pytest.mark.parametrize("then", [1.6, 0.6])
def test_a_recorded_map_is_put_to_the_pace_that_the_whole_machine_has_now(space, then):
    found = race(space, Machine(slowdown=lambda _now: then))
    known, faults = RuntimeMap.from_json(found.to_json()), list(found.faults)
    again = open_race(space, Machine(), known=known, recorded=True)
    again.run(0.0)
    assert again.known is known, "others hold this map"
    assert again.over
    assert (len(known.probes), known.faults) == (len(found.probes), faults)
    now = {**known.fastest(64), "batch_size": 64}
    assert known.pace_s(known.fastest(64), 64) == pytest.approx(seconds(now), rel=0.05)


def test_a_recorded_map_of_which_the_fastest_alone_was_measured_wrong_is_forgotten(space):
    found = race(space, Machine())
    fastest = found.fastest(64)
    wrong = [
        dataclasses.replace(each, iteration_s=each.iteration_s / 2)
        if each.setting == fastest
        else each
        for each in found.probes
    ]
    known = RuntimeMap(wrong)
    again = open_race(space, Machine(), known=known, recorded=True)
    again.run(0.0)
    assert not again.over
    assert [each["blas"] for each in known.settings] == ["openblas-pthread"], "the default's alone"
    again.run()
    assert known.settled
    now = {**known.fastest(64), "batch_size": 64}
    assert known.pace_s(known.fastest(64), 64) == pytest.approx(seconds(now), rel=0.05)


def test_an_interrupted_race_does_not_measure_the_default_again(space):
    machine = Machine()
    started = open_race(space, machine)
    started.run(0.0)
    goes_on = open_race(space, machine, known=RuntimeMap.from_json(started.known.to_json()))
    machine.spent.clear()
    goes_on.run(max_s=0.1)
    assert len(goes_on.known.settings) == 2
    # nothing but a worker that keeps the time, and its two probes
    assert machine.spent["openblas-pthread"] < 2 * START_S + 1.0


@pytest.fixture
def race_of_groups(monkeypatch):
    """PyTorch in groups of two, which exchange gradients in so many seconds."""

    def run(**exchange_s):
        def pace(params) -> float:
            one_s = 1e-4 * (10 + params["batch_size"]) * (3 if params["blas"] == "native" else 1)
            group = params["workers"] > 1
            return 0.6 * one_s + exchange_s[params["exchange"]] if group else one_s

        monkeypatch.setattr(f"{__name__}.seconds", pace)
        path = find_setting_file("search_spaces", "torch")
        torch = SearchSpace.load(path, cores=2, cpu_flags=FLAGS, dataset="mnist", model="default")
        default, machine = torch.default("mnist", "default").params, Machine(0.02)
        return Race(torch, default, machine.session, 300.0, clock=lambda: machine.now).run()

    return run


def test_lossy_exchanges_are_raced_and_dropped_where_they_gain_nothing(race_of_groups):
    found = race_of_groups(exact=1e-4, fp16=1e-4, powersgd=3e-4)
    assert {each["exchange"] for each in found.settings} == {"exact", "fp16", "powersgd"}
    assert {each["workers"] for each in found.settings_of(("fp16", 2))} == {2}
    assert found.fastest(64)["workers"] == 2
    assert found.lossy_kinds(64) == []
    assert found.settled


def test_a_lossy_exchange_is_kept_where_the_exact_one_is_the_bottleneck(race_of_groups):
    found = race_of_groups(exact=2e-2, fp16=1e-2, powersgd=1e-4)
    assert found.fastest(64)["workers"] == 1, "a slow group is no reason not to try its exchanges"
    assert found.lossy_kinds(64) == [("powersgd", 2)]
    for batch in found.batch_sizes:
        assert found.was_probed(found.fastest(64, ("powersgd", 2)), batch)
