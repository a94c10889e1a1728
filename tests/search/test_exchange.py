"""Lossy exchanges of gradients in ``search=factored``: what may be composed, and what beside."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.conftest import OPTUNA, add_database
from tests.exchange_samples import (
    ALONE,
    FINE,
    GROUP,
    GROUPED,
    ROUGH,
    grouped_map,
    grouped_space,
    probes,
    setting,
)
from tests.report_samples import make_measurement
from tuner.config.schema import SamplerConfig
from tuner.search import FactoredSearch, JointSearch, OptunaStudy, Stop, Train, View
from tuner.search.derived import Composition
from tuner.search.places import AccuracyCube
from tuner.values.exchange import lossy
from tuner.values.pareto import OBJECTIVES
from tuner.values.runtime_map import RuntimeMap
from tuner.values.trial import Checkpoint, Trial, TrialKind, TrialResult, TrialStatus

SPACE = grouped_space()
GOALS = [OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"]]
LOSSY_FAST = {"exact": 0.8, "rough": 0.2, "fine": 0.2}


class Raced:
    """A race that is over."""

    over, recorded = True, False

    def __init__(self, known):
        self.known = known

    def run(self, max_s):
        """Find nothing."""


def run(number=7, ceiling=0.99, pace_s=1e-3, **params):
    """A training that was looked at after 250, 500 and 1,000 iterations."""
    params = {**GROUPED, **params}
    points = tuple(
        Checkpoint(each, pace_s * each, 1.0, ceiling - 0.1 * 250 / each)
        for each in (250, 500, 1000)
    )
    kind = TrialKind.SEARCH if number else TrialKind.DEFAULT
    measured = dataclasses.replace(
        make_measurement(1000 * pace_s), setup_time_s=0.1, wall_time_s=1000 * pace_s + 0.2
    )
    return TrialResult(
        Trial(number, params, kind, curve=10), TrialStatus.COMPLETE, iterations=1000,
        val_accuracy=points[-1].val_accuracy, checkpoints=points, measurement=measured,
    )  # fmt: skip


@pytest.mark.parametrize("layout", [ALONE, GROUP, ROUGH, FINE])
def test_a_run_is_composed_with_settings_that_learn_the_same_alone(layout):
    composition = Composition(SPACE, grouped_map(**LOSSY_FAST))
    points = composition.points(run(**setting(**layout)))
    assert points
    assert {lossy(each.params) for each in points} == {lossy(layout)}
    if lossy(layout) is None:
        assert {each.params["workers"] for each in points} == {2}, "the fastest exact one"


def test_what_trains_on_one_core_is_exact():
    composition = Composition(SPACE, grouped_map(**LOSSY_FAST))
    assert composition.on_one_core(64) == setting(**ALONE)
    beside = dataclasses.replace(
        run(**setting()), trial=Trial(7, run().params, accuracy_only=True)
    )
    assert {lossy(each.params) for each in composition.points(beside)} == {None}


def test_the_cube_has_one_more_dimension_only_once_a_lossy_exchange_is_searched():
    cube = AccuracyCube(SPACE)
    cube.admit([GROUPED, {**GROUPED, **GROUP}])
    plain = cube.place(GROUPED)
    assert plain == AccuracyCube(SPACE).place({**GROUPED, **GROUP})
    assert "exchange" not in cube.part({**GROUPED, **GROUP})
    cube.admit([{**GROUPED, **FINE}, {**GROUPED, **ROUGH}, {**GROUPED, **FINE}])
    places = [cube.place({**GROUPED, **each}) for each in (ALONE, GROUP, ROUGH, FINE)]
    assert [each[:-2] for each in places] == [plain] * 4
    assert places[0] == places[1] == (*plain, 0, 0)
    assert len(set(places)) == 3
    assert cube.part({**GROUPED, **FINE}) == {**cube.part(GROUPED), **FINE}
    drawn = [cube.draw(np.random.default_rng(seed)) for seed in range(20)]
    assert {lossy(each) for each in drawn} == {None}


@pytest.fixture
def make_search(tmp_path):
    def make(known, cores=1):
        study = OptunaStudy(
            SPACE, GOALS, [], sampler=SamplerConfig("random"), default=GROUPED, seed=1,
            storage=add_database(tmp_path, OPTUNA), name="study",
        )  # fmt: skip
        return FactoredSearch(study, Raced(known), cores)

    return make


def train(search, running=0, ceiling=lambda _exchange: 0.99):
    """Let the search ask for a trial and tell it the outcome; return its params."""
    asked = search.next(View(math.inf, math.inf, running, default_known=True))
    assert isinstance(asked, Train), asked
    tell(search, asked, ceiling(asked.params["exchange"]))
    return asked


def tell(search, asked, ceiling=0.99):
    """Tell the search how a trial that it asked for went."""
    pace_s = search._race.known.promised_s(asked.params) or 1e-3
    result = run(asked.number, ceiling, pace_s, **asked.params)
    trial = dataclasses.replace(result.trial, accuracy_only=asked.pace_s > 0)
    search.tell(dataclasses.replace(result, trial=trial))


@pytest.mark.slow
@pytest.mark.parametrize(("pace", "tried"), [(0.8, True), (1.2, False)])
def test_a_group_that_is_faster_is_also_tried_in_a_batch_as_much_larger(make_search, pace, tried):
    search = make_search(grouped_map(exact=pace))
    asked = [train(search).params for _ in range(4)]
    rate = GROUPED["learning_rate"] * 2**0.5
    found = [each for each in asked if each["learning_rate"] == pytest.approx(rate)]
    assert [(each["batch_size"], each["workers"]) for each in found] == [(128, 2)] * tried


@pytest.mark.slow
@pytest.mark.parametrize(("extra", "tried"), [(200, True), (20, False)])
def test_a_larger_batch_is_a_start_point_where_its_images_are_much_cheaper(
    make_search, extra, tried
):
    search = make_search(RuntimeMap(probes(ALONE, 1e-5, extra=extra)))
    asked = [train(search).params for _ in range(4)]
    larger = {"batch_size": 256, "learning_rate": 2 * GROUPED["learning_rate"], "iterations": 250}
    assert sum(larger.items() <= each.items() for each in asked) == tried


@pytest.mark.slow
def test_joint_search_tries_the_batch_of_a_group_after_the_other_start_points(make_search):
    search = JointSearch(make_search(grouped_map(exact=1.2)).study)
    asked = []
    for _ in range(5):
        asked.append(search.next(View(math.inf, math.inf, 0, default_known=True)))
        search.tell(run(asked[-1].number, **asked[-1].params))
    assert asked[4].params == SPACE.group_points(GROUPED)[0]


@pytest.mark.slow
def test_what_gains_no_time_is_never_trained(make_search):
    search = make_search(grouped_map(exact=0.8, rough=0.79, fine=0.81))
    asked = [train(search) for _ in range(8)]
    assert {lossy(each.params) for each in asked} == {None}
    assert {lossy(each.params) for each in search.derived} == {None}


@pytest.mark.slow
def test_what_gains_time_is_trained_and_stays_where_it_learns_as_well(make_search):
    search = make_search(grouped_map(**LOSSY_FAST))
    asked = [
        train(search, ceiling=lambda kind: 0.7 if kind == "rough" else 0.99) for _ in range(12)
    ]
    assert {lossy(each.params) for each in asked[1:]} >= {("fine", 2)}
    for each in asked:
        assert SPACE.refusal(each.params) == ""
    by_number = {each.number: each.params for each in asked}
    for each in search.derived:
        assert lossy(each.params) == lossy(by_number[each.trial.number])
    best = [each for each in search.front if each.val_accuracy > 0.9]
    assert {each.params["exchange"] for each in best} == {"fine"}, "as accurate, and faster"


@pytest.mark.slow
def test_a_lossy_group_trains_beside_nothing(make_search):
    known = grouped_map(exact=1.9, rough=1.9, fine=0.1)
    search = make_search(known, cores=2)
    lanes, alone = set(), 0
    assert train(search).number == 0
    for _ in range(8):
        view = View(math.inf, math.inf, 0, default_known=True)
        first = search.next(view)
        beside = search.next(dataclasses.replace(view, running=1))
        if lossy(first.params):
            alone += 1
            assert first.pace_s == 0, "its own times count"
            assert isinstance(beside, Stop)
        else:
            assert first.pace_s > 0
            assert lossy(beside.params) is None
            tell(search, beside)
        lanes.add(search.lanes)
        tell(search, first)
    assert lanes == {2}
    assert alone
    assert search.beside(run(**setting(**FINE))) is None
    assert search.beside(run(**setting(**ALONE))).at_once == 2


def test_a_group_that_fails_is_not_asked_for_again(make_search):
    search = make_search(grouped_map(exact=0.8, fine=0.2))
    train(search)
    for number in (101, 102):
        broken = dataclasses.replace(run(number, **setting(**FINE)), status=TrialStatus.CRASHED)
        search._note(broken)
    assert {lossy(train(search).params) for _ in range(4)} == {None}


def test_probes_of_one_more_setting_are_no_reason_to_change_what_is_learned():
    known = grouped_map(exact=0.8, fine=0.2)
    for each in probes({**GROUP, "threads": 2}, 1e-5 * 0.19):
        known.add(each)
    assert known.fastest(64) == setting(**GROUP, threads=2)
    assert known.lossy_kinds(64) == []
