"""Studies kept in a real PostgreSQL server: the same tests as with files of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from tests.conftest import SYNTHETIC
from tests.postgresql import fixture_server, without_postgresql  # noqa: F401 - a fixture

# collected here once more, with the fixtures of this file
from tests.study.test_study import (  # noqa: F401
    factored,
    test_a_complete_study_is_shown_again_and_a_larger_budget_goes_on,
    test_a_factored_study_goes_on_where_it_was,
    test_a_warm_start_begins_with_what_an_earlier_study_verified,
    test_ctrl_c_keeps_what_was_measured_and_the_study_goes_on,
    test_mlflow_has_every_run_once_with_its_files,
    test_resume_never_starts_anew,
    test_trial_0_is_the_default_and_everything_is_numbered_once,
)
from tuner.measure import SCOPE
from tuner.storage.databases import _LIMITS, DatabaseHeld, Hold, exclusive
from tuner.study.study import tune
from tuner.tracking import connect, load_results
from tuner.values.errors import StorageError

psycopg = pytest.importorskip("psycopg", reason="pip install 'tuner[postgresql]'")


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    without_postgresql,
]


@pytest.fixture
def addresses(server, request) -> tuple[str, str]:
    """New databases for MLflow and for Optuna: each numbers its own schema."""
    place = f"127.0.0.1:{server}"
    names = [f"{kind}_{abs(hash(request.node.nodeid))}" for kind in ("mlflow", "optuna")]
    whole = f"postgresql://tuner@{place}/postgres"
    with psycopg.connect(whole, autocommit=True) as connection:
        for name in names:
            connection.execute(f'CREATE DATABASE "{name}"')
    mlflow, optuna = (f"postgresql://tuner@{place}/{name}" for name in names)
    return mlflow, optuna


@pytest.fixture
def config(config, addresses):
    config.tracking_uri, config.storage = addresses
    return config


def test_a_server_that_is_not_there_is_one_line(config):
    config.tracking_uri = "postgresql://tuner@127.0.0.1:1/none"
    with pytest.raises(StorageError, match=re.escape("127.0.0.1:1")) as refused:
        tune(config)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("hold", Hold)
def test_a_database_that_is_not_let_go_is_not_waited_for_for_ever(addresses, hold):
    _, address = addresses
    with (
        exclusive(address, hold),
        pytest.raises(DatabaseHeld, match=r"for 0\.5 s"),
        exclusive(address, hold, wait_s=0.5),
    ):
        pass
    with exclusive(address, hold, wait_s=0.5):
        pass


def test_who_uploads_keeps_nobody_from_asking(addresses):
    _, address = addresses
    with exclusive(address, Hold.UPLOADS), exclusive(address, wait_s=0.5):
        pass


def test_who_holds_a_database_and_does_nothing_loses_it(addresses, monkeypatch):
    monkeypatch.setitem(_LIMITS, "idle_in_transaction_session_timeout", 500)
    _, address = addresses

    def dawdle() -> None:
        with exclusive(address):
            time.sleep(2)
            with exclusive(address):  # another one does not wait for it
                pass

    with pytest.raises(DBAPIError, match="idle-in-transaction"):
        dawdle()


@pytest.mark.timeout(600)  # a busy machine makes four times as much of it
def test_two_drivers_share_a_study_and_no_trial_is_run_twice(addresses, tmp_path):
    connect(addresses[0])  # who comes first makes the tables, and that is a matter of its own
    words = [
        "framework=synthetic", "dataset=digits", f"framework_path={SYNTHETIC}", "search=joint",
        "search.warm_start=false", "budget.time_s=60", "budget.trials=40", "verify.repeats=2",
        "measure.max_foreign_pct=100", "progress=none", f"output={tmp_path}",
        f"tracking_uri={addresses[0]}", f"storage={addresses[1]}",
    ]  # fmt: skip
    homes = [tmp_path / name for name in ("one", "two")]
    drivers = [
        subprocess.Popen(
            [sys.executable, "-m", "tuner", *words],
            env={**os.environ, "TUNER_HOME": str(home), SCOPE: home.name},  # as two machines
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for home in homes
    ]
    said = [each.communicate(timeout=500) for each in drivers]
    assert [each.returncode for each in drivers] == [0, 0], said

    def numbers(home: Path, kind: str) -> list[int]:
        found = home.glob(f"studies/*/trials/{kind}-*/result.json")
        return sorted(int(path.parent.name[-4:]) for path in found)

    searched = [numbers(home, "search") for home in homes]
    assert all(len(each) > 5 for each in searched), "both took part"
    both = sorted(searched[0] + searched[1])
    assert both == sorted(set(both)), "no trial twice"
    assert len(both) in (39, 40), "what the other one is about counts, but for a moment"
    assert [len(numbers(home, "default")) for home in homes].count(1) == 1
    (record,) = load_results(addresses[0], "synthetic", "digits")
    assert sum(record.front["trials"].values()) == len(both) + 1, "all of both are reported"
    searches = [name for name in record.run_ids if name.startswith("search")]
    assert sorted(int(name[-4:]) for name in searches) == both
    assert len(record.front["verified"]) > 1
    assert sum("Not verified" in output for output, _ in said) == 1, "one of them reports"
