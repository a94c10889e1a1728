"""What a budget allows: trials and their limits."""

from __future__ import annotations

from tuner.config import BudgetConfig
from tuner.schedule import Schedule
from tuner.trial import TrialKind

BUDGET = BudgetConfig(time_s=100, trials=0, verify_share=0.4, trial_share=0.2, default_share=0.5)


def test_what_a_slow_default_leaves_is_shared_between_search_and_verification():
    slow = Schedule(BUDGET, seed=1, default_s=70)
    assert slow.search_end_s == 85
    assert Schedule(BUDGET, seed=1, default_s=10).search_end_s == 60
    assert Schedule(BUDGET, seed=1, default_s=500).search_end_s == 100


def test_the_search_leaves_verification_its_share():
    schedule = Schedule(BUDGET, seed=1)
    assert schedule.search_end_s == 60
    assert schedule.allows(10, elapsed_s=50)
    assert not schedule.allows(10, elapsed_s=58)


def test_three_trials_are_run_however_little_time_is_left():
    schedule = Schedule(BUDGET, seed=1)
    assert schedule.allows(2, elapsed_s=500)
    assert not schedule.allows(3, elapsed_s=500)


def test_the_number_of_trials_is_a_limit_of_its_own():
    schedule = Schedule(BudgetConfig(time_s=100, trials=2), seed=1)
    assert schedule.allows(1, elapsed_s=0)
    assert not schedule.allows(2, elapsed_s=0)


def test_the_default_gets_most_of_the_budget_and_is_tested():
    trial = Schedule(BUDGET, seed=7).default_trial({"batch_size": 64})
    assert (trial.number, trial.kind, trial.seed) == (0, TrialKind.DEFAULT, 7)
    assert trial.test
    assert trial.share == 0.5
    assert trial.train_time_limit_s == 60


def test_a_search_trial_gets_its_share_or_what_is_left():
    schedule = Schedule(BUDGET, seed=7)
    limits = [
        schedule.limit_s(number, elapsed_s)
        for number, elapsed_s in ((1, 59), (5, 10), (5, 50), (5, 59))
    ]
    assert limits == [20, 20, 10, 3]
    assert schedule.search_trial(5, {}, limits[2], ()).train_time_limit_s == 10


def test_a_full_baseline_has_all_the_time_it_needs():
    trial = Schedule(BUDGET, seed=1, baseline="full").default_trial({})
    assert trial.share == 1
    assert trial.train_time_limit_s is None
    assert trial.time_limit_s > 86400


def test_a_projected_baseline_trains_a_share_whatever_the_budget():
    trial = Schedule(BudgetConfig(time_s=100), seed=1, baseline="projected").default_trial({})
    assert trial.projected
    assert trial.share == 0.05
