"""The routes. Answers come from memory; no part of a request is used as path, code or command."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from tuner import __version__
from tuner.api import answer, configuration, layouts_of
from tuner.config.catalogue import list_frameworks, load_framework
from tuner.recommendation.choice import (
    Limits,
    Recommendation,
    of_newest_data,
    recommend_fresh,
)
from tuner.recommendation.evidence import Evidence
from tuner.recommendation.placement import render, render_observed
from tuner.runtimes import find_runtime
from tuner.service.access import Access
from tuner.service.claims import Balance, Drift, Promised
from tuner.service.drift import DriftWatch
from tuner.service.jobs import COMPLETE, Jobs, QueueFull, StudyJob, Unsaved
from tuner.service.meters import Meters
from tuner.service.middleware import Gate
from tuner.service.models import (
    Answer,
    Framework,
    FrontPoint,
    Health,
    HealthStatus,
    Job,
    Mode,
    Order,
    ParetoQuestion,
    Problem,
    Question,
    StudiesQuestion,
    Study,
    StudyRequest,
)
from tuner.service.orders import words_of_recheck, words_of_study
from tuner.service.outcomes import add_outcomes
from tuner.service.page import render_page
from tuner.service.programs import TEXT, add_programs, answer_for, placed_nothing
from tuner.service.promises import Promises
from tuner.service.records import RecordCache, Snapshot, require_accuracy
from tuner.tracking import StudyRecord
from tuner.values.errors import NothingRecommended, StorageAway, TunerError
from tuner.values.pareto import OBJECTIVES, pareto_front
from tuner.values.scaling import Link
from tuner.wrap.objective import Objective

_STALE_AFTER = 12  # refresh intervals without a successful read until the service is stale
_REMEMBERED = 4096  # answers
_GOALS = (OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"])
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "no token, or a wrong one"},
    404: {"model": Problem, "description": "nothing on record answers the question"},
    409: {
        "model": Problem,
        "description": "a recorded value is no longer valid, or the requested study cannot run",
    },
    429: {"model": Problem, "description": "too many jobs are waiting"},
    503: {"model": Problem, "description": "results cannot be stored or read at the moment"},
}
_PLACED = {**_PROBLEMS, 200: TEXT, 404: {**_PROBLEMS[404], **TEXT}}
_UNREAD: dict[int | str, dict[str, Any]] = {503: _PROBLEMS[503]}


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

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, why: RequestValidationError) -> Response:
        # without what was sent, which may have no form in JSON; the rest in ASCII for that reason
        faults = [{name: each[name] for name in ("type", "loc", "msg")} for each in why.errors()]
        return Response(json.dumps({"detail": faults}), 422, media_type="application/json")

    @app.exception_handler(NothingRecommended)
    async def nothing(_request: Request, why: NothingRecommended) -> JSONResponse:
        problem = {"detail": str(why), "binding": list(why.binding), "nearest": why.nearest}
        return JSONResponse(problem, status_code=404)

    @app.exception_handler(QueueFull)
    def full(_request: Request, why: QueueFull) -> JSONResponse:
        return JSONResponse({"detail": str(why)}, status_code=429, headers={"Retry-After": "60"})

    @app.exception_handler(StorageAway)
    @app.exception_handler(Unsaved)
    def away(_request: Request, why: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(why)}, status_code=503, headers={"Retry-After": "60"})

    @app.exception_handler(TunerError)
    def unusable(_request: Request, why: TunerError) -> JSONResponse:
        return JSONResponse({"detail": str(why)}, status_code=409)

    _add_answers(app, records, framework_path, observe=observe)
    add_outcomes(app, records, promises, observe=observe)
    add_programs(app, records, observe=observe)
    _add_lists(app, records, jobs, framework_path)
    _add_orders(app, records, jobs, words)

    _add_health(app, records, jobs, promises, refresh_s)

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


def _add_health(
    app: FastAPI, records: RecordCache, jobs: Jobs, promises: Promises, refresh_s: float
) -> None:
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


def _add_answers(
    app: FastAPI, records: RecordCache, framework_path: str | None, *, observe: bool
) -> None:
    mode: Mode = "observe" if observe else "apply"

    @functools.lru_cache(_REMEMBERED)
    def configured(framework: str, dataset: str, model: str, params: str) -> dict[str, Any]:
        choice = Evidence(json.loads(params), {}, (), "", framework=framework, model=model)
        return configuration(choice, dataset, framework_path)

    @app.get("/v1/recommendations", tags=["answers"], response_model=Answer, responses=_PLACED)
    async def recommendations(asked: Annotated[Question, Query()]) -> Answer | Response:
        """Recommend the verified configuration that a job should run with, under its limits.

        With ``format`` it is a text for a job to start with. If nothing is recommended, status
        404 comes with a text that sets nothing, so that the job keeps its defaults. A service
        that only observes sends such a text too, with the id under which to report.
        """
        try:
            if asked.bandwidth:  # fits a model first, for which no other answer should wait
                found = await run_in_threadpool(recommended, asked)
            else:
                found = recommended(asked)
        except NothingRecommended as error:
            if asked.format == "json":
                raise
            return placed_nothing(asked.format, error, asked.model_dump())
        if asked.format == "json":
            return found
        form = render_observed if observe else render
        return PlainTextResponse(form(asked.format, found.model_dump(), asked.model_dump()))

    def recommended(asked: Question) -> Answer:
        require_accuracy(asked.dataset)
        now = records.known()
        limits = limits_of(asked)
        evidence = now.evidence_for(asked.framework or "", asked.dataset)
        found = recommend_fresh(evidence, limits, asked.objective, now.stale)
        choice = found.choice
        params = json.dumps(dict(choice.params))
        like = choice.like or asked.dataset
        job = configured(choice.framework, like, choice.model, params)
        stale = choice.study in now.stale or bool(choice.drift)
        link = Link.read(asked.bandwidth, asked.latency_ms) if asked.bandwidth else None
        more = layouts_of(found, limits, link, framework_path)
        return Answer(**answer(found, asked.dataset, job), **more, stale=stale, mode=mode)

    @app.get("/v1/pareto", tags=["answers"], responses=_UNREAD)
    def pareto(asked: Annotated[ParetoQuestion, Query()]) -> list[FrontPoint]:
        """List verified configurations, defaults included, and mark those on the front.

        Only those that were measured with one job per host are listed.
        """
        return front_points(records.known(), asked.framework or "", asked.dataset)


def try_out(alone: Snapshot) -> None:
    """Build all that is ever told of a study; raise an error, of any kind, if that is impossible.

    Args:
        alone: A snapshot of this study alone.
    """
    for each, objective in itertools.product(alone.programs, Objective):
        with contextlib.suppress(NothingRecommended):
            answer_for(alone, each.program, objective).model_dump_json()
    for each in alone.studies:
        study_of(each).model_dump_json()
        json.dumps(each.front, allow_nan=False, ensure_ascii=False).encode()
    for point in alone.evidence:
        job = {"params": dict(point.params), "environment": {}, "settings": ""}
        found = answer(Recommendation(point, ()), point.dataset, job)
        Answer(**found, stale=False).model_dump_json()
        Promised.by(point)
        for shown in front_points(alone, point.framework, point.dataset):
            shown.model_dump_json()
    render_page(alone, [], Balance(), []).encode()


def limits_of(asked: Question) -> Limits:
    """Return the limits of a question."""
    given = asked.model_dump(include={each.name for each in dataclasses.fields(Limits)})
    if asked.max_accuracy_loss == "none":
        given["max_accuracy_loss"] = None
    return Limits(**given)


def front_points(now: Snapshot, framework: str, dataset: str) -> list[FrontPoint]:
    """Return verified configurations (one job per host) on a data set, by training time."""
    known = of_newest_data(now.evidence_for(framework, dataset))
    evidence = [each for each in known if each.jobs_per_host == 1]
    rows = [[each.accuracy, each.train_time_s] for each in evidence]
    front = set(pareto_front(rows, _GOALS)) if rows else set()
    points = [
        FrontPoint(
            **each.summary(),
            name=str(each.figures["name"]),
            study_run_id=each.study,
            verdict=str(each.figures["verdict"]),
            is_default=each.is_default,
            on_front=index in front,
        )
        for index, each in enumerate(evidence)
    ]
    return sorted(points, key=lambda each: each.train_time_s)


def _add_lists(app: FastAPI, records: RecordCache, jobs: Jobs, framework_path: str | None) -> None:
    @app.get("/v1/studies", tags=["record"], responses=_UNREAD)
    def studies(asked: Annotated[StudiesQuestion, Query()]) -> list[Study]:
        """List requested studies that are not complete, then studies on record, newest first."""
        asked_for = [study_of_job(each) for each in jobs.all() if each.state != COMPLETE]
        recorded = [study_of(each) for each in records.known().studies]
        chosen = [
            each
            for each in (*asked_for, *recorded)
            if asked.framework in (None, each.framework) and asked.dataset in (None, each.dataset)
        ]
        return chosen[: asked.limit]

    @app.get("/v1/studies/{study_id}", tags=["record"], responses=_PROBLEMS)
    def study(study_id: str) -> dict[str, Any]:
        """Return a job with its progress, or the newest study of this id on record.

        A study is its ``front.json`` with the ids of the runs behind it.
        """
        job = jobs.get(study_id)
        if job is not None:
            return shown_job(job, jobs).model_dump()
        for each in records.known().studies:
            if study_id in (each.front["study_id"], each.run_id):
                return {**each.front, "run_id": each.run_id, "run_ids": dict(each.run_ids)}
        raise HTTPException(404, "no study of this id is known; /v1/studies lists them")

    @app.get("/v1/frameworks", tags=["record"])
    def frameworks() -> list[Framework]:
        """List what can be tuned, and whether its runtime is installed here."""
        known = [load_framework(name, framework_path) for name in list_frameworks(framework_path)]
        return [
            Framework(
                name=each.name,
                title=each.title,
                runtime=each.runtime.kind,
                installed=find_runtime(each).installed(),
            )
            for each in known
        ]


def _add_orders(app: FastAPI, records: RecordCache, jobs: Jobs, kept: Sequence[str]) -> None:
    @app.post("/v1/studies", tags=["jobs"], status_code=202, responses=_PROBLEMS)
    def submit(order: Annotated[Order, Body()]) -> Job:
        """Queue a study, or a new measurement of a study's finalists.

        The job runs when those before it have ended. ``GET`` with its id shows its progress.
        """
        if isinstance(order, StudyRequest):
            words = words_of_study(order, kept)
        else:
            words = words_of_recheck(order, _verified_by(order.study_id, records.known()), kept)
        asked = order.model_dump(exclude_none=True)
        return shown_job(jobs.submit(order.kind, words, asked), jobs)

    @app.delete("/v1/studies/{job_id}", tags=["jobs"], responses=_PROBLEMS)
    def stop(job_id: str) -> Job:
        """Stop a requested study; what it measured is kept."""
        job = jobs.get(job_id)
        if job is None:
            raise HTTPException(404, "no job of this id is known; /v1/studies lists them")
        return shown_job(jobs.stop(job), jobs)


def _verified_by(study_id: str, now: Snapshot) -> list[Evidence]:
    """Return what the newest study of this id verified."""
    runs = [each.run_id for each in now.studies if each.front["study_id"] == study_id]
    if not runs:
        raise HTTPException(404, "no study of this id is on record; /v1/studies lists them")
    return [each for each in now.evidence if each.study == runs[0]]


def shown_job(job: StudyJob, jobs: Jobs) -> Job:
    """Convert a job to the form that clients see."""
    facts = {name: getattr(job, name) for name in Job.model_fields if name != "progress"}
    return Job(**facts, progress=jobs.progress(job))


def study_of_job(job: StudyJob) -> Study:
    """Summarise a requested study."""
    return Study(
        id=job.id,
        state=job.state,
        framework=job.setting("framework"),
        dataset=job.setting("dataset"),
        model=job.setting("model"),
        ended=job.ended,
    )


def study_of(record: StudyRecord) -> Study:
    """Summarise a study on record."""
    front = record.front
    return Study(
        id=front["study_id"],
        run_id=record.run_id,
        state="complete" if front["complete"] else "cut short",
        ended=record.ended,
        verified=len(front.get("verified", [])),
        **{
            name: front[name]
            for name in (*("framework", "dataset", "model", "trials", "elapsed_s", "warnings"),)
        },
    )
