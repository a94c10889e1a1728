"""What a worker puts into its folder reaches nothing of the host, and ends a trial by name."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.conftest import SECRET
from tuner.storage.study_folder import delete_folder
from tuner.trials.session import TrialSetup, WorkerSession, run_trial
from tuner.trials.worker_folder import WorkerFolder, empty_if_large
from tuner.values.errors import ProtocolError
from tuner.values.trial import Trial, TrialStatus

pytestmark = pytest.mark.timeout(20)


def kept_of(setup: TrialSetup, trial: Trial) -> str:
    """All that the host keeps of a trial."""
    folder = setup.folder / trial.name
    return "".join(path.read_text(errors="replace") for path in folder.iterdir())


@pytest.mark.parametrize(
    "name", ["", "link_host_files", "forbid_folders", "read_secret", "name_in_long"]
)
def test_a_trial_that_only_litters_is_complete(hostile, attack, name):
    trial = attack(name)
    result = run_trial(hostile, trial)
    assert result.status is TrialStatus.COMPLETE, result.reason
    assert SECRET not in kept_of(hostile, trial)
    assert list((hostile.folder / "workers").iterdir()) == [], "its folder goes with it"


@pytest.mark.parametrize("name", ["link_events", "pipe_events", "folder_events", "socket_events"])
def test_what_is_no_file_of_events_is_invalid(hostile, attack, name):
    trial = attack(name)
    result = run_trial(hostile, trial)
    assert result.status is TrialStatus.INVALID
    assert "events.jsonl" in result.reason
    assert SECRET not in kept_of(hostile, trial) + result.reason + result.log_tail
    assert run_trial(hostile, attack("", 2)).status is TrialStatus.COMPLETE


def test_a_folder_that_the_worker_closes_is_emptied_all_the_same(hostile, attack):
    result = run_trial(hostile, attack("forbid_events"))
    assert not result.usable or result.status is TrialStatus.COMPLETE
    assert list((hostile.folder / "workers").iterdir()) == []


def test_a_stop_that_leads_elsewhere_is_not_followed(hostile, attack, decoy):
    run_trial(hostile, attack("link_host_files", train_time_limit_s=1e-6))
    assert (decoy / "precious").read_text() == "for ever"


def test_a_warm_worker_cannot_forge_what_is_kept_of_earlier_trials(hostile, attack):
    with WorkerSession(hostile, attack("").params) as session:
        first = attack("", 1)
        assert session.run(first).status is TrialStatus.COMPLETE
        before = kept_of(hostile, first).replace("forged", "?")
        session.run(attack("forge_earlier", 2))
        assert session.run(attack("", 3)).status is TrialStatus.COMPLETE
        assert kept_of(hostile, first) == before


def test_a_warm_worker_that_spoils_its_folder_is_replaced(hostile, attack, monkeypatch):
    first, clear = attack("", 1), WorkerFolder.clear

    def clear_and_be_too_late(own: WorkerFolder) -> None:
        clear(own)
        if own.path.name == first.name:
            (own.path / "trial.json").mkdir()

    with WorkerSession(hostile, first.params) as session:
        assert session.run(first).status is TrialStatus.COMPLETE
        monkeypatch.setattr(WorkerFolder, "clear", clear_and_be_too_late)
        assert session.run(attack("", 2)).status is TrialStatus.COMPLETE
        assert session.run(attack("", 3)).status is TrialStatus.COMPLETE


# -- the folder itself --------------------------------------------------------------------------


def test_nothing_is_written_through_what_is_there(tmp_path):
    target = tmp_path / "elsewhere"
    target.write_text("old")
    with WorkerFolder(tmp_path / "own") as own:
        (own.path / "stop").symlink_to(target)
        own.touch("stop")
        with pytest.raises(ProtocolError, match="stop"):
            own.write("stop", "new")
    assert target.read_text() == "old"
    assert not own.path.exists()


def test_a_folder_put_in_its_place_is_not_entered(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("x")
    own = WorkerFolder(tmp_path / "own")
    (own.path / "inner").symlink_to(elsewhere)
    own.clear()
    assert (elsewhere / "kept").exists()
    own.remove()


def test_no_more_is_read_than_was_asked_for(tmp_path):
    with WorkerFolder(tmp_path / "own") as own:
        (own.path / "events.jsonl").write_bytes(b"0123456789")
        assert own.read("events.jsonl", 4) == b"0123"
        assert own.read("events.jsonl", 4, 8) == b"89"
        assert own.read("nothing", 4) == b""


def test_a_folder_that_workers_share_is_emptied_once_it_is_large(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "compiled").write_bytes(bytes(2**20))
    empty_if_large(tmp_path, max_entries=2, max_bytes=2**21)
    assert (tmp_path / "inner" / "compiled").exists()
    empty_if_large(tmp_path, max_entries=1, max_bytes=2**21)
    assert list(tmp_path.iterdir()) == []
    empty_if_large(tmp_path / "missing", 1, 1)


@pytest.fixture
def place_of_user() -> Iterator[Path]:
    """A folder to use without root's right to pass over permissions, which this takes away."""
    root, kernel = os.geteuid() == 0, ctypes.CDLL(None)
    with tempfile.TemporaryDirectory() as name:
        if root:
            os.chown(name, 65534, -1)
            kernel.setfsuid(65534)
        try:
            yield Path(name)
        finally:
            kernel.setfsuid(os.geteuid())


def test_what_a_dead_worker_forbade_is_deleted(place_of_user):
    for path in (place_of_user / "workers" / "own", place_of_user / "cache"):
        (path / "inner").mkdir(parents=True)
        (path / "inner" / "file").write_bytes(b"x")
        (path / "inner").chmod(0)
        path.chmod(0)
    empty_if_large(place_of_user / "cache", 0, 0)
    assert list((place_of_user / "cache").iterdir()) == []
    (place_of_user / "cache").chmod(0)
    delete_folder(place_of_user / "cache")
    WorkerFolder(place_of_user / "workers" / "own").remove()
    assert [each.name for each in place_of_user.rglob("*")] == ["workers"]


@pytest.mark.parametrize("mode", [0, 0o500, 0o300])
def test_what_the_worker_forbids_is_an_error_of_the_protocol(place_of_user, mode):
    with WorkerFolder(place_of_user / "own") as own:
        (own.path / "inner").mkdir()
        (own.path / "inner" / "large").write_bytes(bytes(2**20))
        (own.path / "inner").chmod(mode)
        own.path.chmod(mode)
        if mode != 0o300:
            with pytest.raises(ProtocolError, match="stop cannot be used as a file: Permission"):
                own.touch("stop")
        assert own.size(100) == (2, pytest.approx(2**20, rel=0.1))
    assert not own.path.exists()
