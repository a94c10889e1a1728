"""What a study of a program found, in words and as plain values."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.measure import fingerprint
from tuner.progress import format_seconds, printable
from tuner.values.trial import (
    Interval,
    Params,
    Trial,
    TrialKind,
    TrialResult,
    TrialStatus,
    param_variables,
)
from tuner.wrap.comparison import CONFIDENCE, Proof, differ
from tuner.wrap.objective import Objective
from tuner.wrap.params import SEED, holes
from tuner.wrap.result import Tested, WrapResult

VERSION = 1
_FILLED = Trial(0, {})  # the run that the command to use stands for


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
        "files": dict(result.program.files),
        "measured": _measured(result),
        "progress_from": result.source,
        "environment": result.variables,
        "params": result.program.params.values_in(result.best),
        "proven": result.proven,
        "objective": result.objective.value,
        "gain": _ends(proof.gain) if proof else None,
        "costs": list(proof.costs) if proof else None,
        "speedup": _ends(proof.speedup) if proof else None,
        "pairs": proof.pairs if proof else 0,
        "accuracy": accuracy(result),
        "no_loss": proof.no_loss if proof else None,
        "goal": result.program.goal.name,
        "knobs": [
            {"name": each.knob, "value": each.value, "gain": each.gain} for each in result.effects
        ],
        "runs": [
            {
                "name": each.trial.name,
                "setting": dict(each.trial.params),
                "environment": result.variables_of(each.trial.params),
                "status": each.status.value,
                "reason": each.reason,
                "seconds": each.measurement.train_time_s if each.measurement else None,
                "cpu_s": each.measurement.train_cpu_s if each.measurement else None,
                "peak_memory_bytes": each.measurement.peak_memory_bytes
                if each.measurement
                else None,
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
    if proof is None and any(goal.of(each) is not None for each in result.runs):
        return f"{goal.name} was read, but nothing is proven of it"
    if proof is None or proof.reached is None:
        checked = "speed" if result.objective is Objective.TIME else result.objective.used
        return f"{checked} only; accuracy not checked"
    own, changed = map(goal.shown, proof.reached)
    margin = goal.margin_shown(proof.reached[0])
    kept = "no loss is proven" if proof.no_loss else "a loss is not ruled out"
    kept = f"{kept} ({margin} count as none)"
    if proof.no_loss is None:
        kept = "the same in every run, so other seeds may differ"
    return f"{goal.name} {changed} against {own}, {kept}"


def _headline(result: WrapResult) -> Iterator[str]:
    """Yield the answer in a sentence, and the command to use if there is one."""
    proof, name, chosen = result.proof, printable(result.program.name), result.chosen
    without_loss = f" at no loss of {result.program.goal.name}"
    objective = result.objective
    is_better = "is faster" if objective is Objective.TIME else f"uses less {objective.used}"
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
            f"{name}: nothing was found that {is_better}{without_loss}, among {tried} runs with "
            "other params; --budget gives it more seconds."
        )
    elif proof is None:
        yield f"{name}: no setting was found that {is_better} than its own environment."
    elif not result.proven:
        sought = without_loss if result.program.params else ""
        yield (
            f"{name}: no setting is proven to {objective.better}{sought}; the best makes it "
            f"{_gained(objective, proof, 'run', 'use')}."
        )
    else:
        found = without_loss if chosen and chosen.changes_params else ""
        yield f"{name} {_gained(objective, proof, 'runs', 'uses')}{found} with"
        yield ""
        yield f"    {command_line(result)}"
        yield ""
        if SEED in holes(result.program.argv):
            yield f"{{seed}} was filled with {_FILLED.seed} in it; any other number will do."


def _notes(result: WrapResult) -> Iterator[str]:
    """Yield what has to be known beside the answer."""
    known = accuracy(result)
    yield f"Measured: {_measured(result)}. {known[0].upper()}{known[1:]}."
    if result.proof and result.objective is not Objective.TIME:
        yield _price(result.proof)
    if result.program.params and result.chosen and result.chosen.always_alike:
        yield "Nothing can be proven of other seeds: let the program take {seed} or TUNER_SEED."
    yield from _changes(result)
    yield from (_other(result, each) for each in result.tested if each is not result.chosen)
    disturbed = sum(bool(each.measurement and each.measurement.disturbed) for each in result.runs)
    if disturbed and result.objective is not Objective.MEMORY:
        yield (
            f"Others disturbed {disturbed} of {len(result.runs)} runs; a quiet machine, or "
            "--cores that nothing else uses, gives surer answers."
        )
    if result.program.step and result.runs and not result.source:
        step = printable(result.program.step)
        yield f"--step {step} matched nothing in the output, so whole runs were compared."
    if not result.program.confined:
        yield "It ran without a sandbox (--no-sandbox)."


def _changes(result: WrapResult) -> Iterator[str]:
    """Yield the runtime settings that change what is reached, which they should not."""
    goal = result.program.goal
    reached: dict[str, list[float]] = {}
    for each in result.runs:
        figure = goal.of(each) if each.status is TrialStatus.COMPLETE else None
        if figure is not None and not _changed(result, each):
            reached.setdefault(_setting(each.trial.params), []).append(figure)
    own = reached.pop(_setting({}), [])
    level = (1 - CONFIDENCE) / max(len(reached), 1)
    for setting, figures in reached.items():
        if differ(own, figures, goal, level):
            means = [goal.shown(statistics.fmean(each)) for each in (figures, own)]
            yield (
                f"The runtime setting {setting} changes the {goal.name} by itself: {means[0]} "
                f"against {means[1]}, more than seeds explain."
            )


def command_line(result: WrapResult) -> str:
    """Return the program's command with the best setting, as a shell takes it."""
    program = result.program
    in_command = holes(program.argv)
    params = program.params.values_in(result.best)
    others = {name: value for name, value in params.items() if name not in in_command}
    variables = {**result.variables, **param_variables(others)}
    words = [f"{key}={shlex.quote(value)}" for key, value in variables.items()]
    trial = dataclasses.replace(_FILLED, params=result.best)
    return " ".join([*words, shlex.join(program.arguments(trial))])


def _other(result: WrapResult, tested: Tested) -> str:
    if tested.failed:
        found = f"a run failed: {tested.failed.status.value}: {printable(tested.failed.reason)}"
    elif tested.proof is None:
        found = "its runs are not done"
    else:
        gained = _gained(result.objective, tested.proof, "runs", "uses")
        found = f"{gained}; {_kept(result, tested.proof)}"
    return f"Tested as well: {_setting(tested.setting)}: {found}."


def _gained(objective: Objective, proof: Proof, runs: str, uses: str) -> str:
    """Return what a setting gains in words; ``runs`` and ``uses`` are the verbs as they fit in."""
    gain = f"{proof.gain.value:.2f} times"
    sure = _sure(proof, proof.gain)
    if objective is Objective.TIME:
        return f"{runs} {gain} ({sure}) as fast"
    unit = "MiB" if objective is Objective.MEMORY else "s"
    own, changed = map(objective.shown, proof.costs)
    return (
        f"{uses} {gain} less {objective.used} ({changed} {unit} instead of {own} {unit}; {sure})"
    )


def _sure(proof: Proof, ratio: Interval) -> str:
    return (
        f"{100 * proof.confidence:.4g} % interval {ratio.low:.2f} to {ratio.high:.2f}, "
        f"{proof.pairs} pairs of runs"
    )


def _price(proof: Proof) -> str:
    """Return what a setting that was not chosen for its time does to the time."""
    speedup = proof.speedup
    if speedup.high < 1:
        longer = Interval(1 / speedup.value, 1 / speedup.high, 1 / speedup.low)
        return f"It takes {longer.value:.2f} times as long ({_sure(proof, longer)})."
    if speedup.low > 1:
        return f"It also runs {speedup.value:.2f} times as fast ({_sure(proof, speedup)})."
    return (
        f"No difference in time is proven: {speedup.value:.2f} times as fast "
        f"({_sure(proof, speedup)})."
    )


def _ends(ratio: Interval) -> list[float]:
    return [ratio.value, ratio.low, ratio.high]


def _measured(result: WrapResult) -> str:
    whole_runs = result.chosen and result.proof and result.proof.reached
    of = {
        Objective.TIME: "the wall time",
        Objective.CPU: "the CPU time of all processes",
        Objective.MEMORY: "the peak memory of all processes",
    }[result.objective]
    if result.window is None or whole_runs:
        return f"{of} of whole runs"
    source = result.source.removeprefix("hook ")
    by = {"output": "its output", "reports": "its own reports"}.get(source, source)
    window = result.window
    if result.objective is Objective.MEMORY:
        return (
            f"{of} up to step {window.last:,}, counted by {printable(by)}; what comes later was "
            "not seen"
        )
    steps = f"{window.steps:,} steps after the first {window.first:,}, counted by {printable(by)}"
    return steps if result.objective is Objective.TIME else f"{of} in {steps}"


def _knobs(result: WrapResult) -> Iterator[str]:
    if not result.effects:
        return
    yield "What mattered (one run of each setting, so a hint and no proof):"
    width = 2 + max(len(each.knob) for each in result.effects)
    for each in sorted(result.effects, key=lambda each: -each.gain):
        if each.value is None:
            yield f"  {each.knob:<{width}}no effect"
        else:
            yield f"  {each.knob:<{width}}{each.gain:.2f} {_times(result)} with {each.value}"


def _settings(result: WrapResult) -> Iterator[str]:
    """Yield the table of the runtime settings."""
    runs = [each for each in _searched(result) if not _changed(result, each)]
    if not runs or runs[0].measurement is None:
        return
    objective = result.objective
    own = objective.of(runs[0])
    rows = [("setting", *_headings(result), "threads", "")]
    for each in runs:
        measured, cost = each.measurement, objective.of(each)
        setting = _setting(each.trial.params)
        if measured is None or each.status is not TrialStatus.COMPLETE:
            rows.append(_failed(result, setting, "", each))
        else:
            figures = _figures(result, own, cost, measured.train_time_s)
            threads = str(measured.threads_seen or "")
            known = "oversubscribed" if result.is_oversubscribed(each.trial.params) else ""
            notes = ", ".join(filter(None, (known, measured.disturbed)))
            rows.append((setting, *figures, threads, notes))
    yield from _table(rows)


def _params(result: WrapResult) -> Iterator[str]:
    """Yield the table of the params: whole runs at the fastest runtime setting."""
    goal, runs = result.program.goal, _searched(result)
    changed = [each for each in runs if _changed(result, each)]
    if not changed or runs[0].measurement is None:
        return
    objective = result.objective
    own = objective.of_whole(runs[0].measurement)
    rows = [("params", *_headings(result), goal.name, "")]
    for each in (runs[0], *changed):
        figure, measured = goal.of(each), each.measurement
        shown = "" if figure is None else goal.shown(figure)
        params = _setting(result.program.params.part_of(each.trial.params))
        if measured is None or each.status is not TrialStatus.COMPLETE:
            rows.append(_failed(result, params, shown, each))
        else:
            figures = _figures(result, own, objective.of_whole(measured), measured.wall_time_s)
            rows.append((params, *figures, shown, measured.disturbed))
    yield from _table(rows)


def _times(result: WrapResult) -> str:
    return "times as fast" if result.objective is Objective.TIME else "times less"


def _headings(result: WrapResult) -> list[str]:
    """Return the headings of what is minimised, and of the time if that is something else."""
    price = [] if result.objective is Objective.TIME else [Objective.TIME.unit]
    return [result.objective.unit, _times(result), *price]


def _figures(result: WrapResult, own: float, cost: float, took_s: float) -> list[str]:
    """Return the figures below ``_headings``."""
    price = [] if result.objective is Objective.TIME else [format_seconds(took_s)]
    return [result.objective.shown(cost), f"{own / cost:.2f}" if cost else "", *price]


def _failed(result: WrapResult, name: str, shown: str, run: TrialResult) -> tuple[str, ...]:
    """Return the row of a run that has no figures."""
    empty = [""] * len(_headings(result))
    return name, *empty, shown, f"{run.status.value}: {printable(run.reason)}"


def _searched(result: WrapResult) -> list[TrialResult]:
    """Return the runs before the proof: the program as it is, then the others."""
    runs = [each for each in result.runs if each.trial.kind is not TrialKind.VERIFY]
    return sorted(runs, key=lambda each: (not each.trial.is_default, each.trial.number))


def _changed(result: WrapResult, run: TrialResult) -> bool:
    return bool(result.program.params.part_of(run.trial.params))


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    for name, *figures, note in rows:
        shown = "  ".join(
            f"{each:>{width}}" for each, width in zip(figures, widths[1:], strict=True)
        )
        yield f"{name:<{widths[0]}}  {shown}  {note}".rstrip()


def _setting(params: Params) -> str:
    """Return a setting in words, with the names that ``--without`` and ``{name}`` take."""
    return printable(", ".join(f"{name} {value}" for name, value in params.items())) or "as it is"
