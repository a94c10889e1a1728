"""What verification runs prove: what is true, and nothing else."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.report_samples import make_measurement
from tests.verify_samples import (
    DEFAULT,
    LONG,
    SEEDS,
    SHORT,
    first_looks,
    make_entrant,
    make_plan,
    make_reference,
    make_runtime_only,
    run_of,
    simulate,
)
from tuner.config.schema import VerifyConfig
from tuner.values.trial import SideBySide, TrialStatus
from tuner.values.verified import Role, answers_of
from tuner.verification.entrant import Entrant
from tuner.verification.noninferiority import Spread, p_of_loss, usual_deviation
from tuner.verification.proof import summarize
from tuner.verification.readings import Readings

ONE = make_entrant(1, 50.0)
CANDIDATE = make_entrant(1, 20.0, Role.NO_LOSS)
RUNTIME = make_entrant(0, 50.0, Role.RUNTIME_ONLY)


def outcomes(plan, *accuracies, of_default=0.99, time_s=20.0):
    """Runs of a plan, each entrant but the default with these accuracies round by round."""
    runs = []
    for trial in plan.trials():
        turn, index = plan.places[trial.number]
        known = accuracies[turn] if index else of_default
        runs.append(run_of(trial, time_s if index else 100.0, known))
    return runs


def without(plan, runs, *places):
    return [run for run in runs if plan.places[run.trial.number] not in places]


# -- times and accuracies -----------------------------------------------------------------------


def test_a_real_speedup_is_found():
    plan = make_plan(ONE)
    default, found = summarize(plan, simulate(plan, speedup=2.0))
    versus = found.against_default
    assert (default.name, found.name) == ("default", "trial 1")
    assert default.against_default is None
    assert versus.speedup.low < 2.0 < versus.speedup.high
    assert versus.speedup.value == pytest.approx(2.0, rel=0.1)
    assert versus.speedup_p < 0.05
    assert versus.accuracy_p > 0.05
    assert found.verdict.endswith("x faster, no loss of accuracy")
    assert found.train_time_s.low < 50 < found.train_time_s.high


@pytest.mark.parametrize(("gain", "no_loss"), [(0.01, True), (-0.02, False)])
def test_a_real_difference_of_accuracy_is_found(gain, no_loss):
    plan = make_plan(make_entrant(1, 50.0, Role.NO_LOSS))
    versus = summarize(plan, simulate(plan, gain=gain))[1].against_default
    assert versus.accuracy_gain.value == pytest.approx(gain, abs=0.003)
    assert versus.accuracy_p < 0.05
    assert versus.no_loss is no_loss


@pytest.mark.timeout(30)
@pytest.mark.parametrize("known", [(), SEEDS], ids=["run beside", "known before"])
@pytest.mark.slow
def test_equals_are_seldom_called_different(known):
    """A/A: at 95 % confidence about one claim in twenty is wrong, never much more."""
    studies, time_claims, accuracy_claims = 200, 0, 0
    random = np.random.default_rng(0)
    plan = make_plan(make_entrant(1, 100.0, Role.NO_LOSS), config=LONG)
    for seed in range(studies):
        seeds = tuple(random.normal(0.98, 0.001, len(known)))
        plan = dataclasses.replace(plan, accuracies=seeds)
        versus = summarize(plan, simulate(plan, seed=seed))[1].against_default
        time_claims += versus.speedup_p < 0.05
        accuracy_claims += versus.accuracy_p < 0.05
        assert (versus.speedup.low > 1 or versus.speedup.high < 1) == (versus.speedup_p < 0.05)
        gain = versus.accuracy_gain
        assert (gain.low > 0 or gain.high < 0) == (versus.accuracy_p < 0.05)
    assert time_claims <= 0.08 * studies
    assert accuracy_claims <= 0.08 * studies
    assert time_claims > 0, "a test that never claims anything proves nothing"


def test_a_machine_that_slows_down_does_so_for_all():
    """Rounds are compared with themselves: a drift of the machine is no speed-up."""
    plan = make_plan(ONE)
    drifting = [
        run_of(trial, 100.0 * 1.5 ** plan.places[trial.number][0], 0.98) for trial in plan.trials()
    ]
    versus = summarize(plan, drifting)[1].against_default
    assert versus.speedup.value == pytest.approx(1.0)
    assert versus.speedup_p == pytest.approx(1.0)


def test_the_default_comes_first_and_the_others_by_time():
    plan = make_plan(ONE, make_entrant(2, 20.0), make_entrant(3, 70.0))
    factor = {0: 1.0, 1: 0.5, 2: 0.2, 3: 0.7}
    runs = [
        run_of(trial, 100 * factor[plan.places[trial.number][1]] + turn, 0.98)
        for turn, trial in enumerate(plan.trials())
    ]
    names = [each.name for each in summarize(plan, runs)]
    assert names == ["default", "trial 2", "trial 1", "trial 3"]


def test_figures_are_those_of_the_runs():
    plan = make_plan(ONE)
    default, found = summarize(plan, simulate(plan, time_noise=0.0, seed_noise=0.0))
    assert (found.full_runs, default.full_runs) == (3, 3)
    assert (found.rate_runs, found.rate_share) == (0, 1.0)
    assert not found.projected
    assert found.train_time_s.value == pytest.approx(100.0)
    assert found.test_time_s == 0.8
    assert found.peak_memory_bytes == 264 * 2**20
    assert sorted(found.runs) == ["verify-0001", "verify-0002", "verify-0005"]
    assert found.test_accuracy.value == pytest.approx(0.98)
    # the images are a sample: the interval does not shrink to a point
    assert found.test_accuracy.low < 0.98 < found.test_accuracy.high


def test_rate_runs_count_for_the_time_alone():
    plan = make_plan(make_entrant(1, 200.0), config=LONG, accuracies=SEEDS)
    default, found = summarize(plan, simulate(plan))
    assert (default.full_runs, default.rate_runs, default.rate_share) == (0, 3, 0.1)
    assert (found.full_runs, found.rate_runs, found.rate_share) == (1, 2, 0.1)


def test_a_further_run_varies_more_than_the_mean_of_the_runs():
    plan = make_plan(ONE, rounds=5)
    runs = simulate(plan, time_noise=0.05, seed_noise=0.002)
    found = summarize(plan, runs)[1]
    own = [run for run in runs if plan.places[run.trial.number][1] == 1]
    logs = [math.log(run.metrics["train_time_s"]) for run in own]
    quantile = stats.t.ppf(0.975, 4)
    wide = quantile * np.std(logs, ddof=1) * math.sqrt(1 + 1 / 5)
    assert found.job_time_s.high == pytest.approx(math.exp(np.mean(logs) + wide))
    # on the same images: their choice is no part of it
    reached = [run.test_accuracy for run in own]
    usual = usual_deviation(found.test_accuracy.value, plan.test_images)  # counts as four runs
    deviation = math.sqrt((usual**2 + np.var(reached, ddof=1)) / 2)
    half = stats.t.ppf(0.975, 8) * deviation * math.sqrt(1 + 1 / 5)
    assert found.job_accuracy.low == pytest.approx(np.mean(reached) - half)
    assert found.job_accuracy.value == found.test_accuracy.value


def test_as_many_further_runs_as_promised_fall_into_the_interval():
    plan, inside = make_plan(ONE, rounds=3), []
    for seed in range(300):
        *_, found = summarize(plan, simulate(plan, seed=seed, seed_noise=0.0012))
        further = 0.98 + random.Random(1000 + seed).gauss(0, 0.0012)
        inside.append(found.job_accuracy.low <= further)
    assert 0.95 <= statistics.fmean(inside) < 1


def test_runs_that_happen_to_agree_promise_no_certain_accuracy():
    plan = make_plan(ONE, rounds=5)
    found = summarize(plan, simulate(plan, seed_noise=0.0))[1]
    sampling = math.sqrt(0.98 * 0.02 / plan.test_images)
    assert found.job_accuracy.low < 0.98 - 0.5 * sampling


def test_runs_that_measure_accuracy_alone_do_not_blur_the_time_of_a_job():
    beside = SideBySide({**DEFAULT.params, "threads": 1}, 2, 25.0)
    candidate = dataclasses.replace(CANDIDATE, beside=beside)
    plan = make_plan(candidate)
    timed = summarize(plan, simulate(plan))[1]
    more = plan.with_round((1, 1))
    found = summarize(more, simulate(more))[1]
    assert len(found.runs) > len(timed.runs)
    assert found.job_time_s == timed.job_time_s


def test_confidence_widens_the_intervals():
    plan = make_plan(ONE)
    runs = simulate(plan)
    strict = dataclasses.replace(plan, config=dataclasses.replace(SHORT, confidence=0.99))
    narrow, wide = summarize(plan, runs)[1], summarize(strict, runs)[1]
    assert wide.confidence == 0.99
    for name in ("test_accuracy", "train_time_s"):
        inner, outer = getattr(narrow, name), getattr(wide, name)
        assert outer.low < inner.low < inner.value < inner.high < outer.high


def test_figures_that_never_vary_are_equal_or_different_for_sure():
    plan = make_plan(ONE)
    runs = simulate(plan, speedup=2.0, time_noise=0.0, seed_noise=0.0)
    versus = summarize(plan, runs)[1].against_default
    assert versus.speedup.value == pytest.approx(2.0)
    assert versus.speedup_p == pytest.approx(0.0)
    assert versus.accuracy_gain.value == pytest.approx(0.0)
    assert versus.accuracy_p == pytest.approx(1.0)


def test_a_faster_one_as_good_takes_the_default_off_the_front():
    plan = make_plan(ONE, rounds=6)
    default, found = summarize(plan, simulate(plan, speedup=2.0, gain=0.01))
    assert default.on_front < 0.05
    assert found.on_front > 0.95


# -- what is missing ----------------------------------------------------------------------------


def test_missing_runs_leave_what_the_others_prove():
    plan = make_plan(ONE, make_entrant(2, 20.0))
    runs = simulate(plan)
    assert {each.name for each in summarize(plan, runs)} == {"default", "trial 1", "trial 2"}
    one_less = summarize(plan, without(plan, runs, (1, 1)))
    assert {each.name: each.full_runs for each in one_less} == {
        "default": 3,
        "trial 1": 2,
        "trial 2": 3,
    }
    two_less = summarize(plan, without(plan, runs, (1, 1), (2, 1)))
    assert [each.name for each in two_less] == ["default", "trial 2"]


def test_a_failed_run_is_a_missing_run():
    plan = make_plan(ONE, make_entrant(2, 20.0))
    failed = [
        dataclasses.replace(run, status=TrialStatus.CRASHED)
        if plan.places[run.trial.number][1] == 1
        else run
        for run in simulate(plan)
    ]
    assert [each.name for each in summarize(plan, failed)] == ["default", "trial 2"]


def test_a_run_whose_clock_stood_still_is_no_measurement_of_its_time():
    plan = make_plan(ONE, make_entrant(2, 20.0))
    still = make_measurement(0.0)
    runs = [
        dataclasses.replace(run, measurement=still)
        if plan.places[run.trial.number] in [(1, 1), (2, 1)]
        else run
        for run in simulate(plan)
    ]
    assert [each.name for each in summarize(plan, runs)] == ["default", "trial 2"]


def test_without_two_common_rounds_nothing_is_proved():
    plan = make_plan(ONE)
    runs = simulate(plan)
    assert summarize(plan, []) == ()
    assert summarize(plan, without(plan, runs, (0, 0), (1, 1))) == ()
    assert summarize(plan, without(plan, runs, (0, 0), (1, 0))) == ()
    assert summarize(plan, without(plan, runs, (0, 1), (1, 1), (2, 1))) == ()
    assert len(summarize(plan, without(plan, runs, (2, 0), (2, 1)))) == 2


def test_what_has_no_whole_run_is_left_out():
    plan = make_plan(make_entrant(1, 200.0), make_entrant(2, 5.0), config=LONG, accuracies=SEEDS)
    left = summarize(plan, without(plan, simulate(plan), (0, 1)))
    assert [each.name for each in left] == ["default", "trial 2"]


def test_who_joined_later_is_compared_in_the_rounds_of_its_own():
    plan = make_plan(ONE, rounds=2).with_entrants([make_entrant(2, 20.0)])
    plan = plan.with_round([0, 2]).with_round([2, 0])
    runs = [
        run_of(trial, (100.0, 50.0, 40.0)[index] * 2**turn, 0.98)
        for trial in plan.trials()
        for turn, index in [plan.places[trial.number]]
    ]
    found = {each.name: each.speedup for each in summarize(plan, runs)}
    assert found == pytest.approx({"default": 1.0, "trial 1": 2.0, "trial 2": 2.5})


accuracies = st.one_of(st.floats(0.9, 1.0), st.just(0.99), st.none())
statuses = st.sampled_from([TrialStatus.COMPLETE] * 4 + [TrialStatus.CRASHED])
run_outcomes = st.tuples(st.floats(0.01, 1e4), accuracies, statuses)


@pytest.mark.slow
@pytest.mark.timeout(30)
@settings(deadline=None, max_examples=25)
@given(
    st.lists(run_outcomes, min_size=16, max_size=16),
    st.lists(st.floats(0.9, 1.0), max_size=5),
    st.booleans(),
)
def test_whatever_the_runs_show_probabilities_are_such_and_intervals_hold_their_values(
    shown, known, long
):
    reference = make_reference(*known) if known else None
    plan = make_plan(
        RUNTIME, CANDIDATE, make_entrant(2, 30.0), rounds=4, config=LONG if long else SHORT,
        accuracies=tuple(known), reference=reference, min_iterations=100,
    )  # fmt: skip
    runs = [
        run_of(trial, time_s, accuracy, status=status)
        for trial, (time_s, accuracy, status) in zip(plan.trials(), shown, strict=True)
    ]
    for each in summarize(plan, runs):
        assert 0 <= each.on_front <= 1
        assert each.test_accuracy.low <= each.test_accuracy.value + 1e-12
        assert each.test_accuracy.value <= each.test_accuracy.high + 1e-12
        if each.against_default:
            versus = each.against_default
            assert 0 <= versus.speedup_p <= 1
            assert 0 <= versus.accuracy_p <= 1
            for cost in (versus.cpu, versus.memory):
                assert cost.p is None or 0 <= cost.p <= 1
            assert versus.speedup.low <= versus.speedup.value <= versus.speedup.high
    assert Readings(plan, runs).verdict(2) in (True, False, None)


# -- where the default's accuracy comes from ----------------------------------------------------


def test_the_default_s_accuracy_is_that_of_its_seeds_without_a_whole_run_of_its_own():
    plan = make_plan(CANDIDATE, config=LONG, accuracies=SEEDS)
    default, found = summarize(plan, simulate(plan))
    assert default.full_runs == 0
    assert default.test_accuracy.value == pytest.approx(0.99)
    assert default.accuracy_from == "its first run"
    assert found.accuracy_from == ""
    told = dataclasses.replace(DEFAULT, accuracy_from="reference of 5 seeds")
    plan = make_plan(CANDIDATE, config=LONG, accuracies=SEEDS, default=told)
    assert summarize(plan, simulate(plan))[0].accuracy_from == "reference of 5 seeds"


def test_several_seeds_say_more_than_one():
    def width(known):
        plan = make_plan(make_entrant(1, 50.0, Role.NO_LOSS), config=LONG, accuracies=known)
        gain = summarize(plan, simulate(plan))[1].against_default.accuracy_gain
        return gain.high - gain.low

    assert width(SEEDS) < width(SEEDS[:2])


def followed(shift=0.0, until=800):
    """Two rounds of the runtime setting, its first part ``shift`` from what is recorded."""
    reference = make_reference()
    plan = make_plan(
        RUNTIME, CANDIDATE, config=LONG, accuracies=SEEDS, reference=reference, min_iterations=100,
        rounds=2,
    )  # fmt: skip
    runs = [
        run_of(
            trial,
            (100.0, 50.0, 20.0)[plan.places[trial.number][1]] + turn / 10,
            0.99 + turn / 1e4,
            checkpoints=first_looks(reference, trial.seed, until, shift) if trial.curve else (),
        )
        for turn, trial in enumerate(plan.trials())
    ]
    return plan, runs


def test_the_runtime_setting_alone_takes_the_default_s_accuracy_and_loses_nothing():
    plan, runs = followed()
    assert Readings(plan, runs).departure == ""
    found = next(each for each in summarize(plan, runs) if each.role is Role.RUNTIME_ONLY)
    default = summarize(plan, runs)[0]
    assert found.full_runs == 0
    assert found.test_accuracy == default.test_accuracy
    assert found.loses_nothing
    assert found.gain == 0
    assert "only its rate was measured" in found.accuracy_from
    assert answers_of(summarize(plan, runs)).runtime_only == found


@pytest.mark.parametrize("shift", [0.005, -0.005])
def test_a_runtime_setting_that_learns_otherwise_is_no_runtime_setting_alone(shift):
    plan, runs = followed(shift)
    seen = Readings(plan, runs)
    assert f"{100 * shift:+.2f} points from the recorded curve" in seen.departure
    assert seen.no_loss(1) == (1, False)
    assert not seen.is_default(1)
    assert seen.accuracies(1) == [], "nothing is known of where it ends"
    verified = summarize(plan, runs)
    assert Role.RUNTIME_ONLY not in [each.role for each in verified]
    assert answers_of(verified).runtime_only is None


def test_a_few_images_of_a_small_validation_split_are_no_other_learning():
    plan, runs = followed(0.005)
    for images, departs in ((1000, True), (500, False)):
        small = dataclasses.replace(plan, val_images=images)
        assert bool(Readings(small, runs).departure) is departs, "3 images are 0.3 or 0.6 points"


def test_whole_runs_at_the_runtime_setting_are_further_seeds_of_the_default():
    plan = make_plan(RUNTIME, CANDIDATE, config=LONG, accuracies=SEEDS[:1])
    runs = outcomes(plan, 0.991, 0.992, 0.993)
    seen = Readings(plan, runs)
    assert seen.of_default() == [SEEDS[0], 0.991, 0.992, 0.993]
    assert seen.of_default(last=0) == [SEEDS[0], 0.991]
    assert seen.accuracies(1) == seen.of_default()
    assert seen.groups() == [seen.of_default(), [0.991, 0.992, 0.993]]


def in_full(at_setting):
    """Three rounds of the runtime setting in full, the default's accuracy being that of SEEDS."""
    plan = make_plan(RUNTIME, accuracies=SEEDS)
    runs = outcomes(plan, *at_setting, of_default=0.99)
    runs = [
        dataclasses.replace(run, measurement=make_measurement(time_s + turn / 10))
        for turn, run in enumerate(runs)
        for time_s in [run.metrics["train_time_s"]]
    ]
    return Readings(plan, runs), summarize(plan, runs)


def test_a_runtime_setting_whose_whole_runs_lose_is_compared_as_what_it_is():
    seen, (_, found) = in_full((0.985, 0.9851, 0.9849))
    assert "its test accuracy is -0.50 points from the default's own" in seen.departure
    assert found.test_accuracy.value == pytest.approx(0.985)
    assert found.is_worse
    assert not found.loses_nothing


def test_a_runtime_setting_whose_whole_runs_are_a_little_off_is_the_default_still():
    for each in ((0.9885, 0.9886, 0.9884), (0.95, 0.99, 0.999), (0.995, 0.996, 0.994)):
        seen, (default, found) = in_full(each)
        assert seen.departure == ""
        assert found.test_accuracy == default.test_accuracy
        assert found.loses_nothing


def test_short_runs_of_the_default_are_counted_with_its_seeds():
    plan = make_plan(CANDIDATE, accuracies=SEEDS)
    seen = Readings(plan, outcomes(plan, 0.98, 0.98, 0.98, of_default=0.97))
    assert seen.of_default() == [*SEEDS, 0.97, 0.97, 0.97]


# -- no loss ------------------------------------------------------------------------------------


def shown_by(*accuracies, repeats=4, place=0, margin=0.002):
    """What whole runs with these accuracies show of the candidates up to that place."""
    config = dataclasses.replace(LONG, repeats=repeats, accuracy_margin=margin)
    candidates = [make_entrant(n, 20.0, Role.NO_LOSS) for n in range(1, place + 2)]
    plan = make_plan(*candidates, config=config, accuracies=SEEDS, rounds=len(accuracies))
    return Readings(plan, outcomes(plan, *accuracies))


def verdict(*accuracies, place=0, **settings):
    """Of the candidate at that place after whole runs with these accuracies."""
    seen = shown_by(*accuracies, place=place, **settings)
    return (*seen.no_loss(place + 1), seen.verdict(place + 1))


def test_what_is_to_be_more_accurate_is_proven_only_if_it_is():
    plan = make_plan(make_entrant(1, 150.0, Role.ACCURACY), config=LONG, accuracies=SEEDS)
    equal = Readings(plan, outcomes(plan, 0.9901, 0.9902, 0.9900))
    better = Readings(plan, outcomes(plan, 0.9931, 0.9932, 0.9930))
    two = [each for each in outcomes(plan, 0.98, 0.985, 0.98) if each.trial.number < 4]
    assert equal.verdict(1) is False
    assert better.verdict(1) is True
    assert Readings(plan, two).verdict(1) is False, "it seems worse"


def test_one_whole_run_proves_nothing_but_may_be_enough_to_give_up():
    assert verdict(0.999) == (0, False, None)
    assert verdict(0.989) == (0, False, None)
    assert verdict(0.900) == (0, False, False)


def test_a_candidate_is_proven_at_the_look_that_shows_it():
    assert verdict(0.9902, 0.9898) == (1, True, True)
    assert verdict(0.9889, 0.9891) == (1, False, None), "open: the next look may show it"
    assert verdict(0.9889, 0.9891, 0.9899) == (2, True, True)
    # what was proven stays so, whatever runs follow
    assert verdict(0.9902, 0.9898, 0.9) == (1, True, True)


def test_it_is_refuted_as_soon_as_further_looks_are_not_likely_to_prove_it():
    assert verdict(0.9881, 0.9882) == (1, False, False)
    assert verdict(0.9889, 0.9891) == (1, False, None)


def test_it_is_refuted_at_the_last_look():
    rows = (0.9890, 0.9889, 0.9891)
    assert verdict(*rows, repeats=4) == (2, False, None)
    assert verdict(*rows, repeats=3) == (2, False, False)


def test_a_later_candidate_needs_more_to_be_proven():
    rows = (0.9896, 0.9895)
    found = [verdict(*rows, place=place)[1] for place in range(6)]
    assert found == sorted(found, reverse=True)
    assert set(found) == {True, False}


def test_a_candidate_is_compared_with_what_was_known_of_the_default_then():
    wide = dataclasses.replace(LONG, accuracy_margin=0.005)
    plan = make_plan(CANDIDATE, config=wide, accuracies=())
    runs = outcomes(plan, 0.99, 0.99, 0.99)
    # the default falls in the third round, which the second look does not know
    low = [
        dataclasses.replace(run, test_accuracy=0.9)
        if plan.places[run.trial.number] == (2, 0)
        else run
        for run in runs
    ]
    seen = Readings(plan, low)
    assert seen.of_default(last=1) == [0.99, 0.99]
    assert seen.no_loss(1) == (1, True)


def test_without_any_accuracy_of_the_default_a_candidate_is_open_until_its_last_look():
    plan = make_plan(CANDIDATE, config=LONG, rounds=3)
    runs = outcomes(plan, 0.9, 0.9, 0.9)
    runs = without(plan, runs, (0, 0), (1, 0), (2, 0))
    two = [each for each in runs if plan.places[each.trial.number][0] < 2]
    assert Readings(plan, two).verdict(1) is None
    assert Readings(plan, runs).verdict(1) is False


def test_of_trade_offs_beside_a_candidate_nothing_is_claimed():
    plan = make_plan(CANDIDATE, make_entrant(2, 10.0))
    seen = Readings(plan, outcomes(plan, 0.99, 0.99, 0.99))
    assert seen.no_loss(1) == (1, True)
    assert seen.no_loss(2) == (0, False)
    alone = make_plan(make_entrant(2, 10.0))
    assert Readings(alone, outcomes(alone, 0.99, 0.99, 0.99)).no_loss(1) == (1, True)


@pytest.mark.parametrize("rows", [(0.9902, 0.9898), (0.9889, 0.9891, 0.9899), (0.985, 0.986)])
@pytest.mark.parametrize("place", [0, 2])
def test_a_loss_is_ruled_out_where_no_loss_would_be_proven_with_it_as_the_margin(rows, place):
    found = shown_by(*rows, place=place).loss_ruled_out(place + 1)
    assert verdict(*rows, place=place, margin=found + 1e-9)[1]
    assert not verdict(*rows, place=place, margin=found - 1e-9)[1]


def test_what_trade_offs_rule_out_shares_the_level_that_the_candidates_leave():
    rows = (0.985, 0.986, 0.985)
    plan = make_plan(CANDIDATE, *(make_entrant(n, 10.0) for n in (2, 3)), accuracies=SEEDS)
    seen = Readings(plan, outcomes(plan, *rows))
    found = seen.loss_ruled_out(2)
    spread = Spread(usual_deviation(statistics.fmean(seen.of_default()), plan.test_images))
    assert p_of_loss(rows, seen.of_default(), found, spread) == pytest.approx(0.05 / 3 / 2)
    runs = outcomes(plan, *rows)
    told = {each.name: each.against_default for each in summarize(plan, runs)}
    assert told["trial 2"].loss_ruled_out == found
    parted = summarize(dataclasses.replace(plan, part=True), runs)[1]
    assert parted.against_default.loss_ruled_out == math.inf


def test_the_runtime_setting_alone_rules_out_any_loss_and_another_learning_none():
    seen, _ = in_full((0.9885, 0.9886, 0.9884))
    assert seen.loss_ruled_out(1) == 0
    seen, _ = in_full((0.985, 0.9851, 0.9849))
    assert seen.loss_ruled_out(1) == math.inf


def test_against_a_part_of_the_default_nothing_is_called_no_loss():
    plan = make_plan(make_entrant(1, 10.0), accuracies=())
    runs = outcomes(plan, 0.99, 0.9901, 0.9899)
    assert summarize(plan, runs)[1].loses_nothing
    assert not summarize(dataclasses.replace(plan, part=True), runs)[1].loses_nothing


def test_against_a_part_of_the_default_only_its_own_training_loses_nothing():
    plan = make_plan(RUNTIME, make_entrant(1, 10.0, Role.NO_LOSS), part=True)
    found = {each.role: each for each in summarize(plan, simulate(plan, 2.0, gain=0.01))}
    runtime, other = found[Role.RUNTIME_ONLY], found[Role.NO_LOSS]
    assert runtime.loses_nothing
    assert runtime.is_faster
    assert runtime.against_default.loss_ruled_out == 0
    assert not other.loses_nothing


def test_a_margin_that_is_wide_makes_it_easy():
    assert not verdict(0.980, 0.980, 0.981)[1]
    assert verdict(0.980, 0.980, 0.981, margin=0.02)[1]


STUDIES, MARGIN, DEVIATION = 2000, 0.002, 0.0006


def claims(*losses, role=Role.NO_LOSS, others=Role.NO_LOSS, ruled_out=None):
    """Part of studies that call anything no loss, of what loses so much in truth.

    With ``ruled_out``, it is the part of those that rule so large a loss out for any. One is
    tested after the other, each beside the default, which is known by five seeds.
    """
    random = np.random.default_rng(1)
    plan = make_plan(rounds=0, config=VerifyConfig(repeats=3), accuracies=SEEDS)
    for index, _ in enumerate(losses, 1):
        plan = plan.with_entrants([make_entrant(index, 10.0, role if index == 1 else others)])
        for _ in range(3):
            plan = plan.with_round([0, index])
    blank = [run_of(each, 10.0, 0.99) for each in plan.trials()]
    hits = 0
    for _ in range(STUDIES):
        seeds = tuple(random.normal(0.99, DEVIATION, len(SEEDS)))
        runs = [
            dataclasses.replace(
                run,
                test_accuracy=random.normal(0.99 - ([0.0, *losses][index]), DEVIATION)
                if run.trial.test
                else None,
            )
            for run in blank
            for index in [plan.places[run.trial.number][1]]
        ]
        seen = Readings(dataclasses.replace(plan, accuracies=seeds), runs)
        hits += any(
            seen.no_loss(index)[1]
            if ruled_out is None
            else seen.loss_ruled_out(index) <= ruled_out
            for index in range(1, len(losses) + 1)
        )
    return hits / STUDIES


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_of_candidates_worse_by_the_margin_one_study_in_twenty_claims_no_loss_at_most():
    assert 0 < claims(MARGIN) <= 0.05
    assert claims(MARGIN, MARGIN, MARGIN) <= 0.05, "all candidates of a study together"
    trade_offs = {"role": Role.TRADE_OFF, "others": Role.TRADE_OFF}
    assert claims(MARGIN, MARGIN, MARGIN, **trade_offs) <= 0.05


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("loss", [0.001, 0.005])
@pytest.mark.parametrize("others", [Role.NO_LOSS, Role.TRADE_OFF])
def test_no_more_studies_rule_out_another_loss_that_there_is(loss, others):
    assert 0 < claims(loss, loss, loss, others=others, ruled_out=loss) <= 0.05


@pytest.mark.slow
@pytest.mark.timeout(30)
def test_an_equal_candidate_is_mostly_proven():
    assert claims(0.0) > 0.85


# -- costs --------------------------------------------------------------------------------------


def costly(runs, plan, cpu_s: float, memory: float):
    """The runs, an entrant's with this CPU time and memory and the default's with 100 of each."""
    return [
        dataclasses.replace(
            run,
            measurement=dataclasses.replace(
                run.measurement,
                cpu_user_s=0.9 * factor * (cpu_s if index else 100.0),
                cpu_system_s=0.1 * factor * (cpu_s if index else 100.0),
                peak_memory_bytes=int(factor * (memory if index else 100.0) * 2**20),
            ),
        )
        for run in runs
        for turn, index in [plan.places[run.trial.number]]
        for factor in [1.0 + 0.01 * turn * (1 if index else 2)]
    ]


def test_costs_are_compared_round_by_round():
    plan = make_plan(ONE)
    versus = summarize(plan, costly(simulate(plan), plan, 25.0, 120.0))[1].against_default
    assert versus.cpu.value == pytest.approx(0.25, rel=0.02)
    assert versus.cpu.low < versus.cpu.value < versus.cpu.high
    assert versus.cpu.p < 0.01
    assert versus.memory.value == pytest.approx(1.2, rel=0.02)
    assert versus.memory.p < 0.05
    assert versus.memory.gap == ""


def test_memory_is_compared_between_runs_of_one_sort_only():
    # the default's accuracy is known: its runs are a part of the iterations, the others whole
    plan = make_plan(make_entrant(1, 2.0), config=LONG, accuracies=SEEDS)
    runs = simulate(plan, speedup=50.0)
    assert {run.trial.share == 1 for run in runs} == {True, False}
    versus = summarize(plan, costly(runs, plan, 25.0, 120.0))[1].against_default
    assert versus.cpu.low is not None  # CPU is projected to the whole training in each round
    assert (versus.memory.low, versus.memory.high, versus.memory.p) == (None, None, None)
    assert "those of the other a part" in versus.memory.gap
    assert versus.memory.value == pytest.approx(1.2, rel=0.02)


def test_a_cost_below_what_can_be_measured_is_not_compared():
    plan = make_plan(ONE)
    versus = summarize(plan, costly(simulate(plan), plan, 0.1, 120.0))[1].against_default
    assert math.isnan(versus.cpu.value)
    assert versus.cpu.gap == "too small to be measured"


def test_a_composed_figure_is_kept_beside_the_verified_one():
    plan = make_plan(Entrant(make_runtime_only(50.0), Role.TRADE_OFF), ONE)
    found = {each.name: each.composed for each in summarize(plan, simulate(plan))}
    assert found == {"default": None, "trial 1": None, "trial 0 at 10,000": (50.0, 0.99)}
