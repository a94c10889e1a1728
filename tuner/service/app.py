"""The routes. All is answered from memory; nothing of a request is a path, code or a shell's."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from tuner import __version__
from tuner.api import answer, configuration
from tuner.errors import NothingRecommended, TunerError
from tuner.pareto import OBJECTIVES, pareto_front
from tuner.recommendation import Evidence, Limits, recommend
from tuner.registry import list_frameworks, load_framework
from tuner.runtimes import find_runtime
from tuner.service.access import Access
from tuner.service.meters import Meters
from tuner.service.models import (
    Answer,
    Framework,
    FrontPoint,
    Health,
    ParetoQuestion,
    Problem,
    Question,
    StudiesQuestion,
    Study,
)
from tuner.service.page import render_page
from tuner.service.records import Records, Snapshot
from tuner.tracking import StudyRecord

_STALE_AFTER = 12  # looks at the store that may fail before the service calls itself stale
_REMEMBERED = 4096  # answers
_GOALS = (OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"])
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "no token, or a wrong one"},
    404: {"model": Problem, "description": "nothing on record answers the question"},
    409: {"model": Problem, "description": "what is on record cannot be used any more"},
}


def make_app(uri: str, *, token: str = "", local: bool = True, refresh_s: float = 5.0) -> FastAPI:
    """The service as an ASGI application.

    Args:
        uri: MLflow's tracking address.
        token: What clients must send as ``Authorization: Bearer``; empty where none is needed.
        local: Whether it is meant for this machine alone: then other names for it are refused, so
            that no web page can make a browser ask it (DNS rebinding).
        refresh_s: Seconds between two looks at the store.
    """
    records, meters = Records(uri, refresh_s), Meters()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        with records:
            yield

    app = FastAPI(
        title="tuner",
        version=__version__,
        description="Which configuration should a deep-learning job run with?",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    access = Access(token=token, local=local)

    @app.middleware("http")
    async def watched(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        began = time.perf_counter()
        refusal = access.refusal(request)
        response = refusal if refusal is not None else await call_next(request)
        route = getattr(request.scope.get("route"), "path", "other")
        meters.count(route, response.status_code, time.perf_counter() - began)
        response.headers.update(_HEADERS)
        return response

    @app.exception_handler(NothingRecommended)
    def nothing(_request: Request, why: NothingRecommended) -> JSONResponse:
        problem = {"detail": str(why), "binding": list(why.binding), "nearest": why.nearest}
        return JSONResponse(problem, status_code=404)

    @app.exception_handler(TunerError)
    def unusable(_request: Request, why: TunerError) -> JSONResponse:
        return JSONResponse({"detail": str(why)}, status_code=409)

    _add_answers(app, records)
    _add_lists(app, records)

    @app.get("/v1/healthz", tags=["service"])
    def healthz() -> Health:
        """Whether it can answer, and how old what it knows is."""
        now = records.current
        ago = time.time() - now.read_at
        return Health(
            status="stale" if ago > _STALE_AFTER * refresh_s else "ok",
            version=__version__,
            studies=len(now.studies),
            read_s_ago=round(ago, 3),
            fault=now.fault,
        )

    @app.get("/v1/metrics", tags=["service"], response_class=PlainTextResponse)
    def metrics() -> Response:
        """Figures of the service itself, for Prometheus."""
        text, kind = meters.exposition(records.current)
        return Response(text, media_type=kind)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page() -> str:
        return render_page(records.current)

    return app


_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def _add_answers(app: FastAPI, records: Records) -> None:
    @functools.lru_cache(_REMEMBERED)
    def configured(framework: str, dataset: str, model: str, params: str) -> dict[str, Any]:
        choice = Evidence(json.loads(params), {}, (), "", framework=framework, model=model)
        return configuration(choice, dataset)

    @app.get("/v1/recommendations", tags=["answers"], responses=_PROBLEMS)
    def recommendations(asked: Annotated[Question, Query()]) -> Answer:
        """Which verified configuration a job should run with, under its limits."""
        now = records.current
        limits = Limits(**asked.model_dump(exclude={"framework", "dataset", "objective"}))
        evidence = now.evidence_for(asked.framework or "", asked.dataset)
        found = recommend(evidence, limits, asked.objective)
        choice = found.choice
        params = json.dumps(dict(choice.params))
        known = configured(choice.framework, asked.dataset, choice.model, params)
        return Answer(**answer(found, asked.dataset, known), stale=choice.study in now.stale)

    @app.get("/v1/pareto", tags=["answers"])
    def pareto(asked: Annotated[ParetoQuestion, Query()]) -> list[FrontPoint]:
        """All verified configurations, the defaults among them; which are on the front."""
        return front_points(records.current, asked.framework or "", asked.dataset)


def front_points(now: Snapshot, framework: str, dataset: str) -> list[FrontPoint]:
    """Verified configurations on a data set, by training time."""
    evidence = now.evidence_for(framework, dataset)
    rows = [[each.accuracy, each.train_time_s] for each in evidence]
    front = set(pareto_front(rows, _GOALS)) if rows else set()
    points = [
        FrontPoint(
            **each.summary(),
            name=str(each.figures["name"]),
            study_run_id=each.study,
            verdict=str(each.figures["verdict"]),
            is_default=each.figures["name"] == "default",
            on_front=index in front,
        )
        for index, each in enumerate(evidence)
    ]
    return sorted(points, key=lambda each: each.train_time_s)


def _add_lists(app: FastAPI, records: Records) -> None:
    @app.get("/v1/studies", tags=["record"])
    def studies(asked: Annotated[StudiesQuestion, Query()]) -> list[Study]:
        """Studies on record, newest first."""
        chosen = [
            each
            for each in records.current.studies
            if asked.framework in (None, each.front["framework"])
            and asked.dataset in (None, each.front["dataset"])
        ]
        return [study_of(each) for each in chosen[: asked.limit]]

    @app.get("/v1/studies/{study_id}", tags=["record"], responses=_PROBLEMS)
    def study(study_id: str) -> dict[str, Any]:
        """One study whole, the newest of this id: its ``front.json``, and the runs behind it."""
        for each in records.current.studies:
            if study_id in (each.front["study_id"], each.run_id):
                return {**each.front, "run_id": each.run_id, "run_ids": dict(each.run_ids)}
        raise HTTPException(404, "no study of this id is on record; /v1/studies lists them")

    @app.get("/v1/frameworks", tags=["record"])
    def frameworks() -> list[Framework]:
        """What can be tuned, and whether its runtime is installed here."""
        known = [load_framework(name) for name in list_frameworks()]
        return [
            Framework(
                name=each.name,
                title=each.title,
                runtime=each.runtime.kind,
                installed=find_runtime(each).installed(),
            )
            for each in known
        ]


def study_of(record: StudyRecord) -> Study:
    """A study in short."""
    front = record.front
    return Study(
        id=front["study_id"],
        run_id=record.run_id,
        ended=record.ended,
        verified=len(front["verified"]),
        **{
            name: front[name]
            for name in (
                *("framework", "dataset", "model", "complete", "trials", "elapsed_s", "warnings"),
            )
        },
    )
