"""Tails and quantiles of Student's t and the normal distribution.

``scipy.stats`` has them too, and takes half a second to import: every command would wait for it.
"""

from __future__ import annotations

import math

from scipy import special


def tail(value: float, freedom: float = math.inf) -> float:
    """Return the probability of exceeding a value.

    Args:
        value: In standard errors.
        freedom: Degrees of freedom, above 0; infinite for the normal distribution.
    """
    return float(special.ndtr(-value) if math.isinf(freedom) else special.stdtr(freedom, -value))


def upper_quantile(level: float, freedom: float = math.inf) -> float:
    """Return the value (standard errors) that is exceeded with a probability.

    Args:
        level: The probability, 0–1.
        freedom: Degrees of freedom, above 0; infinite for the normal distribution.
    """
    return -float(special.ndtri(level) if math.isinf(freedom) else special.stdtrit(freedom, level))
