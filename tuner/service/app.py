"""The application: all routes together, and what they need.

Answers come from memory; no part of a request is used as path, code or command.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from tuner import __version__
from tuner.recommendation.answer import answer
from tuner.recommendation.choice import Recommendation
from tuner.recommendation.placement import end_of
from tuner.service.access import Access
from tuner.service.answers import add_answers, front_points
from tuner.service.claims import Balance, Drift, Promised
from tuner.service.drift import DriftWatch
from tuner.service.jobs import Jobs
from tuner.service.liveness import add_liveness
from tuner.service.meters import Meters
from tuner.service.middleware import Gate
from tuner.service.outcomes import add_outcomes
from tuner.service.page import render_page
from tuner.service.problems import add_problems
from tuner.service.programs import add_programs, answer_for
from tuner.service.promises import Promises
from tuner.service.records import RecordCache, Snapshot
from tuner.service.responses import Answer
from tuner.service.studies import add_studies, study_of
from tuner.values.errors import NothingRecommended, StorageAway
from tuner.wrap.objective import Objective


def make_app(
    uri: str,
    jobs: Jobs,
    *,
    words: Sequence[str] = (),
    framework_path: str | None = None,
    token: str = "",
    local: bool = True,
    observe: bool = False,
    refresh_s: float = 5.0,
) -> FastAPI:
    """Create the service as an ASGI application.

    Args:
        uri: MLflow's tracking address.
        jobs: The queue of requested studies.
        words: Overrides of every requested study.
        framework_path: Folder with the user's own frameworks.
        token: What clients must send as ``Authorization: Bearer``; empty if none is needed.
        local: Whether only this machine may use it. Other host names are then refused, so that no
            web page can make a browser send requests (DNS rebinding).
        observe: Whether jobs are only told what they would gain: answers in the form that a job
            starts with set nothing.
        refresh_s: Seconds between two reads of the store.
    """
    records, meters = RecordCache(uri, refresh_s, framework_path, try_out), Meters()
    promises = Promises(jobs.folder / "promises.db")
    records.after = DriftWatch(records, promises, jobs, words)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        with contextlib.closing(promises), jobs, records:
            yield

    app = FastAPI(
        title="tuner",
        version=__version__,
        description="Which configuration should a deep-learning job run with?",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    app.add_middleware(Gate, access=Access(token=token, local=local), meters=meters)

    add_problems(app)
    add_answers(app, records, framework_path, observe=observe)
    add_outcomes(app, records, promises, observe=observe)
    add_programs(app, records, observe=observe)
    add_studies(app, records, jobs, framework_path, words)
    add_liveness(app, records, jobs, promises, refresh_s)

    @app.get("/v1/metrics", tags=["service"], response_class=PlainTextResponse)
    def metrics() -> Response:
        """Return figures of the service itself, for Prometheus."""
        balance, _ = told_of(promises)
        text, kind = meters.exposition(records.current, jobs.all(), balance)
        return Response(text, media_type=kind)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page() -> str:
        return render_page(records.current, jobs.all(), *told_of(promises))

    return app


def told_of(promises: Promises) -> tuple[Balance, list[Drift]]:
    """Return how promises were kept; nothing if that cannot be read, which healthz then tells."""
    try:
        return promises.balance(), promises.drifts()
    except StorageAway:
        return Balance(), []


def try_out(alone: Snapshot) -> None:
    """Build all that is ever told of a study; raise an error, of any kind, if that is impossible.

    Args:
        alone: A snapshot of this study alone.
    """
    for each, objective in itertools.product(alone.programs, Objective):
        with contextlib.suppress(NothingRecommended):
            told = answer_for(alone, each.program, objective)
            told.model_dump_json()
            end_of(told.evidence.expires)
    for each in alone.studies:
        study_of(each).model_dump_json()
        json.dumps(each.front, allow_nan=False, ensure_ascii=False).encode()
    for point in alone.evidence:
        job = {"params": dict(point.params), "environment": {}, "settings": ""}
        found = answer(Recommendation(point, ()), point.dataset, job)
        Answer(**found, stale=False).model_dump_json()
        end_of(found["evidence"]["expires"])
        Promised.by(point)
        for shown in front_points(alone, point.framework, point.dataset):
            shown.model_dump_json()
    render_page(alone, [], Balance(), []).encode()
