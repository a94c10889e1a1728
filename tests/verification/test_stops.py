"""Earlier stops of a training: which are worth a look, and what its runs tell of them."""

from __future__ import annotations

import dataclasses

import pytest

from tests.report_samples import make_result
from tuner.values.trial import Checkpoint, TrialStatus
from tuner.verification.stops import at_stop, earlier_stops, same_training

WHOLE = make_result(1, 0.99, 80.0, iterations=8000)


def stop(iterations, **params):
    return make_result(2, 0.98, iterations / 100, iterations=iterations, **params)


@pytest.mark.parametrize(
    ("known", "chosen"),
    [
        ((8000, 7500, 7000, 6800, 6000, 4000, 3900), (7000, 6000, 4000)),
        ((7000, 6000, 5200, 4500, 4000), (7000, 6000, 5200, 4500)),
        ((), ()),
    ],
)
def test_stops_are_some_steps_apart_and_not_too_early(known, chosen):
    found = earlier_stops(WHOLE, [stop(each) for each in known])
    assert tuple(each.params["iterations"] for each in found) == chosen


def test_only_usable_points_of_the_same_training_are_stops():
    diverged = dataclasses.replace(stop(6000), status=TrialStatus.DIVERGED)
    others = [stop(6000, learning_rate=0.5), stop(6000, threads=7), diverged]
    assert earlier_stops(WHOLE, others) == []
    assert same_training(WHOLE.params, stop(6000).params)
    assert not same_training(WHOLE.params, others[0].params)


def test_a_run_tells_of_a_stop_what_was_seen_on_the_test_split_there():
    way = (
        Checkpoint(4000, 40.0, None, 0.97, 0.972),
        Checkpoint(6000, 60.0, None, 0.98),
    )
    run = dataclasses.replace(WHOLE, checkpoints=way, test_accuracy=0.99)
    seen = at_stop(run, 4000)
    assert (seen.test_accuracy, seen.val_accuracy, seen.params["iterations"]) == (
        0.972,
        0.97,
        4000,
    )
    assert at_stop(run, 6000) is None
    assert at_stop(run, 5000) is None
