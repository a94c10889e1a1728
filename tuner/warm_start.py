"""What earlier studies of a framework found: worth trying first, on this machine and data too.

Nothing is believed of it: such points are trained and timed like all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tuner.space import SearchSpace
from tuner.trial import Params

_MOST = 3


def earlier_points(
    fronts: Iterable[Mapping[str, Any]], space: SearchSpace, default: Params, model: str
) -> list[dict[str, Any]]:
    """Verified configurations that beat their default, as far as ``space`` allows them.

    Args:
        fronts: Contents of ``front.json``, the most telling first; they may be of other data sets
            and other machines.
        space: What may be tried here. A runtime setting that this machine does not have is
            replaced by what there is.
        default: Gives what an earlier study did not search.
        model: Only studies of this network count.
    """
    found: list[dict[str, Any]] = []
    for front in fronts:
        if front.get("model") != model:
            continue
        for point in front.get("verified", []):
            if not (point.get("comparison") and point.get("on_front", 1.0) >= 0.5):
                continue
            known = {
                name: value for name, value in point["params"].items() if name in space.params
            }
            params = space.completed({**default, **known})
            if params != default and params not in found and not space.contains(params):
                found.append(params)
    return found[:_MOST]
