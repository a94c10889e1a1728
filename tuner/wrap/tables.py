"""The tables of a study of a program: its knobs, its runtime settings and its params."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuner.progress import format_seconds, printable
from tuner.values.params import Params
from tuner.values.trial import TrialResult, TrialStatus
from tuner.wrap.objective import Objective
from tuner.wrap.result import WrapResult


def setting_words(params: Params) -> str:
    """Return a setting in words, with the names that ``--without`` and ``{name}`` take."""
    return printable(", ".join(f"{name} {value}" for name, value in params.items())) or "as it is"


def knob_table(result: WrapResult) -> Iterator[str]:
    """Yield what the best value of each knob does by itself, the largest gain first."""
    if not result.effects:
        return
    yield "What mattered (one run of each setting, so a hint and no proof):"
    times = _times(result.objective)
    width = 2 + max(len(each.knob) for each in result.effects)
    for each in sorted(result.effects, key=lambda each: -each.gain):
        if each.value is None:
            yield f"  {each.knob:<{width}}no effect"
        else:
            yield f"  {each.knob:<{width}}{each.gain:.2f} {times} with {each.value}"


def setting_table(result: WrapResult) -> Iterator[str]:
    """Yield the table of the runtime settings: the program as it is, and those that were tried."""
    runs = [each for each in result.searched if not result.changes_params(each)]
    if not runs or runs[0].measurement is None:
        return
    objective = result.objective
    own = objective.of(runs[0])
    rows = [("setting", *_headings(objective), "threads", "")]
    for each in runs:
        measured, cost = each.measurement, objective.of(each)
        setting = setting_words(each.trial.params)
        if measured is None or each.status is not TrialStatus.COMPLETE:
            rows.append(_failed(objective, setting, "", each))
        else:
            figures = _figures(objective, own, cost, measured.train_time_s)
            threads = str(measured.threads_seen or "")
            known = "oversubscribed" if result.is_oversubscribed(each.trial.params) else ""
            notes = ", ".join(filter(None, (known, measured.disturbed)))
            rows.append((setting, *figures, threads, notes))
    yield from _table(rows)


def param_table(result: WrapResult) -> Iterator[str]:
    """Yield the table of the params: whole runs at the fastest runtime setting."""
    goal, runs = result.program.goal, result.searched
    changed = [each for each in runs if result.changes_params(each)]
    if not changed or runs[0].measurement is None:
        return
    objective = result.objective
    own = objective.of_whole(runs[0].measurement)
    rows = [("params", *_headings(objective), goal.name, "")]
    for each in (runs[0], *changed):
        figure, measured = goal.of(each), each.measurement
        shown = "" if figure is None else goal.shown(figure)
        params = setting_words(result.program.params.part_of(each.trial.params))
        if measured is None or each.status is not TrialStatus.COMPLETE:
            rows.append(_failed(objective, params, shown, each))
        else:
            figures = _figures(objective, own, objective.of_whole(measured), measured.wall_time_s)
            rows.append((params, *figures, shown, measured.disturbed))
    yield from _table(rows)


def _times(objective: Objective) -> str:
    return "times as fast" if objective is Objective.TIME else "times less"


def _headings(objective: Objective) -> list[str]:
    """Return the headings of what is minimised, and of the time if that is something else."""
    price = [] if objective is Objective.TIME else [Objective.TIME.unit]
    return [objective.unit, _times(objective), *price]


def _figures(objective: Objective, own: float, cost: float, took_s: float) -> list[str]:
    """Return the figures of a run below ``_headings``.

    Args:
        objective: What is minimised.
        own: Its figure of the program as it is.
        cost: Its figure of the run.
        took_s: Seconds that the run took.
    """
    price = [] if objective is Objective.TIME else [format_seconds(took_s)]
    return [objective.shown(cost), f"{own / cost:.2f}" if cost else "", *price]


def _failed(objective: Objective, name: str, shown: str, run: TrialResult) -> tuple[str, ...]:
    """Return the row of a run that has no figures, only what it reached if ``shown`` says so."""
    empty = [""] * len(_headings(objective))
    return name, *empty, shown, f"{run.status.value}: {printable(run.reason)}"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table: a name on the left, figures on the right, and a note."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    for name, *figures, note in rows:
        shown = "  ".join(
            f"{each:>{width}}" for each, width in zip(figures, widths[1:], strict=True)
        )
        yield f"{name:<{widths[0]}}  {shown}  {note}".rstrip()
