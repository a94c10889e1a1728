"""Search strategies: what to try next, as ask and tell."""

from tuner.search.factored import FactoredSearch
from tuner.search.joint import JointSearch

__all__ = ["JointSearch", "FactoredSearch"]
