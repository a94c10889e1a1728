"""How the processes of a group exchange gradients, and whether that changes what is learned.

With the exact exchange a group learns what one process learns, however many take part. An exchange
that rounds or drops a part of the gradients, or does not wait for all of them, is lossy: what is
learned then depends on it, and on the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tuner.values.params import Params, ParamValue, group_size

EXACT = "exact"
"""The value of ``exchange`` that changes nothing, and the only one of a single process."""
Lossy = tuple[str, int]
"""A lossy exchange and its number of processes: what trains with it is comparable."""


def lossy(params: Params) -> Lossy | None:
    """Return the lossy exchange that ``params`` train with; ``None`` if theirs is exact."""
    exchange = str(params.get("exchange") or EXACT)
    return None if exchange == EXACT else (exchange, group_size(params))


def group_of(params: Params) -> dict[str, ParamValue]:
    """Return the params that say which group trains, and how it exchanges gradients."""
    names = ("workers", "nodes", "exchange")
    return {name: params[name] for name in names if name in params}


def exact_only(settings: Iterable[dict[str, ParamValue]]) -> list[dict[str, ParamValue]]:
    """Return those of some settings that learn what one process learns."""
    return [each for each in settings if lossy(each) is None]


def changes(params: Params) -> str:
    """Say how a lossy exchange changes what is learned; empty if it is exact."""
    kind = lossy(params)
    return f"{kind[0]} exchange of {kind[1]} workers changes what is learned" if kind else ""
