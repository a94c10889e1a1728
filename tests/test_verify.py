"""Verification: who is run again, how often, and that it claims what is true and nothing else."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from tests.report_samples import make_failed, make_measurement, make_result
from tuner.config import BudgetConfig, TuneConfig, VerifyConfig, parse_constraint
from tuner.pareto import find_objective
from tuner.plan import Plan, pick_finalists
from tuner.trial import TrialKind, TrialResult, TrialStatus
from tuner.verification import Verification
from tuner.verify import summarize

GOALS = [find_objective("accuracy"), find_objective("train_time_s")]
SHORT = VerifyConfig(long_s=1e6)  # nothing is long: every run in full
DEFAULT = make_result(0, 0.990, 100.0, test=0.991)


def make_plan(*times: float, rounds: int = 3, config: VerifyConfig = SHORT, **changes) -> Plan:
    """Finalists with these training times against a default of 100 s."""
    finalists = tuple(make_result(n, 0.985, time) for n, time in enumerate(times, start=1))
    plan = Plan(DEFAULT, finalists, rounds, config, seed=1, test_images=10_000)
    return dataclasses.replace(plan, **changes)


def run_of(plan: Plan, trial, time_s: float, accuracy: float | None) -> TrialResult:
    return dataclasses.replace(
        make_result(1, 0.98, time_s),
        trial=trial,
        test_accuracy=accuracy if trial.test else None,
    )


def simulate(plan: Plan, speedup=1.0, gain=0.0, time_noise=0.03, seed_noise=0.001, seed=0):
    """Runs of a plan in a world where each finalist is that much better than the default."""
    noise = random.Random(seed)
    runs = []
    for trial in plan.trials():
        finalist = plan.place(trial.number)[1] > 0
        time_s = 100.0 / (speedup if finalist else 1.0) * math.exp(noise.gauss(0, time_noise))
        accuracy = 0.98 + (gain if finalist else 0.0) + noise.gauss(0, seed_noise)
        runs.append(run_of(plan, trial, time_s, accuracy))
    default = dataclasses.replace(plan.default, test_accuracy=0.98 + noise.gauss(0, seed_noise))
    return dataclasses.replace(plan, default=default), runs


# -- who ----------------------------------------------------------------------------------------


def picked(trials, config=SHORT, constraints=(), default=DEFAULT) -> list[int]:
    limits = [parse_constraint(text) for text in constraints]
    chosen = pick_finalists([default, *trials], default, GOALS, limits, config)
    return [each.trial.number for each in chosen]


def test_the_fastest_that_is_no_worse_comes_first():
    trials = [
        make_result(1, 0.9950, 90.0),
        make_result(2, 0.9900, 50.0),  # as good as the default
        make_result(3, 0.9895, 40.0),  # may be as good, or lucky
        make_result(4, 0.9700, 5.0),
    ]
    assert picked(trials)[0] == 2
    assert picked(trials, dataclasses.replace(SHORT, finalists=1)) == [2]


def test_where_none_equals_the_default_the_most_accurate_comes_first():
    trials = [make_result(1, 0.985, 40.0), make_result(2, 0.97, 10.0), make_result(3, 0.8, 1.0)]
    assert picked(trials)[0] == 1
    one = dataclasses.replace(SHORT, finalists=1)
    assert picked(trials, one) == [1]


def test_finalists_are_of_the_front_and_each_once():
    trials = [
        make_result(1, 0.9950, 90.0),
        make_result(2, 0.9900, 50.0),
        make_result(3, 0.9890, 60.0),  # dominated by 2
        make_result(4, 0.9700, 5.0),
        dataclasses.replace(make_result(5, 1.0, 1.0), status=TrialStatus.INVALID),
        make_failed(6, TrialStatus.CRASHED, "exit 1"),
    ]
    assert sorted(picked(trials)) == [1, 2, 4]
    assert sorted(picked(trials, dataclasses.replace(SHORT, finalists=9))) == [1, 2, 4]


def test_after_the_first_come_those_that_widen_the_front_most():
    trials = [
        make_result(1, 0.9901, 50.0),
        make_result(2, 0.9880, 48.0),  # close to 1
        make_result(3, 0.9700, 5.0),  # far out
    ]
    assert picked(trials, dataclasses.replace(SHORT, finalists=2)) == [1, 3]


def test_what_there_is_no_time_for_makes_room_for_others():
    default = make_result(0, 0.99, 100.0)
    trials = [make_result(1, 0.992, 90.0), make_result(2, 0.985, 20.0), make_result(3, 0.97, 5.0)]
    for most_s, expected in ((1000.0, [1, 2, 3]), (96.0, [1, 3]), (50.0, [2, 3]), (1.0, [1])):
        chosen = pick_finalists(
            trials,
            default,
            GOALS,
            [],
            SHORT,
            affordable=lambda chosen, most_s=most_s: (
                sum(each.metrics["train_time_s"] for each in chosen) <= most_s
            ),
        )
        assert [each.trial.number for each in chosen] == expected


def test_what_errs_many_times_as_often_as_the_default_is_no_finalist():
    quick = [make_result(1, 0.98, 20.0), make_result(2, 0.80, 1.0), make_result(3, 0.95, 5.0)]
    assert picked(quick) == [1, 3]
    assert picked(quick[1:2]) == [2], "but for want of others"


def test_the_default_is_no_finalist():
    assert picked([]) == []
    assert picked([make_result(1, 0.5, 500.0)]) == [1]
    assert picked([], dataclasses.replace(SHORT, finalists=0)) == []


def test_finalists_keep_the_constraints():
    trials = [
        make_result(1, 0.995, 50.0),
        dataclasses.replace(
            make_result(2, 0.991, 70.0),
            measurement=make_measurement(70.0, peak_memory_bytes=100 * 2**20),
        ),
    ]
    assert picked(trials, constraints=["peak_memory_mb<=200"]) == [2]
    assert picked(trials, constraints=["peak_memory_mb<=50"]) == []
    # an accuracy that was not measured cannot be shown to hold
    assert picked(trials, constraints=["test_accuracy>=0.5"]) == []


def test_without_an_equal_the_front_is_verified_all_the_same():
    trials = [make_result(1, 0.97, 10.0), make_result(2, 0.96, 5.0)]
    assert sorted(picked(trials)) == [1, 2]


# -- what is run --------------------------------------------------------------------------------


def test_each_round_runs_everything_once_in_turning_order():
    plan = make_plan(50.0, 20.0)
    places = [plan.place(trial.number) for trial in plan.trials()]
    assert places == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 1), (1, 2), (1, 0)),
        *((2, 2), (2, 0), (2, 1)),
    ]


@pytest.mark.parametrize("first", [0, 9])
def test_numbers_are_consecutive_and_lead_back_to_round_and_entrant(first):
    plan = make_plan(50.0, 20.0, first=first)
    trials = list(plan.trials())
    assert sorted(trial.number for trial in trials) == list(range(first, first + 9))
    for trial in trials:
        turn, index = plan.place(trial.number)
        assert plan.trial(turn, index) == trial
        assert trial.params == plan.entrants[index].params
        assert trial.kind is TrialKind.VERIFY
    assert list(plan.trials()) == trials


def test_seeds_are_fresh_each_round_and_the_same_within_it():
    plan = make_plan(50.0, 20.0)
    seeds = {}
    for trial in plan.trials():
        seeds.setdefault(plan.place(trial.number)[0], set()).add(trial.seed)
    assert [len(each) for each in seeds.values()] == [1, 1, 1]
    assert len(set.union(*seeds.values())) == 3
    assert plan.seed not in set.union(*seeds.values())
    other = {trial.seed for trial in dataclasses.replace(plan, seed=2).trials()}
    assert other.isdisjoint(set.union(*seeds.values()))


def test_short_runs_are_repeated_in_full_with_the_test_split():
    assert {(trial.share, trial.test) for trial in make_plan(50.0).trials()} == {(1.0, True)}


def test_of_long_runs_one_is_full_and_the_others_measure_the_rate():
    config = VerifyConfig(long_s=40, rate_share=0.1)
    plan = make_plan(200.0, 20.0, config=config)
    shares = {
        (turn, index): plan.trial(turn, index).share for turn in range(3) for index in range(3)
    }
    assert [shares[turn, 0] for turn in range(3)] == [0.1] * 3  # trial 0 was its full run
    assert [shares[turn, 1] for turn in range(3)] == [1.0, 0.1, 0.1]
    assert [shares[turn, 2] for turn in range(3)] == [1.0] * 3
    assert all(trial.test == (trial.share == 1) for trial in plan.trials())


def test_a_rate_is_measured_for_some_seconds_at_least():
    config = VerifyConfig(long_s=40, rate_share=0.01)
    assert make_plan(50.0, config=config).trial(1, 1).share == pytest.approx(8 / 50)
    hasty = VerifyConfig(long_s=40, rate_share=0.01, least_rate_s=2)
    assert make_plan(50.0, config=hasty).trial(1, 1).share == pytest.approx(2 / 50)
    assert make_plan(5.0, config=VerifyConfig(long_s=1)).trial(1, 1).share == 1.0


def test_a_projected_default_is_never_run_in_full():
    trial = dataclasses.replace(DEFAULT.trial, share=0.05)
    plan = make_plan(50.0, default=dataclasses.replace(DEFAULT, trial=trial))
    assert {plan.trial(turn, 0).share for turn in range(3)} == {0.05}


def test_a_stopped_finalist_is_run_for_the_iterations_it_reached():
    stopped = dataclasses.replace(
        make_result(1, 0.985, 20.0), status=TrialStatus.STOPPED, iterations=70
    )
    assert make_plan(finalists=(stopped,)).trial(0, 1).params["iterations"] == 70


def test_a_plan_is_cut_by_finalists_first_and_rounds_then():
    plan = make_plan(50.0, 20.0, 10.0, rounds=5)
    assert plan.within(plan.cost_s() + 1) == plan
    one_less = dataclasses.replace(plan, finalists=plan.finalists[:2])
    assert plan.within(plan.cost_s() - 1) == one_less
    assert plan.within(one_less.cost_s() - 1).finalists == plan.finalists[:1]
    single = dataclasses.replace(plan, finalists=plan.finalists[:1])
    shorter = plan.within(single.cost_s() - 1)
    assert (len(shorter.finalists), shorter.rounds) == (1, 4)
    least = plan.within(0)
    assert (len(least.finalists), least.rounds) == (1, 2)
    assert plan.within(300).cost_s() <= max(300, least.cost_s())


def test_a_plan_costs_at_least_its_training():
    plan = make_plan(50.0)
    assert 3 * 150 < plan.cost_s() < 3 * 150 + 6 * 10


class Shelf:
    """A study's folder whose machine takes ``slower`` times as long as planned."""

    def __init__(self, slower: float) -> None:
        self.facts: dict = {}
        self.elapsed_s, self._slower, self._runs = 0.0, slower, []

    def save(self, **facts) -> None:
        self.facts |= facts

    def results(self, _kind) -> list[TrialResult]:
        return list(self._runs)

    def run(self, trial) -> None:
        time_s = 10.0 if trial.number else 100.0
        self._runs.append(run_of(make_plan(), trial, time_s, 0.98))
        self.elapsed_s += self._slower * time_s


@pytest.mark.parametrize(("slower", "rounds"), [(0.5, 5), (10.0, 2)])
def test_once_the_budget_is_spent_only_what_proves_anything_is_run(slower, rounds):
    shelf = Shelf(slower)
    config = TuneConfig(
        budget=BudgetConfig(time_s=800.0),
        verify=dataclasses.replace(SHORT, repeats=5, most_repeats=5),
    )
    verification = Verification(config, shelf, GOALS, [], 10_000)
    verified = verification.run([DEFAULT, make_result(1, 0.985, 10.0)], shelf.run, str)
    assert len(shelf.results(TrialKind.VERIFY)) == 2 * rounds
    assert [each.name for each in verified] == ["default", "trial 1"]


# -- what it proves -----------------------------------------------------------------------------


def test_a_real_speedup_is_found():
    plan, runs = simulate(make_plan(50.0), speedup=2.0)
    default, finalist = summarize(plan, runs)
    versus = finalist.against_default
    assert (default.name, finalist.name) == ("default", "trial 1")
    assert default.against_default is None
    assert versus.speedup.low < 2.0 < versus.speedup.high
    assert versus.speedup.value == pytest.approx(2.0, rel=0.1)
    assert versus.speedup_p < 0.05
    assert versus.accuracy_p > 0.05
    assert finalist.verdict.endswith("x faster, accuracy difference not significant")
    assert finalist.train_time_s.low < 50 < finalist.train_time_s.high


@pytest.mark.parametrize(("gain", "kept"), [(0.01, True), (-0.02, False)])
def test_a_real_difference_of_accuracy_is_found(gain, kept):
    plan, runs = simulate(make_plan(50.0), gain=gain)
    versus = summarize(plan, runs)[1].against_default
    assert versus.accuracy_gain.value == pytest.approx(gain, abs=0.003)
    assert versus.accuracy_p < 0.05
    assert versus.accuracy_kept is kept


def test_a_loss_within_the_margin_is_kept_only_if_the_interval_says_so():
    config = dataclasses.replace(SHORT, accuracy_margin=0.01)
    plan, runs = simulate(make_plan(50.0, config=config))
    assert summarize(plan, runs)[1].against_default.accuracy_kept
    plan, runs = simulate(make_plan(50.0, config=config), seed_noise=0.02)
    assert not summarize(plan, runs)[1].against_default.accuracy_kept


@pytest.mark.slow
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "config", [SHORT, VerifyConfig(long_s=40, rate_share=0.1)], ids=["full runs", "rate runs"]
)
def test_equals_are_seldom_called_different(config):
    """A/A: at 95 % confidence about one claim in twenty is wrong, never much more."""
    studies, time_claims, accuracy_claims = 200, 0, 0
    for seed in range(studies):
        plan, runs = simulate(make_plan(100.0, config=config), seed=seed)
        versus = summarize(plan, runs)[1].against_default
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
    plan = make_plan(100.0)
    drifting = [
        run_of(plan, trial, 100.0 * 1.5 ** plan.place(trial.number)[0], 0.98)
        for trial in plan.trials()
    ]
    versus = summarize(plan, drifting)[1].against_default
    assert versus.speedup.value == pytest.approx(1.0)
    assert versus.speedup_p == pytest.approx(1.0)


def test_the_default_comes_first_and_finalists_by_time():
    plan, runs = simulate(make_plan(50.0, 20.0, 70.0))
    factor = {0: 1.0, 1: 0.5, 2: 0.2, 3: 0.7}
    runs = [
        run_of(plan, run.trial, 100 * factor[plan.place(run.trial.number)[1]] + turn, 0.98)
        for turn, run in enumerate(runs)
    ]
    assert [each.name for each in summarize(plan, runs)] == [
        "default",
        "trial 2",
        "trial 1",
        "trial 3",
    ]


def test_figures_are_those_of_the_runs():
    plan, runs = simulate(make_plan(50.0), time_noise=0.0, seed_noise=0.0)
    default, finalist = summarize(plan, runs)
    assert finalist.full_runs == 3
    assert (finalist.rate_runs, finalist.rate_share) == (0, 1.0)
    assert default.full_runs == 4  # with trial 0 itself
    assert finalist.train_time_s.value == pytest.approx(100.0)
    assert finalist.test_time_s == 0.8
    assert finalist.peak_memory_bytes == 264 * 2**20
    assert sorted(finalist.runs) == ["verify-0001", "verify-0003", "verify-0005"]
    assert finalist.test_accuracy.value == pytest.approx(0.98)
    # the images are a sample: the interval does not shrink to a point
    assert finalist.test_accuracy.low < 0.98 < finalist.test_accuracy.high


def test_rate_runs_count_for_the_time_alone():
    plan, runs = simulate(make_plan(200.0, config=VerifyConfig(long_s=40, rate_share=0.1)))
    default, finalist = summarize(plan, runs)
    assert (default.full_runs, default.rate_runs, default.rate_share) == (1, 3, 0.1)
    assert (finalist.full_runs, finalist.rate_runs, finalist.rate_share) == (1, 2, 0.1)
    assert default.test_accuracy.value == plan.default.test_accuracy


def without(plan, runs, *places):
    return [run for run in runs if plan.place(run.trial.number) not in places]


def test_missing_runs_leave_what_the_others_prove():
    plan, runs = simulate(make_plan(50.0, 20.0))
    whole = summarize(plan, runs)
    assert {each.name for each in whole} == {"default", "trial 1", "trial 2"}
    one_less = summarize(plan, without(plan, runs, (1, 1)))
    assert {each.name: each.full_runs for each in one_less} == {
        "default": 4,
        "trial 1": 2,
        "trial 2": 3,
    }
    two_less = summarize(plan, without(plan, runs, (1, 1), (2, 1)))
    assert [each.name for each in two_less] == ["default", "trial 2"]


def test_a_failed_run_is_a_missing_run():
    plan, runs = simulate(make_plan(50.0, 20.0))
    failed = [
        dataclasses.replace(run, status=TrialStatus.CRASHED)
        if plan.place(run.trial.number)[1] == 1
        else run
        for run in runs
    ]
    assert [each.name for each in summarize(plan, failed)] == ["default", "trial 2"]


def test_without_two_common_rounds_nothing_is_proved():
    plan, runs = simulate(make_plan(50.0))
    assert summarize(plan, []) == ()
    assert summarize(plan, without(plan, runs, (0, 0), (1, 1))) == ()
    assert summarize(plan, without(plan, runs, (0, 0), (1, 0))) == ()
    assert summarize(plan, without(plan, runs, (0, 1), (1, 1), (2, 1))) == ()
    assert len(summarize(plan, without(plan, runs, (2, 0), (2, 1)))) == 2


def test_a_finalist_without_a_full_run_is_left_out():
    plan, runs = simulate(make_plan(200.0, 20.0, config=VerifyConfig(long_s=40, rate_share=0.1)))
    left = summarize(plan, without(plan, runs, (0, 1)))
    assert [each.name for each in left] == ["default", "trial 2"]


def test_runs_of_an_earlier_plan_do_not_count():
    plan, runs = simulate(make_plan(50.0))
    later = dataclasses.replace(plan, first=len(runs))
    assert summarize(later, runs) == ()
    fresh = [run_of(later, trial, 100.0, 0.98) for trial in later.trials()]
    assert summarize(later, [*runs, *fresh]) == summarize(later, fresh) != ()


def test_confidence_widens_the_intervals():
    plan, runs = simulate(make_plan(50.0))
    strict = dataclasses.replace(plan, config=dataclasses.replace(SHORT, confidence=0.99))
    narrow, wide = summarize(plan, runs)[1], summarize(strict, runs)[1]
    assert wide.confidence == 0.99
    for name in ("test_accuracy", "train_time_s"):
        inner, outer = getattr(narrow, name), getattr(wide, name)
        assert outer.low < inner.low < inner.value < inner.high < outer.high


def test_figures_that_never_vary_are_equal_or_different_for_sure():
    plan, runs = simulate(make_plan(50.0), speedup=2.0, time_noise=0.0, seed_noise=0.0)
    versus = summarize(plan, runs)[1].against_default
    assert versus.speedup.value == pytest.approx(2.0)
    assert versus.speedup_p == pytest.approx(0.0)
    assert versus.accuracy_gain.value == pytest.approx(0.0)
    assert versus.accuracy_p == pytest.approx(1.0)


# -- costs --------------------------------------------------------------------------------------


def costly(runs, plan, cpu_s: float, memory: float):
    """The runs, a finalist's with this CPU time and memory and the default's with 100 of each."""
    return [
        dataclasses.replace(
            run,
            measurement=dataclasses.replace(
                run.measurement,
                cpu_user_s=0.9 * factor * (cpu_s if finalist else 100.0),
                cpu_system_s=0.1 * factor * (cpu_s if finalist else 100.0),
                peak_memory_bytes=int(factor * (memory if finalist else 100.0) * 2**20),
            ),
        )
        for run in runs
        for turn, index in [plan.place(run.trial.number)]
        for finalist in [index > 0]
        for factor in [1.0 + 0.01 * turn * (1 if finalist else 2)]
    ]


def test_costs_are_compared_round_by_round():
    plan, runs = simulate(make_plan(100.0))
    versus = summarize(plan, costly(runs, plan, 25.0, 120.0))[1].against_default
    assert versus.cpu.value == pytest.approx(0.25, rel=0.02)
    assert versus.cpu.low < versus.cpu.value < versus.cpu.high
    assert versus.cpu.p < 0.01
    assert versus.memory.value == pytest.approx(1.2, rel=0.02)
    assert versus.memory.p < 0.05
    assert versus.memory.gap == ""


def test_memory_is_compared_between_runs_of_one_sort_only():
    # the default is long: its repeats are a share of the iterations, and the finalist's in full
    plan, runs = simulate(make_plan(2.0, config=VerifyConfig(long_s=30.0)), speedup=50.0)
    assert {run.trial.share == 1 for run in runs} == {True, False}
    versus = summarize(plan, costly(runs, plan, 25.0, 120.0))[1].against_default
    assert versus.cpu.low is not None  # CPU is projected to the whole training in each round
    assert (versus.memory.low, versus.memory.high, versus.memory.p) == (None, None, None)
    assert "only one full run" in versus.memory.gap
    assert versus.memory.value > 0


def test_a_cost_below_what_can_be_measured_is_not_compared():
    plan, runs = simulate(make_plan(100.0))
    versus = summarize(plan, costly(runs, plan, 0.1, 120.0))[1].against_default
    assert math.isnan(versus.cpu.value)
    assert versus.cpu.gap == "too small to be measured"


# -- who is in doubt ----------------------------------------------------------------------------


def test_only_those_in_doubt_run_once_more_beside_the_default():
    plan, runs = simulate(make_plan(50.0, 50.0), speedup=2.0)
    sure, *others = summarize(plan, runs)
    assert plan.doubtful([sure, *others]), "two that are alike"
    fast = dataclasses.replace(others[0], on_front=1.0)
    slow = dataclasses.replace(others[1], on_front=0.0)
    assert plan.doubtful([sure, fast, slow]) == []
    unsure = dataclasses.replace(fast, on_front=0.6)
    assert plan.doubtful([sure, unsure, slow]) == [0, unsure.trial_number]
    assert plan.doubtful([]) == []


def test_a_faster_one_as_good_takes_the_default_off_the_front():
    plan, runs = simulate(make_plan(50.0, rounds=6), speedup=2.0, gain=0.01)
    default, finalist = summarize(plan, runs)
    assert default.on_front < 0.05
    assert finalist.on_front > 0.95


def test_looking_again_because_of_what_was_seen_is_paid_for():
    plan, _ = simulate(make_plan(50.0))
    _, runs = simulate(make_plan(50.0, rounds=5), speedup=1.02)
    planned = dataclasses.replace(plan, rounds=5)
    once, thrice = (summarize(each, runs)[1].against_default for each in (planned, plan))
    assert thrice.speedup_p == pytest.approx(min(1.0, 3 * once.speedup_p))
    assert thrice.accuracy_p == pytest.approx(min(1.0, 3 * once.accuracy_p))
    assert thrice.speedup.low < once.speedup.low


@pytest.mark.timeout(30)
def test_looking_again_and_again_claims_nothing_of_the_default_against_itself():
    claimed = 0
    for seed in range(100):
        plan, _ = simulate(make_plan(100.0), seed=seed)
        _, runs = simulate(make_plan(100.0, rounds=8), seed=seed)
        for turn in range(3, 9):
            seen = [run for run in runs if plan.place(run.trial.number)[0] < turn]
            versus = summarize(plan, seen)
            if not plan.doubtful(versus):
                break
        claimed += versus[1].against_default.speedup_p < 0.05
    assert claimed <= 5
