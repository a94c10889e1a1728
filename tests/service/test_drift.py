"""What follows from drift, step by step, and that what fails is tried again and logged once."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from tuner.service.claims import Drift
from tuner.service.drift import DriftWatch
from tuner.service.study_job import StudyJob
from tuner.values.errors import ConfigError, StorageAway

DRIFT = Drift("run", 5.0, "3 of 3 jobs broke the promise")
WORDS = ("framework=caffe", "dataset=mnist", "model=lenet", "executor.jobs_per_host=1")
JOB = StudyJob("job-1", "recheck", WORDS, {}, submitted=0.0, state="complete")


class Store:
    """Stands in for the file of claims and for the queue."""

    def __init__(self, *jobs: StudyJob) -> None:
        self.drift, self.jobs, self.fault = DRIFT, list(jobs), ""

    def drifts(self):
        return [self.drift]

    def marked(self, drift):
        self.drift = dataclasses.replace(self.drift, marked=1)

    def queued(self, drift, recheck):
        self.drift = dataclasses.replace(self.drift, recheck=recheck)

    def all(self):
        return self.jobs

    def submit(self, kind, words, request):
        if self.fault:
            raise ConfigError(self.fault)
        self.jobs.append(dataclasses.replace(JOB, id="job-new", words=tuple(words)))
        return self.jobs[-1]


@pytest.fixture
def marks(monkeypatch) -> list[tuple]:
    found: list[tuple] = []
    monkeypatch.setattr("tuner.service.drift.mark_drift", lambda *words: found.append(words))
    monkeypatch.setattr("tuner.service.drift.words_of_recheck", lambda *_: list(WORDS))
    return found


def watch(store: Store, study_id: str = "0badbeef") -> DriftWatch:
    point = SimpleNamespace(
        study="run", framework="caffe", dataset="mnist", model="lenet", jobs_per_host=1
    )
    study = SimpleNamespace(run_id="run", front={"study_id": study_id})
    now = SimpleNamespace(studies=[study], evidence=[point])
    return DriftWatch(SimpleNamespace(current=now, uri="uri"), store, store, [])


def test_a_study_is_marked_once_and_measured_again_once(marks):
    store = Store()
    look = watch(store)
    look()
    look()
    assert marks == [("uri", "run", DRIFT.how, 5.0)]
    assert store.drift.recheck == "job-new"
    assert len(store.jobs) == 1


def test_a_recheck_that_waits_already_is_enough(marks):
    store = Store(dataclasses.replace(JOB, state="queued"))
    watch(store)()
    assert store.drift.recheck == "job-1"
    assert len(store.jobs) == 1


def test_a_second_drift_within_a_day_waits_and_is_measured_then(marks, monkeypatch):
    store = Store(dataclasses.replace(JOB, submitted=1e9))
    look = watch(store)
    monkeypatch.setattr("tuner.service.drift.time.time", lambda: 1e9 + 3600)
    look()
    assert store.drift.recheck == ""
    monkeypatch.setattr("tuner.service.drift.time.time", lambda: 1e9 + 90_000)
    look()
    assert store.drift.recheck == "job-new"


def test_another_kind_of_job_is_no_reason_to_wait(marks, monkeypatch):
    shared = dataclasses.replace(
        JOB, submitted=1e9, words=(*WORDS[:3], "executor.jobs_per_host=2")
    )
    store = Store(shared)
    monkeypatch.setattr("tuner.service.drift.time.time", lambda: 1e9 + 3600)
    watch(store)()
    assert store.drift.recheck == "job-new"


def test_what_fails_is_tried_again_and_logged_once_and_stops_no_other_step(
    marks, monkeypatch, caplog
):
    def away(*_words):
        raise StorageAway("MLflow store cannot be written")

    monkeypatch.setattr("tuner.service.drift.mark_drift", away)
    store = Store()
    look = watch(store)
    look()
    look()
    assert store.drift.recheck == "job-new", "the re-check does not wait for the mark"
    assert caplog.text.count("MLflow store cannot be written") == 1
    monkeypatch.setattr("tuner.service.drift.mark_drift", lambda *_: None)
    look()
    assert store.drift.marked == 1


def test_a_full_queue_is_asked_again(marks):
    store = Store()
    store.fault = "100 jobs are waiting"
    look = watch(store)
    look()
    assert store.drift.recheck == ""
    store.fault = ""
    look()
    assert store.drift.recheck == "job-new"


def test_a_record_that_cannot_be_used_is_told_for_good(marks, monkeypatch):
    def unusable(*_words):
        raise ConfigError("unknown dataset 'animals'")

    monkeypatch.setattr("tuner.service.drift.words_of_recheck", unusable)
    store = Store()
    watch(store)()
    assert store.drift.recheck == "none: unknown dataset 'animals'"


def test_a_study_whose_id_no_request_may_have_is_told_too(marks):
    store = Store()
    watch(store, "../x")()
    assert store.drift.recheck.startswith("none: its study_id is '../x': ")
    assert store.drift.marked == 1
