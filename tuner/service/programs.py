"""The routes of users' own programs: what is on record, and the proven setting of one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query

from tuner.recommendation.programs import recommend_program
from tuner.service.records import RecordCache, Snapshot
from tuner.service.requests import ProgramQuestion
from tuner.service.responses import Problem, ProgramAnswer
from tuner.service.texts import TEXT, placed, placed_nothing
from tuner.values.errors import TunerError
from tuner.wrap.objective import Objective

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
        try:
            found = answer_for(records.known(), program, Objective(asked.objective))
            if asked.format == "json":
                return found
            return placed(asked.format, found.model_dump(), named, observe=observe)
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
