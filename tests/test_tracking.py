"""Tests of ``tuner.tracking`` that need no study: the database and who makes it."""

import os
import subprocess
import sys
import time

import pytest

from tuner.tracking import connect

CREATE = """
import sys
from tuner.tracking import connect
connect(sys.argv[1]).create_experiment(sys.argv[2])
"""


def _create(database, experiment, **variables):
    return subprocess.Popen(
        [sys.executable, "-c", CREATE, f"sqlite:///{database}", experiment],
        env={**os.environ, **variables},
    )


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_kill_while_the_database_is_made_leaves_none(tmp_path):
    database, scratch = tmp_path / "mlflow.db", tmp_path / "scratch"
    scratch.mkdir()
    process = _create(database, "first", TMPDIR=str(scratch))
    while not any(file.stat().st_size for file in scratch.glob("*/mlflow.db")):
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert not database.exists()
    assert connect(f"sqlite:///{database}").search_experiments()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_two_processes_that_make_the_database_at_once_lose_nothing(tmp_path):
    database = tmp_path / "mlflow.db"
    processes = [_create(database, name) for name in ("first", "second")]
    assert [process.wait() for process in processes] == [0, 0]
    found = {each.name for each in connect(f"sqlite:///{database}").search_experiments()}
    assert found == {"Default", "first", "second"}
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
