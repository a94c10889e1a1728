"""The ledger on a terminal: a table if it fits, else a list of blocks."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tuner.progress import abbreviate_params, printable
from tuner.report.cross.ledger import (
    ANSWERS,
    NOT_PROVEN,
    WORTH,
    LedgerRow,
    columns,
    cross_header,
    cross_headline,
    cross_interruption,
    cross_notes,
    ledger,
    mean_line,
    reasons,
    shortfalls,
)
from tuner.report.terminal import TONES, print_closing, print_opening, stack
from tuner.values.results import CrossResult

_NAME_WIDTH = 17


def print_cross_summary(result: CrossResult, console: Console) -> None:
    """Print the ledger, then the frameworks missing from it with their reasons.

    Args:
        result: The comparison, complete or not.
        console: Where to print; its width decides the layout.
    """
    rows = ledger(result)
    warnings = [*result.warnings, cross_interruption(result)]
    print_opening(console, cross_header(result), warnings, cross_headline(result), bool(rows))
    table = _table(rows)
    if _fits(table, console):
        console.print(table)
    else:
        for row in rows:
            console.print(_block(row))
    if mean_line(result):
        console.print(Text(f"\n{mean_line(result)}"))
    _print_reasons(console, f"below {WORTH:g}x without loss:", shortfalls(result))
    _print_reasons(console, "not in the ledger:", reasons(result))
    print_closing(console, cross_notes(result), result.command)


def _print_reasons(console: Console, heading: str, rows: list[tuple[str, str]]) -> None:
    if not rows:
        return
    console.print(Text(f"\n{heading}", style="bold yellow"))
    grid = Table.grid(padding=(0, 2))
    for title, reason in rows:
        grid.add_row(Text(title, style="bold"), Text(printable(reason)))
    console.print(grid)


def _fits(table: Table, console: Console) -> bool:
    """Return whether the table has rows and fits without cutting off a figure."""
    boundless = console.options.update(max_width=1000)
    return bool(table.rows) and console.measure(table, options=boundless).maximum <= console.width


def _table(rows: list[LedgerRow]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False, leading=1)
    table.add_column("", width=_NAME_WIDTH, overflow="fold")
    for name in columns(rows[0].study.quality) if rows else ():
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        params = abbreviate_params(row.best.point.params).rsplit(", ", 1)
        first = stack((row.title, printable(row.best.point.name), *params), "bold")
        cells = [
            stack(map(_narrow, (value, interval, p)), _style(place, value))
            for place, (value, interval, p) in enumerate(row.cells)
        ]
        table.add_row(first, *cells)
    return table


def _narrow(words: str) -> str:
    """Shorten the text of a cell to fit a narrow column."""
    return words.replace(" to ", "…").replace(" points", " pts")


def _style(place: int, value: str) -> str:
    """Return the colour of an answer: proven or not; empty for other columns."""
    if place >= ANSWERS:
        return ""
    return TONES["none"] if value == NOT_PROVEN else TONES["good"]


def _block(row: LedgerRow) -> Text:
    """Format one framework as lines, for a terminal too narrow for columns."""
    name = f"{row.title}, {printable(row.best.point.name)}: {row.best.point.verdict}"
    text = Text.assemble((name, TONES[row.best.tone]))
    text.append(f"\n  params: {printable(row.best.params)}", style="not bold")
    for heading, (value, *others) in zip(columns(row.study.quality), row.cells, strict=True):
        details = ", ".join(filter(None, others))
        figure = f"{value} ({details})" if details else value
        text.append(f"\n  {printable(heading)}: {figure}", style="not bold")
    return text
