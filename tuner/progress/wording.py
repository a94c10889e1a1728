"""Params, trials and figures in a reader's words, the same in progress and in reports."""

from __future__ import annotations

import re

from tuner.values.exchange import EXACT
from tuner.values.params import UNSET, Params, ParamValue
from tuner.values.trial import TrialResult, TrialStatus

_LEFT_OUT: Params = {
    "blas_kernel": UNSET, "workers": 1, "nodes": 1, "exchange": EXACT, "bucket_cap_mb": UNSET,
    "bytes_per_pack": 0, "average_weights": False,
}  # fmt: skip
"""Values that go without saying."""
_WORDS = {
    "batch_size": "batch {}",
    "iterations": "{} iterations",
    "learning_rate": "lr {}",
    "average_weights": "averaged weights",
    "blas": "{}",
    "blas_kernel": "kernel {}",
    "workers": "{} workers",
    "nodes": "{} nodes",
    "exchange": "{} exchange",
    "bucket_cap_mb": "buckets of {} MiB",
    "bytes_per_pack": "packs of {} bytes",
}
_KNOWN = ("batch_size", "iterations", "learning_rate", "blas", "threads", "blas_kernel")


def printable(text: str) -> str:
    """Return ``text`` on one line, without control characters that could control a terminal."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text).split())


def format_seconds(seconds: float) -> str:
    """Format seconds with three significant digits and without the unit: 0.123, 21.3, 1,234."""
    digits = 0 if seconds >= 99.95 else 1 if seconds >= 9.995 else 2 if seconds >= 0.9995 else 3
    return f"{seconds:,.{digits}f}"


def describe_params(params: Params) -> str:
    """Describe params in a few words: "batch 64, 2,300 iterations, lr 0.012, mkl, 2 threads".

    An unset kernel, a single worker, an exact exchange, unset buckets, a single pack and weights
    that are not averaged are left out; unset threads are named, as they are a choice of their own.
    """
    words = [_describe(name, value) for name, value in params.items()]
    return ", ".join(word for word in words if word)


ABBREVIATED = "batch × iterations, lr, blas/threads"
"""Heading of what ``abbreviate_params`` returns."""


def abbreviate_params(params: Params) -> str:
    """Describe params for a table: "64 × 2,300, lr 0.012, mkl/2"; further ones follow by name."""
    text = {name: printable(_format_value(value)) for name, value in params.items()}
    sizes = [text[name] for name in ("batch_size", "iterations") if name in text]
    words = [" × ".join(sizes)]
    if "learning_rate" in text:
        words.append(f"lr {text['learning_rate']}")
    library = [text[name] for name in ("blas", "threads") if name in text]
    if params.get("blas_kernel") not in (None, UNSET):
        library.append(text["blas_kernel"])
    words.append("/".join(library))
    words += [_describe(name, value) for name, value in params.items() if name not in _KNOWN]
    return ", ".join(word for word in words if word)


def _describe(name: str, value: ParamValue) -> str:
    if name in _LEFT_OUT and value in (None, _LEFT_OUT[name]):
        return ""
    text = printable(_format_value(value))
    if name == "threads" and value not in (None, UNSET):
        return f"{text} thread{'' if value == 1 else 's'}"
    if name in _WORDS:
        return _WORDS[name].format(text)
    return f"{printable(name).replace('_', ' ')} {text}"


def _format_value(value: ParamValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return UNSET if value is None else value


def describe_outcome(result: TrialResult) -> str:
    """Describe the outcome of a trial: "accuracy 98.61 %, 21.3 s", or its status and reason."""
    if not result.usable or result.measurement is None:
        return f"{result.status.value}: {printable(result.reason)}".rstrip(": ")
    words, quality = [], result.quality
    if result.test_accuracy is not None:
        words.append(f"test {quality.name} {quality.shown(result.test_accuracy)}")
    elif result.val_accuracy is not None:
        words.append(f"{quality.name} {quality.shown(result.val_accuracy)}")
    words.append(f"{format_seconds(result.measurement.train_time_s)} s")
    if result.trial.share < 1:
        words.append(f"projected from {100 * result.trial.share:.3g} % of the iterations")
    if result.status is TrialStatus.STOPPED:
        words.append(
            f"stopped after {result.iterations:,} iterations"
            if result.iterations
            else f"ended early: {printable(result.reason)}"  # it tells no steps
        )
    if result.measurement.disturbed:
        words.append(f"disturbed: {printable(result.measurement.disturbed)}")
    return ", ".join(words)
