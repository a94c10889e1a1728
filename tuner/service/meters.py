"""Figures of the service itself, in Prometheus' format."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import generate_latest as expose

from tuner.service.claims import Balance
from tuner.service.records import Snapshot
from tuner.service.study_job import STATES, StudyJob

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class Meters:
    """Metrics: counted requests, and gauges of jobs and records."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tuner_requests", "Requests answered", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "tuner_request_seconds", "Time to answer", buckets=_BUCKETS, registry=self._registry
        )
        self._studies = self._gauge("tuner_studies", "Studies on record")
        self._points = self._gauge("tuner_verified_configurations", "Verified configurations")
        self._stale = self._gauge("tuner_stale_studies", "Studies of another machine or libraries")
        self._drifted = self._gauge("tuner_drifted_studies", "Studies whose promises jobs broke")
        self._jobs = Gauge("tuner_jobs", "Studies asked for", ["state"], registry=self._registry)
        self._promises = Gauge(
            "tuner_promises",
            "Jobs that claimed a recommendation",
            ["kind"],
            registry=self._registry,
        )
        self._saved = self._gauge(
            "tuner_saved_seconds", "Training time saved against the defaults"
        )
        self._not_saved = self._gauge(
            "tuner_not_saved_seconds", "Training time that observed jobs would have saved"
        )
        self._age = self._gauge("tuner_records_age_seconds", "Since the store was last read")

    def _gauge(self, name: str, words: str) -> Gauge:
        return Gauge(name, words, registry=self._registry)

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.observe(seconds)

    def exposition(
        self, now: Snapshot, jobs: Sequence[StudyJob], balance: Balance
    ) -> tuple[bytes, str]:
        """Return the metrics as text, with their content type."""
        states = Counted(each.state for each in jobs)
        for state in STATES:
            self._jobs.labels(state).set(states[state])
        for kind in ("claimed", "kept", "broken", "failed", "observed"):
            self._promises.labels(kind).set(getattr(balance, kind))
        self._saved.set(balance.saved_s)
        self._not_saved.set(balance.not_saved_s)
        self._drifted.set(sum(bool(each.drift) for each in now.studies))
        self._studies.set(len(now.studies))
        self._points.set(len(now.evidence))
        self._stale.set(len(now.stale))
        self._age.set(now.age_s)
        return expose(self._registry), CONTENT_TYPE_LATEST
