"""Wherever a study is killed or the disk is full: nothing measured is lost, nothing is doubled."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import uuid
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from tests.conftest import MLFLOW, add_database
from tests.faults.faulty import FULL, KILL, TRIALS, run_study
from tests.postgresql import fixture_server, without_postgresql  # noqa: F401 - a fixture
from tuner.config.catalogue import load_dataset_config
from tuner.datasets.provide import load_dataset
from tuner.tracking import connect
from tuner.values.trial import TrialResult

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
POINTS = os.environ.get("TUNER_FAULT_POINTS", "")
"""Writes of a study at which each fault is tried, evenly spread; 0 for all of them."""
PROCESSES = multiprocessing.get_context("forkserver")


class Place:
    """Where studies keep their trials, and what runs them: as users have it by default.

    Attributes:
        points: Writes at which each fault is tried, unless the environment says.
    """

    executor, points = "local", 4

    def storage(self) -> str:
        """Address of a new database; empty for the study's own."""
        return ""


class PostgreSQL(Place):
    """A shared database on a server."""

    points = 2

    def __init__(self, port: int) -> None:
        self._address = f"postgresql://tuner@127.0.0.1:{port}"

    def storage(self) -> str:
        name = f"faults_{uuid.uuid4().hex}"
        with psycopg.connect(f"{self._address}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"{self._address}/{name}"


class Ray(Place):
    """Trials on a node of a cluster."""

    executor, points = "ray", 1


@pytest.fixture(scope="module")
def place(request) -> Place:
    if request.param is PostgreSQL:
        return PostgreSQL(request.getfixturevalue("server"))
    return request.param()


PLACES = {
    "local": (Place, ()),
    "postgresql": (PostgreSQL, without_postgresql),
    "ray": (Ray, pytest.mark.skipif(not find_spec("ray"), reason="no Ray")),
}
CASES = [
    pytest.param(place, number, marks=marks, id=f"{name}-{number}")
    for name, (place, marks) in PLACES.items()
    for number in range(int(POINTS or place.points) or 1000)
]
"""Each place, and the number of each of its points."""


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """A home with the data set, and MLflow's empty database."""
    PROCESSES.set_forkserver_preload(["tests.faults.faulty", "mlflow"])
    folder = tmp_path_factory.mktemp("template")
    load_dataset(load_dataset_config("digits"), folder / "home")
    add_database(folder, MLFLOW)
    return folder


def study(
    folder: Path, place: Place, storage: str, kind: str = KILL, at: int = 0
) -> tuple[int, str, str]:
    """Run it. Returns the writes that there were (0 if it was killed), and what it said."""
    here, there = PROCESSES.Pipe(duplex=False)
    words = (folder, kind, at, there, storage, place.executor)
    process = PROCESSES.Process(target=run_study, args=words)
    process.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        answer = (0, "", "")
    process.join()
    assert process.exitcode == (-9 if kind == KILL and at else 0)
    return answer


def finished(folder: Path) -> dict[str, bytes]:
    """The results that are kept, by trial."""
    found = (folder / "home" / "studies").glob("*/trials/*/result.json")
    return {path.parent.name: path.read_bytes() for path in found}


def tracked(folder: Path) -> tuple[list[str], Counter[str]]:
    """How the study's run ended in MLflow, and how often each trial is there."""
    client = connect(f"sqlite:///{folder}/mlflow.db")
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    ends = [each.info.status for each in runs if each.data.tags.get("kind") == "study"]
    return ends, Counter(each.data.tags["trial"] for each in runs if "trial" in each.data.tags)


@pytest.fixture(scope="module")
def writes(template, place, tmp_path_factory) -> int:
    """How many writes a study has that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole") / "study"
    shutil.copytree(template, folder)
    count, *error = study(folder, place, place.storage())
    assert error == ["", ""]
    print(f"{count} writes at which a fault can happen")
    assert count > 50
    return count


@pytest.mark.parametrize("kind", [KILL, FULL])
@pytest.mark.parametrize(("place", "number"), CASES, indirect=["place"], scope="module")
def test_nothing_is_lost_or_doubled(template, writes, tmp_path, place, kind, number):
    points = int(POINTS or place.points) or writes
    if number >= points:
        pytest.skip("all writes were tried")
    at = 1 + round((writes - 1) * (number + 0.5) / points) if points < writes else 1 + number
    folder, storage = tmp_path / "study", place.storage()
    shutil.copytree(template, folder)
    _, error, line = study(folder, place, storage, kind, at)
    assert error in ("", "StorageAway", "StorageError", "OSError", "RuntimeUnavailable"), line
    assert not line or "No space left" in line or "disk is full" in line
    before = finished(folder)
    assert study(folder, place, storage)[1:] == ("", ""), "the same command goes on"
    after = finished(folder)
    assert {name: after.get(name) for name in before} == before, "nothing measured is lost"
    ends, trials = tracked(folder)
    assert ends == ["FINISHED"]
    assert trials == Counter(dict.fromkeys(after, 1)), "each is there once"
    searched = [
        TrialResult.from_json(text.decode()).trial.number
        for name, text in after.items()
        if not name.startswith("verify")
    ]
    assert sorted(searched) == list(range(TRIALS))
    assert list((folder / "home" / "studies").glob("*/report/front.json"))
