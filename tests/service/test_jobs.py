"""Studies asked of the service: a process of its own runs them, and survives what it must."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from playwright.sync_api import expect, sync_playwright

from tests.conftest import free_port
from tests.served import Service
from tuner.config.catalogue import load_dataset_config
from tuner.config.composing import compose
from tuner.measure import Claim, parse_cores
from tuner.recommendation.evidence import Evidence
from tuner.service.jobs import Jobs, QueueFull, Unsaved
from tuner.service.orders import own_words, words_of_recheck, words_of_study
from tuner.service.requests import RecheckRequest, StudyRequest
from tuner.service.study_job import COMPLETE, FAILED, QUEUED, RUNNING, STOPPED, StudyJob
from tuner.trials.setup import claims_folder
from tuner.values.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
CHROMIUM = shutil.which("chromium")
SYNTHETIC = Path(__file__).parents[1] / "synthetic"
ORDER = {"framework": "synthetic", "dataset": "digits", "time_s": 5, "search": "joint"}
LONGER = {**ORDER, "time_s": 20}
"""One that a busy machine does not see the end of before it looks."""


def start(folder: Path) -> Service:
    return Service(folder, f"framework_path={SYNTHETIC}")


@pytest.fixture
def service(tmp_path) -> Iterator[Service]:
    running = start(tmp_path)
    yield running
    assert running.stop() == (0, "")


def submit(service: Service, **order: Any) -> requests.Response:
    return requests.post(f"{service.address}/v1/studies", json=order, timeout=60)


def delete(service: Service, job_id: str) -> requests.Response:
    return requests.delete(f"{service.address}/v1/studies/{job_id}", timeout=60)


def wait_for(service: Service, job_id: str, wanted: Callable[[dict[str, Any]], bool]) -> dict:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        job = service.get(f"/v1/studies/{job_id}").json()
        if wanted(job):
            return job
        time.sleep(0.2)
    raise AssertionError(job)


def ended(job: dict[str, Any]) -> bool:
    return job["state"] in (COMPLETE, FAILED, STOPPED)


def searching(job: dict[str, Any]) -> bool:
    return job["progress"].get("trials", 0) >= 3


def study_trials(folder: Path) -> dict[str, bytes]:
    """Every finished trial of a home's studies."""
    found = (folder / "home" / "studies").glob("*/trials/*/result.json")
    return {str(path.parent): path.read_bytes() for path in found}


def test_a_study_asked_for_is_run_recorded_and_recommended_then_rechecked(service):
    reply = submit(service, **ORDER)
    assert reply.status_code == 202, reply.text
    assert reply.json()["state"] in (QUEUED, RUNNING)
    job_id = reply.json()["id"]
    seen = wait_for(service, job_id, searching)
    assert seen["state"] == RUNNING
    assert 0 < seen["progress"]["elapsed_s"] <= seen["progress"]["budget_s"] == 5
    assert seen["progress"]["front"][0]["params"]["batch_size"]
    assert service.get("/v1/studies").json()[0]["state"] == RUNNING
    done = wait_for(service, job_id, ended)
    assert done["state"] == COMPLETE, done
    wait_for(service, done["study_id"], lambda study: "verified" in study)
    answer = service.get("/v1/recommendations", dataset="digits").json()
    assert answer["framework"] == "synthetic"
    assert not answer["stale"]

    again = submit(service, kind="recheck", study_id=done["study_id"])
    assert again.status_code == 202, again.text
    checked = wait_for(service, again.json()["id"], ended)
    assert checked["state"] == COMPLETE, checked
    assert checked["study_id"] != done["study_id"]
    new = wait_for(service, checked["study_id"], lambda study: "verified" in study)
    old = service.get(f"/v1/studies/{done['study_id']}").json()
    finalists = [each["params"] for each in old["verified"][1:]]
    assert [each["params"] for each in new["verified"][1:]] == finalists


@pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"
)
def test_the_page_follows_a_study_that_was_asked_for(service):
    long = {**ORDER, "time_s": 60}  # the page looks every two seconds
    first, second = (submit(service, **long, seed=seed).json()["id"] for seed in (1, 2))
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(service.address)
        row, waiting = (page.locator(f"[data-job={each}]") for each in (first, second))
        expect(waiting.locator(".state")).to_have_text(QUEUED)
        expect(row.locator(".state")).to_contain_text("running: search", timeout=60_000)
        expect(row.locator("progress")).to_be_visible()
        assert delete(service, second).status_code == 200
        expect(waiting.locator(".state")).to_have_text(STOPPED, timeout=60_000)
        assert delete(service, first).status_code == 200
        expect(row.locator(".state")).to_contain_text(STOPPED, timeout=60_000)


def test_a_killed_service_goes_on_with_what_was_measured(tmp_path):
    service = start(tmp_path)
    job_id = submit(service, **LONGER).json()["id"]
    wait_for(service, job_id, searching)
    before = study_trials(tmp_path)
    children = psutil.Process(service.process.pid).children(recursive=True)
    service.process.kill()
    service.process.communicate()
    again = start(tmp_path)
    done = wait_for(again, job_id, ended)
    assert done["state"] == COMPLETE, done
    after = study_trials(tmp_path)
    assert before.items() <= after.items(), "no finished trial is lost, changed or doubled"
    assert len(after) > len(before) >= 3
    assert not [each for each in children if each.is_running()]
    assert again.stop() == (0, "")


def test_a_stopped_service_goes_on_too_and_leaves_nothing_running(tmp_path):
    service = start(tmp_path)
    job_id = submit(service, **LONGER).json()["id"]
    wait_for(service, job_id, searching)
    children = psutil.Process(service.process.pid).children(recursive=True)
    assert service.stop() == (0, "")
    assert not [each for each in children if each.is_running()]
    kept = json.loads((tmp_path / "home").glob(f"jobs/*/{job_id}/job.json").__next__().read_text())
    assert kept["state"] == RUNNING
    again = start(tmp_path)
    assert wait_for(again, job_id, ended)["state"] == COMPLETE
    assert again.stop() == (0, "")


def test_a_stopped_job_keeps_its_results_and_lets_the_next_one_run(service, tmp_path):
    long = {**ORDER, "time_s": 60}
    first, second, third = (submit(service, **long, seed=seed).json()["id"] for seed in (1, 2, 3))
    wait_for(service, first, searching)
    assert delete(service, second).json()["state"] == STOPPED, "it had not begun"
    assert delete(service, first).json()["state"] == "stopping"
    assert wait_for(service, first, ended)["state"] == STOPPED
    assert study_trials(tmp_path)
    wait_for(service, third, searching)
    assert service.get(f"/v1/studies/{second}").json()["started"] == 0
    assert delete(service, third).status_code == 200
    wait_for(service, third, ended)
    assert delete(service, third).json()["state"] == STOPPED
    assert delete(service, "job-none").status_code == 404


@pytest.mark.parametrize(
    ("order", "word"),
    [
        ({}, "framework"),
        ({"framework": "../../etc/passwd"}, "framework"),
        ({"framework": "$(reboot)"}, "framework"),
        ({"framework": "caffe", "framework_path": "/tmp"}, "framework_path"),
        ({"framework": "caffe", "output": "/etc"}, "output"),
        ({"framework": "caffe", "tracking_uri": "http://evil.example"}, "tracking_uri"),
        ({"framework": "caffe", "dataset": "mnist;reboot"}, "dataset"),
        ({"framework": "no_such_framework"}, "no_such_framework"),
        ({"framework": "caffe", "dataset": "no_such_data"}, "no_such_data"),
        ({"framework": "caffe", "dataset.path": "/etc"}, "dataset.path"),
        ({"framework": "caffe", "path": "/etc"}, "path"),
        ({"framework": "caffe", "dataset": "/etc"}, "dataset"),
        ({"framework": "caffe", "dataset": "mnist dataset.path=/etc"}, "dataset"),
        ({"framework": "caffe", "dataset": {"path": "/etc"}}, "dataset"),
        ({"framework": "caffe", "search": "factored", "model": "lenet,dataset.path=/"}, "model"),
        ({"framework": "caffe", "time_s": 1e9}, "time_s"),
        ({"framework": "caffe", "goal": "speed"}, "goal"),
        ({"framework": "caffe", "constraints": ["peak_memory_mb<=1`id`"]}, "constraints"),
        ({"framework": "caffe", "constraints": ["no_such_figure<=1"]}, "no_such_figure"),
        ({"framework": "caffe", "objectives": ["accuracy", "accuracy"]}, "distinct"),
        ({"kind": "recheck", "study_id": "../x"}, "study_id"),
        ({"kind": "no_such_kind"}, "kind"),
        ({"kind": ["recheck"]}, "kind"),
    ],
)
def test_what_cannot_be_run_is_refused_before_it_is_queued(refusing, order, word):
    reply = submit(refusing, **order)
    assert reply.status_code in (409, 422), reply.text
    assert word in reply.text
    assert refusing.get("/v1/studies").json() == []


@pytest.fixture(scope="module")
def refusing(tmp_path_factory) -> Iterator[Service]:
    running = start(tmp_path_factory.mktemp("refusing"))
    yield running
    assert running.stop() == (0, "")


def test_jobs_side_by_side_are_asked_for_like_others():
    config = compose(words_of_study(StudyRequest(framework="caffe", jobs_per_host=2), ["seed=3"]))
    assert (config.executor.jobs_per_host, config.search.name, config.seed) == (2, "joint", 3)


def test_no_field_of_an_order_reaches_a_path_of_the_server():
    """Whatever an order may hold, its data set is one that comes with the tuner."""
    fields = {
        "framework": "caffe", "dataset": "digits", "model": "lenet", "search": "joint",
        "goal": "accuracy", "budget": "quick", "time_s": 9.0, "baseline": "full", "seed": 3,
        "objectives": ["accuracy"], "constraints": ["accuracy>=0.5"], "jobs_per_host": 2,
    }  # fmt: skip
    assert set(StudyRequest.model_fields) == {"kind", *fields}, "a new field must be looked at"
    words = words_of_study(StudyRequest(**fields), [])
    assert not [word for word in words if "path" in word]
    assert compose(words).dataset == load_dataset_config("digits")


@pytest.mark.parametrize(("goal", "used"), [(None, "no_loss"), ("accuracy", "accuracy")])
def test_what_is_looked_for_first_may_be_said(goal, used):
    assert compose(words_of_study(StudyRequest(framework="caffe", goal=goal), [])).goal == used


@pytest.mark.parametrize("name", ["josé's", "a, b=[1]", 'a"b', 'a\\"b', "a\\"])
def test_studies_go_into_the_folder_of_the_service_whatever_its_name(tmp_path, name):
    folder = str(tmp_path / name)
    config = compose(own_words(f"sqlite:///{folder}/mlflow.db", folder, None, []))
    assert (config.output, config.tracking_uri) == (folder, f"sqlite:///{folder}/mlflow.db")


def test_a_recheck_of_nothing_is_not_found(refusing):
    assert submit(refusing, kind="recheck", study_id="0123456789").status_code == 404


def test_a_second_service_answers_but_takes_no_jobs(refusing):
    home = Path(str(refusing.process.args[-2]).partition("=")[2])
    second = start(home)
    assert second.get("/v1/studies").status_code == 200
    reply = submit(second, **ORDER)
    assert reply.status_code == 409
    assert "another service" in reply.text
    assert second.stop() == (0, "")


def test_a_second_service_takes_over_when_the_first_ends(tmp_path):
    folder = tmp_path / "jobs" / "store"
    with Jobs(folder) as first, Jobs(folder) as second:
        with pytest.raises(ConfigError, match="another service"):
            second.submit("study", ["framework=x"], {})
        seen = first.submit("study", ["framework=no_such_framework"], {})
        assert _end_of(second, seen).state == FAILED
        first.__exit__()
        deadline = time.monotonic() + 30
        while not second._lock.is_locked and time.monotonic() < deadline:
            time.sleep(0.05)
        job = second.submit("study", ["framework=no_such_framework"], {})
        assert "no_such_framework" in _end_of(second, job).reason
    assert folder.stat().st_mode & 0o77 == 0, "requests may hold passwords"


def test_a_job_that_cannot_be_run_lets_others_pass(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.service.jobs._PAUSE_S", 0.1)
    with Jobs(tmp_path / "jobs" / "store") as jobs:
        with jobs._change:  # before its thread sees the job
            stuck = jobs.submit("study", ["framework=no_such_framework"], {})
            (jobs.folder / stuck.id / "log.txt").mkdir()
        other = jobs.submit("study", ["framework=no_such_framework"], {})
        assert _end_of(jobs, other).state == FAILED
        assert jobs.get(stuck.id).state == QUEUED


def test_the_queue_has_an_end_and_damaged_jobs_stop_no_other(tmp_path):
    folder = tmp_path / "jobs" / "store"
    (folder / "job-damaged").mkdir(parents=True)
    (folder / "job-damaged" / "job.json").write_text("{")
    jobs = Jobs(folder)
    jobs._lock.acquire()  # its thread is not started: nothing is run
    for _ in range(100):
        jobs.submit("study", ["framework=synthetic"], {})
    with pytest.raises(QueueFull, match="100 jobs are waiting"):
        jobs.submit("study", ["framework=synthetic"], {})
    jobs._lock.release()


def test_a_job_whose_process_dies_says_so(tmp_path):
    with Jobs(tmp_path / "jobs" / "store") as jobs:
        job = jobs.submit("study", ["framework=no_such_framework"], {})
        killed = jobs.submit("study", ["framework=synthetic", f"framework_path={SYNTHETIC}"], {})
        assert "no_such_framework" in _end_of(jobs, job).reason
        while jobs.get(killed.id).state == QUEUED or not jobs.get(killed.id).process:
            time.sleep(0.02)
        os.kill(int(jobs.get(killed.id).process[0]), signal.SIGKILL)
        found = _end_of(jobs, killed)
    assert found.state == FAILED
    assert "-9" in found.reason


def test_a_job_waits_while_another_process_has_its_cpus_and_says_so(home, tmp_path):
    words = ["framework=synthetic", f"framework_path={SYNTHETIC}", "dataset=digits"]
    with Claim(parse_cores(""), claims_folder()), Jobs(tmp_path / "jobs" / "store") as jobs:
        job = jobs.submit("study", words, {})
        deadline = time.monotonic() + 60
        while jobs.progress(job).get("phase") != "waiting" and time.monotonic() < deadline:
            time.sleep(0.05)
        assert f"process {os.getpid()}" in jobs.progress(job)["detail"]


def test_a_clock_that_is_set_back_changes_no_order(tmp_path, monkeypatch):
    jobs = Jobs(tmp_path / "jobs" / "store")
    monkeypatch.setattr(jobs, "_thread", threading.Thread(target=lambda: None))
    with jobs:
        first = jobs.submit("study", ["framework=x"], {})
        monkeypatch.setattr(time, "time", lambda: first.submitted - 3600)
        second = jobs.submit("study", ["framework=y"], {})
        assert [each.id for each in jobs.all()] == [second.id, first.id]
        assert jobs._next().id == first.id


def test_a_job_that_cannot_be_begun_waits_until_it_can(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.service.jobs._PAUSE_S", 0.1)
    with Jobs(tmp_path / "jobs" / "store") as jobs:
        with jobs._change:  # before its thread sees the job
            job = jobs.submit("study", ["framework=no_such_framework"], {})
            (tmp_path / "jobs" / "store" / job.id / "log.txt").mkdir()
        until = time.monotonic() + 30
        while not jobs.fault and time.monotonic() < until:
            time.sleep(0.02)
        assert "Is a directory" in jobs.fault
        assert jobs.alive
        (tmp_path / "jobs" / "store" / job.id / "log.txt").rmdir()
        assert "no_such_framework" in _end_of(jobs, job).reason
        until = time.monotonic() + 30
        while jobs.fault and time.monotonic() < until:
            time.sleep(0.02)
        assert jobs.fault == ""


def test_a_job_waits_for_an_mlflow_that_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.service.jobs._PAUSE_S", 0.5)
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    port = free_port("127.0.0.1")
    words = [
        "framework=synthetic", "dataset=digits", f"framework_path={SYNTHETIC}", "search=joint",
        "budget.trials=2", "budget.time_s=30", "verify.finalists=0", "progress=none",
        f"output={tmp_path}", f"tracking_uri=http://127.0.0.1:{port}",
    ]  # fmt: skip
    with Jobs(tmp_path / "jobs" / "store") as jobs:
        job = jobs.submit("study", words, {})
        until = time.monotonic() + 100
        while not jobs.fault and time.monotonic() < until:
            time.sleep(0.05)
        waiting = jobs.get(job.id)
        assert waiting.state == QUEUED
        assert f"127.0.0.1:{port}" in waiting.reason
        assert f"127.0.0.1:{port}" in jobs.fault
        jobs.stop(waiting)
        assert _end_of(jobs, job).state == STOPPED, "who does not want to wait need not"


def test_a_job_that_cannot_be_made_sense_of_fails_alone(tmp_path):
    folder = tmp_path / "jobs" / "store"
    odd = dataclasses.asdict(StudyJob("job-odd", "study", ["framework=x"], {}, 1.0, RUNNING))
    (folder / "job-odd").mkdir(parents=True)
    (folder / "job-odd" / "job.json").write_text(json.dumps({**odd, "process": ["pid", 0]}))
    with Jobs(folder) as jobs:
        job = jobs.submit("study", ["framework=no_such_framework"], {})
        assert _end_of(jobs, job).state == FAILED
        assert jobs.get("job-odd").state == FAILED
        assert "ValueError" in jobs.get("job-odd").reason


def _full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_job_that_cannot_be_kept_is_refused(tmp_path, monkeypatch):
    with Jobs(tmp_path / "jobs" / "store") as jobs:
        monkeypatch.setattr("tuner.service.jobs.write_atomically", _full)
        with pytest.raises(Unsaved, match="No space left"):
            jobs.submit("study", ["framework=x"], {})
        assert jobs.all() == []


def test_nothing_is_left_of_a_refused_job(tmp_path, monkeypatch):
    """It would run after a restart, and beside the one that its client asks for again."""

    def written_but_not_surely(path, text):
        path.write_text(text)
        _full()

    folder = tmp_path / "jobs" / "store"
    with Jobs(folder) as jobs, monkeypatch.context() as patched:
        patched.setattr("tuner.service.jobs.write_atomically", written_but_not_surely)
        with pytest.raises(Unsaved):
            jobs.submit("study", ["framework=x"], {})
        assert list(folder.iterdir()) == []


def test_jobs_that_are_stopped_before_they_run_are_forgotten_too(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.service.jobs._MAX_ENDED", 2)
    monkeypatch.setattr("tuner.service.jobs.subprocess.Popen", _full)  # so that they wait
    with Jobs(tmp_path / "jobs" / "store") as jobs:
        for _ in range(4):
            jobs.stop(jobs.submit("study", ["framework=x"], {}))
        assert len(jobs.all()) == 2


def test_a_job_that_could_not_run_and_was_stopped_is_no_fault_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.service.jobs._PAUSE_S", 0.05)
    monkeypatch.setattr("tuner.service.jobs.subprocess.Popen", _full)
    with Jobs(tmp_path / "jobs" / "store") as jobs:
        job = jobs.submit("study", ["framework=x"], {})
        for faulty in (True, False):
            until = time.monotonic() + 30
            while bool(jobs.fault) is not faulty and time.monotonic() < until:
                time.sleep(0.02)
            assert bool(jobs.fault) is faulty, jobs.fault
            jobs.stop(job)


def test_a_job_whose_stop_cannot_be_kept_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.service.jobs.subprocess.Popen", _full)  # so that it waits
    with Jobs(tmp_path / "jobs" / "store") as jobs:
        job = jobs.submit("study", ["framework=x"], {})
        with monkeypatch.context() as patched:
            patched.setattr("tuner.service.jobs.write_atomically", _full)
            with pytest.raises(Unsaved, match="No space left"):
                jobs.stop(job)
        assert jobs.get(job.id).state == QUEUED
        assert jobs.stop(job).state == STOPPED


@pytest.mark.timeout(60)
def test_a_job_that_is_stopped_while_its_process_starts_is_stopped(tmp_path, monkeypatch):
    stops: list[threading.Thread] = []
    begin = subprocess.Popen

    def stopped_meanwhile(_command, **how):
        stops.append(threading.Thread(target=lambda: jobs.stop(jobs.get("job-1"))))
        stops[-1].start()
        stops[-1].join(0.5)  # it may have to wait
        return begin(["sleep", "100"], **how)

    folder = tmp_path / "jobs" / "store"
    monkeypatch.setattr("tuner.service.jobs.subprocess.Popen", stopped_meanwhile)
    (folder / "job-1").mkdir(parents=True)
    job = StudyJob("job-1", "study", ["framework=x"], {}, submitted=1.0)
    (folder / "job-1" / "job.json").write_text(json.dumps(dataclasses.asdict(job)))
    jobs = Jobs(folder)
    with jobs:
        deadline = time.monotonic() + 50
        while (found := jobs.get("job-1")).process or not found.ended:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
    assert found.state == STOPPED


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_job_whose_process_cannot_be_kept_leaves_none_behind(tmp_path, monkeypatch):
    """It is started again, and may not run twice."""
    started: list[subprocess.Popen] = []
    begin = subprocess.Popen

    def note(*words, **how):
        started.append(begin(*words, **how))
        monkeypatch.setattr("tuner.service.jobs.write_atomically", _full)
        return started[-1]

    with Jobs(tmp_path / "jobs" / "store") as jobs:
        monkeypatch.setattr("tuner.service.jobs.subprocess.Popen", note)
        jobs.submit("study", ["framework=no_such_framework"], {})
        deadline = time.monotonic() + 50
        while len(started) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [each.poll() for each in started[:-1]] == [-signal.SIGKILL]
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"framework": "${oc.env:HOME}"}, "framework is '\\$"),
        ({"framework": "caffe,torch"}, "framework is 'caffe,torch'"),
        ({"dataset": "../x"}, "dataset is '../x'"),
        ({"params": {"blas": "${oc.env:HOME}"}}, "blas.* is '\\$"),
        ({"params": {"x}": 1}}, "x}"),
        ({"params": {"batch_size": [1]}}, "batch_size"),
    ],
)
def test_a_recheck_takes_nothing_over_that_no_request_may_say(changes, fault):
    point = Evidence(
        **{"params": {"batch_size": 64, "blas": "mkl"}, "figures": {"comparison": {}},
           "run_ids": (), "study": "x", "framework": "caffe", "dataset": "mnist", **changes}
    )  # fmt: skip
    asked = RecheckRequest(kind="recheck", study_id="3f9a1c20")
    with pytest.raises(ConfigError, match=fault):
        words_of_recheck(asked, [point], [])


def _end_of(jobs: Jobs, job: StudyJob) -> StudyJob:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = jobs.get(job.id)
        assert found is not None
        if found.ended:
            return found
        time.sleep(0.05)
    raise AssertionError(jobs.get(job.id))
