"""Dominance, fronts and hypervolume have the properties that define them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.values.errors import ConfigError
from tuner.values.pareto import (
    OBJECTIVES,
    Direction,
    Objective,
    find_objective,
    front_shares,
    hypervolume,
    pareto_front,
)

reproducible = settings(derandomize=True, deadline=None, max_examples=60)

UP = Objective("up", "up", Direction.MAXIMIZE)
DOWN = Objective("down", "down", Direction.MINIMIZE)
# a coarse grid, so that equal coordinates and equal points come up often
coordinate = st.integers(-8, 8).map(lambda number: number / 2)


@st.composite
def clouds(draw, least=1):
    senses = draw(st.lists(st.sampled_from([UP, DOWN]), min_size=1, max_size=4))
    row = st.tuples(*[coordinate] * len(senses))
    return draw(st.lists(row, min_size=least, max_size=12)), senses


def at_least_as_good(one, other, senses):
    return all(
        a >= b if sense.direction is Direction.MAXIMIZE else a <= b
        for a, b, sense in zip(one, other, senses, strict=True)
    )


def dominates(one, other, senses):
    return one != other and at_least_as_good(one, other, senses)


@reproducible
@given(clouds())
def test_front_points_do_not_dominate_each_other(cloud):
    points, senses = cloud
    front = [points[index] for index in pareto_front(points, senses)]
    assert front
    for one, other in itertools.permutations(front, 2):
        assert one != other
        assert not dominates(one, other, senses)


@reproducible
@given(clouds())
def test_every_other_point_is_dominated_or_equal(cloud):
    points, senses = cloud
    kept = pareto_front(points, senses)
    for index in set(range(len(points))) - set(kept):
        assert any(at_least_as_good(points[best], points[index], senses) for best in kept)


@reproducible
@given(clouds(), st.randoms(use_true_random=False))
def test_the_order_of_the_points_does_not_matter(cloud, random):
    points, senses = cloud
    shuffled = random.sample(points, len(points))
    assert [points[index] for index in pareto_front(points, senses)] == [
        shuffled[index] for index in pareto_front(shuffled, senses)
    ]


@reproducible
@given(clouds())
def test_the_front_is_sorted_by_the_first_objective_best_first(cloud):
    points, senses = cloud
    firsts = [points[index][0] for index in pareto_front(points, senses)]
    assert firsts == sorted(firsts, reverse=senses[0].direction is Direction.MAXIMIZE)


def test_of_equal_points_the_first_stands_for_all():
    assert pareto_front([(2.0, 1.0), (1.0, 1.0), (1.0, 1.0)], [DOWN, DOWN]) == [1]


def test_senses_turn_the_front_over():
    points = [(0.9, 10.0), (0.8, 5.0), (0.8, 20.0), (0.95, 30.0)]
    assert pareto_front(points, [UP, DOWN]) == [3, 0, 1]
    assert pareto_front(points, [DOWN, DOWN]) == [1]
    assert pareto_front(points, [UP, UP]) == [3]
    assert pareto_front(points, [DOWN, UP]) == [2, 3]


def test_no_points_have_no_front_and_no_volume():
    assert pareto_front([], [UP, DOWN]) == []
    assert hypervolume([], (0.0, 1.0), [UP, DOWN]) == 0


def counted_area(points, reference, senses):
    """Area by counting the half-unit cells of the grid that some point dominates."""
    signs = [-1 if each.direction is Direction.MAXIMIZE else 1 for each in senses]
    rows = [[int(2 * v * s) for v, s in zip(p, signs, strict=True)] for p in points]
    corner = [int(2 * v * s) for v, s in zip(reference, signs, strict=True)]
    cells = itertools.product(range(-20, corner[0]), range(-20, corner[1]))
    return sum(any(x <= a and y <= b for x, y in rows) for a, b in cells) / 4


@reproducible
@given(
    st.lists(st.tuples(coordinate, coordinate), min_size=1, max_size=8),
    st.tuples(coordinate, coordinate),
    st.sampled_from([[UP, DOWN], [DOWN, DOWN], [UP, UP], [DOWN, UP]]),
)
def test_hypervolume_in_two_dimensions_is_the_area(points, reference, senses):
    expected = counted_area(points, reference, senses)
    assert hypervolume(points, reference, senses) == pytest.approx(expected)


@reproducible
@given(clouds(least=2), st.data())
def test_hypervolume_never_falls_with_another_point(cloud, data):
    points, senses = cloud
    reference = data.draw(st.tuples(*[coordinate] * len(senses)))
    fewer = hypervolume(points[:-1], reference, senses)
    assert hypervolume(points, reference, senses) >= fewer - 1e-9
    assert fewer >= 0


@reproducible
@given(clouds(), st.data())
def test_the_front_alone_has_the_whole_hypervolume(cloud, data):
    points, senses = cloud
    reference = data.draw(st.tuples(*[coordinate] * len(senses)))
    front = [points[index] for index in pareto_front(points, senses)]
    whole = hypervolume(points, reference, senses)
    assert hypervolume(front, reference, senses) == pytest.approx(whole)


def test_an_unknown_objective_is_refused_with_those_there_are():
    with pytest.raises(ConfigError) as refused:
        find_objective("speed")
    message = str(refused.value)
    assert message.startswith("unknown objective 'speed'; choose from: ")
    assert all(name in message for name in OBJECTIVES)
    assert "\n" not in message


def test_accuracies_go_up_and_everything_else_down():
    up = {name for name, each in OBJECTIVES.items() if each.direction is Direction.MAXIMIZE}
    assert up == {"accuracy", "test_accuracy"}


def test_values_are_in_the_unit_of_the_name():
    assert find_objective("peak_memory_mb").value({"peak_memory_bytes": 3 * 2**20}) == 3
    assert find_objective("accuracy").value({"val_accuracy": 0.5}) == 0.5
    with pytest.raises(KeyError):
        find_objective("train_time_s").value({"val_accuracy": 0.5})


def test_shares_of_the_front_count_how_often_a_point_is_on_it():
    draws = [[(0.9, 1.0), (0.8, 2.0)], [(0.9, 1.0), (0.8, 0.5)], [(0.9, 1.0), (0.9, 1.0)]]
    assert front_shares(np.asarray(draws), [UP, DOWN]) == pytest.approx([1.0, 2 / 3])
