"""The default of real studies: with a reference, with a wrong one, without any, and in part."""

from __future__ import annotations

import dataclasses

import pytest

from tests.cross_samples import copy_framework
from tests.report_samples import make_result
from tuner.cli.commands import run_command
from tuner.config.catalogue import load_framework
from tuner.config.schema import BudgetConfig, SearchConfig, VerifyConfig
from tuner.convergence.references import Accuracies, Reference
from tuner.executors import LocalExecutor
from tuner.progress import StudyProgress
from tuner.race.machine import MachineRace
from tuner.search.derived import Composition
from tuner.study.baseline import BaselineCache
from tuner.study.recording import record_reference
from tuner.study.study import tune
from tuner.study.trial_runs import TrialRuns
from tuner.values.errors import ConfigError, NoTrialSucceeded
from tuner.values.trial import TrialKind, TrialResult, TrialStatus
from tuner.values.verified import Role

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
LONG = {
    "iterations: 1000": "iterations: 20000",
    "high: 2000": "high: 20000",
    # looks differ from seed to seed by half a hundredth of a point
    "0.0005": "0.00005",
    "/ 800.0": "/ 8000.0",
}


@pytest.fixture
def long(config, tmp_path):
    """A study whose default is so long that only its first part is trained."""
    tree = tmp_path / "tree"
    copy_framework(tree, "long", **LONG)
    return dataclasses.replace(
        config,
        framework=load_framework("long", str(tree)),
        framework_path=str(tree),
        search=SearchConfig("factored", probe_s=0.0005, warm_start=False),
        budget=BudgetConfig(time_s=60, trials=4, default_share=0.9),
        verify=VerifyConfig(finalists=2, repeats=3, long_s=0.001, min_rate_s=0.0001),
    )


@pytest.fixture
def recorded(long, home):
    """The reference of that default, as its command leaves it."""
    found, path = record_reference(long, 3, home / "references", StudyProgress())
    assert path == home / "references" / "long-digits-default.json"
    return found


def test_a_recording_goes_on_and_is_read_back(long, home):
    folder = home / "references"
    first, path = record_reference(long, 1, folder, StudyProgress())
    assert first.seeds == [1]
    both, _ = record_reference(long, 2, folder, StudyProgress())
    assert both.runs[0] == first.runs[0]
    assert both.seeds == [1, 2]
    assert Reference.from_json(path.read_text()) == both
    assert both.runs[0].looks[-1].iteration == 20_000
    assert len(both.runs[0].looks) > 10
    assert both.setting["blas"] == "fast", "at the fastest setting"
    assert not any(each.endswith("_s") for each in path.read_text().split('"')), "no time in it"


def test_seeds_are_recorded_side_by_side_where_one_thread_each_is_faster(long, home, monkeypatch):
    running, most = set(), []
    submit = LocalExecutor.submit

    def watched(executor, trial):
        future = submit(executor, trial)
        running.add(future)
        most.append(sum(not each.done() for each in running))
        return future

    monkeypatch.setattr(LocalExecutor, "submit", watched)
    monkeypatch.setattr(Composition, "at_once", lambda *_: 2)
    both, _ = record_reference(long, 3, home / "references", StudyProgress())
    assert both.seeds == [1, 2, 3]
    assert both.setting["threads"] == 1
    assert max(most) == 2
    monkeypatch.setattr(Composition, "at_once", lambda *_: 1)
    again, _ = record_reference(long, 1, home / "alone", StudyProgress())
    assert again.runs[0].looks == both.runs[0].looks, "a seed learns the same beside another"


def test_a_recording_of_another_default_is_set_aside(long, home):
    folder = home / "references"
    found, path = record_reference(long, 1, folder, StudyProgress())
    path.write_text(dataclasses.replace(found, dataset_digest="other").to_json())
    again, _ = record_reference(long, 1, folder, StudyProgress())
    assert again.dataset_digest == found.dataset_digest
    assert path.with_suffix(".json.old").exists()


def test_a_recording_with_another_version_of_the_framework_is_set_aside(long, home):
    folder = home / "references"
    found, path = record_reference(long, 1, folder, StudyProgress())
    older = {**found.versions, "synthetic": "0.9"}
    path.write_text(dataclasses.replace(found, versions=older).to_json())
    both, _ = record_reference(long, 2, folder, StudyProgress())
    assert both.seeds == [1, 2], "those of the older version count no more"
    assert both.versions == found.versions
    assert Reference.from_json(path.with_suffix(".json.old").read_text()).versions == older


def test_a_default_that_cannot_be_trained_leaves_no_reference(long, home, tmp_path):
    copy_framework(tmp_path / "tree", "bad", **LONG, **{'fault: ""}': "fault: nan}"})
    bad = dataclasses.replace(long, framework=load_framework("bad", str(tmp_path / "tree")))
    with pytest.raises(NoTrialSucceeded):
        record_reference(bad, 1, home / "references", StudyProgress())
    assert not list((home / "references").glob("*.json"))


def test_a_study_takes_the_accuracy_of_the_reference_and_its_own_time(long, recorded):
    result = tune(long)
    default = result.trials[0]
    assert default.accuracy_from == "reference of 3 seeds"
    assert default.test_accuracy == pytest.approx(recorded.test_accuracy)
    assert default.iterations == 20_000
    assert default.trial.projected
    assert "reference of 3 seeds" in result.reference
    assert result.default_part == ""
    roles = {each.role: each for each in result.verified}
    assert roles[Role.DEFAULT].accuracy_from == "reference of 3 seeds"
    assert roles[Role.RUNTIME_ONLY].loses_nothing
    assert result.answers.runtime_only.speedup == pytest.approx(33.3, rel=0.1)
    assert result.answers.no_loss is not None
    again = tune(long)
    assert again.verified == result.verified, "a complete study is read back as it was"
    assert again.reference == result.reference


def shifted(reference, by):
    """The reference with all its accuracies higher by that much."""
    runs = tuple(
        dataclasses.replace(
            run,
            looks=tuple(
                Accuracies(each.iteration, each.val_accuracy + by, each.test_accuracy + by)
                for each in run.looks
            ),
        )
        for run in reference.runs
    )
    return dataclasses.replace(reference, runs=runs)


def test_a_reference_that_is_wrong_is_noticed_not_used_and_said(long, recorded, home):
    # of so few images a shift must be larger to be seen than of the usual thousands
    path = home / "references" / "long-digits-default.json"
    path.write_text(shifted(recorded, -0.02).to_json())
    result = tune(long)
    assert "the recorded reference is not used" in result.reference
    assert "points from the recorded curve" in result.reference
    assert result.trials[0].test_accuracy == pytest.approx(recorded.test_accuracy, abs=0.002)
    # its whole training is held against its first part closely, as one seed allows
    (whole,) = (home / "studies").glob("*/trials/reference-0000/result.json")
    assert TrialResult.from_json(whole.read_text()).trial.seed == result.trials[0].trial.seed


@pytest.fixture
def chaotic(long, tmp_path):
    """The same where rounding at another runtime setting leads a training elsewhere."""
    tree = tmp_path / "chaotic"
    chance = "random.Random(f'{trial.seed} {trial.blas} {done[0]}').random()"
    words = {"+ noise.gauss(0, 0.0005)": f"- 0.2 * {chance}"}
    copy_framework(tree, "long", **words, **LONG)
    return dataclasses.replace(
        long, framework=load_framework("long", str(tree)), framework_path=str(tree)
    )


@pytest.mark.parametrize("reached", [2_000, 1_900], ids=["whole part", "stopped part"])
def test_a_first_part_that_rounding_leads_elsewhere_is_repeated_as_recorded(
    chaotic, home, monkeypatch, reached
):
    measure = TrialRuns.measure

    def stopped(runs, trial):
        result = measure(runs, trial)
        if trial.kind is not TrialKind.DEFAULT or reached == result.iterations:
            return result
        return dataclasses.replace(
            result, status=TrialStatus.STOPPED, reason="its limit was reached", iterations=reached
        )

    monkeypatch.setattr(TrialRuns, "measure", stopped)
    record_reference(chaotic, 3, home / "references", StudyProgress())
    result = tune(chaotic)
    assert "at the runtime setting of the recording" in result.reference
    assert result.trials[0].accuracy_from == "reference of 3 seeds"
    assert result.trials[0].params["blas"] == "slow"
    (path,) = (home / "studies").glob("*/trials/reference-0001/result.json")
    repeated = TrialResult.from_json(path.read_text())
    assert repeated.params["blas"] == "fast"
    assert repeated.trial.params["iterations"] == 20_000
    assert repeated.iterations == reached
    assert all(each.test_accuracy is None for each in repeated.checkpoints), "that takes long"


def test_where_nothing_is_raced_a_wrong_reference_leaves_the_whole_default_to_be_trained(
    long, recorded, home
):
    path = home / "references" / "long-digits-default.json"
    path.write_text(dataclasses.replace(recorded, versions={"synthetic": "0.9"}).to_json())
    result = tune(dataclasses.replace(long, search=SearchConfig("joint", warm_start=False)))
    assert "not used: it was recorded with synthetic 0.9" in result.reference
    assert result.default_part == ""
    assert result.trials[0].iterations == 20_000
    assert not result.trials[0].trial.projected


def test_without_a_reference_the_default_is_trained_whole_at_the_fastest_setting(long):
    result = tune(long)
    assert "one whole training of this study, at fast" in result.reference
    assert result.default_part == ""
    assert result.trials[0].iterations == 20_000
    assert result.trials[0].params["blas"] == "slow"
    assert result.answers.runtime_only is not None


def test_an_interruption_during_the_race_does_not_lose_the_first_part(long, home, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MachineRace, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tune(long)
    (events,) = (home / "studies").glob("*/trials/default-0000/events.jsonl")
    measured = events.stat().st_mtime_ns
    result = tune(long)
    assert events.stat().st_mtime_ns == measured, "it was not trained again"
    assert "one whole training of this study" in result.reference


def test_a_whole_training_that_takes_longer_than_promised_is_stopped(long, monkeypatch):
    measure, limits = TrialRuns.measure, []

    def slow(runs, trial):
        result = measure(runs, trial)
        if trial.kind is not TrialKind.REFERENCE:
            return result
        limits.append(trial.train_time_limit_s)
        return dataclasses.replace(
            result, status=TrialStatus.STOPPED, reason="its limit was reached", iterations=10_000
        )

    monkeypatch.setattr(TrialRuns, "measure", slow)
    result = tune(long)
    assert len(limits) == 1
    assert 0 < limits[0] < long.budget.time_s
    assert result.default_part.startswith("the first 2,000 of 20,000 iterations")
    assert result.answers.no_loss is result.answers.runtime_only


def test_where_there_is_no_time_for_the_whole_all_is_compared_with_the_first_part(long):
    long.baseline = "projected"
    result = tune(long)
    assert result.default_part.startswith("the first 2,000 of 20,000 iterations")
    assert result.trials[0].params["iterations"] == 2000
    assert not result.trials[0].trial.projected
    others = [each for each in result.verified[1:] if each.role is not Role.RUNTIME_ONLY]
    assert others
    assert all(not each.against_default.no_loss for each in others)
    assert result.answers.no_loss is result.answers.runtime_only
    assert any("the first 2,000 of 20,000" in each for each in result.warnings)


def test_a_damaged_reference_ends_in_one_line(long, home):
    (home / "references").mkdir(parents=True)
    (home / "references" / "long-digits-default.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        tune(long)


@pytest.mark.parametrize("words", [["seeds=0"], ["seeds=x"], ["seeds"], ["sedes=3"]])
def test_the_command_refuses_what_it_cannot_use(words, home):
    with pytest.raises(ValueError, match="seed"):
        run_command("reference", ["framework=caffe", *words])


def test_where_accuracy_is_sought_longer_trainings_are_tried(long, recorded):
    long.goal = "accuracy"
    long.budget = BudgetConfig(time_s=60, trials=7, default_share=0.9)
    result = tune(long)
    assert max(each.trial.params["iterations"] for each in result.trials) > 20_000


def test_a_full_run_that_is_reused_counts_as_finished_only_once_it_is_judged(
    setup, make_trial, tmp_path
):
    trial, run = make_trial(0, kind=TrialKind.DEFAULT), make_result(0, 0.99, 100.0)
    cache = BaselineCache(tmp_path / "baselines", setup, trial, "this machine")
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "events.jsonl").touch()
    cache.keep(source, run)
    assert cache.fetch(target) == run
    assert [each.name for each in target.iterdir()] == ["events.jsonl"]
