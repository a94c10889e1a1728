"""The summary on a terminal: a table from 100 columns, a list of blocks on narrower ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tuner.progress import ABBREVIATED, abbreviate_params, printable
from tuner.report.files import drawing_missing
from tuner.report.front import framework_versions
from tuner.report.wording import (
    NOT_VERIFIED,
    VerifiedRow,
    footnotes,
    headline,
    interruption,
    objective_text,
    verified_rows,
)
from tuner.values.quality import Quality
from tuner.values.results import StudyResult
from tuner.values.trial import TrialResult

_TABLE_WIDTH, _WIDE = 100, 140
_LABEL_WIDTH = 14  # "Most accurate:"
TONES = {"reference": "bold", "good": "green", "trade": "yellow", "none": "dim"}


def print_summary(result: StudyResult, console: Console) -> None:
    """Print the findings: warnings, the verified table, and how it was measured.

    Args:
        result: The study, complete or not.
        console: Where to print; its width decides the layout.
    """
    warnings = [*result.warnings, interruption(result)]
    print_opening(console, header(result), warnings, headline(result), bool(result.verified))
    if result.verified:
        _print_verified(verified_rows(result), console)
    elif result.front:
        console.print(_front_table(result))
    print_closing(console, footnotes(result), result.command)


def print_opening(
    console: Console, title: str, warnings: Iterable[str], lines: Iterable[str], verified: bool
) -> None:
    """Print what comes above the table: the subject of the study, warnings, and the findings."""
    # a terminal shows "?" for characters that its encoding lacks, instead of ending the study
    reconfigure = getattr(console.file, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    console.print(Text(title, style="bold"))
    for warning in filter(None, warnings):
        console.print(Panel(Text(printable(warning)), title="WARNING", style="bold yellow"))
    for line in lines:
        console.print(_opening_line(printable(line)) if verified else Text(line, style="bold red"))
    console.print()


def _opening_line(line: str) -> RenderableType:
    """Lay out a line of the findings; the label before its colon gets its own column."""
    label, colon, text = line.partition(": ")
    if not colon or len(label) > _LABEL_WIDTH:
        return Text(line)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_LABEL_WIDTH, no_wrap=True)
    grid.add_column()
    grid.add_row(Text(f"{label}:", style="bold"), Text(text))
    return grid


def print_closing(console: Console, notes: Iterable[str], command: str) -> None:
    """Print what comes below the table: how it was measured, and how to resume."""
    console.print()
    grid = Table.grid(padding=(0, 1))
    for note in notes:
        grid.add_row("-", Text(printable(note)))
    console.print(grid, style="dim")
    if missing := drawing_missing():
        needed = f"report.html and front.png need {missing}, then the same command"
        console.print(Text(needed), soft_wrap=True)
    if command:  # unwrapped, to be copied
        console.print(Text(f"repeat or resume: {printable(command)}"), soft_wrap=True)


def header(result: StudyResult) -> str:
    """Describe what was tuned and where: "Caffe 1.0 · mnist · model lenet · cores 2 of 2"."""
    facts = [result.title, result.dataset, f"model {result.model}"]
    facts += [f"cores {result.machine['cores']}"] if "cores" in result.machine else []
    facts += [f"Python {version}" for version in _python(result)]
    facts.append(f"study {result.study_id}")
    return printable(" · ".join(facts))


def _python(result: StudyResult) -> list[str]:
    version = framework_versions(result).get("python")
    return [version] if version else []


def _print_verified(rows: list[VerifiedRow], console: Console) -> None:
    if console.width < _TABLE_WIDTH:
        for row in rows:
            console.print(_block(row))
        return
    wide = console.width >= _WIDE
    space = (0, 2, 0, 0) if wide else (0, 0, 0, 0)
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=space, show_edge=False, leading=1
    )  # fmt: skip
    table.add_column("", width=None if wide else 22, overflow="fold")
    for name in _headings(rows[0].point.quality):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(" verdict")
    for row in rows:
        table.add_row(*_cells(row, wide), style="bold" if row.tone == "reference" else "")
    console.print(table)


def _headings(quality: Quality) -> Sequence[str]:
    return (
        "perplexity\ntest" if quality.is_perplexity else "accuracy\ntest, %",
        "train\ntime, s",
        "speed-up\n×",
        f"{quality.gain_name}, {quality.gain_unit}".replace(" ", "\n", 1),
        "CPU, s\nuser+sys",
        "MiB\navg/max",
    )


def _cells(row: VerifiedRow, wide: bool) -> Iterable[Text]:
    tone = TONES[row.tone]
    name, *params = printable(row.point.name), *abbreviate_params(row.point.params).rsplit(", ", 1)
    yield _named(row, name, params)
    yield stack(row.accuracy, "")
    yield stack(row.train_time, "")
    # a narrow table has no room for the notes; the verdicts say the same
    yield stack((*row.speedup, row.notes[0] if wide else ""), tone)
    value, ends = row.gain
    ends = ends if wide else ends.replace(" to ", "…")
    yield stack((value, ends, row.notes[1] if wide else ""), tone)
    yield stack((row.cpu[0], f"+ {row.cpu[1]}"), "")
    yield stack((row.memory[0], f"/ {row.memory[1]}"), "")
    words = row.point.verdict.replace(", ", ",\n")
    yield Text("\n".join(f" {line}" for line in words.splitlines()), style=tone)


def _named(row: VerifiedRow, name: str, params: Iterable[str]) -> Text:
    """Stack the name, the role (what it answers or was verified for) and the params."""
    text = Text(name, style="bold")
    if row.role != "reference":
        text.append(f"\n{row.role}", style="bold green" if row.proven else "dim not bold")
    for each in params:
        text.append(f"\n{each}", style="dim not bold")
    return text


def stack(lines: Iterable[str], style: str) -> Text:
    """Stack lines: the first in ``style``, the others dim below it, without the empty ones."""
    first, *others = lines
    text = Text(first, style=style)
    for other in filter(None, others):
        text.append(f"\n{other}", style="dim not bold")
    return text


def _block(row: VerifiedRow) -> Text:
    """Format one configuration as lines, for a terminal too narrow for columns."""
    quality = row.point.quality
    unit = "" if quality.is_perplexity else " %"
    lines = [
        ("params", printable(row.params)),
        (f"test {quality.name}", _joined(row.accuracy, unit)),
        ("train time", _joined(row.train_time, " s")),
        ("speed-up", _joined(row.speedup, " ×", row.notes[0])),
        (quality.gain_name, _joined(row.gain, f" {quality.gain_unit}", row.notes[1])),
        ("CPU", f"{row.cpu[0]} s user, {row.cpu[1]} s system"),
        ("memory", f"{row.memory[0]} MiB average, {row.memory[1]} MiB maximum"),
    ]
    role = "" if row.role == "reference" else f" ({row.role})"
    name = f"{printable(row.point.name)}{role}"
    text = Text.assemble((f"{name}: {row.point.verdict}", TONES[row.tone]))
    for name, value in lines:
        if value:
            text.append(f"\n  {name}: {value}", style="not bold")
    return text


def _joined(figure: tuple[str, str], unit: str, note: str = "") -> str:
    value, ends = figure
    return f"{value}{unit} ({ends}){f', {note}' if note else ''}" if value else ""


def _front_table(result: StudyResult) -> Table:
    """Build the table of the front on the validation split, for when nothing was verified."""
    table = Table(
        title=f"Front on the validation split. {NOT_VERIFIED}",
        title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False,
    )  # fmt: skip
    table.add_column("trial", no_wrap=True)
    for objective in result.objectives:
        table.add_column(objective.name, justify="right")
    table.add_column(ABBREVIATED)
    for each in result.front:
        values = [objective_text(each, objective) for objective in result.objectives]
        table.add_row(each.trial.title, *values, _params(each))
    return table


def _params(trial: TrialResult) -> Text:
    return Text(abbreviate_params(trial.params))
