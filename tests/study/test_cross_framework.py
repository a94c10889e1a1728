"""Studies of several frameworks within one budget."""

from __future__ import annotations

import dataclasses
import json
import math
import types

import pytest
from mlflow.exceptions import MlflowException

from tests.cross_samples import make_tree
from tests.report_samples import make_study
from tuner.config.catalogue import list_frameworks
from tuner.config.schema import BudgetConfig, VerifyConfig
from tuner.config.validation import validate
from tuner.study.cross_framework import _Shares, _warnings, chosen_frameworks, tune_frameworks
from tuner.tracking import CROSS, Tracker, connect, load_results
from tuner.values.errors import ConfigError, NoTrialSucceeded
from tuner.values.results import Outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def cross(config, tmp_path):
    """Four frameworks, of which two work, each with a study of seconds."""
    return dataclasses.replace(
        config,
        framework_path=str(make_tree(tmp_path / "tree")),
        frameworks=["synthetic", "absent", "brisk", "other"],
        model="lenet",
        budget=BudgetConfig(time_s=60, trials=4),
        verify=VerifyConfig(finalists=1, repeats=2),
    )


def with_frameworks(config, *names):
    return dataclasses.replace(config, frameworks=list(names))


def test_all_is_every_framework_of_the_registry_once(cross):
    names = chosen_frameworks(with_frameworks(cross, "all"))
    assert names == list_frameworks(cross.framework_path)
    assert {"synthetic", "brisk", "caffe"} <= set(names)
    assert len(set(names)) == len(names)
    assert chosen_frameworks(with_frameworks(cross, "brisk", "absent")) == ["brisk", "absent"]


def test_an_unknown_framework_and_one_named_twice_are_refused(cross):
    with pytest.raises(ConfigError, match="unknown framework 'cafe'; choose from: absent, brisk"):
        chosen_frameworks(with_frameworks(cross, "cafe"))
    with pytest.raises(ConfigError, match="frameworks must be distinct names"):
        validate(with_frameworks(cross, "brisk", "brisk"))


def test_the_budget_is_shared_out_equally_over_what_is_left(tmp_path):
    shares = _Shares(tmp_path / "kept" / "shares.json", 90.0)
    assert shares.share("one", 0.0, waiting=3, entrants=3) == 30.0
    assert shares.share("two", 10.0, waiting=2, entrants=3) == 40.0
    assert shares.share("three", 85.0, waiting=1, entrants=3) == 15.0  # half an equal share
    again = _Shares(tmp_path / "kept" / "shares.json", 90.0)
    assert again.share("two", 0.0, waiting=2, entrants=3) == 40.0
    larger = _Shares(tmp_path / "kept" / "shares.json", 900.0)
    assert larger.share("one", 0.0, waiting=3, entrants=3) == 300.0


def test_a_damaged_note_of_the_shares_is_forgotten(tmp_path):
    (tmp_path / "shares.json").write_text("{")
    shares = _Shares(tmp_path / "shares.json", 60.0)
    assert shares.share("one", 0.0, waiting=2, entrants=2) == 30.0


def test_a_warning_about_several_frameworks_is_given_once():
    data = "the data set was replaced"

    def outcome(title: str, *warnings: str) -> Outcome:
        return Outcome(title.lower(), title, dataclasses.replace(make_study(), warnings=warnings))

    outcomes = [outcome("A", data, "projected"), outcome("B", data, "projected", "other")]
    dataset = types.SimpleNamespace(warning=data)
    assert _warnings(outcomes, dataset) == (data, "A, B: projected", "B: other")


def test_without_any_figures_there_is_nothing_to_report(cross):
    with pytest.raises(NoTrialSucceeded) as refused:
        tune_frameworks(with_frameworks(cross, "absent", "other"))
    assert "/no/such was not found" in str(refused.value)
    assert "other has no default for digits with model=lenet" in str(refused.value)
    assert refused.value.exit_code == 4


def test_a_share_too_small_for_a_network_leaves_its_framework_out(cross, home, tmp_path):
    space = tmp_path / "tree" / "search_spaces" / "brisk.yaml"
    demanding = space.read_text().replace("{model: lenet,", "{model: lenet, least_budget_s: 5000,")
    space.write_text(demanding)
    result = tune_frameworks(with_frameworks(cross, "synthetic", "brisk"))
    assert [each.framework for each in result.studies] == ["synthetic"]
    (left_out,) = result.left_out
    assert left_out.framework == "brisk"
    assert "model=lenet is too large for a study of " in left_out.reason


@pytest.mark.slow
def test_each_framework_has_its_study_and_all_have_one_report(cross, home, tmp_path):
    result = tune_frameworks(cross, "the command")
    assert [each.framework for each in result.studies] == ["synthetic", "brisk"]
    assert [each.framework for each in result.left_out] == ["absent", "other"]
    assert result.complete
    for study in result.studies:
        assert study.verified
        assert study.command == "the command"
        versus = study.verified[1].against_default
        assert versus.memory.low <= versus.memory.value <= versus.memory.high
        assert math.isnan(versus.cpu.value)  # hundredths of a second
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    (record,) = load_results(uri, CROSS, "digits")
    assert [each["framework"] for each in record.front["ledger"]] == ["synthetic", "brisk"]
    client = connect(uri)
    run = client.get_run(record.run_id)
    assert client.get_experiment_by_name("cross-framework-digits")
    assert run.info.status == "FINISHED"
    assert run.data.tags["model"] == "lenet"
    assert run.data.tags["frameworks"] == "synthetic, brisk"
    assert run.data.tags["left_out"] == "absent, other"
    assert run.data.tags["study.brisk"] == result.studies[1].study_id
    files = {each.path for each in client.list_artifacts(record.run_id)}
    assert files == {"report.html", "front.png", "front.json"}

    again = tune_frameworks(cross, "the command")
    assert [each.trials for each in again.studies] == [each.trials for each in result.studies]
    assert [each.verified for each in again.studies] == [each.verified for each in result.studies]
    assert len(load_results(uri, CROSS, "digits")) == 1


@pytest.mark.slow
def test_a_report_that_mlflow_has_not_got_is_sent_by_the_same_call(
    cross, home, tmp_path, monkeypatch, capsys
):
    finish, cross = Tracker.finish, with_frameworks(cross, "synthetic", "absent")
    cross = dataclasses.replace(cross, progress="plain")

    def away(self, files, tags, **figures):
        if f"/{CROSS}/" in str(files[0]):
            raise MlflowException("API request failed")
        finish(self, files, tags, **figures)

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with monkeypatch.context() as patched:
        patched.setattr(Tracker, "finish", away)
        patched.setattr("tuner.tracking.outbox._PATIENCE_S", 0.0)
        assert tune_frameworks(cross).complete
    assert "MLflow has not got this report, which is in " in capsys.readouterr().err
    assert load_results(uri, CROSS, "digits") == []
    tune_frameworks(cross)
    assert len(load_results(uri, CROSS, "digits")) == 1


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_the_same_call_goes_on(
    cross, home, monkeypatch, capsys
):
    from tuner.study import cross_framework

    cross = dataclasses.replace(cross, progress="plain")
    turns = iter([cross_framework.tune, None])

    def tune(*words):
        run = next(turns)
        if run is None:
            raise KeyboardInterrupt
        return run(*words)

    with monkeypatch.context() as patched:
        patched.setattr(cross_framework, "tune", tune)
        with pytest.raises(KeyboardInterrupt):
            tune_frameworks(cross)
    (path,) = home.glob(f"{CROSS}/*/report/front.json")
    assert f"the report of what was measured is in {path.parent}" in capsys.readouterr().err
    front = json.loads(path.read_text())
    assert not front["complete"]
    assert {each["framework"]: each["reason"] for each in front["left_out"]}["brisk"] == (
        "interrupted before its study was complete"
    )
    first = front["studies"]["synthetic"]["verified"]
    result = tune_frameworks(cross)
    assert [each.framework for each in result.studies] == ["synthetic", "brisk"]
    whole = json.loads(path.read_text())
    assert whole["complete"]
    assert whole["studies"]["synthetic"]["verified"] == first
