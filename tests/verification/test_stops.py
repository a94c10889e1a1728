"""Earlier stops of a training: which are worth a look, and what its runs tell of them."""

from __future__ import annotations

import dataclasses
import random
import statistics

import pytest

from tests.report_samples import make_result
from tests.verify_samples import DEFAULT, SEEDS, make_plan, make_space, run_of
from tuner.values.trial import ENDED_ITSELF, Checkpoint, SideBySide, TrialStatus
from tuner.values.verified import Role
from tuner.verification.entrant import Entrant
from tuner.verification.readings import Readings
from tuner.verification.stops import at_stop, earlier_stops, later_ends, same_training

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


def test_a_training_may_go_on_for_up_to_twice_as_long_as_it_did():
    found = later_ends([stop(2000), stop(4000), stop(3000), DEFAULT], make_space(10_000))
    assert [each.iterations for each in found] == [5657, 8000]
    assert [each.metrics["train_time_s"] for each in found] == pytest.approx([56.57, 80.0])
    assert {(each.trial.number, each.usable, each.val_accuracy) for each in found} == {
        (2, True, None)
    }
    assert [each.trial.title for each in found] == ["trial 2 at 5,657", "trial 2 at 8,000"]


def test_no_end_is_outside_the_space_or_later_than_that_of_what_ends_itself():
    assert [each.iterations for each in later_ends([stop(4000)], make_space(6000))] == [5657]
    itself = dataclasses.replace(
        stop(4000), status=TrialStatus.STOPPED, reason=f"stopped: {ENDED_ITSELF}"
    )
    diverged = dataclasses.replace(stop(4000), status=TrialStatus.DIVERGED)
    assert later_ends([itself, diverged], make_space(10_000)) == []


def test_a_run_tells_of_a_stop_what_was_seen_on_the_test_split_there():
    way = (
        Checkpoint(4000, 41.0, None, 0.97, 0.972),
        Checkpoint(6000, 60.0, None, 0.98),
    )
    run = dataclasses.replace(WHOLE, checkpoints=way, test_accuracy=0.99)
    seen = at_stop(run, 4000)
    assert (seen.test_accuracy, seen.val_accuracy, seen.params["iterations"]) == (
        0.972,
        0.97,
        4000,
    )
    assert seen.metrics["train_time_s"] == 41.0
    cores_used = WHOLE.measurement.cores_used
    less_s = run.metrics["cpu_user_s"] + run.metrics["cpu_system_s"]
    less_s -= seen.metrics["cpu_user_s"] + seen.metrics["cpu_system_s"]
    assert less_s == pytest.approx(39.0 * cores_used)
    assert at_stop(run, 6000) is None
    assert at_stop(run, 5000) is None


def test_a_stop_that_loses_the_margin_is_seldom_proven():
    """It has the whole level of its candidate, which is half of the study's."""
    studies, noise = 400, random.Random(1)
    beside = SideBySide({**WHOLE.params, "threads": 1}, 2, 80.0)
    candidate = Entrant(WHOLE, Role.NO_LOSS, beside, rounds=3, stops=(stop(6000),))
    plan = make_plan(candidate, rounds=0, accuracies=SEEDS)
    for _ in range(3):
        plan = plan.with_round((1, 1))
    default = statistics.fmean(SEEDS)
    wrong = 0
    for _ in range(studies):
        runs = []
        for trial in plan.trials():
            seed, own = noise.gauss(0, 0.0003), noise.gauss(0, 0.001)
            at = Checkpoint(6000, 60.0, None, 0.98, default - 0.002 + seed + own)
            runs.append(run_of(trial, 80.0, default + seed, checkpoints=(at,)))
        seen = Readings(plan, runs)
        (_, whole), (_, part) = seen.no_loss(1), seen.no_loss(1, stop=1)
        assert whole or not part
        wrong += part
    assert 0 < wrong <= 0.05 * studies
