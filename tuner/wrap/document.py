"""What a study of a program found, as plain values for JSON: ``wrap.json``."""

from __future__ import annotations

from typing import Any

from tuner.measure import fingerprint
from tuner.values.trial import Interval, TrialResult
from tuner.wrap.report import accuracy, command_line, measured
from tuner.wrap.result import WrapResult

VERSION = 1


def document(result: WrapResult) -> dict[str, Any]:
    """Return the report as plain values; version 1."""
    proof = result.proof
    return {
        "version": VERSION,
        "study_id": result.study_id,
        "program": result.program.name,
        "command": list(result.program.argv),
        "command_line": command_line(result),
        "files": dict(result.program.files),
        "measured": measured(result),
        "progress_from": result.source,
        "environment": result.variables,
        "params": result.program.params.values_in(result.best),
        "proven": result.proven,
        "objective": result.objective.value,
        "gain": _interval(proof.gain) if proof else None,
        "costs": list(proof.costs) if proof else None,
        "speedup": _interval(proof.speedup) if proof else None,
        "pairs": proof.pairs if proof else 0,
        "all_disturbed": proof.all_disturbed if proof else None,
        "accuracy": accuracy(result),
        "no_loss": proof.no_loss if proof else None,
        "goal": result.program.goal.name,
        "knobs": [
            {"name": each.knob, "value": each.value, "gain": each.gain} for each in result.effects
        ],
        "gpu": result.gpu,
        "untried": list(result.untried),
        "runs": [_run(result, each) for each in result.runs],
        "machine": dict(result.facts),
        "fingerprint": fingerprint(result.facts),
        "elapsed_s": result.elapsed_s,
    }


def _run(result: WrapResult, run: TrialResult) -> dict[str, Any]:
    measurement = run.measurement
    return {
        "name": run.trial.name,
        "setting": dict(run.trial.params),
        "environment": result.variables_of(run.trial.params),
        "status": run.status.value,
        "reason": run.reason,
        "seconds": measurement and measurement.train_time_s,
        "cpu_s": measurement and measurement.train_cpu_s,
        "peak_memory_bytes": measurement and measurement.peak_memory_bytes,
        "accuracy": run.val_accuracy,
        "figures": dict(run.reported),
        "disturbed": measurement.disturbed if measurement else "",
    }


def _interval(ratio: Interval) -> list[float]:
    return [ratio.value, ratio.low, ratio.high]
