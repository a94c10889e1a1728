"""Tests of ``tuner.trials.stopping``."""

import dataclasses

import pytest

from tuner.trials.stopping import can_extend
from tuner.values.trial import Checkpoint


def curve(times, accuracy):
    return [Checkpoint(int(100 * each), each, 1.0, accuracy(each)) for each in times]


TIMES = (1.0, 1.4, 2.0, 2.8, 4.0)
FRONT = [(0.5, 0.90), (2.0, 0.96), (8.0, 0.985)]


def power(error, slope):
    return lambda time_s: 1 - error * time_s**-slope


@pytest.mark.parametrize(
    ("accuracy", "end_s", "expected"),
    [
        (power(0.02, 0.5), 4.0, True),  # above the front where it stands
        (power(0.2, 0.05), 20.0, False),  # flat, and far below
        (power(0.5, 1.2), 60.0, True),  # below it, and steep enough to cross it
        (power(0.5, 1.2), 4.1, False),  # steep enough, and about to end
        (power(0.5, 0.5), 1000.0, True),  # in a thousand seconds it will
        (lambda time_s: 0.1, 16.0, False),
        (lambda time_s: 0.1, 64.0, True),  # it has hardly begun
    ],
)
def test_a_run_goes_on_while_an_optimist_would(accuracy, end_s, expected):
    assert can_extend(curve(TIMES, accuracy), FRONT, end_s) is expected


def test_one_poor_look_stops_nothing_and_two_do():
    steep, poor = power(0.5, 1.2), 0.5
    looks = curve(TIMES, steep)
    spoilt = [dataclasses.replace(each, val_accuracy=poor) for each in looks[-2:]]
    assert can_extend(looks, FRONT, 20.0)
    assert can_extend([*looks[:-1], spoilt[1]], FRONT, 20.0)
    assert not can_extend([*looks[:-2], *spoilt], FRONT, 20.0)


def test_too_little_is_known_at_the_beginning():
    assert can_extend(curve(TIMES[:3], power(0.9, 0.0)), FRONT, 5.0)
    assert can_extend(curve(TIMES, power(0.9, 0.0)), [], 5.0)


def test_a_perfect_run_that_others_reached_before_adds_nothing():
    assert not can_extend(curve(TIMES, lambda time_s: 1.0), [(0.5, 1.0)], 20.0)


@pytest.mark.parametrize("slope", [0.2, 0.5, 1.0])
def test_a_true_power_law_that_crosses_the_front_is_never_stopped(slope):
    for end_s in (8.0, 30.0, 100.0):
        for error in (0.05, 0.1, 0.3):
            accuracy = power(error, slope)
            crosses = any(
                accuracy(time_s) > max(a for t, a in FRONT if t <= time_s) + 0.001
                for time_s in (4.0 * 1.01**step for step in range(400))
                if time_s <= end_s
            )
            if crosses:
                assert can_extend(curve(TIMES, accuracy), FRONT, end_s)


def test_a_clock_that_stands_still_is_no_fault():
    still = [Checkpoint(4 * step, 0.0, 1.0, 0.1) for step in range(1, 6)]
    assert not can_extend(still, [(0.0, 0.9)], 0.0)
    assert can_extend(still, [(0.5, 0.9)], 0.0)
