"""The routes of users' own programs: what is on record, and the proven setting of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from fastapi.responses import PlainTextResponse

from tuner.recommendation.placement import render, render_nothing, render_observed
from tuner.recommendation.programs import recommend_program
from tuner.service.models import Problem, ProgramAnswer, ProgramQuestion
from tuner.service.records import RecordCache, Snapshot
from tuner.values.errors import NothingRecommended, StorageAway, TunerError
from tuner.wrap.objective import Objective

TEXT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
"""Description of an answer as a text for a job."""
_UNREAD = {"model": Problem, "description": "the store was not read yet"}
_ERRORS: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "what is on record has no place in this form", **TEXT},
    503: {**_UNREAD, **TEXT},
}
_NOTHING = {"model": Problem, "description": "no setting of the program is proven", **TEXT}


def add_programs(app: FastAPI, records: RecordCache, *, observe: bool) -> None:
    """Add the routes to the application.

    Args:
        app: The application.
        records: What is on record.
        observe: Whether texts for jobs set nothing.
    """

    @app.get("/v1/programs", tags=["answers"], responses={503: _UNREAD})
    def programs() -> list[str]:
        """List the programs that were tuned, the newest study first."""
        return list(dict.fromkeys(each.program for each in records.known().programs))

    @app.get(
        "/v1/programs/{program}",
        tags=["answers"],
        response_model=ProgramAnswer,
        responses={**_ERRORS, 200: TEXT, 404: _NOTHING},
    )
    def program(program: str, asked: Annotated[ProgramQuestion, Query()]) -> Any:
        """Recommend the setting that `tuner wrap` proved for a program, such as `train.py`.

        With `format` it is a text for a job to start with, as of `/v1/recommendations`.
        """
        named = {"program": program}
        form = render_observed if observe else render
        try:
            found = answer_for(records.known(), program, Objective(asked.objective))
            if asked.format == "json":
                return found
            return PlainTextResponse(form(asked.format, found.model_dump(), named))
        except TunerError as error:
            if asked.format == "json":
                raise
            return placed_nothing(asked.format, error, named)


def answer_for(now: Snapshot, program: str, objective: Objective) -> ProgramAnswer:
    """Return the proven setting of a program.

    Raises:
        NothingRecommended: If none is on record.
    """
    known = [each for each in now.programs if each.program == program]
    return ProgramAnswer(**recommend_program(program, known, objective))


def placed_nothing(form: str, why: TunerError, asked: Mapping[str, Any]) -> Response:
    """Return the text that sets nothing, so that a job keeps its defaults, whatever went wrong.

    Args:
        form: The form that was asked for.
        why: Why there is no answer; it decides the status: 404, 503 or 409.
        asked: The question.
    """
    away = isinstance(why, StorageAway)
    status = 404 if isinstance(why, NothingRecommended) else 503 if away else 409
    headers = {"Retry-After": "60"} if away else {}
    return PlainTextResponse(render_nothing(form, str(why), asked), status, headers)
