"""Search strategies: what to try next, as ask and tell."""

from tuner.search.factored import FactoredSearch
from tuner.search.joint import Driver, JointSearch
from tuner.search.raytune import RayTuneSearch

__all__ = ["Driver", "JointSearch", "FactoredSearch", "RayTuneSearch"]
