"""What a study of a program found, in words and as plain values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from tuner.progress import format_seconds, printable
from tuner.values.trial import Params, TrialKind, TrialResult, TrialStatus
from tuner.wrap.comparison import CONFIDENCE
from tuner.wrap.result import WrapResult

VERSION = 1
SPEED_ONLY = "speed only; accuracy not checked"


def describe(result: WrapResult) -> str:
    """Return the report: the answer, how to use it, what each knob did, and all settings."""
    parts = [answer(result), "\n".join(_knobs(result)), "\n".join(_table(result))]
    return "\n\n".join(part for part in parts if part) + "\n"


def answer(result: WrapResult) -> str:
    """Return the answer alone: the setting, how it was measured, and what is known of accuracy."""
    return "\n".join(_answer(result))


def document(result: WrapResult) -> dict[str, Any]:
    """Return the report as plain values; version 1."""
    proof = result.proof
    return {
        "version": VERSION,
        "study_id": result.study_id,
        "command": list(result.program.argv),
        "measured": _measured(result),
        "progress_from": result.source,
        "environment": dict(result.variables),
        "proven": result.proven,
        "speedup": [proof.speedup.value, proof.speedup.low, proof.speedup.high] if proof else None,
        "pairs": proof.pairs if proof else 0,
        "accuracy": accuracy(result),
        "knobs": [
            {"name": each.knob, "value": each.value, "speedup": each.speedup}
            for each in result.effects
        ],
        "runs": [
            {
                "name": each.trial.name,
                "setting": dict(each.trial.params),
                "status": each.status.value,
                "reason": each.reason,
                "seconds": each.measurement.train_time_s if each.measurement else None,
                "accuracy": each.val_accuracy,
            }
            for each in result.runs
        ],
        "machine": dict(result.facts),
        "elapsed_s": result.elapsed_s,
    }


def accuracy(result: WrapResult) -> str:
    """Return what is known of the accuracy, in a few words."""
    proof = result.proof
    if proof is None or proof.accuracy is None:
        return SPEED_ONLY
    own, changed = proof.accuracy
    kept = "no loss is proven" if proof.no_loss else "no loss is not proven"
    if proof.no_loss is None:
        kept = "the same in every run, so other seeds may differ"
    return f"accuracy {changed:.2%} against {own:.2%}, {kept}".replace("%", " %")


def _answer(result: WrapResult) -> Iterator[str]:
    proof, name = result.proof, printable(result.program.name)
    if result.failed is not None:
        status, reason = result.failed.status.value, printable(result.failed.reason)
        yield f"{name}: nothing is proven, as a run of the proof failed: {status}: {reason}."
    elif proof is None and len(result.runs) < 2:
        yield f"{name}: there was no time to try a setting; --budget gives it more seconds."
    elif proof is None and result.best:
        yield f"{name}: there was no time for a proof; the same command resumes the study."
    elif proof is None:
        yield f"{name}: no setting was found that is faster than its own environment."
    elif not proof.faster:
        yield (
            f"{name}: no setting is proven to be faster; the best makes it "
            f"{_interval(result)} as fast."
        )
    else:
        yield f"{name} runs {_interval(result)} as fast with"
        yield ""
        words = [f"{key}={shlex.quote(value)}" for key, value in result.variables.items()]
        yield f"    {' '.join(words)} {shlex.join(result.program.argv)}"
        yield ""
    known = accuracy(result)
    yield f"Measured: {_measured(result)}. {known[0].upper()}{known[1:]}."
    disturbed = sum(bool(each.measurement and each.measurement.disturbed) for each in result.runs)
    if disturbed:
        yield (
            f"Others disturbed {disturbed} of {len(result.runs)} runs; a quiet machine, or "
            "--cores that nothing else uses, gives surer answers."
        )
    if not result.program.confined:
        yield "It ran without a sandbox (--no-sandbox)."


def _interval(result: WrapResult) -> str:
    assert result.proof is not None
    speedup = result.proof.speedup
    return (
        f"{speedup.value:.2f} times ({CONFIDENCE:.0%} interval {speedup.low:.2f} to "
        f"{speedup.high:.2f}, {result.proof.pairs} pairs of runs)"
    ).replace("%", " %")


def _measured(result: WrapResult) -> str:
    if result.window is None:
        return "the wall time of whole runs"
    source = result.source.removeprefix("hook ")
    by = {"output": "its output", "reports": "its own reports"}.get(source, source)
    window = result.window
    return f"{window.steps:,} steps after the first {window.first:,}, counted by {by}"


def _knobs(result: WrapResult) -> Iterator[str]:
    if not result.effects:
        return
    yield "What mattered (one run of each setting, so a hint and no proof):"
    for each in sorted(result.effects, key=lambda each: -each.speedup):
        if each.value is None:
            yield f"  {each.knob:<24}no effect"
        else:
            yield f"  {each.knob:<24}{each.speedup:.2f} times as fast with {each.value}"


def _table(result: WrapResult) -> Iterator[str]:
    runs = [each for each in result.runs if each.trial.kind is not TrialKind.VERIFY]
    default = next((each for each in runs if each.trial.kind is TrialKind.DEFAULT), None)
    if default is None or default.measurement is None:
        return
    rows = [
        ("setting", "seconds", "times as fast", "threads", ""),
        *((_setting(each.trial.params), *_figures(each, default)) for each in runs),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for setting, seconds, ratio, threads, note in rows:
        yield (
            f"{setting:<{widths[0]}}  {seconds:>{widths[1]}}  {ratio:>{widths[2]}}  "
            f"{threads:>{widths[3]}}  {note}"
        ).rstrip()


def _setting(params: Params) -> str:
    words = [f"{name.replace('_', ' ')} {value}" for name, value in params.items()]
    return printable(", ".join(words)) or "as it is"


def _figures(run: TrialResult, default: TrialResult) -> tuple[str, str, str, str]:
    measured, own = run.measurement, default.measurement
    assert own is not None
    if measured is None or run.status is not TrialStatus.COMPLETE:
        return "", "", "", f"{run.status.value}: {printable(run.reason)}"
    return (
        format_seconds(measured.train_time_s),
        f"{own.train_time_s / measured.train_time_s:.2f}",
        str(measured.threads_seen or ""),
        measured.disturbed,
    )
