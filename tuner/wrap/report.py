"""What a study of a program found, in words: the answer, what is known of it, and the tables."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
from collections.abc import Iterator

from tuner.progress import printable
from tuner.values.params import param_variables
from tuner.values.trial import Interval, Trial, TrialStatus
from tuner.wrap.comparison import CONFIDENCE, Proof, differ
from tuner.wrap.objective import Objective
from tuner.wrap.params import SEED, holes
from tuner.wrap.result import Tested, WrapResult
from tuner.wrap.tables import knob_table, param_table, setting_table, setting_words

_FILLED = Trial(0, {})  # the run that the command to use stands for


def describe(result: WrapResult) -> str:
    """Return the report: the answer, how to use it, what each knob did, and all runs."""
    parts = [
        answer(result),
        "\n".join(knob_table(result)),
        "\n".join(setting_table(result)),
        "\n".join(param_table(result)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def answer(result: WrapResult) -> str:
    """Return the answer alone: the setting, how it was measured, and what is known of accuracy."""
    return "\n".join([*_headline(result), *_notes(result)])


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


def accuracy(result: WrapResult) -> str:
    """Return what is known of the accuracy, or another goal, in a few words."""
    return _kept(result, result.proof)


def measured(result: WrapResult) -> str:
    """Return what was measured: which figure, and of which steps if not of whole runs."""
    whole_runs = result.chosen and result.proof and result.proof.reached
    of = {
        Objective.TIME: "the wall time",
        Objective.CPU: "the CPU time of all processes",
        Objective.MEMORY: "the peak memory of all processes",
    }[result.objective]
    if result.gpu == "used" and result.objective is Objective.MEMORY:
        of += " on the host, without that of the GPU,"
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
        tried = sum(result.changes_params(each) for each in result.searched)
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
        if proof.all_disturbed and objective.depends_on_others:
            yield (
                "The proof rests on disturbed runs alone: other work took time from each of "
                "them. --restart on a quiet machine measures again."
            )
        if SEED in holes(result.program.argv):
            yield f"{{seed}} was filled with {_FILLED.seed} in it; any other number will do."


def _notes(result: WrapResult) -> Iterator[str]:
    """Yield what has to be known beside the answer."""
    known = accuracy(result)
    yield f"Measured: {measured(result)}. {known[0].upper()}{known[1:]}."
    if result.proof and result.objective is not Objective.TIME:
        yield _price(result.proof)
    if result.program.params and result.chosen and result.chosen.always_alike:
        yield "Nothing can be proven of other seeds: let the program take {seed} or TUNER_SEED."
    yield from _changes_of_quality(result)
    yield from (_also_tested(result, each) for each in result.tested if each is not result.chosen)
    if disturbed := sum(map(result.objective.is_disturbed, result.runs)):
        yield (
            f"Others disturbed {disturbed} of {len(result.runs)} runs; a quiet machine, or "
            "--cores that nothing else uses, gives surer answers."
        )
    if result.untried and len(result.runs) > 1:
        names = ", ".join(map(printable, result.untried))
        yield f"There was no time to try all of {names}; --budget gives it more seconds."
    if result.program.step and result.runs and not result.source:
        step = printable(result.program.step)
        yield f"--step {step} matched nothing in the output, so whole runs were compared."
    if result.gpu == "hidden":
        yield (
            "Measured on the CPU: the sandbox hid this machine's GPU, whose libraries the program "
            "loads; --allow-gpu shows it the GPU."
        )
    if not result.program.confined:
        yield "It ran without a sandbox (--no-sandbox)."


def _kept(result: WrapResult, proof: Proof | None) -> str:
    """Return what a proof says of the figure that must not get worse."""
    goal = result.program.goal
    if proof is None and any(goal.of(each) is not None for each in result.runs):
        return f"{goal.name} was read, but nothing is proven of it"
    if proof is None or proof.reached is None:
        checked = "speed" if result.objective is Objective.TIME else result.objective.used
        return f"{checked} only; accuracy not checked"
    own, changed = map(goal.shown, proof.reached)
    if proof.no_loss is None:
        kept = "the same in every run, so other seeds may differ"
    else:
        kept = "no loss is proven" if proof.no_loss else "a loss is not ruled out"
        kept = f"{kept} ({goal.margin_shown(proof.reached[0])} count as none)"
    return f"{goal.name} {changed} against {own}, {kept}"


def _changes_of_quality(result: WrapResult) -> Iterator[str]:
    """Yield the runtime settings that change what is reached, which they should not."""
    goal = result.program.goal
    reached: dict[str, list[float]] = {}
    for each in result.runs:
        figure = goal.of(each) if each.status is TrialStatus.COMPLETE else None
        if figure is not None and not result.changes_params(each):
            reached.setdefault(setting_words(each.trial.params), []).append(figure)
    own = reached.pop(setting_words({}), [])
    level = (1 - CONFIDENCE) / max(len(reached), 1)
    for setting, figures in reached.items():
        if differ(own, figures, goal, level):
            means = [goal.shown(statistics.fmean(each)) for each in (figures, own)]
            yield (
                f"The runtime setting {setting} changes the {goal.name} by itself: {means[0]} "
                f"against {means[1]}, more than seeds explain."
            )


def _also_tested(result: WrapResult, tested: Tested) -> str:
    """Return what was found of a setting that is not the answer."""
    if tested.failed:
        found = f"a run failed: {tested.failed.status.value}: {printable(tested.failed.reason)}"
    elif tested.proof is None:
        found = "its runs are not done"
    else:
        gained = _gained(result.objective, tested.proof, "runs", "uses")
        found = f"{gained}; {_kept(result, tested.proof)}"
    return f"Tested as well: {setting_words(tested.setting)}: {found}."


def _gained(objective: Objective, proof: Proof, runs: str, uses: str) -> str:
    """Return what a setting gains in words; ``runs`` and ``uses`` are the verbs as they fit in."""
    gain = f"{proof.gain.value:.2f} times"
    sure = _certainty(proof, proof.gain, objective)
    if objective is Objective.TIME:
        return f"{runs} {gain} ({sure}) as fast"
    unit = "MiB" if objective is Objective.MEMORY else "s"
    own, changed = map(objective.shown, proof.costs)
    return (
        f"{uses} {gain} less {objective.used} ({changed} {unit} instead of {own} {unit}; {sure})"
    )


def _certainty(proof: Proof, ratio: Interval, of: Objective) -> str:
    """Return the interval of a ratio in words, and which runs it rests on.

    Args:
        proof: What the ratio is from.
        ratio: The ratio.
        of: The figure that it compares.
    """
    disturbed = proof.all_disturbed and of.depends_on_others
    return (
        f"{100 * proof.confidence:.4g} % interval {ratio.low:.2f} to {ratio.high:.2f}, "
        f"{proof.pairs} pairs of runs{', all disturbed by other work' if disturbed else ''}"
    )


def _price(proof: Proof) -> str:
    """Return what a setting that was not chosen for its time does to the time."""
    speedup = proof.speedup
    if speedup.high < 1:
        longer = Interval(1 / speedup.value, 1 / speedup.high, 1 / speedup.low)
        sure = _certainty(proof, longer, Objective.TIME)
        return f"It takes {longer.value:.2f} times as long ({sure})."
    faster = f"{speedup.value:.2f} times as fast ({_certainty(proof, speedup, Objective.TIME)})."
    if speedup.low > 1:
        return f"It also runs {faster}"
    return f"No difference in time is proven: {faster}"
