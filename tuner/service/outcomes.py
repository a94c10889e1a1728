"""The routes by which jobs claim recommendations and report what came of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Response

from tuner.recommendation.evidence import Evidence
from tuner.service.claims import Claim, Drift, Outcome
from tuner.service.promises import Contradiction, Promises, UnknownClaim
from tuner.service.records import RecordCache, Snapshot
from tuner.service.requests import ClaimRequest, OutcomeRequest
from tuner.service.responses import JobClaim, Kept, Problem, Recommended

_SHOWN = 100  # newest claims
_ERRORS: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "no such recommendation, or no claim by this job"},
    409: {"model": Problem, "description": "the job has reported another outcome before"},
    503: {"model": Problem, "description": "it cannot be stored at the moment"},
}


def add_outcomes(app: FastAPI, records: RecordCache, promises: Promises, *, observe: bool) -> None:
    """Add the routes by which jobs claim recommendations and report what came of them.

    Args:
        app: The application.
        records: What is on record.
        promises: Where claims are kept.
        observe: Whether jobs that do not say so only observe.
    """

    @app.get("/v1/recommendations/{recommendation_id}", tags=["outcomes"], responses=_ERRORS)
    def recommendation(recommendation_id: str) -> Recommended:
        """Return how well the promises of a recommendation were kept, and its newest jobs."""
        study = _recommended(records.known(), recommendation_id).study
        drift = next((each for each in promises.drifts() if each.study == study), None)
        return Recommended(
            id=recommendation_id,
            study_run_id=study,
            kept=Kept(**dataclasses.asdict(promises.balance(recommendation_id))),
            drift=drift.how if drift else "",
            recheck=drift.recheck if drift else "",
            jobs=[_shown(each, drift) for each in promises.claims(recommendation_id, _SHOWN)],
        )

    @app.post(
        "/v1/recommendations/{recommendation_id}/claims",
        tags=["outcomes"],
        status_code=201,
        responses={**_ERRORS, 200: {"model": JobClaim, "description": "it was claimed before"}},
    )
    def claim(
        recommendation_id: str, asked: Annotated[ClaimRequest, Body()], response: Response
    ) -> JobClaim:
        """Record that a job starts with a recommendation; a second claim changes nothing (200)."""
        applied = not observe if asked.applied is None else asked.applied
        made, new = promises.claim(
            _recommended(records.known(), recommendation_id), asked.job, applied=applied
        )
        response.status_code = 201 if new else 200
        return _shown(made)

    @app.post(
        "/v1/recommendations/{recommendation_id}/outcomes", tags=["outcomes"], responses=_ERRORS
    )
    def outcome(recommendation_id: str, said: Annotated[OutcomeRequest, Body()]) -> JobClaim:
        """Record how a job ended that claimed a recommendation, and whether its promise was kept.

        If jobs break the promises too often, its study counts as stale, and is measured again.
        """
        came = Outcome(said.train_time_s, said.test_accuracy)
        try:
            return _shown(*promises.end(recommendation_id, said.job, came))
        except UnknownClaim as error:
            raise HTTPException(404, str(error)) from error
        except Contradiction as error:
            raise HTTPException(409, str(error)) from error


def _recommended(now: Snapshot, recommendation_id: str) -> Evidence:
    found = next((each for each in now.evidence if each.id == recommendation_id), None)
    if found is None:
        raise HTTPException(404, "no recommendation of this id is on record")
    return found


def _shown(claim: Claim, drift: Drift | None = None) -> JobClaim:
    facts = dataclasses.asdict(claim)
    longest = facts["promised"]["longest_s"]
    facts["promised"]["longest_s"] = longest if math.isfinite(longest) else None
    return JobClaim(
        **{name: value for name, value in facts.items() if name != "study"},
        study_run_id=claim.study,
        breach=claim.breach,
        drift=drift.how if drift else "",
    )
