"""How fast groups of processes train, next to one process on the same cores."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.values.exchange import EXACT
from tuner.values.params import Params, ParamValue, group_size, nodes_of
from tuner.values.runtime_map import RuntimeMap
from tuner.values.trial import Interval

_Layout = tuple[int, int, ParamValue, str]
"""Processes, nodes that they are on, threads of each, and how they exchange gradients."""


@dataclass(frozen=True, slots=True)
class Group:
    """The pace of so many processes with so many threads each, at one batch size.

    Where processes exchange gradients with a loss, they are a group of its own.

    Attributes:
        workers: Processes that train each batch together, on all nodes.
        nodes: Machines of a cluster that they are on.
        threads: Threads of each, or ``unset``.
        setting: The fastest runtime setting of so many.
        samples_s: Samples consumed a second by all processes together. A batch counts once,
            whoever trains its parts.
        speedup: Times as fast as one process with as many threads as each; ``None`` if that was
            not measured.
        against_one: Times as fast as the fastest single process, whatever its threads: what the
            group is worth on these cores; ``None`` if no single process is in use.
        sent_bytes: Bytes an iteration that the processes sent to each other; 0 if not known.
        exchange: How they exchange gradients; any but ``exact`` changes what is learned.
    """

    workers: int
    nodes: int
    threads: ParamValue
    setting: Params
    samples_s: Interval
    speedup: float | None
    against_one: float | None
    sent_bytes: float
    exchange: str = EXACT

    @property
    def exact(self) -> bool:
        """Whether it learns what one process learns."""
        return self.exchange == EXACT

    @property
    def efficiency(self) -> float | None:
        """``speedup`` for each process: 1 if nothing is lost by sharing the work."""
        return self.speedup / self.workers if self.speedup is not None else None


def groups(known: RuntimeMap, batch_size: int) -> list[Group]:
    """Return the pace of each number of processes and threads that was measured, fastest first.

    Those that exchange gradients with a loss are listed apart from the others.

    Args:
        known: Measured runtime settings.
        batch_size: Samples an iteration, of all processes together.

    Returns:
        The groups, single processes among them; empty if only single processes were measured.
    """
    fastest: dict[_Layout, dict[str, ParamValue]] = {}
    for setting in known.ranked(batch_size):
        if known.was_probed(setting, batch_size):
            fastest.setdefault(_layout(setting), setting)
    if all(workers == 1 for workers, *_ in fastest):
        return []

    def alone_s(threads: ParamValue) -> float | None:
        setting = fastest.get((1, 1, threads, EXACT))
        return known.pace_s(setting, batch_size) if setting else None

    singles = (each for (workers, *_), each in fastest.items() if workers == 1)
    best_s = min((known.pace_s(each, batch_size) for each in singles), default=None)
    found = []
    for (workers, nodes, threads, exchange), setting in fastest.items():
        took, one_s = known.iteration_s(setting, batch_size), alone_s(threads)
        ends_s = took.value, took.high, took.low
        found.append(
            Group(
                workers=workers,
                nodes=nodes,
                threads=threads,
                setting=setting,
                samples_s=Interval(*(batch_size / each for each in ends_s)),
                speedup=one_s / took.value if one_s else None,
                against_one=best_s / took.value if best_s else None,
                sent_bytes=known.sent_bytes(setting, batch_size),
                exchange=exchange,
            )
        )
    return found


def _layout(setting: Params) -> _Layout:
    exchange = str(setting.get("exchange") or EXACT)
    return group_size(setting), nodes_of(setting), setting.get("threads"), exchange
