"""Tails and quantiles against ``scipy.stats``, which is too slow to import for every command."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from tuner.values.distributions import tail, upper_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3.5, 40, math.inf])
def test_they_are_those_of_scipy(freedom):
    law = stats.norm if math.isinf(freedom) else stats.t(freedom)
    for value in (-3, 0, 0.5, 12):
        assert tail(value, freedom) == pytest.approx(law.sf(value), rel=1e-12)
    for level in (1e-9, 0.025, 0.5, 0.9):
        assert upper_quantile(level, freedom) == pytest.approx(law.isf(level), rel=1e-9, abs=1e-12)
