"""Findings of a framework's earlier studies, worth trying first on other machines and data too.

They are not trusted: such points are trained and timed like all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tuner.values.space import SearchSpace
from tuner.values.trial import Params
from tuner.values.verified import Role

_MAX = 3
_NO_LOSS, _RUNTIME_ONLY, _ON_FRONT, _NOT_WORTH = range(4)


def earlier_points(
    fronts: Iterable[Mapping[str, Any]], space: SearchSpace, default: Params, model: str
) -> list[dict[str, Any]]:
    """Return the best verified configurations of earlier studies that ``space`` allows.

    First come those proven faster without loss, then the default's own params at a faster runtime
    setting, then others that are likely on a front.

    Args:
        fronts: Contents of ``front.json`` files, the most telling first; they may come from other
            data sets and machines.
        space: What may be tried here. A runtime setting that this machine lacks is replaced by
            an available one.
        default: Supplies values that an earlier study did not search.
        model: Only studies of this network count.
    """
    points = [
        point
        for front in fronts
        if front.get("model") == model
        for point in front.get("verified", [])
        if _rank(point) != _NOT_WORTH
    ]
    found: list[dict[str, Any]] = []
    for point in sorted(points, key=_rank):  # stable: the most telling study first
        known = {name: value for name, value in point["params"].items() if name in space.params}
        params = space.completed({**default, **known})
        if params != default and params not in found and not space.refusal(params):
            found.append(params)
    return found[:_MAX]


def _rank(point: Mapping[str, Any]) -> int:
    """Return how early a point of a front is tried; the lowest comes first."""
    versus = point.get("comparison")
    if not versus:
        return _NOT_WORTH
    lossless = versus.get("no_loss", versus.get("accuracy_kept"))
    if lossless and (versus["speedup"]["low"] or 0) > 1:
        runtime_only = point.get("role") == Role.RUNTIME_ONLY.value
        return _RUNTIME_ONLY if runtime_only else _NO_LOSS
    return _ON_FRONT if point.get("on_front", 1.0) >= 0.5 else _NOT_WORTH
