"""Findings of a framework's earlier studies, worth trying first on other machines and data too.

They are not trusted: such points are trained and timed like all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from tuner.values.params import Params
from tuner.values.space import SearchSpace
from tuner.values.verified import Role

_MAX = 3
_NO_LOSS, _OWN, _ON_FRONT, _NOT_WORTH = range(4)


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
    ranked = [each for front in fronts for each in _ranked(front, model)]
    found: list[dict[str, Any]] = []
    for _, earlier in sorted(ranked, key=itemgetter(0)):  # stable: the most telling study first
        known = {name: value for name, value in earlier.items() if name in space.params}
        params = space.completed({**default, **known})
        if params != default and params not in found and not space.refusal(params):
            found.append(params)
    return found[:_MAX]


def _ranked(front: Mapping[str, Any], model: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the rank and the params of the points worth trying; none of a garbled front."""
    try:
        if front.get("model") != model:
            return []
        ranked = [(_rank(each), dict(each["params"])) for each in front.get("verified", [])]
    except (LookupError, TypeError, ValueError, AttributeError):
        return []
    return [each for each in ranked if each[0] != _NOT_WORTH]


def _rank(point: Mapping[str, Any]) -> int:
    """Return how early a point of a front is tried; the lowest comes first."""
    versus = point.get("comparison")
    if not versus:
        return _NOT_WORTH
    lossless = versus.get("no_loss", versus.get("accuracy_kept"))
    if lossless and (versus["speedup"]["low"] or 0) > 1:
        own = point.get("role") in (Role.RUNTIME_ONLY.value, Role.STOPPED.value)
        return _OWN if own else _NO_LOSS
    return _ON_FRONT if point.get("on_front", 1.0) >= 0.5 else _NOT_WORTH
