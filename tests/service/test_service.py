"""The service as clients meet it: a server of its own, asked over HTTP."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import math
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from fastapi import Request, Response
from mlflow import MlflowClient
from playwright.sync_api import sync_playwright
from starlette.datastructures import URL

from tests.conftest import MLFLOW, add_database
from tests.report_samples import make_grouped, make_study
from tests.served import Service, keep, served_here
from tuner.api import recommend
from tuner.config.catalogue import load_framework
from tuner.measure import machine_facts, parse_cores
from tuner.recommendation.reading import evidence_of
from tuner.runtimes import find_runtime
from tuner.service.access import Access
from tuner.service.answers import front_points
from tuner.service.app import make_app, try_out
from tuner.service.claims import Balance
from tuner.service.jobs import Jobs
from tuner.service.liveness import judge_health
from tuner.service.page import render_page
from tuner.service.records import RecordCache, Snapshot
from tuner.service.server import TOKEN, serve
from tuner.tracking import CROSS, Tracker, connect, load_everything
from tuner.tracking.store import STUDY_TAG
from tuner.values.errors import ConfigError, StorageAway
from tuner.values.verified import Verified

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
CHROMIUM = shutil.which("chromium")
SECRET = "not-to-be-guessed-0123456789"


def slower_points() -> tuple[Verified, ...]:
    return tuple(
        dataclasses.replace(
            each,
            train_time_s=dataclasses.replace(
                each.train_time_s, value=3 * each.train_time_s.value, high=1e4
            ),
        )
        for each in make_study().verified
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    keep(folder, runtimes=make_grouped().runtimes)
    keep(folder, framework="theano", study_id="77aa00bb", verified=slower_points())
    return folder


@pytest.fixture(scope="module")
def service(store) -> Iterator[Service]:
    running = Service(store)
    yield running
    code, said = running.stop()
    assert said == "", "nothing failed while it answered"
    assert code == 0


def test_the_best_within_the_limits_is_recommended_with_its_proof(service):
    reply = service.get("/v1/recommendations", dataset="mnist", min_accuracy=0.988)
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert answer["framework"] == "caffe"
    assert answer["measured"]["train_time_s"]["value"] == pytest.approx(58.3)
    low, high = (answer["measured"]["train_time_s"][name] for name in ("low", "high"))
    assert low < 58.3 < high
    assert f"base_lr: {answer['params']['learning_rate']}" in answer["settings"]
    assert answer["environment"]
    assert answer["evidence"]["study_run_id"]
    assert answer["stale"], "it was measured on another machine"
    assert answer["against_default"]["speedup"]["value"] > 1
    assert answer["speedup"] == {"value": 3.26, "low": 3.2, "high": 3.32}
    assert (answer["role"], answer["no_loss"], answer["note"]) == ("no loss", True, None)
    assert answer["assurance"].startswith("no loss: a loss of more than 0.2 points is ruled out")


def test_of_a_text_it_says_who_answers(service):
    reply = service.get("/v1/recommendations", dataset="ptb")
    assert reply.status_code == 404
    assert "python -m tuner recommend dataset=ptb" in reply.text


def test_a_job_gets_its_variables_as_a_text_and_none_where_nothing_is_recommended(service):
    reply = service.get("/v1/recommendations", framework="caffe", format="env")
    assert (reply.status_code, reply.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    answer = service.get("/v1/recommendations", framework="caffe").json()
    assert f"TUNER_EVIDENCE={answer['evidence']['study_run_id']}\n" in reply.text
    for name, value in answer["environment"].items():
        assert f"{name}={value}\n" in reply.text
    reply = service.get("/v1/recommendations", max_train_time_s=0.001, format="env")
    assert reply.status_code == 404
    assert reply.text.startswith("TUNER_NOTHING=no measured configuration meets")
    assert len(reply.text.splitlines()) == 1


@pytest.mark.parametrize(
    ("loss", "time_s", "no_loss"), [("none", 21.4, False), (0.005, 40.6, False), (0, 190.2, True)]
)
def test_more_or_less_may_be_lost_where_that_is_asked_for(service, loss, time_s, no_loss):
    answer = service.get("/v1/recommendations", framework="caffe", max_accuracy_loss=loss).json()
    assert answer["measured"]["train_time_s"]["value"] == pytest.approx(time_s)
    assert answer["no_loss"] is no_loss
    assert bool(answer["note"]) == (answer["role"] == "default")


def test_without_a_framework_it_is_the_best_of_all_and_with_one_of_that(service):
    best = service.get("/v1/recommendations").json()
    assert best["framework"] == "caffe"
    other = service.get("/v1/recommendations", framework="theano").json()
    assert other["framework"] == "theano"
    ratio = other["measured"]["train_time_s"]["value"] / best["measured"]["train_time_s"]["value"]
    assert ratio == pytest.approx(3)
    assert {each["framework"] for each in other["alternatives"]} == {"theano"}


@pytest.mark.parametrize(
    ("asked", "binding"),
    [
        ({"max_train_time_s": 0.001}, ["max_train_time_s"]),
        ({"max_train_time_s": 30}, ["max_accuracy_loss", "max_train_time_s"]),
        ({"max_memory_mb": 1, "min_accuracy": 0.5}, ["max_memory_mb"]),
        ({"min_accuracy": 0.9999999}, ["min_accuracy"]),
        ({"cores": 64}, ["cores"]),
        ({"framework": "torch"}, []),
        ({"dataset": "cifar10"}, []),
    ],
)
def test_what_cannot_be_had_is_explained(service, asked, binding):
    reply = service.get("/v1/recommendations", **asked)
    assert reply.status_code == 404
    problem = reply.json()
    assert problem["binding"] == binding
    assert bool(problem["nearest"]) == bool(binding and binding != ["cores"])
    assert "\n" not in problem["detail"]


@pytest.mark.parametrize(
    "asked",
    [
        {"framework": "../../etc/passwd"},
        {"framework": "caffe; rm -rf /"},
        {"dataset": "$(id)"},
        {"dataset": "a" * 5000},
        {"max_train_time_s": "inf"},
        {"max_train_time_s": "nan"},
        {"max_memory_mb": -1},
        {"min_accuracy": 2},
        {"max_accuracy_loss": -0.1},
        {"max_accuracy_loss": "nan"},
        {"max_accuracy_loss": "some"},
        {"cores": 1.5},
        {"cores": 10**30},
        {"bandwidth": "fast"},
        {"latency_ms": -1},
        {"objective": "speed"},
        {"unheard_of": 1},
        {"framework": "caffe\x00"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/recommendations", "/v1/pareto", "/v1/studies"])
def test_what_is_no_question_is_refused_in_words(service, path, asked):
    reply = service.get(path, **asked)
    assert reply.status_code == 422
    assert reply.json()["detail"]


def test_groups_over_a_link_and_the_split_of_a_host_are_told_where_they_are_asked_for(
    service, store
):
    asked = {"framework": "caffe", "bandwidth": "10gbit", "latency_ms": 0.1, "cores": 2}
    answer = service.get("/v1/recommendations", **asked).json()
    assert [each["workers"] for each in answer["over_link"]["groups"]] == [1, 2, 4, 8, 16, 32, 64]
    assert [each["basis"] for each in answer["over_link"]["groups"]][1:3] == [
        "measured", "modelled",
    ]  # fmt: skip
    assert answer["over_link"]["bandwidth_mbit"] == 10_000
    soonest, most = answer["split"]["soonest"], answer["split"]["most_jobs"]
    assert (soonest["jobs"], soonest["basis"], most["jobs"], most["basis"]) == (
        1, "measured", 2, "modelled",
    )  # fmt: skip
    here = json.loads(json.dumps(recommend(**asked, output=str(store))))
    assert {name: here[name] for name in ("split", "over_link")} == {
        name: answer[name] for name in ("split", "over_link")
    }
    plain = service.get("/v1/recommendations", framework="caffe").json()
    assert (plain["split"], plain["over_link"]) == (None, None)


def test_a_study_of_another_version_is_no_fault_of_the_service(tmp_path):
    keep(tmp_path, framework="torch")  # with Caffe's params
    running = Service(tmp_path)
    try:
        reply = running.get("/v1/recommendations")
        assert reply.status_code == 409
        assert "torch" in reply.json()["detail"]
    finally:
        assert running.stop()[1] == ""


def test_a_framework_that_is_unknown_here_hides_no_other(tmp_path, home):
    keep(tmp_path, framework="theano", study_id="77aa00bb", verified=slower_points())
    keep(tmp_path, framework="mine")
    with served_here(make_app(f"sqlite:///{tmp_path}/mlflow.db", Jobs(home / "jobs"))) as running:
        assert running.get("/v1/recommendations").json()["framework"] == "theano"
        reply = running.get("/v1/recommendations", framework="mine")
        assert (reply.status_code, "mine" in reply.text) == (409, True)


def test_of_own_images_only_points_of_the_newest_are_listed(store):
    records = load_everything(f"sqlite:///{store}/mlflow.db").values()
    points = [each for record in records for each in evidence_of(record)]
    own = [dataclasses.replace(each, like="mnist", digest="a", measured_at=1.0) for each in points]
    newer = [dataclasses.replace(each, digest="b", measured_at=2.0) for each in own]
    assert len(front_points(Snapshot(evidence=(*own, *newer)), "", "mnist")) == len(newer)
    assert len(front_points(Snapshot(evidence=(*points, *points)), "", "mnist")) == 2 * len(points)


def garbled(front: dict) -> dict:
    """Fronts as nobody but a fault or an intruder writes them."""
    (point, *_) = front["verified"]
    lacking = {name: value for name, value in point.items() if name != "train_time_s"}
    return {
        "no machine": front | {"machine": None},
        "no object": [],
        "no runtime": {**front, "runtime": None, "verified": []},
        "no time": front | {"verified": [lacking]},
        "time 0": front | {"verified": [{**point, "train_time_s": {"value": 0}}]},
        "no accuracy": front
        | {"verified": [{k: v for k, v in point.items() if k != "test_accuracy"}]},
        "no memory": front
        | {"verified": [{k: v for k, v in point.items() if k != "peak_memory_bytes"}]},
        "no id": {name: value for name, value in front.items() if name != "study_id"},
        "null": front | dict.fromkeys(("dataset", "warnings", "elapsed_s")),
        "no text": front | {"title": "\ud800"},
        "words": front | {"verified": [{**point, "test_time_s": "soon"}]},
        "no number": front | {"elapsed_s": math.nan, "notes": [math.nan]},
        "params": front | {"verified": [{**point, "params": []}]},
        "trials": {name: value for name, value in front.items() if name != "trials"},
    }


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "fault",
    [
        *("no machine", "no object", "no runtime", "no time", "time 0", "params", "trials"),
        *("no accuracy", "no memory", "no id", "null", "no number", "no text", "words"),
    ],
)
def test_a_damaged_study_is_counted_and_stops_no_other(tmp_path, home, caplog, fault):
    keep(tmp_path)
    client = connect(f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = [each for each in client.search_experiments() if each.name == "caffe-mnist"]
    (run,) = client.search_runs([experiment.experiment_id])
    client.create_run(experiment.experiment_id, tags=run.data.tags | {STUDY_TAG: "0badbeef"})
    damaged, *_ = client.search_runs([experiment.experiment_id])
    front = tmp_path / "front.json"
    front.write_text(json.dumps(garbled(json.loads(front.read_text()))[fault]))
    client.log_artifact(damaged.info.run_id, str(front))
    client.set_terminated(damaged.info.run_id)
    assert recommend(framework="caffe", output=str(tmp_path))["framework"] == "caffe"
    caplog.clear()
    with served_here(make_app(f"sqlite:///{tmp_path}/mlflow.db", Jobs(home / "jobs"))) as running:
        health = running.get("/v1/healthz").json()
        assert (health["status"], health["studies"], health["damaged"]) == ("ok", 1, 1)
        for page in ("/v1/recommendations", "/v1/pareto", "/v1/studies", "/"):
            assert running.get(page).status_code == 200
        assert running.get("/v1/studies/unknown").status_code == 404
    assert caplog.text == ""


def test_a_study_that_ended_at_no_time_of_a_calendar_is_damaged(store):
    for record in load_everything(f"sqlite:///{store}/mlflow.db").values():
        try_out(Snapshot((record,), tuple(evidence_of(record))))
        late = dataclasses.replace(record, ended=1e18)
        with pytest.raises(ConfigError, match="is no time at which it expires"):
            try_out(Snapshot((late,), tuple(evidence_of(late))))


class Threads:
    """What the service asks its two threads; ``ago_s`` is how long ago the store was read."""

    def __init__(self, ago_s=0.0, fault="", alive=True):
        self.ago_s, self.fault, self.alive = ago_s, fault, alive

    @property
    def current(self):
        return Snapshot(read_at=time.monotonic() - self.ago_s, fault=self.fault)


@pytest.mark.parametrize(
    ("records", "jobs", "status", "ready", "live"),
    [
        (Threads(), Threads(), "ok", 200, 200),
        (Threads(3600, "MLflow store x cannot be read"), Threads(), "stale", 503, 200),
        (Threads(math.inf), Threads(), "stale", 503, 200),
        (Threads(alive=False), Threads(), "failed", 503, 503),
        (Threads(), Threads(alive=False), "failed", 503, 503),
        (Threads(), Threads(fault="No space left on device"), "ok", 200, 200),
    ],
)
def test_health_is_that_of_the_threads(records, jobs, status, ready, live):
    for stale_is_bad, code in ((True, ready), (False, live)):
        response = Response()
        health = judge_health(response, records, jobs, 5.0, stale_is_bad=stale_is_bad)
        assert health.status == status
        assert response.status_code == code
        assert ("Retry-After" in response.headers) == (code == 503)
        assert records.fault in health.fault
        assert jobs.fault in health.fault
        assert "Infinity" not in health.model_dump_json()


def test_the_store_is_read_again_whatever_went_wrong(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("unforeseen")

    with (
        monkeypatch.context() as patch,
        RecordCache(f"sqlite:///{tmp_path}/mlflow.db", 0.05) as records,
    ):
        patch.setattr("tuner.service.records.load_everything", broken)
        records.refresh()
        assert "unforeseen" in records.current.fault
        patch.undo()
        until = time.monotonic() + 10
        while records.current.fault and time.monotonic() < until:
            time.sleep(0.02)
        assert records.alive
        assert records.current.fault == ""


def test_studies_that_answer_nothing_are_not_read_again_either(tmp_path, monkeypatch):
    keep(tmp_path, framework=CROSS)
    keep(tmp_path, framework="theano", study_id="77aa00bb")
    records = RecordCache(f"sqlite:///{tmp_path}/mlflow.db")
    records.refresh()
    assert [each.front["framework"] for each in records.current.studies] == ["theano"]
    monkeypatch.setattr("tuner.tracking.reading._read_front", lambda *_: pytest.fail("read again"))
    first = records.current
    records.refresh()
    assert records.current.fault == ""
    assert records.current.studies == first.studies


def test_the_front_holds_the_defaults_as_reference(service):
    points = service.get("/v1/pareto", dataset="mnist").json()
    assert [each["train_time_s"] for each in points] == sorted(
        each["train_time_s"] for each in points
    )
    assert {each["framework"] for each in points if each["is_default"]} == {"caffe", "theano"}
    assert {each["role"] for each in points} == {"default", "no loss", "trade-off"}
    assert [each["no_loss"] for each in points if each["role"] == "trade-off"] == [False, False]
    best = max(points, key=lambda each: each["test_accuracy"])
    assert any(
        each["on_front"] and each["test_accuracy"] == best["test_accuracy"] for each in points
    )
    assert not any(each["on_front"] for each in points if each["framework"] == "theano")
    assert service.get("/v1/pareto", framework="singa").json() == []


def test_studies_are_listed_and_shown_whole(service):
    listed = service.get("/v1/studies").json()
    assert {each["framework"] for each in listed} == {"caffe", "theano"}
    (one,) = service.get("/v1/studies", framework="theano").json()
    assert len(service.get("/v1/studies", limit=1).json()) == 1
    for name in ("id", "run_id"):
        whole = service.get(f"/v1/studies/{one[name]}").json()
        assert whole["study_id"] == "77aa00bb"
        assert whole["verified"][0]["name"] == "default"
    for name in ("nothing", "..%2f..%2fetc", "%00", "a" * 3000):
        assert service.get(f"/v1/studies/{name}").status_code == 404


def test_frameworks_say_whether_they_are_installed(service):
    found = {each["name"]: each for each in service.get("/v1/frameworks").json()}
    assert {"caffe", "torch", "theano"} <= set(found)
    assert not found["caffe"]["installed"], "in an empty TUNER_HOME"


def test_health_metrics_and_description(service):
    health = service.get("/v1/healthz").json()
    assert (health["status"], health["studies"], health["fault"]) == ("ok", 2, "")
    text = service.get("/v1/metrics").text
    assert re.search(r"^tuner_studies 2\.0$", text, re.MULTILINE)
    assert re.search(r'tuner_requests_total{route="/v1/healthz",status="200"} \d', text)
    paths = service.get("/openapi.json").json()["paths"]
    assert {"/v1/recommendations", "/v1/pareto", "/v1/studies", "/v1/healthz"} <= set(paths)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/livez", 200), ("/", 200), ("/v1/recommendations?cores=64", 404), ("/no", 404)],
)
def test_head_is_answered_as_get_without_the_body(service, path, status):
    got = requests.get(service.address + path, timeout=60)
    reply = requests.head(service.address + path, timeout=60)
    assert (reply.status_code, reply.content) == (status, b"")
    assert reply.headers["Content-Type"] == got.headers["Content-Type"]
    refused = requests.head(f"{service.address}/v1/recommendations/0/claims", timeout=60)
    assert refused.status_code == 405


@pytest.mark.parametrize(
    ("method", "site", "mode", "status"),
    [
        ("GET", "none", "navigate", 200),  # typed into the address bar
        ("GET", "same-origin", "cors", 200),
        ("GET", "cross-site", "navigate", 200),  # a link to our page
        ("GET", "cross-site", "no-cors", 403),
        ("POST", "same-site", "navigate", 403),  # a form of another service on this machine
        ("POST", "cross-site", "no-cors", 403),
    ],
)
def test_what_a_page_of_another_site_sends_is_refused(service, method, site, mode, status):
    path = "/v1/frameworks" if method == "GET" else "/v1/studies"
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    reply = requests.request(method, service.address + path, headers=headers, timeout=60)
    assert reply.status_code == status, reply.text


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://evil.example", 403), ("null", 403), ("http://{host}", 422), (None, 422)],
)
def test_so_it_is_if_the_browser_tells_no_more_than_the_origin(service, origin, status):
    """Over plain HTTP from another machine it sends nothing else."""
    host = service.address.removeprefix("http://")
    headers = {"Origin": origin.format(host=host)} if origin else {}
    reply = requests.post(f"{service.address}/v1/studies", headers=headers, json={}, timeout=60)
    assert reply.status_code == status, reply.text


@pytest.mark.parametrize("host", ["evil.example", "testserver", "192.0.2.1", "[2001:db8::1]:80"])
def test_other_names_for_this_machine_are_refused(service, host):
    assert service.get("/v1/healthz", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2:8765", "[::1]", "[::1]:8765"])
def test_its_own_names_are_answered_to(service, host):
    assert service.get("/v1/healthz", headers={"Host": host}).status_code == 200


def test_the_page_is_shown_in_no_frame_of_another_site(service):
    assert service.get("/").headers["X-Frame-Options"] == "DENY"


def test_no_host_header_makes_a_path_one_that_needs_no_token(monkeypatch):
    """As older versions of Starlette did: the host is in the address, and may have a path."""
    monkeypatch.setattr(Request, "url", URL("http://x/v1/livez?/v1/studies"))
    scope = {"type": "http", "method": "GET", "path": "/v1/studies", "headers": []}
    refused = Access(token=SECRET, local=False).refusal(Request(scope))
    assert refused is not None
    assert refused.status_code == 401


@pytest.mark.parametrize("odd", ['"time_s": NaN', '"time_s": 1e999', '"framework": "\\ud800"'])
def test_what_has_no_form_in_json_is_refused_too(service, odd):
    body = f'{{"framework": "caffe", {odd}}}'
    reply = requests.post(f"{service.address}/v1/studies", data=body, timeout=60)
    assert reply.status_code == 422
    assert {"loc", "msg"} <= set(reply.json()["detail"][0])


def test_a_length_that_is_no_number_to_python_is_refused(service):
    host, port = service.address.removeprefix("http://").split(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=60)) as client:
        client.putrequest("POST", "/v1/studies")
        client.putheader("Content-Length", "0" * 5000)
        client.endheaders()
        assert client.getresponse().status in (400, 413)


def test_what_is_too_large_is_refused(service):
    reply = requests.post(f"{service.address}/v1/recommendations", data=b"x" * 70_000, timeout=60)
    assert reply.status_code == 413


@pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"
)
def test_the_page_answers_draws_and_needs_no_network(service):
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.route("**", lambda route: (
            route.continue_() if route.request.url.startswith(service.address) else route.abort()
        ))  # fmt: skip
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(service.address)
        assert "2 studies" in page.inner_text("header")
        verified = len(make_study().verified)
        assert page.locator("svg rect.mark").count() == 2, "the defaults"
        assert page.locator("svg circle.mark").count() == 2 * (verified - 1)
        assert page.locator("h2").all_inner_texts()[1] == "What was proven"
        proven = page.locator("#proven tbody tr").last
        assert "3.26x faster, 58.3 s, 99.05 % (98.86-99.22)" in proven.inner_text()
        assert "none proven" in proven.inner_text()
        page.get_by_label("Accuracy at least, 0–1").fill("0.988")
        page.get_by_label("CPUs").fill("2")
        page.get_by_label("Accuracy at least, 0–1").press("Enter")
        text = page.locator("#answer pre")
        text.wait_for()
        assert "base_lr" in text.inner_text()
        said = page.locator("#answer").inner_text()
        assert "no loss: a loss of more than" in said
        assert (
            "with 2 at once on 1 of the CPUs each (modelled: by the pace of one job alone" in said
        )
        page.get_by_label("Training time at most, s").fill("0.001")
        page.get_by_role("button", name="Recommend").click()
        page.locator("#answer .fault").wait_for()
        assert "max_train_time_s" in page.locator("#answer").inner_text()
        for each in page.locator("input, select").all():
            assert each.evaluate("each => each.labels.length") == 1
            wider = "each => each.offsetWidth - each.parentElement.offsetWidth"
            assert each.evaluate(wider) <= 0, "it would cover its neighbour"
        assert not faults
        browser.close()


@pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"
)
def test_what_the_page_offers_to_copy_does_nothing_else_in_a_shell(service):
    answer = service.get("/v1/recommendations", framework="caffe").json()
    answer |= {"environment": {"A": "it's $(id)"}, "params": {"p": "1\nid"}}
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.route("**/v1/recommendations?*", lambda route: route.fulfill(json=answer))
        page.goto(service.address)
        page.get_by_role("button", name="Recommend").click()
        lines = page.locator("#answer pre").inner_text().splitlines()
        assert lines[:2] == ["export A='it'\\''s $(id)'", "# p: 1 id"]
        assert page.get_by_role("button", name="Copy").count() == 1
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        page.reload()
        page.get_by_role("button", name="Recommend").click()
        page.locator("#answer pre").wait_for()
        assert page.get_by_role("button", name="Copy").count() == 0, "it could do nothing"
        browser.close()


def test_times_of_hours_are_shown_without_an_exponent(store):
    records = tuple(load_everything(f"sqlite:///{store}/mlflow.db").values())
    points = [
        dataclasses.replace(each, figures={**each.figures, "train_time_s": {
            name: 100 * end for name, end in each.figures["train_time_s"].items()
        }})
        for record in records for each in evidence_of(record)
    ]  # fmt: skip
    page = render_page(Snapshot(studies=records, evidence=tuple(points)), [], Balance(), [])
    assert "5830 s" in page
    assert "e+0" not in page


def test_a_study_that_ends_meanwhile_is_found(store, tmp_path):
    keep(tmp_path)
    records = RecordCache(f"sqlite:///{tmp_path}/mlflow.db")
    records.refresh()
    before = records.current
    assert len(before.studies) == 1
    keep(tmp_path, framework="theano", study_id="77aa00bb")
    records.refresh()
    assert len(records.current.studies) == 2
    assert any(each is before.studies[0] for each in records.current.studies), "read once"
    (tmp_path / "mlflow.db").write_bytes(b"no database")
    records.refresh()
    assert records.current.fault
    assert len(records.current.studies) == 2, "what was read before stands"


def test_a_front_that_is_missing_is_asked_for_once_until_its_study_ends(tmp_path, monkeypatch):
    uri = add_database(tmp_path, MLFLOW)
    keep(tmp_path)
    names = {"experiment": "caffe-mnist", "study_id": "0badbeef", "name": "0badbeef"}
    cut_short = Tracker(uri, tmp_path, tags={"fingerprint": "x"}, params={}, **names)
    asked: list[str] = []
    ask = MlflowClient.download_artifacts

    def note(client, run_id, *further):
        asked.append(run_id)
        return ask(client, run_id, *further)

    monkeypatch.setattr(MlflowClient, "download_artifacts", note)
    records = RecordCache(uri)
    for _ in range(3):
        records.refresh()
    assert asked.count(cut_short.run_id) == 1
    assert (len(records.current.studies), records.current.damaged) == (1, {})
    front = tmp_path / "front.json"
    front.write_text(front.read_text().replace(make_study().study_id, "0badbeef"))
    cut_short.finish([front], {})
    records.refresh()
    assert len(records.current.studies) == 2


def test_artifacts_that_are_away_are_not_taken_for_nothing(tmp_path, home):
    uri = add_database(tmp_path, MLFLOW)
    keep(tmp_path)
    mlruns, elsewhere = tmp_path / "mlruns", tmp_path / "unmounted"
    mlruns.rename(elsewhere)
    why = f"the artifacts of MLflow store {uri} cannot be read: there is no folder {mlruns}"
    with pytest.raises(StorageAway) as told:
        recommend(framework="caffe", output=str(tmp_path))
    assert str(told.value) == why
    with served_here(make_app(uri, Jobs(home / "jobs"), refresh_s=0.1)) as running:
        for path in ("/v1/recommendations", "/v1/programs/train.py", "/v1/pareto"):
            reply = running.get(path)
            assert (reply.status_code, reply.headers["Retry-After"]) == (503, "60")
            assert reply.json()["detail"] == f"nothing is known yet: {why}"
        elsewhere.rename(mlruns)
        end = time.monotonic() + 20
        while running.get("/v1/recommendations").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_a_study_whose_front_is_away_stops_no_other_and_is_tried_again(tmp_path):
    uri = add_database(tmp_path, MLFLOW)
    keep(tmp_path)
    records = RecordCache(uri)
    records.refresh()
    keep(tmp_path, framework="theano", study_id="77aa00bb")
    (new,) = {*(tmp_path / "mlruns").iterdir()} - {
        tmp_path / "mlruns" / each.run_id for each in records.current.studies
    }
    front = new / "artifacts" / "front.json"
    front.rename(new / "kept")
    front.symlink_to(front)  # a file system that fails
    records.refresh()
    assert len(records.current.studies) == 1
    (why,) = records.current.damaged.values()
    assert "Too many levels of symbolic links" in why
    front.unlink()
    (new / "kept").rename(front)
    records.refresh()
    assert (len(records.current.studies), records.current.damaged) == (2, {})


def test_a_data_set_is_known_by_what_was_asked_for_too(tmp_path):
    keep(tmp_path, requested="mnist", dataset="mnist_5k")
    records = RecordCache(f"sqlite:///{tmp_path}/mlflow.db")
    records.refresh()
    for asked in ("mnist", "mnist_5k"):
        assert {each.dataset for each in records.current.evidence_for("", asked)} == {"mnist_5k"}
    assert records.current.evidence_for("", "cifar10") == []
    keep(tmp_path, framework="caffe", study_id="77aa00bb")
    records.refresh()
    found = {each.dataset for each in records.current.evidence_for("", "mnist")}
    assert found == {"mnist"}, "what was measured on it goes first"


@pytest.mark.parametrize("use", [{}, {"nodes": "2 of the Ray cluster at 10.0.0.1:6379"}])
def test_what_was_measured_here_goes_before_what_was_measured_elsewhere(
    tmp_path, monkeypatch, use
):
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    packages = find_runtime(load_framework("caffe")).packages()
    here = {**machine_facts(parse_cores("")), **use}
    keep(tmp_path)
    keep(tmp_path, study_id="77aa00bb", machine=here, runtime=packages, verified=slower_points())
    service = Service(tmp_path)
    limits = {"dataset": "mnist", "min_accuracy": 0.988}
    first = service.get("/v1/recommendations", **limits).json()
    assert not first["stale"]
    assert first["measured"]["train_time_s"]["value"] == pytest.approx(3 * 58.3)
    faster = service.get("/v1/recommendations", **limits, max_train_time_s=60).json()
    assert faster["stale"], "nothing that was measured here is so fast"
    for answer, more in ((first, {}), (faster, {"max_train_time_s": 60})):
        told = recommend(**limits, **more, output=str(tmp_path))
        assert (told["id"], told["stale"]) == (answer["id"], answer["stale"])
    assert service.stop() == (0, "")


def test_an_empty_folder_is_served_too(tmp_path):
    running = Service(tmp_path)
    try:
        assert running.get("/v1/studies").json() == []
        assert "python -m tuner" in running.get("/v1/recommendations").json()["detail"]
        assert "None yet" in running.get("/").text
        assert not (tmp_path / "mlflow.db").exists(), "a question makes no files"
    finally:
        running.stop()


def test_a_job_keeps_its_defaults_where_the_service_cannot_answer(tmp_path, monkeypatch):
    def away(*_):
        raise StorageAway("MLflow is away")

    monkeypatch.setattr("tuner.service.records.load_everything", away)
    app = make_app(f"sqlite:///{tmp_path}/mlflow.db", Jobs(tmp_path / "jobs"))
    with served_here(app) as running:
        for path in ("/v1/recommendations", "/v1/programs/train.py"):
            reply = running.get(path, format="sh")
            assert (reply.status_code, reply.headers["Retry-After"]) == (503, "60")
            assert reply.text.startswith("export TUNER_NOTHING='nothing is known yet")
            assert running.get(path).json()["detail"].startswith("nothing is known yet")


CORES = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("fact", "value", "stale"),
    [
        ("sandbox", "off", False),
        ("jobs_per_host", "2", False),
        ("cores", f"1 of {CORES}", False),
        ("cores", f"{CORES} of {2 * CORES}", True),  # other hosts of the same CPU and memory
        ("kernel", "another", True),
    ],
)
def test_evidence_is_stale_on_another_machine_and_not_for_its_use_of_this_one(
    tmp_path, monkeypatch, fact, value, stale
):
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    packages = find_runtime(load_framework("caffe")).packages()
    keep(tmp_path, machine=machine_facts(parse_cores("")) | {fact: value}, runtime=packages)
    records = RecordCache(f"sqlite:///{tmp_path}/mlflow.db")
    records.refresh()
    (study,) = records.current.studies
    assert (study.run_id in records.current.stale) == stale


@pytest.mark.parametrize("token", [f"{SECRET}\n", f" {SECRET}", f"{SECRET}é"])
def test_a_token_that_no_client_can_send_is_refused(monkeypatch, tmp_path, token):
    monkeypatch.setenv(TOKEN, token)
    with pytest.raises(ConfigError, match=f"{TOKEN} holds what no client can send"):
        serve(f"sqlite:///{tmp_path}/mlflow.db", host="0.0.0.0", port=0)


@pytest.mark.parametrize("token", ["", "short"])
def test_other_addresses_need_a_token(monkeypatch, tmp_path, token):
    monkeypatch.setenv(TOKEN, token)
    with pytest.raises(ConfigError, match=TOKEN):
        serve(f"sqlite:///{tmp_path}/mlflow.db", host="0.0.0.0", port=0)


def test_an_address_that_is_not_ours_is_one_line(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(ConfigError, match="at most 65535, got 99999"):
        serve(uri, port=99999)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match=r"cannot listen on .*: Address already in use"),
    ):
        serve(uri, port=taken.getsockname()[1])


def test_a_token_that_is_easily_guessed_lets_nobody_in_from_elsewhere(store):
    running = Service(store, **{TOKEN: "short"})
    try:
        right = {"Authorization": "Bearer short"}
        assert running.get("/v1/frameworks").status_code == 401
        assert running.get("/v1/frameworks", headers=right).status_code == 200
        for elsewhere in ({"Host": "tuner.example"}, {"X-Forwarded-For": "192.0.2.1"}):
            assert running.get("/v1/frameworks", headers=right | elsewhere).status_code == 421
    finally:
        running.stop()


def test_with_a_token_nothing_is_told_without_it(store):
    running = Service(store, "host=0.0.0.0", **{TOKEN: SECRET})
    running.address = running.address.replace("0.0.0.0", "127.0.0.1")
    try:
        for sent in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {SECRET}"}):
            for path in ("/", "/v1/recommendations", "/openapi.json", "/v1/metrics"):
                reply = running.get(path, headers=sent)
                assert reply.status_code == 401
                assert "caffe" not in reply.text
        assert running.get("/v1/healthz").status_code == 200
        right = {"Authorization": f"Bearer {SECRET}"}
        assert running.get("/v1/recommendations", headers=right).status_code == 200
        page = requests.get(running.address, auth=("anyone", SECRET), timeout=60)
        assert page.status_code == 200
    finally:
        running.stop()
