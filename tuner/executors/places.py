"""Places on the nodes of a Ray cluster: where Ray puts slots, and how many teams of them fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Places = tuple[Sequence[Any], Any]
"""Where Ray puts the slots of a team, and their placement group, if they have one."""


def on_node(node: str) -> Places:
    """Return the place on a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return [NodeAffinitySchedulingStrategy(node, soft=False)], None


def apart(size: int, cpus: int) -> Places:
    """Return places with so many CPUs each, on different nodes."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    placement = ray.util.placement_group([{"CPU": float(cpus)}] * size, strategy="STRICT_SPREAD")
    return [PlacementGroupSchedulingStrategy(placement, index) for index in range(size)], placement


def teams_of(size: int, rooms: Sequence[int]) -> int:
    """Return how many teams of slots on ``size`` different nodes fit into nodes with such room."""
    count = 0
    while sum(min(room, count + 1) for room in rooms) >= size * (count + 1):
        count += 1
    return count
