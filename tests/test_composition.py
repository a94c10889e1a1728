"""Tests of ``tuner.composition``."""

import dataclasses

import pytest

from tests.conftest import DEFAULT, SYNTHETIC
from tests.report_samples import make_measurement
from tuner.composition import compose
from tuner.runtime_map import Probe, RuntimeMap
from tuner.space import SearchSpace
from tuner.trial import Checkpoint, Trial, TrialKind, TrialResult, TrialStatus

SPACE = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
OWN = {name: DEFAULT[name] for name in SPACE.runtime}
FAST = {**OWN, "blas": "fast"}
MAP = RuntimeMap([Probe(OWN, 64, 0.02), Probe(FAST, 64, 0.001)])


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
    points = compose([run()], SPACE, MAP)
    assert [each.params["iterations"] for each in points] == [250, 500, 1000]
    assert [each.metrics["train_time_s"] for each in points] == pytest.approx([0.25, 0.5, 1.0])
    assert [each.val_accuracy for each in points] == [0.5625, 0.625, 0.75]
    for each in points:
        assert each.usable
        assert each.trial.kind is TrialKind.DERIVED
        assert each.test_accuracy is None
        assert each.params["blas"] == "fast"
        assert each.trial.origin == 7
        assert each.reason.startswith("derived from search-0007")
    assert points[0].trial.title == "trial 7 at 250"
    assert len({each.trial.number for each in points}) == 3


def test_a_run_at_the_fastest_pace_keeps_its_own_times():
    points = compose([run(blas="fast")], SPACE, MAP)
    assert [each.metrics["train_time_s"] for each in points] == [5.0, 10.0]


def test_what_is_no_result_or_no_member_stands_for_nothing():
    assert compose([run(TrialStatus.DIVERGED)], SPACE, MAP) == []
    assert compose([run()], SPACE, RuntimeMap()) == []
    small = dataclasses.replace(SPACE.params["iterations"], low=600)
    narrow = dataclasses.replace(SPACE, params={**SPACE.params, "iterations": small})
    assert [each.iterations for each in compose([run()], narrow, MAP)] == [1000]


def test_a_derived_point_is_read_back_as_it_was_written():
    for each in compose([run()], SPACE, MAP):
        assert TrialResult.from_json(each.to_json()) == each
