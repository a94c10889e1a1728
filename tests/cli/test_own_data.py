"""A study on the user's own images, from ``dataset.path`` to the recommendation."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.cli.test_main import TREE
from tests.conftest import MLFLOW, SYNTHETIC, add_database
from tuner.__main__ import main

pytestmark = pytest.mark.timeout(30)
OWN = [word for word in TREE if word != "dataset=digits"]
SHORT = [
    *("search=joint", "search.warm_start=false", "budget.time_s=60", "budget.trials=4"),
    *("verify.finalists=1", "verify.repeats=2", "progress=none"),
    *("measure.max_foreign_pct=100", "measure.max_steal_pct=100"),
]
ASKED = ["framework=synthetic", "dataset=flowers"]


@pytest.fixture
def flowers(home, tmp_path, monkeypatch):
    """The user's images, in the folder that the commands are given in."""
    monkeypatch.chdir(tmp_path)
    add_database(tmp_path, MLFLOW)
    rng = np.random.default_rng(1)
    for name in ("daisy", "tulip"):
        (tmp_path / "flowers" / name).mkdir(parents=True)
        for number in range(40):
            pixels = rng.integers(0, 256, (24, 30, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "flowers" / name / f"{number}.png")
    return tmp_path / "flowers"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_own_images_are_tuned_recorded_and_recommended(flowers, tmp_path, capsys):
    assert main([*OWN, "dataset.path=flowers", *SHORT]) == 0
    shown = capsys.readouterr().out
    assert "Synthetic · flowers · model default" in shown
    assert "dataset.path=flowers" in shown.splitlines()[-1], "the command that resumes it"

    assert main(["report", *ASKED, "to=here"]) == 0
    front = json.loads((tmp_path / "here" / "front.json").read_text())
    assert front["dataset_facts"] == front["dataset_facts"] | {
        "images": "60 train, 8 validation, 12 test; 32x32x3",
        "classes": "2: daisy, tulip",
        "source": str(flowers),
        "prepared": "all resized from 30x24 to 32x32 in colour, their proportions kept, on black",
    }
    assert front["dataset_facts"]["default"] == (
        "made up; as for cifar10, with all 60 training images in a batch in place of 64, and 10 "
        "iterations, the minimum of the search; as many epochs (1.42) would be 1"
    )
    assert front["default"]["params"]["batch_size"] == 60
    assert "daisy, tulip" in (tmp_path / "here" / "report.html").read_text()

    capsys.readouterr()
    assert (
        main(["recommend", *ASKED, f"framework_path={SYNTHETIC}", "max_accuracy_loss=none"]) == 0
    )
    answer = yaml.safe_load(capsys.readouterr().out)
    assert (answer["framework"], answer["dataset"]) == ("synthetic", "flowers")
    assert main(["datasets", "list"]) == 0
    assert re.search(rf"^flowers: \S+, from {flowers}$", capsys.readouterr().out, re.MULTILINE)

    # the same command resumes the study; other images make it another one
    studies = tmp_path / "home" / "studies"
    assert main([*OWN, "dataset.path=flowers", *SHORT]) == 0
    assert len(list(studies.glob("*/study.json"))) == 1
    Image.new("RGB", (30, 24), "red").save(flowers / "tulip" / "0.png")
    assert main([*OWN, "dataset.path=flowers", *SHORT]) == 0
    assert len(list(studies.glob("*/study.json"))) == 2


def test_own_data_are_checked_without_a_study(flowers, capsys):
    assert main(["datasets", "get", "dataset.path=flowers", "dataset.test=20"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [
        "name: flowers",
        "images: 52 train, 8 validation, 20 test; 32x32x3",
        "classes: 2: daisy, tulip",
    ]
    assert "defaults of: cifar10" in said
    assert main(["datasets", "check", "flowers"]) == 0
    assert main(["datasets", "remove", "flowers"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "flowers: ok"
    assert (flowers / "tulip" / "0.png").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["dataset.path=no/such"], 2, r"dataset.path=\S+/no/such does not exist; a folder of"),
        (["dataset.path=flowers", "dataset.name=cifar10"], 2, "comes with the tuner"),
        (["dataset.path=flowers", "dataset.size=3"], 1, "unknown setting 'dataset.size'"),
        (["dataset.path=flowers", "framework=torch"], 2, r"it has: flowers \(model=lenet\)"),
        (["dataset.path=flowers", "executor=ray"], 2, "executor must be local with dataset.path"),
        (["dataset.path=[a,b]"], 2, r"dataset.path=\S+/\[a,b\] does not exist"),
        (
            ["datasets", "list", "dataset.path=flowers"],
            2,
            "is for datasets get, got datasets list",
        ),
        (["datasets", "get", "dataset.name=x"], 2, "dataset.path= is needed beside dataset.name"),
        (["datasets", "get", "flowers"], 2, "unknown dataset 'flowers'"),
    ],
)
def test_own_data_that_cannot_be_used_are_one_line(flowers, capsys, words, code, said):
    tree = [each for each in OWN if each.partition("=")[0] not in str(words)]
    assert main(words if words[0] == "datasets" else [*tree, *words]) == code
    lines = [
        line for line in capsys.readouterr().err.splitlines() if not re.match(r"\[ +\d+ s\]", line)
    ]
    assert len(lines) == 1, lines
    assert re.search(said, lines[0])
