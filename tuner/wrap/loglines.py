"""Lines of a program's output that other tools define: MLPerf logging and Syne Tune's reporter.

MLPerf: ``:::MLLOG {"key": "eval_accuracy", "value": 0.97, "time_ms": …, "metadata": {…}}``
(github.com/mlcommons/logging). Syne Tune: ``[tune-metric]: {"epoch": 3, "accuracy": 0.97, …}``
(its ``Reporter``; names that begin with ``st_`` are its own).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

_MLPERF, _SYNE_TUNE = ":::MLLOG ", "[tune-metric]: "
_MLPERF_STEPS = ("step_num", "samples_count", "epoch_num")
_SYNE_TUNE_STEP, _SYNE_TUNE_TIME = "st_worker_iter", "st_worker_time"
_EVALUATED = "eval_"
_MAX_CLOCK = 1e15  # of any clock, in its unit


@dataclass(frozen=True, slots=True)
class LogLine:
    """What a line tells.

    Attributes:
        source: The format.
        step: Steps done so far; ``None`` if it tells none.
        time_s: Time of the step by the program's clock, seconds; ``None`` if it tells none.
        metrics: Figures by name.
    """

    source: str
    step: int | None = None
    time_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def read_log_line(text: str) -> LogLine | None:
    """Return what a line of the output tells; ``None`` if it is in neither format, or damaged."""
    for prefix, read in ((_MLPERF, _mlperf), (_SYNE_TUNE, _syne_tune)):
        _, found, rest = text.partition(prefix)
        if found:
            try:
                return read(dict(json.loads(rest)))
            except (
                *(LookupError, ValueError, TypeError, AttributeError),
                *(OverflowError, RecursionError),
            ):
                return None
    return None


def _mlperf(raw: Mapping[str, Any]) -> LogLine:
    metadata = raw.get("metadata") or {}
    counter = next((each for each in _MLPERF_STEPS if each in metadata), "")
    key, value = str(raw.get("key", "")), raw.get("value")
    metrics = {key: float(value)} if key.startswith(_EVALUATED) and _is_number(value) else {}
    source = f"MLPerf logging, {counter}" if counter else "MLPerf logging"  # units do not mix
    return LogLine(
        source, _whole(metadata.get(counter)), _seconds(raw["time_ms"], 1000.0), metrics
    )


def _syne_tune(raw: Mapping[str, Any]) -> LogLine:
    step, time_s = _whole(raw.get(_SYNE_TUNE_STEP)), raw.get(_SYNE_TUNE_TIME)
    metrics = {
        name: float(value)
        for name, value in raw.items()
        if not name.startswith("st_") and _is_number(value)
    }
    return LogLine(
        "Syne Tune's reporter",
        None if step is None else step + 1,
        None if time_s is None else _seconds(time_s),
        metrics,
    )


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> int | None:
    """Return a number of steps. Raises ``ValueError`` or ``OverflowError`` for no such number."""
    return int(value) if _is_number(value) else None


def _seconds(value: object, a_second: float = 1.0) -> float:
    """Return a time in seconds, given how many units are one; raise ``ValueError`` for none."""
    if not _is_number(value) or not abs(value) < _MAX_CLOCK:
        raise ValueError(f"{value!r} is no time")
    return float(value) / a_second
