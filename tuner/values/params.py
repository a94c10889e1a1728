"""The params that are trained with, and what the tuner itself reads from them.

Params go by name, and each framework or program has its own. A few names mean the same in every
framework: ``batch_size`` and ``iterations`` say how much is trained, ``workers`` and ``nodes`` by
how many processes (by one where there is no such param).

Nothing here imports a third-party package, so every package and every executor can use it.
"""

from __future__ import annotations

from collections.abc import Mapping

ParamValue = str | int | float | bool | None
Params = Mapping[str, ParamValue]

UNSET = "unset"
"""The value of ``threads`` (or of a kernel) that sets no variable: the library decides."""

AVERAGE_WEIGHTS = "average_weights"
"""The param that says whether the average of the weights along a training takes their place."""


def text_of(value: ParamValue) -> str:
    """Return a value as a command line or a variable of the environment has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def batch_size_of(params: Params) -> int:
    """Return how many samples an iteration trains on."""
    return int(params["batch_size"] or 1)


def iterations_of(params: Params) -> int:
    """Return how many iterations are trained."""
    return int(params["iterations"] or 1)


def workers_of(params: Params) -> int:
    """Return how many processes train together on each of ``nodes``."""
    return int(params.get("workers") or 1)


def group_size(params: Params) -> int:
    """Return how many processes train together: ``workers`` on each of ``nodes``."""
    return workers_of(params) * nodes_of(params)


def nodes_of(params: Params) -> int:
    """Return on how many machines of a cluster a group trains."""
    return int(params.get("nodes") or 1)


def param_variables(params: Params) -> dict[str, str]:
    """Return the variables that tell a job its params: ``TUNER_PARAM_<NAME>``."""
    return {
        f"TUNER_PARAM_{name.upper()}": text_of(value)
        for name, value in params.items()
        if value is not None
    }
