"""Plans: rounds, their runs, seeds and looks."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report_samples import make_result
from tests.verify_samples import (
    DEFAULT,
    LONG,
    SEEDS,
    make_entrant,
    make_plan,
    make_reference,
)
from tuner.config.schema import VerifyConfig
from tuner.values.pareto import find_objective
from tuner.values.trial import SideBySide, TrialKind, TrialStatus
from tuner.values.verified import Role
from tuner.verification.entrant import Entrant
from tuner.verification.plan import Plan

GOALS = [find_objective("accuracy"), find_objective("train_time_s")]


def make_point(number, accuracy, time_s):
    return make_result(number, accuracy, time_s, batch_size=64 + number)


# -- rounds -------------------------------------------------------------------------------------


def test_each_round_runs_everything_once_in_turning_order():
    plan = make_plan(make_entrant(1, 50.0), make_entrant(2, 20.0))
    assert [plan.places[trial.number] for trial in plan.trials()] == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 1), (1, 2), (1, 0)),
        *((2, 2), (2, 0), (2, 1)),
    ]


def test_numbers_are_consecutive_and_lead_back_to_round_and_entrant():
    plan = make_plan(make_entrant(1, 50.0), make_entrant(2, 20.0))
    trials = plan.trials()
    assert [trial.number for trial in trials] == list(range(9))
    for trial in trials:
        turn, index = plan.places[trial.number]
        assert index in plan.rounds[turn]
        assert trial.params == plan.entrants[index].result.params
        assert trial.kind is TrialKind.VERIFY


ROLES = (Role.RUNTIME_ONLY, Role.NO_LOSS, Role.TRADE_OFF)
entrants = st.lists(
    st.builds(make_entrant, st.integers(1, 20), st.floats(0.0, 500.0), st.sampled_from(ROLES)),
    min_size=1,
    max_size=4,
)
configs = st.builds(
    VerifyConfig,
    long_s=st.sampled_from([0.0, 15.0, 1e6]),
    rate_share=st.floats(0.01, 1.0),
    min_rate_s=st.floats(0.1, 30.0),
    max_rate_s=st.floats(0.1, 100.0),
    repeats=st.integers(1, 5),
)


@st.composite
def plans(draw):
    """Plans whose rounds have whoever was left, entrants joining as they go."""
    known = draw(st.integers(0, 5))
    reference = make_reference(*SEEDS[:known]) if known else None
    config = draw(configs)
    plan = make_plan(rounds=0, config=config, accuracies=SEEDS[:known], reference=reference)
    for group in draw(st.lists(entrants, min_size=1, max_size=3)):
        count = len(plan.entrants)
        new = range(count, count + len(group))
        plan = plan.with_entrants(group)
        plan = plan.with_round(plan.turned([0, *new]))
        for left in draw(st.lists(st.sets(st.sampled_from(new)), max_size=2)):
            plan = plan.with_round(plan.turned([0, *sorted(left)]))
    return plan


def before(plan: Plan, turn: int) -> Plan:
    """The plan as it was after its first rounds."""
    rounds = plan.rounds[:turn]
    count = 1 + max(index for order in rounds for index in order)
    return dataclasses.replace(plan, entrants=plan.entrants[:count], rounds=rounds)


@settings(deadline=None, max_examples=60)
@given(plans())
def test_another_round_changes_nothing_of_those_before(plan):
    trials = plan.trials()
    for turn in range(1, len(plan.rounds) + 1):
        earlier = before(plan, turn)
        assert trials[: len(earlier.trials())] == earlier.trials()
        for index, each in enumerate(earlier.entrants):
            if each.role is Role.NO_LOSS:
                assert plan.looks(index) == earlier.looks(index), "levels are fixed beforehand"


@settings(deadline=None, max_examples=60)
@given(plans())
def test_a_round_costs_what_its_runs_do_and_never_less_than_nothing(plan):
    total = 0.0
    for turn in range(len(plan.rounds)):
        earlier = before(plan, turn + 1)
        own = [each for each in earlier.trials() if earlier.places[each.number][0] == turn]
        cost_s = dataclasses.replace(earlier, rounds=earlier.rounds[:-1]).cost_s(plan.rounds[turn])
        assert cost_s == pytest.approx(sum(map(earlier.trial_cost_s, own)))
        assert cost_s > 0
        total += cost_s
    assert total == pytest.approx(sum(map(plan.trial_cost_s, plan.trials())))


def test_a_plan_costs_at_least_its_training():
    plan = make_plan(make_entrant(1, 50.0))
    cost_s = sum(map(plan.trial_cost_s, plan.trials()))
    assert 3 * 150 < cost_s < 3 * 150 + 6 * 10


def test_a_long_run_is_given_the_time_that_it_takes():
    plan = make_plan(make_entrant(1, 20_000.0, Role.NO_LOSS), make_entrant(2, 50.0))
    default, long, short = plan.trials()[:3]
    assert long.time_limit_s >= 5 * 20_000.0
    assert default.time_limit_s == short.time_limit_s == 3600.0


# -- seeds and shares ---------------------------------------------------------------------------


def test_seeds_are_fresh_each_round_and_the_same_within_it():
    plan = make_plan(make_entrant(1, 50.0), make_entrant(2, 20.0))
    seeds = {}
    for trial in plan.trials():
        seeds.setdefault(plan.places[trial.number][0], set()).add(trial.seed)
    assert [len(each) for each in seeds.values()] == [1, 1, 1]
    fresh = set.union(*seeds.values())
    assert len(fresh) == 3
    assert plan.seed not in fresh
    other = {trial.seed for trial in dataclasses.replace(plan, seed=2).trials()}
    assert other.isdisjoint(fresh)


@pytest.mark.parametrize("seed", [20_240_131, 2**31 - 1])
def test_frameworks_take_the_seeds_of_a_study_whatever_its_own(seed):
    beside = SideBySide({**DEFAULT.params, "threads": 1}, 2, 25.0)
    candidate = dataclasses.replace(make_entrant(1, 20.0, Role.NO_LOSS), beside=beside)
    plan = dataclasses.replace(make_plan(candidate, config=LONG, accuracies=SEEDS), seed=seed)
    plan = plan.with_round((1, 1)).with_round((1, 1))
    seeds = {each.seed for each in plan.trials()}
    assert len(seeds) == 3 + 4
    assert all(0 <= each < 2**31 for each in seeds)


def shares(plan, index) -> list[float]:
    """Of an entrant's runs, round by round."""
    return [each.share for each in plan.trials() if plan.places[each.number][1] == index]


def test_short_runs_are_whole_with_the_test_split():
    plan = make_plan(make_entrant(1, 50.0), accuracies=SEEDS)
    assert {(trial.share, trial.test) for trial in plan.trials()} == {(1.0, True)}


def test_the_default_runs_for_its_rate_where_its_accuracy_is_known():
    assert shares(make_plan(config=LONG, accuracies=SEEDS), 0) == [0.1] * 3
    assert shares(make_plan(config=LONG, accuracies=SEEDS[:1]), 0) == [0.1] * 3
    assert shares(make_plan(config=LONG), 0) == [1.0] * 3


def test_the_runtime_setting_runs_in_full_without_a_reference_of_several_seeds():
    runtime = make_entrant(0, 50.0, Role.RUNTIME_ONLY)
    one, several = make_reference(SEEDS[0]), make_reference()
    assert shares(make_plan(runtime, config=LONG), 1) == [1.0] * 3
    known = make_plan(runtime, config=LONG, accuracies=SEEDS[:1], reference=one)
    assert shares(known, 1) == [1.0] * 3
    known = make_plan(runtime, config=LONG, accuracies=SEEDS, reference=several)
    assert shares(known, 1) == [0.1] * 3


def test_a_mere_part_of_the_default_runs_whole_only_as_often_as_its_accuracy_needs():
    runtime = make_entrant(0, 50.0, Role.RUNTIME_ONLY)
    plan = make_plan(runtime, config=LONG, part=True, rounds=4)
    assert shares(plan, 0) == [1.0, 1.0, 0.1, 0.1]
    assert shares(plan, 1) == [1.0, 1.0, 0.1, 0.1]
    assert plan.least_rounds(1) == 2, "whole runs count as such"


def test_its_first_part_has_recorded_seeds_and_looks():
    runtime = make_entrant(0, 50.0, Role.RUNTIME_ONLY)
    reference = make_reference()
    plan = make_plan(
        runtime, config=LONG, accuracies=SEEDS, reference=reference, min_iterations=100, rounds=6
    )
    own = [each for each in plan.trials() if plan.places[each.number][1] == 1]
    assert {each.curve for each in own} == {100}
    assert {each.seed for each in own} == set(reference.seeds)
    others = [each for each in plan.trials() if plan.places[each.number][1] == 0]
    assert {each.curve for each in others} == {0}
    assert {each.seed for each in others}.isdisjoint(reference.seeds)


def test_candidates_always_run_whole():
    for role in (Role.NO_LOSS, Role.ACCURACY):
        plan = make_plan(make_entrant(1, 90.0, role), config=LONG, accuracies=SEEDS)
        assert shares(plan, 1) == [1.0] * 3


def test_a_round_without_the_default_has_whole_runs_for_accuracy_alone():
    beside = SideBySide({**DEFAULT.params, "threads": 1}, 2, 25.0)
    candidate = dataclasses.replace(make_entrant(1, 20.0, Role.NO_LOSS), beside=beside)
    plan = make_plan(candidate, rounds=1, config=LONG, accuracies=SEEDS)
    plan = plan.with_round((1, 1)).with_round((1, 1)).with_round((0, 1))
    whole = [each for each in plan.trials() if each.accuracy_only]
    assert [plan.places[each.number] for each in whole] == [(1, 1)] * 2 + [(2, 1)] * 2
    assert len({each.seed for each in whole}) == 4
    assert all(each.test and each.share == 1 and each.params == beside.params for each in whole)
    assert shares(plan, 0) == [0.1, 0.1]
    assert plan.timed_rounds(1) == 2
    assert plan.looks(1).candidate_runs == (2, 4, 6)


def test_trade_offs_run_whole_first_and_then_for_their_rate():
    plan = make_plan(make_entrant(1, 90.0), make_entrant(2, 5.0), config=LONG, accuracies=SEEDS)
    assert shares(plan, 1) == [1.0, 0.1, 0.1]
    assert shares(plan, 2) == [1.0] * 3, "short"
    late = plan.with_entrants([make_entrant(3, 90.0)]).with_round([0, 3]).with_round([0, 3])
    assert shares(late, 3) == [1.0, 0.1]
    assert all(trial.test == (trial.share == 1) for trial in late.trials())


def test_a_rate_is_measured_for_some_seconds_at_least():
    config = VerifyConfig(long_s=40, rate_share=0.01)
    assert shares(make_plan(make_entrant(1, 50.0), config=config), 1)[1] == pytest.approx(4 / 50)
    hasty = VerifyConfig(long_s=40, rate_share=0.01, min_rate_s=2)
    assert shares(make_plan(make_entrant(1, 50.0), config=hasty), 1)[1] == pytest.approx(2 / 50)
    slow = make_plan(make_entrant(1, 600.0), config=VerifyConfig())
    assert shares(slow, 1)[1] == pytest.approx(4 / 600), "a slow default takes no longer"
    hours = make_plan(make_entrant(1, 6000.0), config=VerifyConfig())
    assert shares(hours, 1)[1] == pytest.approx(5 / 6000), "nor does one of hours"
    brief = VerifyConfig(long_s=1, min_rate_s=8)
    assert shares(make_plan(make_entrant(1, 5.0), config=brief), 1) == [1.0] * 3


def rounds_owed(plan, index):
    """Of the times of an entrant, by a plan without rounds."""
    count = 0
    while plan.owes(index):
        plan, count = plan.with_round([0, index]), count + 1
    return count


def test_rounds_of_rates_alone_are_twice_as_many():
    runtime = make_entrant(0, 50.0, Role.RUNTIME_ONLY)
    known = make_plan(runtime, make_entrant(2, 50.0), rounds=0, config=LONG, accuracies=SEEDS)
    assert [rounds_owed(known, index) for index in (1, 2)] == [4, 2]
    assert [known.max_rounds(index) for index in (1, 2)] == [6, 3]
    unknown = make_plan(runtime, rounds=0, config=LONG)
    assert rounds_owed(unknown, 1) == 2, "whole runs, as no reference is known"
    single = dataclasses.replace(known, config=dataclasses.replace(LONG, repeats=1))
    assert single.max_rounds(1) == rounds_owed(single, 1)


def test_a_stopped_one_is_run_for_the_iterations_it_reached():
    stopped = dataclasses.replace(
        make_result(1, 0.985, 20.0), status=TrialStatus.STOPPED, iterations=70
    )
    plan = make_plan(Entrant(stopped, Role.TRADE_OFF))
    assert plan.trials()[1].params["iterations"] == 70


# -- looks --------------------------------------------------------------------------------------


def test_a_candidate_is_looked_at_after_the_second_and_each_further_whole_run():
    candidate = make_entrant(1, 20.0, Role.NO_LOSS)
    for repeats, counts in ((1, (2,)), (2, (2,)), (3, (2, 3)), (5, (2, 3, 4, 5))):
        config = dataclasses.replace(LONG, repeats=repeats)
        looks = make_plan(candidate, config=config, accuracies=SEEDS).looks(1)
        assert looks.candidate_runs == counts
        assert set(looks.default_runs) == {5}, "the default's accuracy is known beforehand"


def test_what_must_be_more_accurate_may_lose_nothing_at_all():
    faster, better = (make_entrant(1, 20.0, role) for role in (Role.NO_LOSS, Role.ACCURACY))
    plan = make_plan(faster, better, accuracies=SEEDS)
    assert [plan.margin(index) for index in (1, 2)] == [0.002, 0.0]


def test_the_default_s_own_whole_runs_are_counted_with_it():
    candidate = make_entrant(1, 20.0, Role.NO_LOSS)
    assert make_plan(candidate, config=LONG).looks(1).default_runs == (2, 3)
    runtime = make_entrant(0, 50.0, Role.RUNTIME_ONLY)
    # one accuracy is known, and the runtime setting adds one each round
    plan = make_plan(runtime, candidate, config=LONG, accuracies=SEEDS[:1])
    assert plan.looks(2).default_runs == (3, 4)
    late = plan.with_entrants([make_entrant(3, 10.0, Role.NO_LOSS)]).with_round([0, 3])
    assert late.looks(3).default_runs == (4, 4), "what the rounds before it gave is known"


def test_each_candidate_takes_two_thirds_of_the_level_that_is_left():
    candidates = [make_entrant(n, 20.0, Role.NO_LOSS) for n in (1, 2, 3)]
    trade_off = make_entrant(4, 10.0)
    plan = make_plan(candidates[0], trade_off, *candidates[1:], accuracies=SEEDS)
    assert plan.tested == [1, 3, 4]
    alphas = [plan.looks(index).alpha for index in plan.tested]
    assert alphas == pytest.approx([0.1 / 3, 0.1 / 9, 0.1 / 27])


def test_trade_offs_are_tested_for_no_loss_only_where_there_is_no_candidate():
    runtime = make_entrant(0, 50.0, Role.RUNTIME_ONLY)
    plan = make_plan(runtime, make_entrant(1, 10.0), make_entrant(2, 20.0))
    assert plan.tested == [2, 3]
    assert [plan.looks(index).alpha for index in plan.tested] == pytest.approx([0.1 / 3, 0.1 / 9])
    candidate = make_entrant(3, 30.0, Role.NO_LOSS)
    assert plan.with_entrants([candidate]).tested == [4]


# -- what is kept -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_an_entrant_is_read_back_as_it_was_written(role):
    entrant = Entrant(make_result(3, 0.985, 20.0), role, stops=(make_result(4, 0.98, 15.0),))
    assert Entrant.from_json(json.loads(json.dumps(entrant.to_json()))) == entrant
