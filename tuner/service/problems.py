"""The problems that the service answers with: what errors become, and how OpenAPI shows them."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from tuner.service.jobs import QueueFull, Unsaved
from tuner.service.responses import Problem
from tuner.values.errors import NothingRecommended, StorageAway, TunerError

PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "no token, or a wrong one"},
    404: {"model": Problem, "description": "nothing on record answers the question"},
    409: {
        "model": Problem,
        "description": "a recorded value is no longer valid, or the requested study cannot run",
    },
    429: {"model": Problem, "description": "too many jobs are waiting"},
    503: {"model": Problem, "description": "results cannot be stored or read at the moment"},
}
"""Answers of a route other than that of success, by status."""
UNREAD: dict[int | str, dict[str, Any]] = {503: PROBLEMS[503]}
"""The same for a route that only reads the store."""


def add_problems(app: FastAPI) -> None:
    """Let the application answer errors with problems."""

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
