"""Trials whose group of workers spans nodes: what each node is told, and what comes of all."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.values.trial import Measurement, Trial, TrialKind, TrialResult, TrialStatus

_SUMS = (
    *("cpu_user_s", "cpu_system_s", "cpu_iowait_s", "avg_memory_bytes", "peak_memory_bytes"),
    *("involuntary_switches", "processes_seen", "cores_used", "sent_bytes"),
)
_MEANS = (
    "cpu_user_pct",
    "cpu_system_pct",
    "cpu_iowait_pct",
)
_LARGEST = ("foreign_cpu_pct", "steal_pct", "psi_cpu_pct", "threads_seen")
_VAGUE = (TrialStatus.CRASHED, TrialStatus.INTERRUPTED)
"""How a part also ends because of another one's failure; the vaguer the later."""


@dataclass(frozen=True, slots=True)
class Part:
    """One node's part of a group that spans several.

    Attributes:
        first: Rank of the node's first worker among those of all nodes.
        control: Where the first of all listens, ``address:port``.
        token: What the others prove with that they belong to its group.
        address: This node's own, which the others can reach.
        interface: Interface that has it.
    """

    first: int
    control: str
    token: str
    address: str
    interface: str

    def environment(self) -> dict[str, str]:
        """Return the variables that a worker reads this from, see ``worker_link.Span``."""
        return {
            "TUNER_FIRST": str(self.first),
            "TUNER_CONTROL": self.control,
            "TUNER_TOKEN": self.token,
            "TUNER_ADDRESS": self.address,
            "TUNER_INTERFACE": self.interface,
        }


def along(trial: Trial) -> Trial:
    """Return what nodes other than the first train of a trial: the iterations, and no more.

    The first one evaluates, and decides when to stop.
    """
    return dataclasses.replace(
        trial,
        kind=TrialKind.PROBE,
        test=False,
        train_time_limit_s=None,
        rivals=(),
        curve=0,
        finely=(0, 0),
        test_at=(),
    )


def merged(parts: Sequence[TrialResult], names: Sequence[str]) -> TrialResult:
    """Return the result of a trial from those of its nodes.

    Times and accuracy are the first node's. CPU time, memory, processes and bytes sent are sums.
    The trial failed if a part did; a status that says more than that the group broke comes first.

    Args:
        parts: The nodes' results, the first node's first.
        names: Names of the nodes.
    """
    first = parts[0]
    failed = [
        (result, name) for result, name in zip(parts, names, strict=True) if not result.usable
    ]
    if failed:
        status = min((each.status for each, _ in failed), key=_vagueness)
        reasons = [f"{each.reason} ({name})" for each, name in failed if each.status is status]
        return dataclasses.replace(
            first,
            status=status,
            reason="; ".join(reasons),
            log_tail="\n".join(each.log_tail for each, _ in failed if each.log_tail),
        )
    return dataclasses.replace(
        first, measurement=_whole([each.measurement for each in parts if each.measurement])
    )


def _vagueness(status: TrialStatus) -> int:
    return 1 + _VAGUE.index(status) if status in _VAGUE else 0


def _whole(parts: Sequence[Measurement]) -> Measurement:
    figures: dict[str, Any] = {
        name: combine([getattr(each, name) for each in parts])
        for names, combine in ((_SUMS, sum), (_MEANS, statistics.fmean), (_LARGEST, max))
        for name in names
    }
    disturbed = " and ".join(dict.fromkeys(each.disturbed for each in parts if each.disturbed))
    return dataclasses.replace(parts[0], disturbed=disturbed, **figures)
