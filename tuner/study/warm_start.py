"""What earlier studies of a framework found: worth trying first, on this machine and data too.

Nothing is believed of it: such points are trained and timed like all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tuner.values.space import SearchSpace
from tuner.values.trial import Params
from tuner.values.verified import Role

_MOST = 3
_NO_LOSS, _RUNTIME_ONLY, _ON_FRONT, _NOT_WORTH = range(4)


def earlier_points(
    fronts: Iterable[Mapping[str, Any]], space: SearchSpace, default: Params, model: str
) -> list[dict[str, Any]]:
    """Verified configurations that beat their default, as far as ``space`` allows them.

    First those that were proven faster without loss, then the default's own params at a faster
    runtime setting, then others that are likely on a front.

    Args:
        fronts: Contents of ``front.json``, the most telling first; they may be of other data sets
            and other machines.
        space: What may be tried here. A runtime setting that this machine does not have is
            replaced by what there is.
        default: Gives what an earlier study did not search.
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
        if params != default and params not in found and not space.contains(params):
            found.append(params)
    return found[:_MOST]


def _rank(point: Mapping[str, Any]) -> int:
    """How early a point of a front is tried."""
    versus = point.get("comparison")
    if not versus:
        return _NOT_WORTH
    lossless = versus.get("no_loss", versus.get("accuracy_kept"))
    if lossless and (versus["speedup"]["low"] or 0) > 1:
        runtime_only = point.get("role") == Role.RUNTIME_ONLY.value
        return _RUNTIME_ONLY if runtime_only else _NO_LOSS
    return _ON_FRONT if point.get("on_front", 1.0) >= 0.5 else _NOT_WORTH
