"""The routes of claims and outcomes, and what follows from drift."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Response

from tuner.recommendation.evidence import Evidence
from tuner.service.jobs import Jobs
from tuner.service.models import (
    ClaimRequest,
    JobClaim,
    Kept,
    OutcomeRequest,
    Problem,
    RecheckRequest,
    Recommended,
)
from tuner.service.orders import words_of_recheck
from tuner.service.promises import (
    Claim,
    Contradiction,
    Drift,
    Outcome,
    Promises,
    UnknownClaim,
)
from tuner.service.records import RecordCache, Snapshot
from tuner.tracking import mark_drift
from tuner.values.errors import TunerError

_SHOWN = 100  # newest claims
_RECHECK_PAUSE_S = 86400.0  # between two of the same framework, data set and model
_log = logging.getLogger(__name__)
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


def settle_drift(
    records: RecordCache, promises: Promises, jobs: Jobs, words: Sequence[str]
) -> None:
    """Mark studies that drifted in MLflow, and queue their re-check; what fails is tried again.

    Args:
        records: What is on record.
        promises: Where drift is found.
        jobs: The queue.
        words: Overrides of every requested study.
    """
    now = records.current
    for drift in promises.drifts():
        record = next((each for each in now.studies if each.run_id == drift.study), None)
        if record is None:
            continue
        try:
            if not record.drift:
                mark_drift(records.uri, drift.study, drift.how)
            if not drift.recheck:
                found = [each for each in now.evidence if each.study == drift.study]
                promises.queued(drift, _recheck(str(record.front["study_id"]), found, jobs, words))
        except TunerError as error:
            _log.warning("study %s drifted; what follows waits: %s", drift.study, error)


def _recheck(study_id: str, found: Sequence[Evidence], jobs: Jobs, words: Sequence[str]) -> str:
    """Queue a re-check of a study; return its job, or why there is none.

    If the same framework, data set and model were measured again lately, return that job: noisy
    jobs must not keep the machine busy.
    """
    asked = RecheckRequest(kind="recheck", study_id=study_id)
    try:
        whole = words_of_recheck(asked, found, words)
    except TunerError as error:
        return f"none: {error}"
    named = [each for each in whole if each.startswith(("framework=", "dataset=", "model="))]
    for job in jobs.all():
        recent = time.time() - job.submitted < _RECHECK_PAUSE_S
        if recent and job.kind == asked.kind and set(named) <= set(job.words):
            return job.id
    return jobs.submit(asked.kind, whole, asked.model_dump()).id


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
