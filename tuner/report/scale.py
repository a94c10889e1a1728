"""The vertical scale of plots: linear, or logarithmic in the error of an accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.values.trial import Interval

_FEW_TICKS = 4
_STEPS = (
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    (1.0, 1.2, 1.5, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis.

    Attributes:
        min_error: For accuracies in percent, the error (percent) below which all values are
            drawn at one height. Heights are then minus the decimal logarithm of the error, so
            that 98.8 and 99.1 lie as far apart as 88 and 91. 0 for a linear axis.
    """

    min_error: float = 0.0

    @property
    def is_linear(self) -> bool:
        """Whether heights are the values themselves."""
        return not self.min_error

    def height(self, value: float) -> float:
        """Return where a value is drawn; a larger value is never lower."""
        if self.is_linear:
            return value
        return -math.log10(max(self.min_error, 100.0 - value))

    def interval(self, values: Interval) -> Interval:
        """Return where a value and the ends of its interval are drawn."""
        return Interval(*map(self.height, (values.value, values.low, values.high)))

    def value(self, height: float) -> float:
        """Return the value that is drawn at a height."""
        return height if self.is_linear else 100.0 - 10.0**-height

    def ticks(self, low: float, high: float) -> list[float]:
        """Return ascending round accuracies from ``low`` to ``high``, at least 4 if possible."""
        found: list[float] = []
        for steps in _STEPS:
            round_ones = [each for each in _accuracies(steps) if low <= each <= high]
            found = [each for each in round_ones if 100.0 - each >= self.min_error]
            if len(found) >= _FEW_TICKS:
                break
        return found


LINEAR = Scale()


def error_scale(accuracies: Sequence[float]) -> Scale:
    """Return the scale for accuracies in percent.

    ``min_error`` is half the smallest error above 0, or 0.5 if that is smaller.
    """
    errors = [100.0 - each for each in accuracies if each < 100.0]
    return Scale(min([1.0, *errors]) / 2)


def _accuracies(steps: Sequence[float]) -> list[float]:
    """Return 100 minus each step of the error decades from 0.001 to 10 %, ascending."""
    errors = [step * 10.0**decade for decade in range(-3, 2) for step in steps]
    return sorted(round(100.0 - each, 6) for each in errors)
