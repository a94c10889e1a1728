"""The proven settings of users' programs over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conftest import MLFLOW, add_database
from tests.recommendation.test_programs import FRONT, LESS_MEMORY
from tests.served import Client, served_here
from tuner.recommendation.placement import FORMS
from tuner.service.app import make_app
from tuner.service.jobs import Jobs
from tuner.tracking import PROGRAM_FRONT, PROGRAMS, Tracker

pytestmark = pytest.mark.timeout(60)
STUDIES = {
    "train.py": FRONT,
    "slow.py": {**FRONT, "proven": False},
    "odd.py": {**FRONT, "speedup": None},
    "quote": {**FRONT, "environment": {"A": "it's"}},
    "small.py": {**FRONT, **LESS_MEMORY, "all_disturbed": True},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("store")
    uri = add_database(folder, MLFLOW)
    for number, (program, front) in enumerate(STUDIES.items()):
        tags = {"fingerprint": "x", "program": program}
        names = {"experiment": PROGRAMS, "study_id": f"0badbee{number}", "name": program}
        tracker = Tracker(uri, folder, tags=tags, params={}, **names)
        path = folder / PROGRAM_FRONT
        path.write_text(json.dumps(front))
        tracker.finish([path], {})
    with served_here(make_app(uri, Jobs(folder / "jobs"))) as found:
        found.uri = uri
        yield found


def test_what_was_proven_for_a_program_is_answered(client):
    answer = client.get("/v1/programs/train.py").json()
    assert answer["command"] == FRONT["command_line"]
    assert answer["environment"] == FRONT["environment"]
    assert answer["speedup"] == {"value": 1.5, "low": 1.2, "high": 1.8}
    assert answer["evidence"]["study_run_id"]
    assert (answer["stale"], answer["note"]) == (False, None)
    assert answer["all_disturbed"] is None, "of a study that did not tell"


def test_an_answer_is_of_the_objective_that_is_asked_for(client):
    answer = client.get("/v1/programs/small.py", objective="memory").json()
    assert (answer["objective"], answer["gain"]["value"]) == ("memory", 4.0)
    assert answer["speedup"]["value"] == 0.4
    assert answer["all_disturbed"] is True
    assert client.get("/v1/programs/small.py", objective="speed").status_code == 422


@pytest.mark.parametrize("form", sorted(set(FORMS) - {"json"}))
def test_a_job_takes_it_as_a_text(client, form):
    reply = client.get("/v1/programs/train.py", format=form)
    assert (reply.status_code, reply.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert "0.03" in reply.text


@pytest.mark.parametrize(
    ("path", "form", "status", "said"),
    [
        ("slow.py", "json", 404, "no setting of slow.py is proven to be faster"),
        ("never.py", "json", 404, "no study of never.py is on record"),
        ("slow.py", "env", 404, "TUNER_NOTHING=no setting of slow.py"),
        ("small.py", "json", 404, "proven to use less memory: objective=memory"),
        ("train.py", "toml", 422, "Input should be 'json'"),
        ("quote", "slurm", 409, "ALL,'TUNER_NOTHING=A=its has a quote"),
    ],
)
def test_else_it_is_said_why_not(client, path, form, status, said):
    reply = client.get(f"/v1/programs/{path}", format=form)
    assert (reply.status_code, said in reply.text) == (status, True)


def test_a_service_that_only_observes_sets_nothing(client, tmp_path):
    with served_here(make_app(client.uri, Jobs(tmp_path / "jobs"), observe=True)) as asked:
        text = asked.get("/v1/programs/train.py", format="env").text
    assert text.startswith("TUNER_NOTHING=the service only observes")
    assert len(text.splitlines()) == 1


def test_programs_are_listed_and_a_damaged_record_is_counted(client):
    assert client.get("/v1/programs").json() == ["small.py", "quote", "slow.py", "train.py"]
    health = client.get("/v1/healthz").json()
    assert (health["studies"], health["damaged"]) == (0, 1)
