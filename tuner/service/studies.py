"""The routes of studies: what can be tuned, what is on record, and what is requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Query

from tuner.config.catalogue import list_frameworks, load_framework
from tuner.recommendation.evidence import Evidence
from tuner.runtimes import find_runtime
from tuner.service.jobs import Jobs
from tuner.service.orders import words_of_recheck, words_of_study
from tuner.service.problems import PROBLEMS, UNREAD
from tuner.service.records import RecordCache, Snapshot
from tuner.service.requests import Order, StudiesQuestion, StudyRequest
from tuner.service.responses import Framework, Job, Study
from tuner.service.study_job import COMPLETE, StudyJob
from tuner.tracking import StudyRecord


def add_studies(
    app: FastAPI,
    records: RecordCache,
    jobs: Jobs,
    framework_path: str | None,
    kept: Sequence[str],
) -> None:
    """Add the routes to the application.

    Args:
        app: The application.
        records: What is on record.
        jobs: The queue of requested studies.
        framework_path: Folder with the user's own frameworks.
        kept: The service's own overrides of every requested study.
    """

    @app.get("/v1/studies", tags=["record"], responses=UNREAD)
    def studies(asked: Annotated[StudiesQuestion, Query()]) -> list[Study]:
        """List requested studies that are not complete, then studies on record, newest first."""
        asked_for = [_study_of_job(each) for each in jobs.all() if each.state != COMPLETE]
        recorded = [study_of(each) for each in records.known().studies]
        chosen = [
            each
            for each in (*asked_for, *recorded)
            if asked.framework in (None, each.framework) and asked.dataset in (None, each.dataset)
        ]
        return chosen[: asked.limit]

    @app.get("/v1/studies/{study_id}", tags=["record"], responses=PROBLEMS)
    def study(study_id: str) -> dict[str, Any]:
        """Return a job with its progress, or the newest study of this id on record.

        A study is its ``front.json`` with the ids of the runs behind it.
        """
        job = jobs.get(study_id)
        if job is not None:
            return _shown_job(job, jobs).model_dump()
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

    _add_orders(app, records, jobs, kept)


def _add_orders(app: FastAPI, records: RecordCache, jobs: Jobs, kept: Sequence[str]) -> None:
    @app.post("/v1/studies", tags=["jobs"], status_code=202, responses=PROBLEMS)
    def submit(order: Annotated[Order, Body()]) -> Job:
        """Queue a study, or a new measurement of a study's finalists.

        The job runs when those before it have ended. ``GET`` with its id shows its progress.
        """
        if isinstance(order, StudyRequest):
            words = words_of_study(order, kept)
        else:
            words = words_of_recheck(order, _verified_by(order.study_id, records.known()), kept)
        asked = order.model_dump(exclude_none=True)
        return _shown_job(jobs.submit(order.kind, words, asked), jobs)

    @app.delete("/v1/studies/{job_id}", tags=["jobs"], responses=PROBLEMS)
    def stop(job_id: str) -> Job:
        """Stop a requested study; what it measured is kept."""
        job = jobs.get(job_id)
        if job is None:
            raise HTTPException(404, "no job of this id is known; /v1/studies lists them")
        return _shown_job(jobs.stop(job), jobs)


def _verified_by(study_id: str, now: Snapshot) -> list[Evidence]:
    """Return what the newest study of this id verified."""
    runs = [each.run_id for each in now.studies if each.front["study_id"] == study_id]
    if not runs:
        raise HTTPException(404, "no study of this id is on record; /v1/studies lists them")
    return [each for each in now.evidence if each.study == runs[0]]


def _shown_job(job: StudyJob, jobs: Jobs) -> Job:
    """Convert a job to the form that clients see."""
    facts = {name: getattr(job, name) for name in Job.model_fields if name != "progress"}
    return Job(**facts, progress=jobs.progress(job))


def _study_of_job(job: StudyJob) -> Study:
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
            for name in ("framework", "dataset", "model", "trials", "elapsed_s", "warnings")
        },
    )
