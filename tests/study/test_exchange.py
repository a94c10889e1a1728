"""Whole studies in which a lossy exchange of gradients is fast: is it as good as it is fast?"""

from __future__ import annotations

import dataclasses

import pytest

from tests.exchange_samples import grouped_config
from tuner.config.schema import BudgetConfig, SearchConfig, VerifyConfig
from tuner.recommendation.reading import evidence_of
from tuner.recommendation.study_answers import answers_among
from tuner.report.front import front_json
from tuner.study.preparation import results_place
from tuner.study.study import tune
from tuner.tracking import load_results
from tuner.values.exchange import lossy
from tuner.values.verified import Role

# groups of processes are started, which takes longer where neighbours take the CPU
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def study(config, tmp_path):
    def run(exchanges):
        grouped = dataclasses.replace(
            grouped_config(config, tmp_path, exchanges),
            search=SearchConfig("factored", probe_s=0.0005, warm_start=False),
            budget=BudgetConfig(time_s=90, trials=8, default_share=0.9),
            # so few test images tell no smaller losses
            verify=VerifyConfig(finalists=2, repeats=3, accuracy_margin=0.03),
        )
        return tune(grouped), results_place(grouped)[0]

    return run


def by_class(result):
    """What was verified, and the runs that verified it, by what they learn."""
    runs = {each.trial.name: lossy(each.params) for each in result.verifications}
    return [(lossy(each.params), {runs[name] for name in each.runs}) for each in result.verified]


def test_a_lossy_exchange_that_learns_as_well_is_found_proven_and_named(study):
    result, uri = study("exact, fine")
    assert result.lossy_kinds == [("fine", 2)]
    best = result.answers.no_loss
    assert (best.params["workers"], best.params["exchange"]) == (2, "fine")
    assert best.role is Role.NO_LOSS
    assert best.full_runs >= 2, "its own runs prove it"
    assert not best.accuracy_from
    assert lossy(result.answers.runtime_only.params) is None
    for kind, of_runs in by_class(result):
        assert of_runs == {kind}
    entry = next(each for each in front_json(result)["verified"] if each["name"] == best.name)
    assert entry["changes_learning"] is True
    (record,) = load_results(uri, "grouped", "digits")
    found = answers_among(evidence_of(record)).no_loss
    assert "fine exchange of 2 workers changes what is learned" in found.assurance


def test_a_lossy_exchange_that_learns_worse_is_not_called_no_loss(study):
    result, _ = study("exact, rough")
    assert result.lossy_kinds == [("rough", 2)]
    tried = [each for each in result.trials if lossy(each.params)]
    assert tried, "it is fast enough to be tried"
    assert max(each.val_accuracy for each in tried) < 0.92
    for each in result.verified:
        assert lossy(each.params) is None or not each.loses_nothing
    assert lossy(result.answers.runtime_only.params) is None
    origins = {each.trial.number: lossy(each.params) for each in result.trials}
    assert {(lossy(each.params), origins[each.trial.number]) for each in result.derived} == {
        (None, None),
        (("rough", 2), ("rough", 2)),
    }


def test_every_strategy_may_choose_a_lossy_exchange(config, tmp_path):
    joint = dataclasses.replace(
        grouped_config(config, tmp_path, "exact, rough, fine"),
        budget=BudgetConfig(time_s=60, trials=12),
        verify=VerifyConfig(finalists=0),
    )
    result = tune(joint)
    chosen = {each.params["exchange"] for each in result.trials}
    assert chosen & {"rough", "fine"}
    for each in result.trials:
        assert each.params["exchange"] == "exact" or each.params["workers"] == 2
