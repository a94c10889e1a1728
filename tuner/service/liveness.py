"""The routes that tell whether the service works, and how old its data is."""

from __future__ import annotations

import math

from fastapi import FastAPI, Response

from tuner import __version__
from tuner.service.jobs import Jobs
from tuner.service.promises import Promises
from tuner.service.records import RecordCache
from tuner.service.responses import Health, HealthStatus

_STALE_AFTER = 12  # refresh intervals without a successful read until the service is stale


def add_liveness(
    app: FastAPI, records: RecordCache, jobs: Jobs, promises: Promises, refresh_s: float
) -> None:
    """Add the routes to the application.

    Args:
        app: The application.
        records: What is on record.
        jobs: The queue of requested studies.
        promises: Where claims are kept.
        refresh_s: Seconds between two reads of the store.
    """

    @app.get("/v1/livez", tags=["service"], responses={503: {"model": Health}})
    def livez(response: Response) -> Health:
        """Tell whether the service works at all; if not (503), only a restart helps."""
        return judge_health(response, records, jobs, refresh_s, stale_is_bad=False)

    @app.get("/v1/healthz", tags=["service"], responses={503: {"model": Health}})
    def healthz(response: Response) -> Health:
        """Tell whether the service can answer and how old its data is; 503 if that is too old."""
        found = judge_health(response, records, jobs, refresh_s, stale_is_bad=True)
        fault = "; ".join(filter(None, (found.fault, promises.fault)))
        return found.model_copy(update={"fault": fault})


def judge_health(
    response: Response, records: RecordCache, jobs: Jobs, refresh_s: float, *, stale_is_bad: bool
) -> Health:
    """Report the health of the service and set the status of the response.

    Args:
        response: Becomes 503 with ``Retry-After`` if the service is not healthy.
        records: Reads the store, in its own thread.
        jobs: Runs studies, in its own thread.
        refresh_s: Seconds between two reads of the store.
        stale_is_bad: Whether stale data alone makes it unhealthy.
    """
    now = records.current
    dead = [name for name, each in (("records", records), ("jobs", jobs)) if not each.alive]
    status: HealthStatus = "ok"
    if dead:
        status = "failed"
    elif now.age_s > _STALE_AFTER * refresh_s:
        status = "stale"
    if status == "failed" or (status == "stale" and stale_is_bad):
        response.status_code = 503
        response.headers["Retry-After"] = str(math.ceil(refresh_s))
    died = f"the thread of {' and '.join(dead)} has ended" if dead else ""
    return Health(
        status=status,
        version=__version__,
        studies=len(now.studies),
        damaged=len(now.damaged),
        read_s_ago=round(now.age_s, 3) if math.isfinite(now.age_s) else None,
        fault="; ".join(filter(None, (died, now.fault, jobs.fault))),
    )
