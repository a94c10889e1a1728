"""Translation of requests into overrides of ``python -m tuner``."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tuner.config.composing import compose
from tuner.config.validation import validate
from tuner.recommendation.evidence import Evidence
from tuner.service.requests import RecheckRequest, Recorded, StudyRequest
from tuner.values.errors import ConfigError, NothingRecommended

_composing = threading.Lock()  # Hydra keeps its state in globals
_BEFORE_QUOTE = re.compile(r'(\\*)("|\Z)')


def words_of_study(request: StudyRequest, kept: Sequence[str]) -> list[str]:
    """Return the overrides of a study.

    Args:
        request: The requested study.
        kept: The service's own overrides.

    Raises:
        TunerError: If no study can be run with them.
    """
    own = {"kind", "time_s", "jobs_per_host"}
    given = request.model_dump(exclude=own, exclude_none=True)
    words = [
        f"{name}={value if isinstance(value, str) else _quoted(value)}"
        for name, value in given.items()
    ]
    if request.time_s is not None:
        words.append(f"budget.time_s={request.time_s}")
    if request.jobs_per_host > 1:
        words += ["experiment=tenancy", f"executor.jobs_per_host={request.jobs_per_host}"]
    return _checked([*words, *kept])


def words_of_recheck(
    request: RecheckRequest, evidence: Sequence[Evidence], kept: Sequence[str]
) -> list[str]:
    """Return the overrides that measure a study's finalists again, interleaved with the default.

    Each finalist is trained once and then verified as in any study; there is no search.

    Args:
        request: Names the study.
        evidence: Its verified points.
        kept: The service's own overrides.

    Raises:
        NothingRecommended: If it verified nothing but the default.
        ConfigError: If its record holds values that a request may not have.
    """
    finalists = [each for each in evidence if not each.is_default]
    if not finalists:
        raise NothingRecommended(
            f"study {request.study_id} verified nothing that could be checked"
        )
    first = finalists[0]
    try:  # the store is untrusted: it may hold anything, such as ${...}
        known = Recorded.model_validate(
            {
                "framework": first.framework,
                "dataset": first.dataset,
                "model": first.model,
                "jobs_per_host": first.jobs_per_host,
                "points": [dict(each.params) for each in finalists],
            }
        )
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise ConfigError(
            f"the record of study {request.study_id} cannot be used: {where} is "
            f"{fault['input']!r}: {fault['msg']}"
        ) from error
    return _checked(
        [
            f"framework={known.framework}", f"dataset={known.dataset}", f"model={known.model}",
            "search=joint", "search.warm_start=false", f"prior={_quoted(known.points)}",
            f"budget.trials={len(finalists) + 1}", f"verify.finalists={len(finalists)}",
            f"executor.jobs_per_host={known.jobs_per_host}",
            f"seed={secrets.randbelow(2**31)}",  # a new study, not the one before
            *kept,
        ]
    )  # fmt: skip


def _checked(words: list[str]) -> list[str]:
    with _composing:
        validate(compose(words))
    return words


def _quoted(value: Any) -> str:
    """Format a value for an override; texts are always quoted."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_quoted(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_quoted, value)) + "]"
    if isinstance(value, str):  # Hydra takes a backslash as it is, but for those before a quote
        return f'"{_BEFORE_QUOTE.sub(_escaped, value)}"'
    return json.dumps(value)


def _escaped(found: re.Match[str]) -> str:
    return 2 * found[1] + (f"\\{found[2]}" if found[2] else "")


def own_words(uri: str, output: str, framework_path: str | None, more: Sequence[str]) -> list[str]:
    """Return the overrides of all studies, which send results to the service's store.

    Raises:
        TunerError: If no study can be run with them.
    """
    words = [f"tracking_uri={_quoted(uri)}", f"output={_quoted(output)}", "progress=none", *more]
    if framework_path:
        words.append(f"framework_path={framework_path}")
    return _checked(words)
