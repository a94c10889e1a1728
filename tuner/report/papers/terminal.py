"""A paper's experiment on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tuner.progress import printable
from tuner.report.papers.comparison import judged_claims
from tuner.report.papers.figures import PaperResult
from tuner.report.papers.wording import (
    HEADINGS,
    FigureTable,
    claim_words,
    figure_tables,
    paper_header,
    paper_headline,
    paper_interruption,
    paper_notes,
)
from tuner.report.terminal import print_closing, print_opening


def print_paper_summary(result: PaperResult, console: Console) -> None:
    """Print theirs beside ours, and where the trend agrees.

    Args:
        result: The experiment, complete or not.
        console: Where to print.
    """
    warnings = [*result.warnings, paper_interruption(result)]
    print_opening(console, paper_header(result), warnings, paper_headline(result), True)
    for table in figure_tables(result):
        _print_figure(table, console)
    for judged in judged_claims(result):
        console.print(Text(f"- {printable(claim_words(judged))}"))
    print_closing(console, paper_notes(result), result.command)


def _print_figure(figure: FigureTable, console: Console) -> None:
    table = Table(
        title=figure.title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    for heading in HEADINGS:
        number = heading not in (HEADINGS[0], HEADINGS[-1])
        table.add_column(heading, justify="right" if number else "left", no_wrap=number)
    for row in figure.rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for words in figure.verdicts:
        console.print(Text(f"- {printable(words)}"))
    console.print()
