"""What a budget allows: the default, trials and their limits."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.config.schema import BudgetConfig
from tuner.study.schedule import Schedule
from tuner.values.trial import TrialKind

BUDGET = BudgetConfig(time_s=100, trials=0, verify_share=0.4, trial_share=0.2, default_share=0.06)
SCHEDULE = Schedule(BUDGET, seed=7)
LONG, BRIEF = {"iterations": 50_000}, {"iterations": 2000}


def test_time_is_left_until_the_budget_is_spent():
    assert SCHEDULE.left_s(30) == 70
    assert SCHEDULE.left_s(130) == -30
    assert SCHEDULE.verify_s == 40


def test_the_search_goes_on_while_a_trial_can_train_for_some_seconds():
    assert SCHEDULE.allows(10, left_s=10)
    assert not SCHEDULE.allows(10, left_s=2)
    assert not SCHEDULE.allows(10, left_s=-50)


def test_three_trials_are_run_however_little_time_is_left():
    assert SCHEDULE.allows(2, left_s=-500)
    assert not SCHEDULE.allows(3, left_s=-500)


def test_the_number_of_trials_is_a_limit_of_its_own():
    schedule = Schedule(BudgetConfig(time_s=100, trials=2), seed=1)
    assert schedule.allows(1, left_s=100)
    assert not schedule.allows(2, left_s=100)


def test_a_search_trial_gets_its_share_or_what_is_left():
    limits = [SCHEDULE.limit_s(5, left_s) for left_s in (59, 10, 1, -20)]
    assert limits == [20, 10, 3, 3]
    trial = SCHEDULE.search_trial(5, BRIEF, 10, ((1.0, 0.9),))
    assert (trial.number, trial.kind, trial.seed) == (5, TrialKind.SEARCH, 7)
    assert (trial.train_time_limit_s, trial.rivals) == (10, ((1.0, 0.9),))
    assert trial.time_limit_s > 5 * 10


def test_the_first_trials_get_as_long_as_the_default_s_first_part():
    assert [SCHEDULE.limit_s(2, left_s) for left_s in (10, 1, -20)] == [10, 6, 6]


def test_a_trial_leaves_time_for_two_rounds_of_its_proof():
    assert [SCHEDULE.provable_s(left_s) for left_s in (60, 30, 1, -20)] == [20, 10, 6, 6]


@given(st.integers(0, 50), st.floats(-1e4, 1e4), st.floats(0, 1e3))
def test_more_time_never_makes_a_trial_shorter(trials, left_s, more_s):
    assert 3 <= SCHEDULE.limit_s(trials, left_s) <= SCHEDULE.limit_s(trials, left_s + more_s) <= 20
    assert SCHEDULE.allows(trials, left_s) <= SCHEDULE.allows(trials, left_s + more_s)


# -- the default --------------------------------------------------------------------------------


def test_the_default_s_first_part_is_a_tenth_within_its_share_of_the_time():
    trial = SCHEDULE.default_trial(LONG, part=True)
    assert (trial.number, trial.kind, trial.seed) == (0, TrialKind.DEFAULT, 7)
    assert trial.test
    assert trial.share == 0.1
    assert trial.train_time_limit_s == pytest.approx(6)


def test_of_a_short_default_a_larger_part_is_trained():
    assert SCHEDULE.default_trial(BRIEF, part=True).share == 0.5
    whole = SCHEDULE.default_trial({"iterations": 500}, part=True)
    assert not whole.projected


def test_where_nothing_else_tells_the_default_has_most_of_the_budget():
    trial = SCHEDULE.default_trial(LONG, part=False)
    assert not trial.projected
    assert trial.train_time_limit_s == 60
    assert trial.time_limit_s > 5 * 100


@pytest.mark.parametrize("part", [True, False])
def test_a_full_baseline_has_all_the_time_it_needs(part):
    trial = dataclasses.replace(SCHEDULE, baseline="full").default_trial(LONG, part=part)
    assert trial.share == 1
    assert trial.train_time_limit_s is None
    assert trial.time_limit_s > 86400


@pytest.mark.parametrize("part", [True, False])
def test_a_projected_baseline_trains_its_first_part_alone(part):
    projected = dataclasses.replace(SCHEDULE, baseline="projected")
    assert projected.default_trial(LONG, part=part).share == 0.1


def test_the_whole_default_at_a_fast_setting_is_looked_at_on_both_splits():
    trial = SCHEDULE.reference_trial(LONG, curve=40)
    assert (trial.number, trial.kind, trial.seed) == (0, TrialKind.REFERENCE, 7)
    assert (trial.share, trial.test, trial.curve) == (1.0, True, 40)
    assert trial.train_time_limit_s is None
