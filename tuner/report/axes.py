"""The axes of plots: which objectives they show, their titles, units and ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.values.pareto import Objective


def choose_axes(objectives: Sequence[Objective]) -> tuple[Objective | None, Objective]:
    """Choose the x and y axes among the first two objectives.

    An accuracy or a perplexity goes on y, else the first objective, as a single one does.
    """
    if len(objectives) == 1:
        return None, objectives[0]
    first, second = objectives[:2]
    if second.is_quality and not first.is_quality:
        return first, second
    return second, first


def is_accuracy(objective: Objective) -> bool:
    """Return whether an objective is an accuracy, which is shown in percent."""
    return objective.metric.endswith("accuracy")


def label(objective: Objective | None) -> str:
    """Return an axis title with its unit: "train time, s"."""
    if objective is None:
        return "trial number"
    words = objective.name.replace("_", " ")
    if is_accuracy(objective):
        return f"{words}, %"
    if objective.is_quality:
        return words
    if words.endswith(" mb"):
        return f"{words.removesuffix(' mb')}, MiB"
    return f"{words.removesuffix(' s')}, s"


def shown(objective: Objective, value: float) -> float:
    """Convert an objective's value to its printed unit: an accuracy becomes percent."""
    return 100 * value if is_accuracy(objective) else value


def quantity(objective: Objective | None, value: float) -> str:
    """Format a drawn value with its unit: "8.1 s", "97.5 %", "trial 4"."""
    return f"trial {value:.0f}" if objective is None else f"{rounded(value)}{_unit(objective)}"


def _unit(objective: Objective) -> str:
    _, comma, unit = label(objective).rpartition(", ")
    return f" {unit}" if comma else ""


def rounded(value: float) -> str:
    """Format with four digits, as a whole number from 10,000 on: 0.0123, 8.1, 12,345."""
    return f"{value:,.4g}" if abs(value) < 9_999.5 else f"{value:,.0f}"


def log_ticks(values: Sequence[float]) -> list[float]:
    """Return 1, 2 and 5 of each decade around the range of ``values``, all above 0."""
    decades = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    return [each for each in ticks if min(values) / 2 <= each <= max(values) * 2]
