"""Which points are worth verifying."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report_samples import make_failed, make_measurement, make_result
from tests.verify_samples import DEFAULT, LEARNS_BY
from tuner.config.schema import parse_constraint
from tuner.values.pareto import find_objective
from tuner.values.results import front_of
from tuner.values.trial import Trial, TrialStatus
from tuner.verification.finalists import pick_trade_offs, promising
from tuner.verification.stops import earlier_stops

GOALS = [find_objective("accuracy"), find_objective("train_time_s")]


def make_point(number, accuracy, time_s):
    return make_result(number, accuracy, time_s, batch_size=64 + number)


# -- trade-offs ---------------------------------------------------------------------------------


def picked(points, most=3, constraints=(), affordable=lambda _chosen: True, chosen=()):
    limits = [parse_constraint(text) for text in constraints]
    found = pick_trade_offs([DEFAULT, *points], DEFAULT, GOALS, limits, most, affordable, chosen)
    return [each.trial.number for each in found]


FRONT = [
    make_point(1, 0.9901, 50.0),
    make_point(2, 0.9880, 49.9),  # close to 1
    make_point(3, 0.9700, 5.0),  # far out
]


def test_those_that_widen_the_front_most_come_first():
    assert sorted(picked(FRONT, 2)) == [1, 3]
    assert picked(FRONT, 3)[2] == 2
    assert sorted(picked(FRONT, 9)) == [1, 2, 3]
    assert picked(FRONT, 0) == []


def test_what_is_verified_already_is_not_picked_again_and_its_volume_counts():
    assert picked(FRONT, 3, chosen=[FRONT[2]]) == [1, 2]
    assert picked(FRONT, 1, chosen=[FRONT[0]]) == [3]
    near = make_point(4, 0.9699, 4.8)
    assert picked([*FRONT, near], 1, chosen=[FRONT[2]]) == [1], "not the neighbour of another"


def test_an_end_that_nobody_has_looked_at_is_chosen_beside_trade_offs():
    further = dataclasses.replace(make_point(5, 0.99, 60.0), val_accuracy=None, checkpoints=())
    assert sorted(picked(FRONT, 2, chosen=[further])) == [1, 3]


def test_they_are_of_the_front_and_each_once():
    points = [
        make_point(1, 0.9950, 90.0),
        make_point(2, 0.9900, 50.0),
        make_point(3, 0.9890, 60.0),  # dominated by 2
        make_point(4, 0.9700, 5.0),
        dataclasses.replace(make_point(5, 1.0, 1.0), status=TrialStatus.INVALID),
        make_failed(6, TrialStatus.CRASHED, "exit 1"),
    ]
    assert sorted(picked(points, 9)) == [1, 2, 4]


def test_the_default_is_no_trade_off():
    assert picked([]) == []
    assert picked([make_point(1, 0.9, 500.0)]) == []
    # nor is what trains with the default's own params
    assert picked([make_result(1, 0.991, 90.0)]) == []


def test_what_errs_many_times_as_often_as_the_default_is_of_no_interest():
    quick = [make_point(1, 0.98, 20.0), make_point(2, 0.80, 1.0), make_point(3, 0.95, 5.0)]
    assert sorted(picked(quick)) == [1, 3]
    assert picked(quick[1:2]) == []


def test_what_there_is_no_time_for_makes_room_for_others():
    points = [make_point(1, 0.992, 90.0), make_point(2, 0.985, 20.0), make_point(3, 0.97, 5.0)]
    for max_s, expected in ((1000.0, [1, 2, 3]), (96.0, [2, 3]), (15.0, [3]), (1.0, [])):
        found = picked(
            points,
            affordable=lambda chosen, max_s=max_s: (
                sum(each.metrics["train_time_s"] for each in chosen) <= max_s
            ),
        )
        assert sorted(found) == expected


def test_they_keep_the_constraints():
    small = make_measurement(70.0, peak_memory_bytes=100 * 2**20)
    points = [
        make_point(1, 0.995, 50.0),
        dataclasses.replace(make_point(2, 0.996, 70.0), measurement=small),
    ]
    assert picked(points, constraints=["peak_memory_mb<=200"]) == [2]
    assert picked(points, constraints=["peak_memory_mb<=50"]) == []
    # an accuracy that was not measured cannot be shown to hold
    assert picked(points, constraints=["test_accuracy>=0.5"]) == []


figures = st.tuples(st.floats(0.96, 1.0), st.floats(0.1, 300.0))


@settings(deadline=None, max_examples=50)
@given(st.lists(figures, max_size=8), st.integers(0, 5))
def test_whatever_was_found_picked_are_distinct_points_of_the_front(rows, most):
    points = [make_point(number, *row) for number, row in enumerate(rows, 1)]
    found = picked(points, most)
    front = {each.trial.number for each in front_of([DEFAULT, *points], GOALS)} - {0}
    assert len(set(found)) == len(found) == min(most, len(front))
    assert set(found) <= front


def left_of(points, refuted, learns_by=LEARNS_BY):
    """Numbers of the points that are worth verifying once one is refuted."""
    found = promising(
        points, lambda found: [0.9] * len(found), DEFAULT, [], learns_by=learns_by,
        tried=[(refuted, False)], sure_s=100.0,
    )  # fmt: skip
    return {each.trial.number for _, each in found}


def lengths_worth_verifying(chances, *, on_the_way=True):
    """Iterations of the ends of one training, in order; the default takes 100 s."""
    ends = [make_result(1, 0.99, each / 50, iterations=each) for each in sorted(chances)]
    found = promising(
        ends, lambda points: [chances[each.iterations] for each in points], DEFAULT, [],
        learns_by=LEARNS_BY, tried=[], sure_s=100.0,
        stops=lambda point: earlier_stops(point, ends) if on_the_way else (),
    )  # fmt: skip
    return [each.iterations for _, each in found]


def test_a_later_end_insures_an_earlier_stop():
    # 0.7 log 5 = 1.13 alone; 0.9 log 3.1 = 1.03 alone, and 1.36 with the earlier stop
    assert lengths_worth_verifying({1000: 0.7, 1600: 0.9}, on_the_way=False) == [1000, 1600]
    assert lengths_worth_verifying({1000: 0.7, 1600: 0.9}) == [1600, 1000]


def test_of_ends_that_promise_nearly_as_much_the_shortest_comes_first():
    assert lengths_worth_verifying({1000: 0.9, 1600: 0.95, 2000: 0.97}) == [1000, 1600, 2000]


def test_what_learns_otherwise_is_no_part_of_what_was_refuted():
    refuted = make_result(3, 0.985, 20.0, iterations=900, early_stopping=False)
    same = make_result(4, 0.985, 10.0, iterations=500, early_stopping=False)
    other = make_result(5, 0.985, 10.0, iterations=500, early_stopping=True, threads=7)
    assert left_of([same, other], refuted, (*LEARNS_BY, "early_stopping")) == {5}
    assert left_of([same, other], refuted) == set(), "if early stopping changed time alone"


def test_what_a_lossy_exchange_lost_says_nothing_of_the_exact_one():
    exact = make_result(3, 0.985, 20.0, iterations=500, workers=2, exchange="exact")
    lossy = make_result(4, 0.985, 20.0, iterations=900, workers=2, exchange="fp16")
    wider = make_result(5, 0.985, 20.0, iterations=500, workers=4, exchange="fp16")
    shorter = make_result(6, 0.985, 10.0, iterations=500, workers=2, exchange="fp16")
    longer = dataclasses.replace(exact, trial=Trial(7, {**exact.params, "iterations": 900}))
    points = [exact, wider, shorter]
    assert left_of(points, lossy) == {3, 5}, "the shorter part of the same loses more"
    assert left_of(points, longer) == {5, 6}
