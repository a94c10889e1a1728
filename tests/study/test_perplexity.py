"""A whole study of a text: perplexity takes the place of accuracy wherever anyone looks."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import random
import re

import pytest
from rich.console import Console

from tests.conftest import SYNTHETIC
from tuner.api import recommend
from tuner.config.schema import DatasetConfig, SearchConfig, VerifyConfig
from tuner.progress.wording import describe_outcome
from tuner.recommendation.choice import Limits
from tuner.recommendation.reading import evidence_of
from tuner.report import print_summary
from tuner.study.preparation import results_place
from tuner.study.study import tune
from tuner.tracking import connect, load_results
from tuner.values.errors import ConfigError, NothingRecommended
from tuner.values.pareto import find_objective
from tuner.values.quality import ACCURACY, perplexity

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
WORDS = [f"word{number:02d}" for number in range(99)]
QUALITY = perplexity(100)


@pytest.fixture
def text(tmp_path, monkeypatch) -> DatasetConfig:
    """A hundred words at random, as the data set that the framework has a default for."""
    draw, files = random.Random(1), {}
    folder = tmp_path / "mirror" / "ptb"
    folder.mkdir(parents=True)
    for name, lines in (("train", 400), ("valid", 100), ("test", 100)):
        rows = [" ".join(WORDS), *(" ".join(draw.choices(WORDS, k=9)) for _ in range(lines))]
        contents = "\n".join(rows) + "\n"
        (folder / f"{name}.txt").write_text(contents)
        files[f"{name}.txt"] = hashlib.sha256(contents.encode()).hexdigest()
    monkeypatch.setenv("TUNER_DATA_MIRROR", str(folder.parent))
    return DatasetConfig(name="ptb", source="words", folder="ptb", files=files, validation=0)


@pytest.fixture
def of_text(config, text):
    """A study of it that takes seconds."""
    return dataclasses.replace(
        config,
        dataset=text,
        model="lstm",
        search=SearchConfig("factored", probe_s=0.0005),
        verify=VerifyConfig(finalists=2, repeats=3),
    )


def test_everything_is_said_of_perplexity_and_less_of_it_is_better(of_text, tmp_path):
    result = tune(of_text)
    assert result.quality == QUALITY
    assert result.objectives == (find_objective("perplexity"), find_objective("train_time_s"))
    front = [each.metrics for each in result.front]
    assert all("val_accuracy" not in each for each in front)
    figures = [(each["val_perplexity"], each["train_time_s"]) for each in front]
    assert figures == sorted(figures), "the least perplexity comes first"
    assert [time_s for _, time_s in figures] == sorted((t for _, t in figures), reverse=True)
    no_loss = result.answers.no_loss
    assert no_loss is not None
    assert no_loss.speedup > 5
    assert "no loss of perplexity" in no_loss.verdict

    shown = io.StringIO()
    for width in (80, 120, 200):
        print_summary(result, Console(file=shown, width=width))
    (record,) = load_results(results_place(of_text)[0], "synthetic", "ptb")
    page = next(tmp_path.rglob("report.html"))
    outcomes = [describe_outcome(each) for each in result.trials]
    body = re.sub("<script.*?</script>", "", page.read_text(), flags=re.DOTALL)
    for said in (shown.getvalue(), body, *outcomes, json.dumps(record.front)):
        assert "erplexity" in said
        assert "ccura" not in said


def test_what_is_on_record_can_be_read_back(of_text):
    result = tune(of_text)
    client = connect(results_place(of_text)[0])
    (record,) = load_results(results_place(of_text)[0], "synthetic", "ptb")
    metrics = client.get_run(record.run_id).data.metrics
    default = result.verified[0]
    reached = QUALITY.figure(default.test_accuracy.value)
    assert metrics["default_perplexity"] == pytest.approx(reached)
    assert metrics["no_loss_perplexity_ratio"] < 1.01
    assert not {name for name in metrics if "accuracy" in name}

    evidence = {each.figures["name"]: each for each in evidence_of(record)}
    assert set(evidence) == {each.name for each in result.verified}
    for point in result.verified:
        again = evidence[point.name]
        assert again.accuracy == pytest.approx(point.test_accuracy.value)
        assert again.no_loss == point.loses_nothing
        assert again.margin == pytest.approx(QUALITY.loss_of(0.01))
        if point.against_default:
            gain = point.against_default.accuracy_gain
            assert again.accuracy_gain.low == pytest.approx(gain.low)
            assert again.accuracy_gain.high == pytest.approx(gain.high)
        assert "ccurac" not in again.assurance


def test_what_is_recommended_keeps_limits_of_perplexity(of_text):
    result = tune(of_text)
    asked = {"dataset": "ptb", "output": of_text.output, "framework_path": str(SYNTHETIC)}
    found = recommend(framework="synthetic", **asked)
    assert found["no_loss"]
    alone = found["role"] == "runtime only"
    reason = "its perplexity is the default's" if alone else "a loss of more than 1 % is ruled out"
    assert reason in found["assurance"]
    reached = found["measured"]["test_perplexity"]
    assert reached["low"] < reached["value"] < reached["high"]
    promised = found["promised"]["test_perplexity"]
    assert promised["low"] < reached["value"] < promised["high"]
    assert "ccurac" not in json.dumps(found)

    fastest = max(result.verified, key=lambda each: each.speedup)
    anything = recommend(framework="synthetic", max_perplexity_loss=None, **asked)
    assert anything["params"] == fastest.params
    best = recommend(framework="synthetic", max_perplexity=reached["high"], **asked)
    assert best["params"] == found["params"]
    with pytest.raises(NothingRecommended, match="max_perplexity=2"):
        recommend(framework="synthetic", max_perplexity=2, **asked)


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ({"min_accuracy": 0.9}, "say max_perplexity"),
        ({"max_accuracy_loss": 0.01}, "say max_perplexity_loss"),
        ({"objective": "accuracy"}, "say objective=perplexity"),
    ],
)
def test_a_limit_of_accuracy_is_refused_of_a_text(given, instead):
    objective = given.pop("objective", "train_time_s")
    with pytest.raises(ConfigError, match=instead):
        Limits(**given).check_for(QUALITY, objective)
    Limits(**given).check_for(ACCURACY, objective)
