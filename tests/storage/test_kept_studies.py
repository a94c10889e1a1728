"""Tests of ``tuner.storage.kept_studies`` and its command: what is kept, and its removal."""

import contextlib
import os
import time

import pytest

from tests.report_samples import make_result
from tuner.__main__ import main
from tuner.storage.kept_studies import kept_studies, remove_study
from tuner.storage.study_folder import StudyFolder
from tuner.values.errors import ConfigError

pytestmark = pytest.mark.timeout(20)
MONTH_S = 30 * 86_400


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    for name, facts in {"old": {"complete": True}, "new": {"complete": False}}.items():
        with contextlib.closing(StudyFolder(tmp_path / "studies" / name)) as folder:
            folder.keep(make_result(1, 0.9, 10.0))
            folder.save(framework="caffe", dataset="mnist", **facts)
    before = time.time() - 2 * MONTH_S
    os.utime(tmp_path / "studies" / "old" / "study.json", (before, before))
    return tmp_path


def test_every_study_is_listed_the_last_one_first(home, capsys):
    new, old = kept_studies(home)
    assert (new.id, new.state, new.framework, new.dataset, new.trials) == (
        *("new", "interrupted", "caffe", "mnist"),
        1,
    )
    assert (old.id, old.state) == ("old", "complete")
    assert old.size > 0
    assert main(["studies"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["new", "interrupted"],
        ["old", "complete"],
    ]


def test_files_that_a_running_study_deletes_meanwhile_are_passed_over(home, monkeypatch):
    walk = os.walk

    def walk_slowly(folder):
        for place, folders, names in walk(folder):
            yield place, folders, [*names, "gone.partial"]

    monkeypatch.setattr(os, "walk", walk_slowly)
    assert kept_studies(home)[0].size > 0


def test_a_damaged_one_is_listed_as_such(home):
    (home / "studies" / "old" / "study.json").write_text("{")
    assert {each.id: each.state for each in kept_studies(home)}["old"] == "damaged"


def test_one_that_runs_is_not_removed(home):
    with contextlib.closing(StudyFolder(home / "studies" / "new")):
        assert {each.id: each.state for each in kept_studies(home)}["new"] == "running"
        with pytest.raises(ConfigError, match="is being run"):
            remove_study(home, "new")
        assert main(["studies", "remove", "all"]) == 0
    assert [each.id for each in kept_studies(home)] == ["new"]


@pytest.mark.parametrize("name", ["none", "..", "../studies", "/", ""])
def test_what_is_no_study_is_not_removed(home, name):
    with pytest.raises(ConfigError, match="no study"):
        remove_study(home, name)
    assert len(kept_studies(home)) == 2


def test_only_those_older_than_asked_for_are_removed(home, capsys):
    assert main(["studies", "remove", "all", "older_than_days=30"]) == 0
    assert "old:" in capsys.readouterr().out
    assert [path.name for path in (home / "studies").iterdir() if path.is_dir()] == ["new"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["remove"], "remove needs a name; choose from: new, old, all"),
        (["erase"], "unknown action 'erase'"),
        (["list", "older_than_days=x"], "must be a number"),
    ],
)
def test_wrong_words_are_one_line(home, capsys, words, said):
    assert main(["studies", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
