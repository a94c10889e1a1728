"""The routes of recommendations: the configuration for a job, and the front it is chosen from."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from fastapi.concurrency import run_in_threadpool

from tuner.config.catalogue import list_datasets, list_frameworks, load_dataset_config
from tuner.recommendation.answer import answer, configuration, layouts_of
from tuner.recommendation.choice import Limits, of_newest_data, recommend_fresh
from tuner.recommendation.evidence import Evidence
from tuner.service.problems import PROBLEMS, UNREAD
from tuner.service.records import RecordCache, Snapshot
from tuner.service.requests import ParetoQuestion, Question
from tuner.service.responses import Answer, FrontPoint, Mode
from tuner.service.texts import TEXT, placed, placed_nothing
from tuner.values.errors import NothingRecommended, TunerError
from tuner.values.pareto import OBJECTIVES, pareto_front
from tuner.values.scaling import Link

_REMEMBERED = 4096  # answers
_GOALS = (OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"])
_TEXTS: dict[int | str, dict[str, Any]] = {code: PROBLEMS[code] | TEXT for code in (404, 409, 503)}
_PLACED = {**PROBLEMS, 200: TEXT, **_TEXTS}


def add_answers(
    app: FastAPI, records: RecordCache, framework_path: str | None, *, observe: bool
) -> None:
    """Add the routes to the application.

    Args:
        app: The application.
        records: What is on record.
        framework_path: Folder with the user's own frameworks.
        observe: Whether texts for jobs set nothing.
    """
    mode: Mode = "observe" if observe else "apply"

    @functools.lru_cache(_REMEMBERED)
    def configured(framework: str, dataset: str, model: str, params: str) -> dict[str, Any]:
        choice = Evidence(json.loads(params), {}, (), "", framework=framework, model=model)
        return configuration(choice, dataset, framework_path)

    @app.get("/v1/recommendations", tags=["answers"], response_model=Answer, responses=_PLACED)
    async def recommendations(asked: Annotated[Question, Query()]) -> Answer | Response:
        """Recommend the verified configuration that a job should run with, under its limits.

        With ``format`` it is a text for a job to start with. If nothing is recommended (404), or
        the service cannot answer now (409, 503), the text sets nothing, so the job keeps its
        defaults. A service that only observes sends such a text too, with the id under which to
        report.
        """
        try:
            if asked.bandwidth:  # fits a model first, for which no other answer should wait
                found = await run_in_threadpool(recommended, asked)
            else:
                found = recommended(asked)
            if asked.format == "json":
                return found
            return placed(asked.format, found.model_dump(), asked.model_dump(), observe=observe)
        except TunerError as error:
            if asked.format == "json":
                raise
            return placed_nothing(asked.format, error, asked.model_dump())

    def recommended(asked: Question) -> Answer:
        _require_accuracy(asked.dataset)
        now = records.known()
        limits = _limits_of(asked)
        evidence = now.evidence_for(asked.framework or "", asked.dataset)
        if not asked.framework:  # others on record cannot be configured here
            known = list_frameworks(framework_path)
            evidence = [each for each in evidence if each.framework in known]
        found = recommend_fresh(evidence, limits, asked.objective, now.stale)
        choice = found.choice
        params = json.dumps(dict(choice.params))
        like = choice.like or asked.dataset
        job = configured(choice.framework, like, choice.model, params)
        stale = choice.study in now.stale or bool(choice.drift)
        link = Link.read(asked.bandwidth, asked.latency_ms) if asked.bandwidth else None
        more = layouts_of(found, limits, link, framework_path)
        return Answer(**answer(found, asked.dataset, job), **more, stale=stale, mode=mode)

    @app.get("/v1/pareto", tags=["answers"], responses=UNREAD)
    def pareto(asked: Annotated[ParetoQuestion, Query()]) -> list[FrontPoint]:
        """List verified configurations, defaults included, and mark those on the front.

        Only those that were measured with one job per host are listed.
        """
        return front_points(records.known(), asked.framework or "", asked.dataset)


def _require_accuracy(dataset: str) -> None:
    """Raise ``NothingRecommended`` for a shipped text, which perplexity is the measure of."""
    if dataset in list_datasets() and load_dataset_config(dataset).figure != "accuracy":
        raise NothingRecommended(
            f"{dataset} is measured by perplexity, about which the service does not answer; "
            f"python -m tuner recommend dataset={dataset} does"
        )


def _limits_of(asked: Question) -> Limits:
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
