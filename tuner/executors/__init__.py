"""Executors: where trials run, how many at once and on which cores."""

from tuner.executors.base import Executor
from tuner.executors.cluster import RayExecutor
from tuner.executors.crowded import CrowdedExecutor
from tuner.executors.local import LocalExecutor, run_undisturbed
from tuner.executors.node import CoreSlot
from tuner.executors.racing import RaceSession

__all__ = [
    "CoreSlot",
    "CrowdedExecutor",
    "Executor",
    "LocalExecutor",
    "RaceSession",
    "RayExecutor",
    "run_undisturbed",
]
