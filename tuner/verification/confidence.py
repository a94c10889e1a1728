"""The confidence that a verified configuration belongs to the front.

Every figure is an estimate, so the front is a random set. Figures are drawn repeatedly from their
distributions, and it is counted how often no other configuration dominates each one. This is the
empirical attainment function at their places (doi:10.1007/3-540-44719-9_15), by parametric
bootstrap instead of repeated whole studies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.values.pareto import Objective, front_shares

_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """One figure of one configuration, on an axis on which its error is symmetric.

    Attributes:
        value: The estimate; anything that ranks like the figure, such as its logarithm.
        error: Standard error.
        freedom: Degrees of freedom of ``error``; 0 where it is known and not estimated.
    """

    value: float
    error: float = 0.0
    freedom: int = 0


def front_confidence(
    points: Sequence[Sequence[Estimate]], objectives: Sequence[Objective]
) -> list[float]:
    """Return how sure each configuration is to be on the front of them all.

    Args:
        points: Shape (n, m), one row per configuration, columns in the order of ``objectives``.
        objectives: The m objectives.

    Returns:
        Fractions 0–1, shape (n,), with an error of about 0.01; the same for the same points.
    """
    if not points:
        return []
    random = np.random.default_rng(0)
    drawn = np.asarray([[_draw(each, random) for each in row] for row in points])  # (n, m, draws)
    return front_shares(drawn.transpose(2, 0, 1), objectives)


def _draw(estimate: Estimate, random: np.random.Generator) -> np.typing.NDArray[np.float64]:
    if estimate.freedom:
        noise = random.standard_t(estimate.freedom, _DRAWS)
    else:
        noise = random.standard_normal(_DRAWS)
    return np.asarray(estimate.value + estimate.error * noise, dtype=float)
