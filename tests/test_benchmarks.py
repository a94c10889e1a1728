"""Replayed studies: the tuner's own loop on recorded trainings, and what is claimed of them."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from aa import Verification, false_alarms
from claims import LIVE_SEEDS, claims, live
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from overhead import trial_costs
from proven import best, figures, proven
from recorded import Recorded, recorded_names
from replay import Replay
from replayed_study import ReplayedStudy, make_config
from search import NEARLY, kept, prove, search, time_to
from workbench import Workbench, empty_home

from tests.report_samples import make_result
from tests.verify_samples import SHORT, make_entrant, make_plan, simulate
from tuner.config.catalogue import tuner_home
from tuner.config.schema import BudgetConfig, MeasureConfig, VerifyConfig
from tuner.recommendation.evidence import Evidence
from tuner.values.trial import Trial, TrialKind, TrialStatus
from tuner.values.verified import Role
from tuner.verification.proof import summarize

TABLE = "torch-mnist"
STRATEGIES = ["factored", "tpe", "constrained", "nsga2", "random"]
RAY = pytest.param("raytune", marks=pytest.mark.skipif(not find_spec("ray"), reason="no ray"))


@pytest.fixture(scope="module")
def recorded():
    return Recorded(TABLE)


def test_what_a_study_of_a_benchmark_installs_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))  # where nothing is installed yet
    own = tmp_path / "own"
    own.mkdir()
    for _ in range(2):
        with empty_home(own):
            assert tuner_home() == own
            (own / "datasets" / "digits").mkdir(exist_ok=True)
    assert (tmp_path / "home" / "datasets" / "digits").is_dir()


def run_study(recorded, strategy, budget_s, seed=1, **options):
    study = ReplayedStudy(
        Replay(recorded, seed),
        make_config(recorded, strategy, seed, BudgetConfig(time_s=budget_s)),
        **options,
    )
    study.loop.run()
    return study


@pytest.mark.timeout(30)
@pytest.mark.parametrize("strategy", [*STRATEGIES, RAY])
@pytest.mark.slow
def test_a_study_by_each_strategy_comes_to_its_end_and_verifies(recorded, strategy):
    study = run_study(recorded, strategy, 300.0)
    default, *others = study.verified
    assert default.accuracy_from == "reference of 10 seeds"
    assert others
    assert study.loop.trials[0].trial.kind is TrialKind.DEFAULT
    assert len(study.loop.trials) > 2
    assert all(each.usable for each in study.loop.trials)


@pytest.mark.timeout(30)
@pytest.mark.slow
def test_a_study_in_replay_can_be_repeated(recorded):
    one, other = (run_study(recorded, "factored", 120.0, seed=3) for _ in range(2))
    assert one.loop.trials == other.loop.trials
    assert one.verified == other.verified
    assert run_study(recorded, "tpe", 120.0, seed=4).loop.trials != one.loop.trials


@pytest.mark.timeout(30)
@pytest.mark.slow
def test_without_a_reference_the_default_is_trained_to_its_end(recorded):
    study = run_study(recorded, "factored", 400.0, reference=False)
    assert study.loop.known.whole
    assert "one whole training of this study" in study.loop.known.words
    assert study.loop.known.result.iterations == recorded.default["iterations"]


@pytest.mark.timeout(60)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(recorded_names()),
    strategy=st.sampled_from(STRATEGIES),
    budget_s=st.floats(30.0, 400.0),
    seed=st.integers(1, 1000),
    reference=st.booleans(),
)
@pytest.mark.slow
def test_any_budget_is_kept(name, strategy, budget_s, seed, reference):
    recorded = Recorded(name)
    machine = Replay(recorded, seed)
    config = make_config(recorded, strategy, seed, BudgetConfig(time_s=budget_s))
    study = ReplayedStudy(machine, config, reference=reference)
    study.loop.run()
    numbers = [each.trial.number for each in study.loop.trials]
    assert numbers == list(range(len(numbers)))
    # what may go beyond it: the first three trials, and two rounds of two runs, so that a study
    # ends with something verified
    runs = [*study.loop.trials, *study.record.results(TrialKind.VERIFY)]
    longest_s = max(each.metrics["wall_time_s"] for each in runs)
    assert machine.now < 1.25 * budget_s + 7 * longest_s
    for each in study.verified[1:]:
        assert each.against_default.speedup.value > 0


# -- the machine --------------------------------------------------------------------------------


def test_the_same_training_goes_the_same_way_at_any_runtime_setting(recorded):
    machine = Replay(recorded, 1)
    other = {**recorded.default, **recorded.paces.fastest(64)}
    trials = [
        Trial(1, params, kind, seed=7, test=True, curve=recorded.min_iterations)
        for params in (recorded.default, other)
        for kind in (TrialKind.SEARCH, TrialKind.REFERENCE)
    ]
    results = [machine.run(each) for each in trials]
    assert len({each.test_accuracy for each in results}) == 1
    assert len({each.metrics["train_time_s"] for each in results}) == len(results)
    whole = {each.iteration: each for each in results[1].checkpoints}
    assert all(each.test_accuracy is not None for each in whole.values())
    assert all(
        each.val_accuracy == whole[each.iteration].val_accuracy for each in results[0].checkpoints
    )
    fresh = machine.run(dataclasses.replace(trials[0], seed=8))
    assert fresh.test_accuracy != results[0].test_accuracy


def test_of_a_share_the_time_is_projected(recorded):
    trial = Trial(1, recorded.default, TrialKind.VERIFY, share=0.1)
    part, whole = Replay(recorded, 1).run(trial), recorded.truth(recorded.default)[0]
    assert part.status is TrialStatus.COMPLETE
    assert part.iterations == pytest.approx(0.1 * recorded.default["iterations"], abs=1)
    assert part.metrics["train_time_s"] == pytest.approx(whole, rel=0.2)
    assert part.metrics["wall_time_s"] < 0.5 * whole
    assert part.test_accuracy is None


def test_a_trial_stops_at_its_limit(recorded):
    trial = Trial(1, recorded.default, train_time_limit_s=5.0)
    result = Replay(recorded, 1).run(trial)
    assert result.status is TrialStatus.STOPPED
    assert result.metrics["train_time_s"] <= 5.0


# -- searches and claims ------------------------------------------------------------------------


@pytest.mark.timeout(30)
def test_a_kept_search_is_not_run_again(tmp_path):
    calls = []

    def once(*given):
        calls.append(given)
        return search(*given, budget_s=100.0)

    first = kept(once, tmp_path, "", TABLE, "factored", 1)
    assert kept(once, tmp_path, "", TABLE, "factored", 1) == first
    assert calls == [(TABLE, "factored", 1)]
    volumes = [volume for _, volume in first]
    assert volumes[-1] >= volumes[0] > 0
    assert first[0][0] == 0.0, "the default costs nothing"


@pytest.mark.timeout(30)
@pytest.mark.slow
def test_a_proof_is_looked_for_in_growing_studies():
    found = prove(TABLE, "factored", 1, budget_s=220.0)
    assert found
    assert all(share >= 0 for _, share in found)
    assert time_to([(10.0, 0.5), (20.0, NEARLY)], NEARLY) == 20.0


@pytest.mark.timeout(30)
@pytest.mark.slow
def test_what_studies_prove_is_counted_by_its_true_speed_up():
    found = [proven(TABLE, "factored", 300.0, seed) for seed in (1, 2)]
    most = best(TABLE, VerifyConfig.accuracy_margin)
    assert best(TABLE, 0.0) <= most
    assert all(1 <= speedup <= 1.25 * most for speedup, _ in found), "grid points are not all"
    shown = figures([(2.0, 600.0), (8.0, 650.0)])
    assert shown["speedup"] == pytest.approx(4.0)
    assert (shown["four_times"], shown["studies"], shown["longest_s"]) == (1, 2, 650.0)


@pytest.mark.timeout(240)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["caffe-mnist", "torch-mnist"])
def test_nearly_every_replayed_study_proves_four_times_or_more(name):
    """A floor far below what is usual: all of 16 do, by a geometric mean of 6 and 8 times."""
    found = figures([proven(name, "factored", 690.0, seed) for seed in range(1, 5)])
    assert found["four_times"] >= 3
    assert found["speedup"] >= 4.0


@pytest.mark.slow
def test_what_is_accurate_enough_is_no_bar_to_later_trials(recorded):
    study = run_study(recorded, "factored", 300.0)
    default = study.loop.known.result
    bars = [accuracy for each in study.loop.trials for _, accuracy in each.trial.rivals]
    assert max(bars) <= default.val_accuracy - VerifyConfig.accuracy_margin
    found = [each.val_accuracy for each in study.loop.trials if each.usable]
    assert max(found) > max(bars), "though some were better"


def test_claims_are_held_against_the_truth():
    plan = make_plan(make_entrant(1, 30, Role.NO_LOSS), make_entrant(2, 40, Role.RUNTIME_ONLY))
    verified = summarize(plan, simulate(plan, 3.0, time_noise=0.01, seed_noise=1e-4))
    assert [each.loses_nothing for each in verified] == [True] * 3
    true = claims(verified, lambda each: (100.0 / each.speedup, 0.98))
    assert {each.kind for each in true if each.holds} >= {"no loss", "runtime only"}
    default_s = verified[0].train_time_s.value
    losing = claims(
        verified,
        lambda each: (default_s / each.speedup, 0.977 if each.role is Role.NO_LOSS else 0.98),
    )
    assert [each.holds for each in losing if each.kind == "no loss"] == [False]
    assert claims((), lambda each: (0.0, 0.0)) == []


def make_evidence(role, speedup, *, margin=0.002):
    """What a study on MNIST claims of one configuration of Caffe."""
    interval = {"value": speedup, "low": speedup / 1.1, "high": speedup * 1.1}
    accuracy = {"value": 0.991, "low": 0.990, "high": 0.992}
    return Evidence(
        params={"batch_size": 32, "iterations": 5000, "learning_rate": 0.1, "threads": 2},
        figures={
            "role": role.value, "test_accuracy": accuracy, "full_runs": 2,
            "comparison": {"no_loss": True, "speedup": interval, "accuracy_gain": accuracy},
        },
        run_ids=(), study="study", framework="caffe", dataset="mnist", requested="mnist",
        margin=margin, default={"test_accuracy": accuracy},
    )  # fmt: skip


@pytest.mark.parametrize(("accuracy", "pace_s", "held"), [(0.990, 1.0, True), (0.985, 3.0, False)])
def test_claims_of_studies_are_held_against_fresh_seeds(monkeypatch, accuracy, pace_s, held):
    default = {"batch_size": 64, "iterations": 10_000, "learning_rate": 0.01, "threads": 1}
    ran = []

    def run(_setup, trial, **_):
        ran.append(trial)
        own = pace_s if trial.params["batch_size"] == 32 else 1.0
        time_s = own * trial.params["iterations"]
        return dataclasses.replace(
            make_result(1, 0.99, time_s),
            trial=trial,
            test_accuracy=accuracy if trial.test else None,
        )

    @contextlib.contextmanager
    def bench(*_):
        space = SimpleNamespace(refusal=lambda _params: "")
        yield Workbench(space, default, SimpleNamespace(cores=(0,), measure=MeasureConfig()))

    monkeypatch.setattr("claims.workbench", bench)
    monkeypatch.setattr("claims.run_trial", run)
    monkeypatch.setattr("tuner.executors.local.run_trial", run)
    evidence = [make_evidence(Role.NO_LOSS, 4.0), make_evidence(Role.RUNTIME_ONLY, 2.0)]
    assert [each.kind for each in live(evidence, rates=False)] == ["no loss"]
    ran.clear()
    found = live(evidence)
    assert [each.kind for each in found] == ["no loss", "faster", "faster"]
    assert [each.holds for each in found] == [held] * 3
    whole = [each for each in ran if each.test]
    assert len({each.seed for each in whole}) == len(whole) == LIVE_SEEDS, "its reference is known"
    assert all(each.accuracy_only and each.params["threads"] == 1 for each in whole)
    assert {each.params["learning_rate"] for each in whole} == {0.1}
    rates = {each.params["learning_rate"] for each in ran if not each.test}
    assert rates == {0.01}, "at another rate a short training may diverge, and tells no time"


def test_the_default_against_itself_is_dealt_out_anew():
    plan = make_plan(make_entrant(1, 100, Role.NO_LOSS), config=SHORT)
    found = Verification(plan, tuple(simulate(plan, 1.5)))
    dealer = random.Random(1)
    anew = [found.dealt_anew(dealer) for _ in range(20)]
    speedups = {round(each.comparison.speedup.value, 6) for each in anew}
    assert len(speedups) > 2
    assert all(sorted(r.trial.number for r in each.runs) == list(range(6)) for each in anew)
    assert false_alarms(anew)["verifications"] == 20


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("strategy", ["joint", "factored"])
def test_what_the_tuner_costs_is_measured_on_a_whole_study(strategy, monkeypatch):
    monkeypatch.setenv("TUNER_HOME", "")  # put back afterwards: the benchmark sets its own
    assert len(trial_costs(4, strategy)) == 3
