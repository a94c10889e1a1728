"""The benchmark of whole studies over two networks: what it trains, keeps and concludes."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.report_samples import make_result
from tuner.config.catalogue import list_frameworks, load_framework
from tuner.config.composing import compose
from tuner.config.validation import validate
from tuner.study.preparation import load_space
from tuner.values.space import SearchSpace
from tuner.values.trial import TrialStatus

pytest.importorskip("ray", reason="pip install 'tuner[ray]'")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from network_studies import entrants_of, large_batches, lines, settings, train_all

ABLE = [name for name in list_frameworks() if load_framework(name).spans_nodes]
RUNTIME = ("nodes", "workers", "exchange", "threads")
ONE = {"nodes": 1, "workers": 1, "exchange": "exact", "threads": 1}
TWO = {**ONE, "nodes": 2}
TRAINED = {"batch_size": 640, "iterations": 100, "learning_rate": 0.05}
PACE_S = {("fast", 1): 0.16, ("fast", 2): 0.12, ("slow", 1): 0.16, ("slow", 2): 0.25}


def make_studies(fast, slow):
    said = {"speedup": None, "role": "no loss", "assurance": "no loss"}
    rest = {"megabits_s": 993.0, "raced": 9, "lossy": [], "trials": 5, "elapsed_s": 480.0}
    return [
        {"rate": rate, "answer": {"params": {**TRAINED, **params}, **said}, **rest}
        for rate, params in (("fast", fast), ("slow", slow))
    ]


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes that only reckon; what they ran, by bandwidth and params; how trials end."""
    made = SimpleNamespace(rate="", ran=[], status=TrialStatus.COMPLETE)

    def submit(trial):
        made.ran.append((made.rate, trial.params))
        time_s = trial.params["iterations"] * PACE_S[made.rate, trial.params["nodes"]]
        time_s *= 1 + 0.01 * (trial.seed % 3)
        result = dataclasses.replace(
            make_result(1, 0.98, time_s), trial=trial, status=made.status, test_accuracy=0.98
        )
        return SimpleNamespace(result=lambda: result)

    @contextlib.contextmanager
    def both_nodes(_config):
        yield None, SimpleNamespace(submit=submit)

    monkeypatch.setattr("network_studies.both_nodes", both_nodes)
    made.shape = lambda rate: setattr(made, "rate", rate)
    return made


def run(cluster, studies, folder, rounds=3):
    entrants = entrants_of(studies, RUNTIME)
    return train_all(entrants, cluster, None, rounds, folder / "runs.json")


def test_the_default_of_large_batches_is_in_its_space(tmp_path):
    path = large_batches("torch", 400, tmp_path) / "search_spaces" / "torch.yaml"
    space = SearchSpace.load(path, cores=1, dataset="mnist", model="lenet", nodes=2)
    default = space.default("mnist", "lenet").params
    assert space.refusal(default) == ""
    assert (default["batch_size"], default["iterations"]) == (640, 400)
    assert space.start_points(default)


@pytest.mark.parametrize("framework", ABLE)
def test_its_studies_hold_everything_against_a_whole_default(framework, tmp_path):
    tree = large_batches(framework, 80, tmp_path)
    given = SimpleNamespace(framework=framework, budget_s=60.0, settings=["seed=3"])
    config = validate(compose(settings(given, tree, tmp_path)))
    assert (config.baseline, config.budget.time_s, config.seed) == ("full", 60.0, 3)
    space = load_space(config)
    assert space.runtime["nodes"].values({}) == (1, 2)
    assert space.default("mnist", "lenet").params["iterations"] == 80


def test_each_answer_is_trained_over_both_networks_and_at_the_others_setting(cluster, tmp_path):
    studies = make_studies(TWO, {**ONE, "iterations": 80})
    runs = run(cluster, studies, tmp_path)
    assert len(runs) == len(cluster.ran) == 3 * 2 * 3
    assert len({each["seed"] for each in runs}) == len(runs)
    over_fast = [params for rate, params in cluster.ran if rate == "fast"]
    assert over_fast.count({**TRAINED, **ONE}) == 3, "the fast one's answer on one node"
    over_slow = [params for rate, params in cluster.ran if rate == "slow"]
    assert over_slow.count({**TRAINED, **TWO, "iterations": 80}) == 3
    assert cluster.ran[0][0] != cluster.ran[6][0], "who begins changes"


def test_a_kept_run_is_not_made_again_and_a_failed_one_is(cluster, tmp_path, capsys):
    studies = make_studies(TWO, ONE)
    cluster.status = TrialStatus.CRASHED
    assert run(cluster, studies, tmp_path, rounds=1) == []
    assert "CRASHED" in capsys.readouterr().err
    cluster.status = TrialStatus.COMPLETE
    first = run(cluster, studies, tmp_path, rounds=1)
    assert len(first) == 4
    cluster.ran.clear()
    assert run(cluster, studies, tmp_path, rounds=2)[:4] == first
    assert len(cluster.ran) == 4


@pytest.mark.parametrize(
    ("answers", "verdicts"), [((TWO, ONE), "right"), ((ONE, TWO), "wrong"), ((ONE, ONE), "same")]
)
def test_an_answer_is_right_where_it_is_surely_faster(cluster, tmp_path, answers, verdicts):
    studies = make_studies(*answers)
    told = list(lines(studies, run(cluster, studies, tmp_path), RUNTIME))
    compared = [each for each in told if "answer of" in each or "at the setting of" in each]
    assert len(compared) == 4
    assert all(each.endswith(verdicts) for each in compared)
