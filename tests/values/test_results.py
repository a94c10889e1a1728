"""A finished study: its front, how it grew, and what may be claimed."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report_samples import make_failed, make_result, make_study, make_verified_points
from tuner.values.pareto import find_objective
from tuner.values.results import front_of, hypervolume_over_time, least_of_interest
from tuner.values.trial import Interval, TrialStatus
from tuner.values.verified import Answers, Comparison, Role, answers_of

reproducible = settings(derandomize=True, deadline=None, max_examples=60)

GOALS = [find_objective("accuracy"), find_objective("train_time_s")]
pairs = st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 300)), max_size=8)


def test_the_front_has_the_usable_trials_that_nothing_beats():
    best = make_result(1, 0.99, 60.0)
    fast = make_result(2, 0.97, 8.0)
    slower = make_result(3, 0.97, 9.0)
    crashed = dataclasses.replace(make_result(4, 0.999, 1.0), status=TrialStatus.CRASHED)
    failed = make_failed(5, TrialStatus.DIVERGED, "loss is nan")
    blind = dataclasses.replace(make_result(6, 0.9, 1.0), val_accuracy=None)
    assert front_of([fast, crashed, best, failed, slower, blind], GOALS) == [best, fast]


def test_the_front_of_nothing_is_empty():
    assert front_of([], GOALS) == []
    assert front_of([make_failed(0, TrialStatus.TIMEOUT, "late")], GOALS) == []


def test_the_front_follows_the_objectives():
    one, other = make_result(1, 0.99, 60.0), make_result(2, 0.97, 8.0)
    assert front_of([one, other], GOALS[:1]) == [one]
    assert front_of([one, other], GOALS[1:]) == [other]


@reproducible
@given(pairs)
def test_hypervolume_over_time_never_falls(points):
    trials = [make_result(n, accuracy, time) for n, (accuracy, time) in enumerate(points)]
    volumes = hypervolume_over_time(trials, GOALS, (0.5, 200.0))
    assert len(volumes) == len(trials)
    assert all(late >= early - 1e-9 for early, late in itertools.pairwise(volumes))


def test_a_failed_trial_adds_no_hypervolume():
    trials = [make_result(0, 0.9, 100.0), make_failed(1, TrialStatus.CRASHED, "exit 1")]
    volumes = hypervolume_over_time(trials, GOALS, (0.5, 200.0))
    assert volumes == pytest.approx([0.4 * 100, 0.4 * 100])


def verdict(speedup, speedup_p, gain, gain_p, confidence=0.95, *, no_loss=False):
    versus = Comparison(
        Interval(speedup, speedup * 0.9, speedup * 1.1),
        speedup_p,
        Interval(gain, gain - 0.001, gain + 0.001),
        gain_p,
        no_loss=no_loss,
    )
    point = make_verified_points(make_study().trials)[1]
    return dataclasses.replace(point, against_default=versus, confidence=confidence).verdict


@pytest.mark.parametrize(
    ("figures", "claim"),
    [
        ((2.13, 0.01, 0.004, 0.01), "2.1x faster, accuracy +0.40 points"),
        ((2.13, 0.01, -0.004, 0.01), "2.1x faster, accuracy -0.40 points"),
        ((2.13, 0.01, -0.004, 0.2), "2.1x faster, accuracy difference not significant"),
        ((0.5, 0.01, 0.004, 0.2), "2.0x slower, accuracy difference not significant"),
        ((2.13, 0.06, 0.004, 0.01), "time not significant, accuracy +0.40 points"),
        ((2.13, 0.06, 0.0, 1.0), "time not significant, accuracy difference not significant"),
        # at 99 % confidence, p = 0.02 is no proof
        ((2.13, 0.02, 0, 0.02, 0.99), "time not significant, accuracy difference not significant"),
    ],
)  # fmt: skip
def test_the_verdict_claims_what_is_significant_and_no_more(figures, claim):
    assert verdict(*figures) == claim


def test_no_loss_is_claimed_where_it_is_proven():
    assert verdict(2.13, 0.01, -0.001, 0.2, no_loss=True) == "2.1x faster, no loss of accuracy"
    assert verdict(2.13, 0.01, 0.004, 0.01, no_loss=True) == "2.1x faster, accuracy +0.40 points"


def test_the_three_answers_are_what_was_proven():
    default, *_ = make_study().verified
    made = [
        dataclasses.replace(
            default,
            name=name,
            role=role,
            test_accuracy=Interval(accuracy, accuracy, accuracy),
            against_default=Comparison(
                Interval(speedup, speedup, speedup), 0.001,
                Interval(gain, gain, gain), 0.001 if gain else 1.0, no_loss=no_loss,
            ),
        )
        for name, role, speedup, accuracy, gain, no_loss in (
            ("runtime", Role.RUNTIME_ONLY, 1.7, 0.991, 0.0, True),
            ("candidate", Role.NO_LOSS, 6.0, 0.990, 0.0, True),
            ("fast", Role.TRADE_OFF, 50.0, 0.970, -0.02, False),
            ("slow", Role.ACCURACY, 0.5, 0.994, 0.003, True),
        )
    ]  # fmt: skip
    found = answers_of([default, *made])
    assert found.no_loss.name == "candidate"
    assert found.runtime_only.name == "runtime"
    assert found.most_accurate.name == "slow"
    assert answers_of([default, made[2]]) == Answers()


def made_better(default, *p_values, role=Role.TRADE_OFF, proven=False):
    """Configurations that seem more accurate than the default."""
    return [
        dataclasses.replace(
            default,
            name=f"trial {number}",
            role=role,
            against_default=Comparison(
                Interval(1.0, 0.9, 1.1), 0.9, Interval(0.003, 0.001, 0.005), p, no_loss=proven
            ),
        )
        for number, p in enumerate(p_values, 1)
    ]


def test_of_several_one_seems_better_by_luck():
    default, *_ = make_study().verified
    assert answers_of([default, *made_better(default, 0.02)]).most_accurate.name == "trial 1"
    several = made_better(default, 0.02, 0.2, 0.3)
    assert answers_of([default, *several]).most_accurate is None
    runtime = made_better(default, 1.0, role=Role.RUNTIME_ONLY)
    same = answers_of([default, *made_better(default, 0.02), *runtime]).most_accurate
    assert same.name == "trial 1", "what learns the same is no further chance"


def test_what_was_verified_to_be_more_accurate_is_so_if_its_own_test_proves_it():
    default, *_ = make_study().verified
    for proven, name in ((False, None), (True, "trial 1")):
        made = made_better(default, 0.03, 0.2, role=Role.ACCURACY, proven=proven)
        found = answers_of([default, made[0]]).most_accurate
        assert (found and found.name) == name


def test_the_default_is_its_own_reference():
    assert make_study().verified[0].verdict == "reference"


def test_a_study_finds_its_default_only_if_it_is_usable():
    study = make_study()
    assert study.default is study.trials[0]
    failed = dataclasses.replace(study.trials[0], status=TrialStatus.TIMEOUT)
    assert make_study(trials=(failed, *study.trials[1:])).default is None


def test_a_study_counts_what_was_thrown_away():
    study = make_study()
    assert study.discarded == 1
    assert study.front == front_of(study.trials, study.objectives)


@pytest.mark.parametrize(("accuracy", "least"), [(0.99, 0.95), (0.8, 0.0), (1.0, 0.995)])
def test_what_errs_five_times_as_often_as_the_default_is_of_no_interest(accuracy, least):
    assert least_of_interest(accuracy) == pytest.approx(least), "0.1 % errors where it makes none"
