"""What the documents show is true: the framework built in a page is extracted from it and run."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.command import Command, fixture_tuner  # noqa: F401 - a fixture
from tests.conftest import SYNTHETIC
from tuner.__main__ import main
from tuner.cli.commands import COMMANDS
from tuner.config.catalogue import list_frameworks, load_dataset_config, load_framework
from tuner.config.composing import compose
from tuner.config.schema import BudgetConfig, MeasureConfig, TuneConfig, VerifyConfig
from tuner.study.study import tune
from tuner.values.errors import RuntimeUnavailable
from tuner.values.trial import TrialStatus

PROJECT = Path(__file__).parent.parent
DOCS = PROJECT / "docs"
FILE_BLOCK = re.compile(r"^`([\w./-]+)`\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A fenced block below a line that is nothing but the file's path."""


def shown_commands() -> list[str]:
    """The commands that the README and the page on settings show."""
    text = "".join(
        path.read_text(encoding="utf-8") for path in (PROJECT / "README.md", DOCS / "settings.md")
    )
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]
    return [line.partition("  #")[0].strip() for line in lines]


SHOWN = shown_commands()
SERVING = {"python -m tuner ui", "python -m tuner serve"}
"""These have tests of their own."""
ASKING = [each for each in SHOWN if each.split()[3:4] in (["recommend"], ["report"])]
"""What is asked of a study that has ended: tests of real studies do."""
OTHERS = [each for each in SHOWN if each.split()[0] not in ("make", "cd", "git")]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("command", [each for each in OTHERS if each not in {*SERVING, *ASKING}])
def test_every_command_that_the_documents_show_runs(
    tuner: Command, tmp_path: Path, command: str
) -> None:
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "tuner"]
    done = tuner(*quick(words[3:], tmp_path))
    # the doctor may rightly find that this machine lacks something, such as space on its disk
    lacks = words[3] == "doctor" and "lacks" in done.stdout
    assert done.returncode == (RuntimeUnavailable.exit_code if lacks else 0), done.stderr


def quick(given: list[str], folder: Path) -> list[str]:
    """The same of what takes seconds: the synthetic framework, or a program that sleeps."""
    synthetic = [f"framework_path={SYNTHETIC}", "framework=synthetic", "dataset=digits"]
    synthetic.append("search.probe_s=0.0005")  # its clock only reckons
    if given[0] == "wrap":
        (folder / "train.py").write_text("import time; time.sleep(1)")
        at = given.index("--")
        return [*given[:at], "--budget", "5", "--", sys.executable, *given[at + 2 :]]
    if given[0] == "reference":
        return ["reference", *synthetic, "seeds=2", f"to={folder}/references"]
    if "=" not in given[0]:
        return given
    kept = [word for word in given if not word.startswith(("framework", "dataset", "budget="))]
    if "experiment=cross_framework" in kept:
        kept.append("frameworks=[synthetic]")
    limits = ["budget.time_s=20", "budget.trials=3", f"output={folder}"]
    return [*synthetic, *kept, *limits]


@pytest.mark.parametrize("command", [each for each in SHOWN if each.startswith("make ")])
def test_every_target_that_the_documents_show_is_in_the_makefile(command: str) -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    assert re.search(f"^{command.split()[1]}:", makefile, re.MULTILINE)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of the page on adding a framework, in a folder of their own."""
    page = (DOCS / "adding-a-framework.md").read_text(encoding="utf-8")
    for name, contents in FILE_BLOCK.findall(page):
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents, encoding="utf-8")
    return tmp_path / "mine"


def test_the_page_on_adding_a_framework_is_complete_and_small(tree: Path) -> None:
    files = sorted(str(path.relative_to(tree)) for path in tree.rglob("*.*"))
    assert files == [
        "conf/framework/numpy.yaml",
        "frameworks/numpy/worker.py",
        "search_spaces/numpy.yaml",
    ]
    assert "numpy" in list_frameworks(str(tree))
    worker = (tree / "frameworks/numpy/worker.py").read_text(encoding="utf-8")
    assert ast.parse(worker)
    assert len([line for line in worker.splitlines() if line.strip()]) < 60


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_framework_of_the_page_runs_a_study(tree: Path, home: Path, tmp_path: Path) -> None:
    result = tune(
        TuneConfig(
            framework=load_framework("numpy", str(tree)),
            framework_path=str(tree),
            dataset=load_dataset_config("digits"),
            budget=BudgetConfig(time_s=40, trials=4, default_share=0.02),
            verify=VerifyConfig(finalists=1, repeats=2),
            measure=MeasureConfig(max_foreign_pct=100, max_steal_pct=100),
            output=str(tmp_path),
            progress="none",
        )
    )
    default = result.trials[0]
    assert default.status is TrialStatus.COMPLETE, (default.reason, default.log_tail)
    assert default.val_accuracy > 0.8
    assert default.measurement is not None
    assert default.measurement.blas_loaded == "openblas"
    assert 3 <= len(result.trials) <= 4, "three have their turn however busy the machine is"
    statuses = {each.status for each in result.trials}
    assert statuses <= {TrialStatus.COMPLETE, TrialStatus.STOPPED, TrialStatus.DIVERGED}
    assert result.complete
    assert result.verified


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_the_page_on_own_images_shows_what_is_printed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    noise = np.random.default_rng(1).integers(0, 256, (100, 80, 3), np.uint8)
    for number in range(1500):
        folder = tmp_path / "animals" / ("bird", "cat", "dog")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise[:36, :48] if number % 2 else noise).save(folder / f"{number}.jpg")
    page = (DOCS / "own-data.md").read_text(encoding="utf-8")
    get, study, ask = (
        line.removeprefix("$ python -m tuner ").partition("  #")[0].split()
        for line in page.split("```")[1].splitlines()[1:]
    )
    assert main(get) == 0
    printed = capsys.readouterr().out.replace(str(tmp_path), "/data").splitlines()
    shown = page.split("```text\n")[1].partition("```")[0].splitlines()
    assert [each for each in printed if not each.startswith("digest")] == [
        each for each in shown if not each.startswith("digest")
    ]
    assert main([word for word in study if not word.startswith("model=")]) == 2
    assert capsys.readouterr().err.splitlines()[-1] in page
    assert compose(study).dataset == compose(get[2:]).dataset
    assert ask[2] == f"dataset={compose(study).dataset.name}"


def test_the_page_on_the_architecture_shows_the_floors_of_today() -> None:
    script = [sys.executable, str(PROJECT / "scripts" / "architecture")]
    drawn = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert f"```text\n{drawn}```" in page, "make architecture draws it"


def test_the_places_that_the_page_on_the_architecture_names_exist() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+/(?:[a-z_]+\.py)?)`", page))
    assert len(named) > 20
    roots = (PROJECT, PROJECT / "tuner")
    assert [each for each in named if not any((root / each).exists() for root in roots)] == []


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_the_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    words = ["-q", "-W", "--keep-going", "-d", str(tmp_path / "cache"), str(DOCS), str(tmp_path)]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *words], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    pages = {path.stem for path in DOCS.glob("*.md")}
    assert pages <= {path.stem for path in tmp_path.glob("*.html")}
    text = {path.stem: path.read_text() for path in (tmp_path / "reference").glob("*.html")}
    for page, wanted in {
        "commands": [f'id="{each}"' for each in COMMANDS],
        "all-settings": ["Group framework", *(each.name for each in fields(TuneConfig))],
        "search-spaces": [load_framework(each).title for each in list_frameworks()],
        "rest": ["GET /v1/recommendations", "POST /v1/studies"],
        "python": ["tuner.api.tune", "tuner.api.recommend", "NothingRecommended"],
        "worker-protocol": ["worker_api.serve", "trial.json", "events.jsonl"],
        "front-document": ["most_accurate"],
    }.items():
        read = text[page] + re.sub("<[^>]*>", "", text[page])
        assert [each for each in wanted if each not in read] == []


def test_links_of_pages_outside_the_site_lead_somewhere() -> None:
    pages = [*PROJECT.glob("*.md"), *(PROJECT / ".github").rglob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert len(pages) > 5
    assert broken == []
