"""What was measured survives; what makes a study the same is what decides its figures."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from tests.conftest import SYNTHETIC
from tests.report_samples import make_result
from tuner.config.schema import BudgetConfig, VerifyConfig
from tuner.storage.study_folder import StudyFolder, home_id, study_id, write_atomically
from tuner.values.errors import ConfigError, StorageError
from tuner.values.space import SearchSpace
from tuner.values.trial import TrialKind, TrialStatus

# processes are started, which takes longer where neighbours take the CPU
pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def folder(tmp_path):
    made = StudyFolder(tmp_path / "studies" / "abc")
    yield made
    made.close()


def test_kept_results_come_back_equal_and_in_order(folder):
    results = [make_result(number, 0.9, 10.0) for number in (11, 2, 5)]
    for each in results:
        folder.keep(each)
    kinds = {each.trial.kind for each in results}
    assert folder.results(*kinds) == sorted(results, key=lambda each: each.trial.number)
    assert folder.results(TrialKind.VERIFY) == []


def test_studies_of_one_id_in_two_homes_mark_their_processes_apart(tmp_path):
    made = [StudyFolder(tmp_path / home / "studies" / "abc") for home in ("one", "other")]
    markers = {each.marker for each in made}
    for each in made:
        each.close()
    assert len(markers) == 2
    assert all(marker.startswith("abc-") for marker in markers)


def test_an_interrupted_trial_is_not_finished(folder):
    result = make_result(3, 0.9, 10.0)
    folder.keep(dataclasses.replace(result, status=TrialStatus.INTERRUPTED))
    assert folder.results(TrialKind.SEARCH) == []


def test_time_used_adds_up_over_sessions(tmp_path):
    path = tmp_path / "study"
    first = StudyFolder(path)
    first.save(note=1)
    spent = first.elapsed_s
    first.close()
    second = StudyFolder(path)
    assert second.elapsed_s >= first.facts["elapsed_s"] > 0
    assert second.facts["note"] == 1
    assert spent < 5
    second.close()


def test_a_second_process_is_refused(folder):
    with pytest.raises(ConfigError, match="another process"):
        StudyFolder(folder.path)


def test_fresh_forgets(tmp_path):
    path = tmp_path / "study"
    first = StudyFolder(path)
    first.keep(make_result(1, 0.9, 10.0))
    first.close()
    again = StudyFolder(path, fresh=True)
    assert again.results(TrialKind.DEFAULT, TrialKind.SEARCH) == []
    again.close()


def test_a_damaged_record_is_named_with_its_remedy(tmp_path):
    path = tmp_path / "study"
    path.mkdir()
    (path / "study.json").write_text("{half")
    with pytest.raises(StorageError, match="resume=restart"):
        StudyFolder(path)


def test_a_damaged_record_is_not_held(tmp_path):
    (tmp_path / "abc").mkdir()
    (tmp_path / "abc" / "study.json").write_text("{")
    with pytest.raises(StorageError) as kept:  # with all its frames
        StudyFolder(tmp_path / "abc")
    StudyFolder(tmp_path / "abc", fresh=True).close()
    assert kept.value


@pytest.mark.parametrize("content", ["", "{half", "[]", '{"trial": 3}', "\0" * 64])
def test_a_damaged_result_is_set_aside_and_named(folder, content):
    for number in (1, 2):
        folder.keep(make_result(number, 0.9, 10.0))
    result = folder.trials / "search-0001" / "result.json"
    result.write_text(content)
    assert [each.trial.number for each in folder.results(TrialKind.SEARCH)] == [2]
    assert folder.damaged == ["search-0001"]
    assert result.with_name("result.json.damaged").read_text() == content
    assert not result.exists()


def test_a_crash_on_a_full_disk_is_no_result(folder, monkeypatch):
    crashed = dataclasses.replace(make_result(1, 0.9, 10.0), status=TrialStatus.CRASHED)
    monkeypatch.setattr("tuner.storage.study_folder._MIN_FREE_BYTES", 2**80)
    with pytest.raises(OSError, match="No space left"):
        folder.keep(crashed)
    assert folder.results(TrialKind.SEARCH) == []


def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch):
    target = tmp_path / "file.json"
    write_atomically(target, "one")

    def full(_handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(target, "two")
    assert target.read_text() == "one"
    assert list(tmp_path.iterdir()) == [target]


def test_a_home_keeps_its_id_and_no_other_has_it(tmp_path):
    first, second = home_id(tmp_path / "one"), home_id(tmp_path / "two")
    assert first == home_id(tmp_path / "one") != second


def test_an_unwritable_place_is_one_line():
    with pytest.raises(StorageError, match="TUNER_HOME"):
        StudyFolder(Path("/proc/nowhere/study"))


def test_writing_leaves_no_half_file(tmp_path):
    target = tmp_path / "file.json"
    write_atomically(target, "one")
    write_atomically(target, "two")
    assert target.read_text() == "two"
    assert list(tmp_path.iterdir()) == [target]


def _id(config, digits, **changes):
    space = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
    return study_id(dataclasses.replace(config, **changes), space, digits, "sqlite:///x")


def test_the_same_study_elsewhere_is_another_one_of_its_kin(config, digits, tmp_path):
    studies = tmp_path / "studies"
    before = StudyFolder(studies / "before")
    before.save(kin=_id(config, digits), machine={"kernel": "6.1"})
    other = StudyFolder(studies / "other")
    other.save(kin=_id(config, digits, seed=7), machine={})
    now = StudyFolder(studies / "now")
    assert list(now.kin(_id(config, digits))) == [("before", {"kernel": "6.1"})]
    for each in (before, other, now):
        each.close()


def test_a_larger_budget_is_the_same_study(config, digits):
    before = _id(config, digits)
    assert _id(config, digits, budget=BudgetConfig(time_s=9999, trials=99)) == before
    assert _id(config, digits, verify=VerifyConfig(repeats=9)) == before
    assert _id(config, digits, progress="plain") == before


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"model": "lenet"},
        {"constraints": ["accuracy>=0.9"]},
        {"objectives": ["accuracy"]},
        {"budget": BudgetConfig(default_share=0.1)},
    ],
)
def test_what_decides_the_figures_makes_another_study(config, digits, change):
    assert _id(config, digits, **change) != _id(config, digits)
