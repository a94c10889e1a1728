"""Tests of ``tuner.verification.confidence``."""

import pytest

from tuner.values.pareto import OBJECTIVES
from tuner.verification.confidence import Estimate, front_confidence

GOALS = [OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"]]


def rows(*points, error=0.0, freedom=0):
    return [[Estimate(value, error, freedom) for value in point] for point in points]


def test_what_is_certain_is_on_the_front_or_not():
    sure = front_confidence(rows((0.99, 2.0), (0.98, 3.0), (0.97, 1.0)), GOALS)
    assert sure == [1.0, 0.0, 1.0]
    assert front_confidence(rows((0.9, 1.0)), GOALS) == [1.0]


def test_what_cannot_be_told_apart_is_in_doubt():
    twice = front_confidence(rows((0.99, 2.0), (0.99, 2.0), error=0.1), GOALS)
    # one dominates the other where it is better in both of two fair coins
    assert twice == pytest.approx([0.75, 0.75], abs=0.04)
    assert front_confidence(rows((0.99, 2.0), (0.99, 2.0), error=0.1), GOALS) == twice


def test_an_estimated_error_leaves_more_doubt_than_a_known_one():
    points = (0.99, 2.0), (0.96, 2.3)
    known = front_confidence(rows(*points, error=0.02), GOALS)
    estimated = front_confidence(rows(*points, error=0.02, freedom=1), GOALS)
    assert known[1] < 0.2
    assert estimated[1] > known[1] + 0.05
