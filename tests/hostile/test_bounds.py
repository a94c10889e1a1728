"""What a worker takes beyond its bounds ends its trial by name, and the next one starts clean."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import os
import platform
import socket
import time

import pytest

from tests.hostile.conftest import Attack
from tuner.measure import marked_processes
from tuner.trials.session import TrialSetup, WorkerSession, run_trial
from tuner.trials.watch import MAX_LOG_BYTES
from tuner.values.trial import TrialStatus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("fork_bomb", TrialStatus.OVER_LIMIT, "1,000 processes"),
        ("many_files", TrialStatus.OVER_LIMIT, "10,000 files"),
        ("large_files", TrialStatus.OVER_LIMIT, "64 MiB of the disk"),
        ("flood_output", TrialStatus.OVER_LIMIT, "64 MiB of output"),
        ("reserve_output", TrialStatus.OVER_LIMIT, "64 MiB of output"),
        ("flood_after", TrialStatus.OVER_LIMIT, "64 MiB of the disk"),
        ("flood_events", TrialStatus.INVALID, "64 MiB of events"),
        ("many_events", TrialStatus.INVALID, "10,000 events"),
        ("flood_checkpoints", TrialStatus.INVALID, "10,000 checkpoints"),
        ("hide_memory", TrialStatus.OUT_OF_MEMORY, "256 MiB"),
        ("hide_in_memfd", TrialStatus.OUT_OF_MEMORY, "256 MiB"),
        ("hide_deleted_files", TrialStatus.OVER_LIMIT, "64 MiB of the disk"),
        ("open_files", TrialStatus.OVER_LIMIT, "20,000 files open"),
        ("survive", TrialStatus.LEFT_PROCESSES, "left running"),
    ],
)
@pytest.mark.slow
def test_a_bound_ends_a_trial_by_name(
    hostile: TrialSetup, attack: Attack, monkeypatch, name, status, reason
):
    # no test needs to fill the disk
    if name in ("large_files", "hide_deleted_files", "flood_after"):
        monkeypatch.setattr("tuner.trials.watch._MAX_BYTES", 64 * 2**20)
    if name == "many_events":  # nor to write for days
        monkeypatch.setattr("tuner.trials.protocol._MAX_EVENTS", 10_000)
    memory = 256 if status is TrialStatus.OUT_OF_MEMORY else 8 * 1024
    hostile = dataclasses.replace(hostile, memory_limit_bytes=memory * 2**20)
    result = run_trial(hostile, attack(name, time_limit_s=40.0))
    assert result.status is status, result.reason
    assert reason in result.reason
    assert marked_processes(hostile.marker) == []
    assert list((hostile.folder / "workers").iterdir()) == []
    assert run_trial(hostile, attack("", 2)).status is TrialStatus.COMPLETE


def test_a_worker_that_fills_its_own_input_is_not_waited_for(hostile, attack):
    with WorkerSession(hostile, attack("").params) as session:
        session.run(attack("fill_input"))
        assert not session.run(attack("", 2, time_limit_s=2.0)).usable
        assert session.run(attack("", 3)).status is TrialStatus.COMPLETE


def test_a_sparse_file_is_no_larger_than_a_file_may_be(hostile, attack):
    result = run_trial(hostile, attack("sparse_file"))
    assert result.status in (TrialStatus.DISK_FULL, TrialStatus.CRASHED)
    assert run_trial(hostile, attack("", 2)).status is TrialStatus.COMPLETE


def test_output_that_grows_unseen_is_cut(hostile, attack):
    trial = attack("grow_output")
    run_trial(hostile, trial)
    assert (hostile.folder / trial.name / "log.txt").stat().st_size <= MAX_LOG_BYTES


@pytest.mark.parametrize(("name", "said"), [("change_output", "said\n"), ("forbid_output", "")])
def test_what_is_kept_of_the_output_is_the_host_s_own_file(hostile, attack, name, said):
    trial = attack(name)
    assert run_trial(hostile, trial).status is TrialStatus.COMPLETE
    kept = hostile.folder / trial.name / "log.txt"
    assert kept.stat().st_mode & 0o7111 == 0
    assert kept.read_text() == said
    assert (hostile.folder / "workers").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_worker_does_nothing_between_its_trials(hostile, attack):
    with WorkerSession(hostile, attack("").params) as session:
        assert session.run(attack("flood_after")).status is TrialStatus.COMPLETE
        (own,) = (hostile.folder / "workers").iterdir()
        time.sleep(1.0)
        assert [each.name for each in own.iterdir() if each.name.isdigit()] == []


def test_a_worker_that_ends_slowly_after_another_is_ended_all_the_same(hostile, attack):
    with WorkerSession(hostile, attack("").params) as session:
        assert session.run(attack("")).status is TrialStatus.COMPLETE
        assert not session.run(attack("escape_terminal", 2)).usable
        assert not session.run(attack("fail_slowly", 3)).usable
        assert session.run(attack("", 4)).status is TrialStatus.COMPLETE
    assert list((hostile.folder / "workers").iterdir()) == []


def test_a_disk_that_a_worker_filled_is_freed(hostile, attack, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    session = WorkerSession(hostile, attack("").params)
    monkeypatch.setattr("tuner.trials.session.os.pread", full)
    with pytest.raises(OSError, match="No space left"):
        session.run(attack("escape_terminal"))
    assert session.close() is None
    assert marked_processes(hostile.marker) == []
    assert list((hostile.folder / "workers").iterdir()) == []


def test_no_worker_knows_the_marker_of_another(hostile, attack):
    said = []
    for _ in range(2):
        trial = attack("say_marker")
        run_trial(hostile, trial)
        said.append((hostile.folder / trial.name / "log.txt").read_text())
    assert said[0] != said[1]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls have other numbers")
def test_the_keys_of_whoever_started_the_tuner_are_not_found(hostile, attack):
    add_key, key, session = 248, b"tuner-secret", -3
    if ctypes.CDLL(None).syscall(add_key, b"user", key, b"x", 1, session) < 0:
        pytest.skip("the kernel refuses keyrings here")
    trial = attack("search_keyring")
    run_trial(hostile, trial)
    assert (hostile.folder / trial.name / "log.txt").read_text() == "nothing\n"


def test_a_worker_makes_no_namespace_of_its_own(hostile, attack):
    trial = attack("nest_namespace")
    run_trial(hostile, trial)
    assert (hostile.folder / trial.name / "log.txt").read_text().strip() == "kept"


@pytest.mark.slow
def test_folders_nested_however_deep_are_deleted(hostile, attack):
    result = run_trial(hostile, attack("deep_folders"))
    assert result.status in (TrialStatus.COMPLETE, TrialStatus.OVER_LIMIT), result.reason
    assert list((hostile.folder / "workers").iterdir()) == []


def test_neither_network_nor_sockets_can_be_reached(hostile, attack, decoy):
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        contextlib.closing(socket.socket(socket.AF_UNIX)) as local,
    ):
        here = os.open(decoy, os.O_RDONLY | os.O_DIRECTORY)
        local.bind(f"/proc/self/fd/{here}/socket")  # a path of a test is too long for a socket
        local.listen()
        trial = attack("connect")
        params = {**trial.params, "port": listener.getsockname()[1]}
        trial = dataclasses.replace(trial, params=params)
        run_trial(hostile, trial)
        os.close(here)
    assert "connected" not in (hostile.folder / trial.name / "log.txt").read_text()
    (decoy / "socket").unlink()


def test_what_a_worker_says_drives_no_terminal_and_suits_every_database(hostile, attack):
    result = run_trial(hostile, attack("escape_terminal"))
    assert result.status is TrialStatus.CRASHED
    said = result.reason + result.log_tail
    assert "said in the log" in said
    assert not {"\x00", "\x1b", "\x07"} & set(said)
