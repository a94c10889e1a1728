"""Runs that have ended: of which entrants, stops and rounds they tell."""

from __future__ import annotations

import dataclasses

import pytest

from tests.report_samples import make_measurement, make_result
from tests.verify_samples import DEFAULT, LONG, SEEDS, SHORT, make_entrant, make_plan, run_of
from tuner.values.trial import Checkpoint, SideBySide, TrialStatus
from tuner.values.verified import Role
from tuner.verification.runs import diverged, failed, timed_runs, whole_runs

BESIDE = SideBySide({**DEFAULT.params, "threads": 1}, 2, 25.0)


def test_runs_are_found_by_entrant_and_round():
    plan = make_plan(make_entrant(1, 50.0), rounds=2, config=SHORT)
    runs = [run_of(trial, 50.0, 0.98) for trial in plan.trials()]
    runs[0] = dataclasses.replace(runs[0], status=TrialStatus.CRASHED)
    stray = run_of(dataclasses.replace(plan.trials()[0], number=99), 50.0, 0.98)
    found = timed_runs(plan, [*runs, stray])
    assert [sorted(each) for (each,) in found] == [[1], [0, 1]]
    assert found[1][0][0].trial.number == 1


def test_runs_side_by_side_tell_accuracies_and_those_of_other_rounds_times():
    candidate = dataclasses.replace(make_entrant(1, 20.0, Role.NO_LOSS), beside=BESIDE)
    plan = make_plan(candidate, rounds=1, config=LONG, accuracies=SEEDS)
    plan = plan.with_round((1, 1)).with_round((1, 1)).with_round((0, 1))
    runs = [run_of(each, 20.0, 0.99) for each in plan.trials()]
    assert [set(each) for (each,) in timed_runs(plan, runs)] == [{0, 3}] * 2
    assert [[turn for turn, _ in each] for (each,) in whole_runs(plan, runs)] == [[], [1, 1, 2, 2]]


@pytest.mark.parametrize(("changes", "rounds"), [({}, 4), ({"learning_rate": 0.02}, 0)])
def test_a_part_of_a_training_has_the_pace_that_was_measured_for_it(changes, rounds):
    measured = dataclasses.replace(
        make_entrant(1, 40.0, Role.NO_LOSS, iterations=8000), beside=BESIDE
    )
    part = make_entrant(2, 30.0, Role.NO_LOSS, batch_size=65, iterations=6000, **changes)
    plan = make_plan(measured, rounds=4, config=LONG, accuracies=SEEDS)
    plan = plan.with_entrants([dataclasses.replace(part, beside=BESIDE)])
    assert plan.timed_rounds(2) == rounds
    assert plan.owes(2) == (plan.times_s([2]) > 0) == (not rounds)
    used = make_measurement(40.0, cpu_user_s=50.0, cpu_system_s=10.0, cores_used=1.5)
    runs = [run_of(each, 40.0, None, measurement=used) for each in plan.trials()]
    (shown,) = timed_runs(plan, runs)[2]
    assert len(shown) == rounds
    for each in shown.values():
        assert each.metrics["train_time_s"] == pytest.approx(30.0)
        assert each.trial.params["iterations"] == 6000
        assert each.trial.share == pytest.approx(0.1 * 8000 / 6000)
        assert each.metrics["cpu_user_s"] == pytest.approx(50.0 - 15.0 * 50 / 60)
        assert each.metrics["cpu_system_s"] == pytest.approx(10.0 - 15.0 * 10 / 60)
    again = plan.with_round((0, 2))
    runs = [run_of(each, 40.0, None, measurement=used) for each in again.trials()]
    (shown,) = timed_runs(again, runs)[2]
    assert shown[4].metrics["train_time_s"] == 40.0, "its own where it ran"


def test_runs_of_a_candidate_tell_of_its_earlier_stops():
    candidate = dataclasses.replace(
        make_entrant(1, 40.0, Role.NO_LOSS, iterations=8000),
        beside=BESIDE,
        stops=tuple(make_result(1, 0.98, 1.0, iterations=each) for each in (6000, 4000)),
    )
    plan = make_plan(candidate, rounds=0, config=LONG).with_round((1, 1)).with_round((0, 1))
    side, other, default, timed = plan.trials()
    assert side.test_at == other.test_at == (4000, 6000)
    way = Checkpoint(6000, 30.0, None, 0.98, 0.984)
    runs = [
        run_of(side, 40.0, 0.99, checkpoints=(way, Checkpoint(4000, 20.0, None, 0.97, 0.973))),
        run_of(other, 40.0, 0.991, checkpoints=(way,)),
        run_of(default, 100.0, 0.99),
        run_of(timed, 40.0, None),
    ]
    told = whole_runs(plan, runs)[1]
    assert [[(turn, run.test_accuracy) for turn, run in each] for each in told] == [
        [(0, 0.99), (0, 0.991)],
        [(0, 0.984), (0, 0.984)],
        [(0, 0.973)],
    ]
    times = [each[1].metrics["train_time_s"] for each in timed_runs(plan, runs)[1]]
    assert times == pytest.approx([40.0, 30.0, 20.0])


def test_an_entrant_has_failed_after_two_runs_that_told_nothing():
    plan = make_plan(make_entrant(1, 50.0), make_entrant(2, 50.0), config=SHORT)
    runs = [run_of(each, 50.0, 0.98) for each in plan.trials()]
    for number, (turn, index) in enumerate(plan.places):
        if index == 1 and turn < 2:
            runs[number] = dataclasses.replace(runs[number], test_accuracy=None)
        if index == 2 and turn == 2:
            runs[number] = dataclasses.replace(runs[number], status=TrialStatus.DIVERGED)
    assert (failed(plan, runs), diverged(plan, runs)) == ({1}, {2})
