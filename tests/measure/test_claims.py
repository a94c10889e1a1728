"""CPUs are claimed by one process at a time, whoever starts it and however it ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tuner.measure import SCOPE, Claim, CoresTaken, claim

HOLD = """
import pathlib, sys
from tuner.measure import Claim
held = Claim([3], pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def scope(monkeypatch):
    monkeypatch.setenv(SCOPE, f"claims-{os.getpid()}")


@pytest.fixture
def neighbour(tmp_path):
    """A process that has claimed CPU 3."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "own", "postgresql://me:secret@host/db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_all_cpus_of_a_set_are_claimed_or_none(tmp_path):
    with Claim([2], tmp_path):
        with pytest.raises(CoresTaken, match="CPU 2"):
            Claim([1, 2], tmp_path)
        Claim([1], tmp_path).close()
    Claim([1, 2], tmp_path).close()


def test_the_holder_is_named_without_its_passwords(neighbour, tmp_path):
    with pytest.raises(CoresTaken, match=re.escape(f"process {neighbour.pid} of ")) as taken:
        Claim([3], tmp_path)
    assert "tuner.measure" in str(taken.value)
    assert "secret" not in str(taken.value)


def test_another_set_is_taken_where_the_first_is_not_free(neighbour, tmp_path):
    with claim([(3,), (4, 5)], tmp_path) as held:
        assert held.cores == (4, 5)


def test_it_waits_says_so_once_and_goes_on_when_the_holder_is_killed(neighbour, tmp_path):
    told: list[str] = []

    def check() -> None:
        if len(told) == 1:
            neighbour.kill()

    with claim([(3,)], tmp_path, max_s=30, check=check, tell=told.append) as held:
        assert held.cores == (3,)
    assert len(told) == 1
    assert f"process {neighbour.pid}" in told[0]


@pytest.mark.slow
def test_a_holder_that_was_asked_too_often_is_not_told_of_again(neighbour, tmp_path, monkeypatch):
    told: list[str] = []
    asked = iter([["process 7"], *[["another process"]] * 3])

    def check() -> None:
        if next(checks, None) is None:
            raise KeyboardInterrupt

    checks = iter(range(2))
    monkeypatch.setattr("tuner.measure.claims._describe_holder", lambda _core: next(asked))
    with pytest.raises(KeyboardInterrupt):
        claim([(3,)], tmp_path, check=check, tell=told.append)
    assert told == ["CPU 3 is claimed by process 7"]


def test_it_waits_no_longer_than_it_may(neighbour, tmp_path):
    with pytest.raises(CoresTaken):
        claim([(3,)], tmp_path, max_s=0.0)


def test_what_is_raised_meanwhile_ends_the_waiting(neighbour, tmp_path):
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        claim([(3,)], tmp_path, check=interrupted)


def test_children_do_not_keep_what_their_parent_claimed(tmp_path):
    with Claim([6], tmp_path):
        child = subprocess.Popen(["sleep", "60"])
    try:
        Claim([6], tmp_path).close()
    finally:
        child.kill()
        child.wait()


def test_another_scope_is_not_waited_for(neighbour, tmp_path, monkeypatch):
    monkeypatch.setenv(SCOPE, "elsewhere")
    Claim([3], tmp_path).close()


def test_who_shares_a_folder_is_seen_from_another_network(neighbour, tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.measure.claims._name", lambda core: f"\0elsewhere-{core}")
    with pytest.raises(CoresTaken, match="another user of"):
        Claim([3], tmp_path / "own")
