"""Answers as texts for a job to start with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Response
from fastapi.responses import PlainTextResponse

from tuner.recommendation.placement import render, render_nothing, render_observed
from tuner.values.errors import NothingRecommended, StorageAway, TunerError

TEXT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
"""Description of such an answer."""


def placed(
    form: str, answer: Mapping[str, Any], asked: Mapping[str, Any], *, observe: bool
) -> Response:
    """Return an answer as a text.

    Args:
        form: The form that was asked for.
        answer: The answer.
        asked: The question.
        observe: Whether the text sets nothing but the id under which the job reports.

    Raises:
        ConfigError: If the form cannot hold the answer.
    """
    write = render_observed if observe else render
    return PlainTextResponse(write(form, answer, asked))


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
