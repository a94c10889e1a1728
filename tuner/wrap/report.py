"""What a study of a program found, in words and as plain values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.measure import fingerprint
from tuner.progress import format_seconds, printable
from tuner.values.trial import Params, Trial, TrialKind, TrialResult, TrialStatus, param_variables
from tuner.wrap.comparison import Proof
from tuner.wrap.params import holes
from tuner.wrap.result import Tested, WrapResult

VERSION = 1
SPEED_ONLY = "speed only; accuracy not checked"


def describe(result: WrapResult) -> str:
    """Return the report: the answer, how to use it, what each knob did, and all runs."""
    parts = [
        answer(result),
        "\n".join(_knobs(result)),
        "\n".join(_settings(result)),
        "\n".join(_params(result)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def answer(result: WrapResult) -> str:
    """Return the answer alone: the setting, how it was measured, and what is known of accuracy."""
    return "\n".join([*_headline(result), *_notes(result)])


def document(result: WrapResult) -> dict[str, Any]:
    """Return the report as plain values; version 1."""
    proof = result.proof
    return {
        "version": VERSION,
        "study_id": result.study_id,
        "program": result.program.name,
        "command": list(result.program.argv),
        "command_line": command_line(result),
        "measured": _measured(result),
        "progress_from": result.source,
        "environment": result.variables,
        "params": result.program.params.part_of(result.best),
        "proven": result.proven,
        "speedup": [proof.speedup.value, proof.speedup.low, proof.speedup.high] if proof else None,
        "pairs": proof.pairs if proof else 0,
        "accuracy": accuracy(result),
        "no_loss": proof.no_loss if proof else None,
        "goal": result.program.goal.name,
        "knobs": [
            {"name": each.knob, "value": each.value, "speedup": each.speedup}
            for each in result.effects
        ],
        "runs": [
            {
                "name": each.trial.name,
                "setting": dict(each.trial.params),
                "environment": result.variables_of(each.trial.params),
                "status": each.status.value,
                "reason": each.reason,
                "seconds": each.measurement.train_time_s if each.measurement else None,
                "accuracy": each.val_accuracy,
                "figures": dict(each.reported),
            }
            for each in result.runs
        ],
        "machine": dict(result.facts),
        "fingerprint": fingerprint(result.facts),
        "elapsed_s": result.elapsed_s,
    }


def accuracy(result: WrapResult) -> str:
    """Return what is known of the accuracy, or another goal, in a few words."""
    return _kept(result, result.proof)


def _kept(result: WrapResult, proof: Proof | None) -> str:
    goal = result.program.goal
    if proof is None or proof.reached is None:
        return SPEED_ONLY
    own, changed = map(goal.shown, proof.reached)
    kept = "no loss is proven" if proof.no_loss else "no loss is not proven"
    if proof.no_loss is None:
        kept = "the same in every run, so other seeds may differ"
    return f"{goal.name} {changed} against {own}, {kept}"


def _headline(result: WrapResult) -> Iterator[str]:
    """Yield the answer in a sentence, and the command to use if there is one."""
    proof, name, chosen = result.proof, printable(result.program.name), result.chosen
    without_loss = f" at no loss of {result.program.goal.name}"
    if chosen and chosen.failed:
        status, reason = chosen.failed.status.value, printable(chosen.failed.reason)
        yield f"{name}: nothing is proven, as a run of the proof failed: {status}: {reason}."
    elif proof is None and len(result.runs) < 2:
        yield f"{name}: there was no time to try a setting; --budget gives it more seconds."
    elif proof is None and result.best:
        yield f"{name}: there was no time for a proof; the same command resumes the study."
    elif proof is None and result.program.params:
        tried = sum(_changed(result, each) for each in _searched(result))
        yield (
            f"{name}: nothing was found that is faster{without_loss}, among {tried} runs with "
            "other params; --budget gives it more seconds."
        )
    elif proof is None:
        yield f"{name}: no setting was found that is faster than its own environment."
    elif not result.proven:
        sought = without_loss if result.program.params else ""
        yield (
            f"{name}: no setting is proven to be faster{sought}; the best makes it "
            f"{_interval(proof)} as fast."
        )
    else:
        found = without_loss if chosen and chosen.changes_params else ""
        yield f"{name} runs {_interval(proof)} as fast{found} with"
        yield ""
        yield f"    {command_line(result)}"
        yield ""


def _notes(result: WrapResult) -> Iterator[str]:
    """Yield what has to be known beside the answer."""
    known = accuracy(result)
    yield f"Measured: {_measured(result)}. {known[0].upper()}{known[1:]}."
    if result.program.params and result.chosen and result.chosen.always_alike:
        yield "Nothing can be proven of other seeds: let the program take {seed} or TUNER_SEED."
    yield from (_other(result, each) for each in result.tested if each is not result.chosen)
    disturbed = sum(bool(each.measurement and each.measurement.disturbed) for each in result.runs)
    if disturbed:
        yield (
            f"Others disturbed {disturbed} of {len(result.runs)} runs; a quiet machine, or "
            "--cores that nothing else uses, gives surer answers."
        )
    if not result.program.confined:
        yield "It ran without a sandbox (--no-sandbox)."


def command_line(result: WrapResult) -> str:
    """Return the program's command with the best setting, as a shell takes it."""
    program = result.program
    in_command = holes(program.argv)
    params = program.params.part_of(result.best)
    others = {name: value for name, value in params.items() if name not in in_command}
    variables = {**result.variables, **param_variables(others)}
    words = [f"{key}={shlex.quote(value)}" for key, value in variables.items()]
    return " ".join([*words, shlex.join(program.arguments(Trial(0, result.best)))])


def _other(result: WrapResult, tested: Tested) -> str:
    if tested.failed:
        found = f"a run failed: {tested.failed.status.value}: {printable(tested.failed.reason)}"
    elif tested.proof is None:
        found = "its runs are not done"
    else:
        found = f"{_interval(tested.proof)} as fast; {_kept(result, tested.proof)}"
    return f"Tested as well: {_setting(tested.setting)}: {found}."


def _interval(proof: Proof) -> str:
    speedup = proof.speedup
    return (
        f"{speedup.value:.2f} times ({100 * proof.confidence:.4g} % interval {speedup.low:.2f} to "
        f"{speedup.high:.2f}, {proof.pairs} pairs of runs)"
    )


def _measured(result: WrapResult) -> str:
    whole_runs = result.chosen and result.proof and result.proof.reached
    if result.window is None or whole_runs:
        return "the wall time of whole runs"
    source = result.source.removeprefix("hook ")
    by = {"output": "its output", "reports": "its own reports"}.get(source, source)
    window = result.window
    return f"{window.steps:,} steps after the first {window.first:,}, counted by {printable(by)}"


def _knobs(result: WrapResult) -> Iterator[str]:
    if not result.effects:
        return
    yield "What mattered (one run of each setting, so a hint and no proof):"
    for each in sorted(result.effects, key=lambda each: -each.speedup):
        if each.value is None:
            yield f"  {each.knob:<24}no effect"
        else:
            yield f"  {each.knob:<24}{each.speedup:.2f} times as fast with {each.value}"


def _settings(result: WrapResult) -> Iterator[str]:
    """Yield the table of the runtime settings."""
    runs = [each for each in _searched(result) if not _changed(result, each)]
    if not runs or runs[0].measurement is None:
        return
    own_s = runs[0].measurement.train_time_s
    rows = [("setting", "seconds", "times as fast", "threads", "")]
    for each in runs:
        measured = each.measurement
        if measured is None or each.status is not TrialStatus.COMPLETE:
            figures = ("", "", "", f"{each.status.value}: {printable(each.reason)}")
        else:
            train_s = measured.train_time_s
            figures = (
                format_seconds(train_s),
                _ratio(own_s, train_s),
                str(measured.threads_seen or ""),
                measured.disturbed,
            )
        rows.append((_setting(each.trial.params), *figures))
    yield from _table(rows)


def _params(result: WrapResult) -> Iterator[str]:
    """Yield the table of the params: whole runs at the fastest runtime setting."""
    goal, runs = result.program.goal, _searched(result)
    changed = [each for each in runs if _changed(result, each)]
    if not changed or runs[0].measurement is None:
        return
    own_s = runs[0].measurement.wall_time_s
    rows = [("params", "seconds", "times as fast", goal.name, "")]
    for each in (runs[0], *changed):
        figure, measured = goal.of(each), each.measurement
        shown = "" if figure is None else goal.shown(figure)
        params = _setting(result.program.params.part_of(each.trial.params))
        if measured is None or each.status is not TrialStatus.COMPLETE:
            note = f"{each.status.value}: {printable(each.reason)}"
            rows.append((params, "", "", shown, note))
        else:
            wall_s = measured.wall_time_s
            faster = _ratio(own_s, wall_s)
            rows.append((params, format_seconds(wall_s), faster, shown, measured.disturbed))
    yield from _table(rows)


def _ratio(own_s: float, train_s: float) -> str:
    return f"{own_s / train_s:.2f}" if train_s else ""


def _searched(result: WrapResult) -> list[TrialResult]:
    """Return the runs before the proof: the program as it is, then the others."""
    runs = [each for each in result.runs if each.trial.kind is not TrialKind.VERIFY]
    return sorted(runs, key=lambda each: (not each.trial.is_default, each.trial.number))


def _changed(result: WrapResult, run: TrialResult) -> bool:
    return bool(result.program.params.part_of(run.trial.params))


def _table(rows: Sequence[tuple[str, str, str, str, str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for name, *figures, note in rows:
        shown = "  ".join(
            f"{each:>{width}}" for each, width in zip(figures, widths[1:], strict=True)
        )
        yield f"{name:<{widths[0]}}  {shown}  {note}".rstrip()


def _setting(params: Params) -> str:
    words = [f"{name.replace('_', ' ')} {value}" for name, value in params.items()]
    return printable(", ".join(words)) or "as it is"
