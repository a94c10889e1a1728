"""Tests of ``tuner.search.derived``."""

import dataclasses

import pytest

from tests.conftest import DEFAULT, SYNTHETIC
from tests.report_samples import make_measurement
from tuner.config.schema import parse_constraint
from tuner.search.derived import Composition
from tuner.values.params import UNSET
from tuner.values.pareto import OBJECTIVES
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.space import SearchSpace
from tuner.values.trial import Checkpoint, Trial, TrialKind, TrialResult, TrialStatus

SPACE = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
OWN = {name: DEFAULT[name] for name in SPACE.runtime}
FAST = {**OWN, "blas": "fast"}
MAP = RuntimeMap([PaceProbe(OWN, 64, 0.02), PaceProbe(FAST, 64, 0.001)])


COMPOSITION = Composition(SPACE, MAP)


def run(status=TrialStatus.COMPLETE, **params):
    points = tuple(
        Checkpoint(iteration, 0.02 * iteration, 1.0, 0.5 + iteration / 4000)
        for iteration in (5, 250, 500, 1000)
    )
    measurement = dataclasses.replace(make_measurement(20.0), train_time_s=20.0)
    return TrialResult(
        Trial(7, {**DEFAULT, **params}), status, iterations=1000, val_accuracy=0.75,
        test_accuracy=0.7, checkpoints=points, measurement=measurement,
    )  # fmt: skip


def test_every_checkpoint_is_a_point_at_the_pace_of_the_fastest():
    points = COMPOSITION.points(run())
    assert [each.params["iterations"] for each in points] == [250, 500, 1000]
    assert [each.metrics["train_time_s"] for each in points] == pytest.approx([0.25, 0.5, 1.0])
    assert [each.val_accuracy for each in points] == [0.5625, 0.625, 0.75]
    for each in points:
        assert each.usable
        assert each.trial.kind is TrialKind.DERIVED
        assert each.test_accuracy is None
        assert each.params["blas"] == "fast"
        assert each.trial.number == 7
        assert each.reason.startswith("derived from search-0007")
    assert points[0].trial.title == "trial 7 at 250"
    assert len({each.trial.name for each in points}) == 3


@pytest.mark.parametrize(("two_s", "threads"), [(0.00095, 1), (0.0008, 2), (0.0011, 1)])
def test_more_threads_must_be_worth_it(two_s, threads):
    one, two = ({**FAST, "threads": each} for each in (1, 2))
    known = RuntimeMap(
        [PaceProbe(one, 64, 0.001), PaceProbe(two, 64, two_s), PaceProbe(OWN, 64, 0.02)]
    )
    assert Composition(SPACE, known).settings(64)[0]["threads"] == threads


def test_threads_left_to_the_library_are_all_of_them():
    one, free = ({**FAST, "threads": each} for each in (1, UNSET))
    known = RuntimeMap([PaceProbe(free, 64, 0.00098), PaceProbe(one, 64, 0.001)])
    assert Composition(SPACE, known).settings(64) == [one]


def test_a_run_at_the_fastest_pace_keeps_its_own_times():
    points = COMPOSITION.points(run(blas="fast"))
    assert [each.metrics["train_time_s"] for each in points] == [5.0, 10.0]


def test_a_run_on_a_machine_that_is_faster_now_is_scaled_by_the_race():
    halved = [
        dataclasses.replace(each, train_time_s=each.train_time_s / 2) for each in run().checkpoints
    ]
    sooner = dataclasses.replace(run(), checkpoints=tuple(halved))
    points = COMPOSITION.points(sooner)
    assert [each.metrics["train_time_s"] for each in points] == pytest.approx([0.125, 0.25, 0.5])
    unraced = Composition(SPACE, RuntimeMap([PaceProbe(FAST, 64, 0.001)])).points(sooner)
    assert [each.metrics["train_time_s"] for each in unraced] == pytest.approx([0.25, 0.5, 1.0])


def test_its_wall_time_is_that_of_its_own_training_and_the_run_s_other_work():
    points = COMPOSITION.points(run())
    assert [each.metrics["wall_time_s"] for each in points] == pytest.approx([2.65, 2.9, 3.4])


def test_what_is_no_result_or_no_member_stands_for_nothing():
    assert COMPOSITION.points(run(TrialStatus.DIVERGED)) == []
    assert Composition(SPACE, RuntimeMap()).points(run()) == []
    small = dataclasses.replace(SPACE.params["iterations"], low=600)
    narrow = dataclasses.replace(SPACE, params={**SPACE.params, "iterations": small})
    assert [each.iterations for each in Composition(narrow, MAP).points(run())] == [1000]


def test_the_first_part_of_a_default_is_composed_though_the_space_has_none_so_short():
    looks = [Checkpoint(each, 0.02 * each, 1.0, 0.3) for each in (3, 6)]
    first = dataclasses.replace(
        run(),
        trial=Trial(0, {**DEFAULT, "iterations": 6}, TrialKind.DEFAULT),
        iterations=6,
        checkpoints=tuple(looks),
    )
    (point,) = COMPOSITION.points(first)
    assert (point.iterations, point.params["blas"]) == (6, "fast")
    assert point.metrics["train_time_s"] == pytest.approx(0.006)
    search = dataclasses.replace(first, trial=Trial(7, first.params))
    assert COMPOSITION.points(search) == []
    outside = {**first.params, "batch_size": 10**6}
    wide = dataclasses.replace(first, trial=Trial(0, outside, TrialKind.DEFAULT))
    assert COMPOSITION.points(wide) == []


def test_a_derived_point_is_read_back_as_it_was_written():
    for each in COMPOSITION.points(run()):
        assert TrialResult.from_json(each.to_json()) == each


THRIFTY = RuntimeMap(
    [
        PaceProbe(OWN, 64, 0.02, peak_memory_bytes=400 * 2**20, cores_used=1.0),
        PaceProbe(FAST, 64, 0.001, peak_memory_bytes=800 * 2**20, cores_used=2.0),
    ]
)


def test_where_memory_counts_a_slower_setting_that_needs_less_is_composed_too():
    goals = [OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"], OBJECTIVES["peak_memory_mb"]]
    assert Composition(SPACE, THRIFTY).settings(64) == [FAST]
    whole = Composition(SPACE, THRIFTY, goals)
    assert whole.settings(64) == [FAST, OWN]
    points = whole.points(run())
    own = run().measurement
    fast = [each for each in points if each.params["blas"] == "fast"]
    slow = [each for each in points if each.params["blas"] == "slow"]
    assert {each.measurement.peak_memory_bytes for each in fast} == {2 * own.peak_memory_bytes}
    assert {each.measurement.peak_memory_bytes for each in slow} == {own.peak_memory_bytes}
    assert len({each.trial.name for each in points}) == len(points)


def test_cpu_time_follows_the_cores_that_a_setting_uses():
    (first, *_) = Composition(SPACE, THRIFTY).points(run())
    cpu_s = run().measurement.cpu_user_s
    share = first.metrics["train_time_s"] / 20.0
    assert first.measurement.cpu_user_s == pytest.approx(cpu_s * share * 2.0)


@pytest.mark.parametrize(("limit", "blas"), [(900, "fast"), (500, "slow"), (100, "slow")])
def test_a_limit_of_memory_rules_settings_out(limit, blas):
    limits = [parse_constraint(f"peak_memory_mb<={limit}")]
    (setting,) = Composition(SPACE, THRIFTY, (), limits).settings(64)
    assert setting["blas"] == blas
