"""The rows of a paper's experiment as params to train here, or why one cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.config.paper import PaperConfig, PaperRow
from tuner.report import FIGURES, PaperRun
from tuner.study.entrants import Entrant
from tuner.values.errors import ConfigError, RuntimeUnavailable
from tuner.values.params import UNSET, Params, ParamValue
from tuner.values.ranges import Range
from tuner.values.space import SearchSpace

_PER_CORE = "threads_per_core"
_COUNTS = ("threads", "workers")
"""Params of which a row may ask for more than the search offers: the paper had more cores."""


def check_paper(paper: PaperConfig) -> None:
    """Raise ``ConfigError`` if a declaration names a figure or a row that does not exist.

    Raise it too if the factors of a claim do not fit its groups.
    """
    asked = [*paper.metrics, *(each.figure for each in paper.claims)]
    unknown = [each for each in asked if each not in FIGURES]
    if unknown or not paper.metrics:
        raise ConfigError(
            f"paper.metrics has {unknown[0] if unknown else 'nothing'!r}; "
            f"choose from: {', '.join(FIGURES)}"
        )
    numbers = [number for claim in paper.claims for group in claim.order for number in group]
    if any(not 1 <= number <= len(paper.rows) for number in numbers):
        raise ConfigError(f"paper.claims must name rows from 1 to {len(paper.rows)}: {numbers}")
    for claim in paper.claims:
        if claim.times and (len(claim.times) != len(claim.order) - 1 or min(claim.times) < 1):
            raise ConfigError(
                f"times of paper.claims must be {len(claim.order) - 1} factors of at least 1, one "
                f"for each group after the first, got {claim.times}"
            )


def plan_rows(
    paper: PaperConfig, spaces: Mapping[str, SearchSpace], dataset: str, model: str, cores: int
) -> list[PaperRun]:
    """Return every row with the params to train it with, or with the reason why it is not run.

    Args:
        paper: The declaration.
        spaces: The search spaces by framework; rows of other frameworks are left out.
        dataset: Name of the data set that is used.
        model: ``default`` or ``lenet``.
        cores: CPUs of a trial.

    Raises:
        ConfigError: If no row can be run.
    """
    runs = [_plan(paper, row, spaces, dataset, model, cores) for row in paper.rows]
    if all(each.reason for each in runs):
        raise ConfigError(f"{paper.name} cannot be run here: {reasons_of(runs)}")
    return runs


def without_runtime(runs: Sequence[PaperRun], entrants: Mapping[str, Entrant]) -> list[PaperRun]:
    """Return the rows, those of frameworks that cannot take part with the reason.

    Raises:
        RuntimeUnavailable: If no row can be run.
    """
    checked = [
        each if each.reason else PaperRun(each.row, reason=entrants[each.row.framework].obstacle)
        for each in runs
    ]
    if all(each.reason for each in checked):
        raise RuntimeUnavailable(reasons_of(checked))
    return [now if now.reason else then for now, then in zip(checked, runs, strict=True)]


def reasons_of(runs: Sequence[PaperRun]) -> str:
    """Return why rows are not run, each reason once."""
    return "; ".join(dict.fromkeys(each.reason for each in runs if each.reason))


def _plan(
    paper: PaperConfig,
    row: PaperRow,
    spaces: Mapping[str, SearchSpace],
    dataset: str,
    model: str,
    cores: int,
) -> PaperRun:
    if not row.framework:
        return PaperRun(row, reason=row.absent or "no framework here stands for it")
    if row.framework not in spaces:
        return PaperRun(row, reason="left out by frameworks=")
    space = spaces[row.framework]
    asked = _with_threads({**paper.fixed, **row.params, **row.run}, cores)
    refusal = _refusal(space, asked)
    if refusal:
        return PaperRun(row, reason=refusal)
    try:
        default = space.default(dataset, model).params
    except ConfigError as error:
        return PaperRun(row, reason=str(error))
    params = _completed(space, {**default, **asked})
    over = _oversubscribed(params, cores)
    return PaperRun(row, params, labels=(over,) if over else ())


def _oversubscribed(params: Params, cores: int) -> str:
    """Return how many more threads than cores there are, in words; empty if there are none."""
    threads, workers = (
        count if isinstance(count := params.get(name), int) else 1 for name in _COUNTS
    )
    if workers * threads <= cores:
        return ""
    said = f"{threads} thread{'s' if threads > 1 else ''}"
    said = f"{workers} workers of {said}" if workers > 1 else said
    return f"oversubscribed: {said} on {cores} core{'s' if cores > 1 else ''}"


def _with_threads(asked: dict[str, Any], cores: int) -> dict[str, ParamValue]:
    """Return params with ``threads`` in place of ``threads_per_core``, shared by the workers."""
    share = asked.pop(_PER_CORE, None)
    workers = asked.get("workers")
    if share is not None:
        asked["threads"] = int(share) * cores
    elif isinstance(workers, int) and workers > 1:
        asked.setdefault("threads", max(1, cores // workers))
    return asked


def _completed(space: SearchSpace, params: Params) -> dict[str, ParamValue]:
    """Return params that fit each other; counts stay what was asked for."""
    counts = {name: params[name] for name in _COUNTS if isinstance(params.get(name), int)}
    return {**space.completed(params), **counts}


def _refusal(space: SearchSpace, asked: Params) -> str:
    """Return why a framework cannot train with these params; empty if it can.

    Ranges of the search bind no row: a framework says itself which sizes it cannot train with.
    """
    for name, value in asked.items():
        param = space.params.get(name)
        if param is None:
            return f"the search space of {space.framework} has no param {name!r}"
        count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if isinstance(param, Range):
            number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
            if not (count if param.integer else number):
                return f"{name} must be above 0, got {value!r}"
        elif name in _COUNTS:
            if not (count or value == UNSET):
                return f"{name} must be a whole number from 1 or {UNSET}, got {value!r}"
        elif value not in param.values({**asked}) and value not in _every(param.cases):
            known = ", ".join(dict.fromkeys(map(str, _every(param.cases))))
            return f"{name} of {space.framework} must be one of {known}, got {value!r}"
    return ""


def _every(cases: Mapping[str, tuple[ParamValue, ...]]) -> list[ParamValue]:
    return [value for values in cases.values() for value in values]
