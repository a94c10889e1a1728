"""The findings in words and tables, the same on the terminal, the page and in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.config.papers import PaperMachine, PaperSource, find_paper
from tuner.progress import printable
from tuner.report.papers.comparison import (
    AGREES,
    HOLDS,
    UNKNOWN,
    Judged,
    Trend,
    cells,
    figure_text,
    judged_claims,
    row_label,
    trends,
)
from tuner.report.papers.figures import FIGURES, PaperResult, PaperRun
from tuner.report.wording import count

HEADINGS = ("row", "theirs", "ours", "theirs ×", "ours ×", "remarks")
"""Of the table of a figure: absolute, then as a ratio to the first row that both sides have."""


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A figure of all rows that can be shown on either side.

    Attributes:
        title: Its heading.
        rows: Cells under ``HEADINGS``.
        verdicts: Where its trend agrees, one sentence each.
    """

    title: str
    rows: list[tuple[str, ...]]
    verdicts: list[str]


def figure_tables(result: PaperResult) -> list[FigureTable]:
    """Return a table for each figure that is compared."""
    found = trends(result)
    return [
        FigureTable(
            FIGURES[figure].label,
            list(_rows(result, figure)),
            [trend_words(each) for each in found if each.figure == figure],
        )
        for figure in result.paper.metrics
    ]


def _rows(result: PaperResult, figure: str) -> Iterator[tuple[str, ...]]:
    kind = FIGURES[figure]
    for run, cell in zip(result.runs, cells(result, figure), strict=True):
        yield (
            printable(row_label(run)),
            figure_text(kind, cell.theirs),
            figure_text(kind, cell.ours),
            _ratio_text(cell.their_ratio),
            _ratio_text(cell.our_ratio),
            printable(remarks(run)),
        )


def _ratio_text(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def remarks(run: PaperRun) -> str:
    """Return all that a reader of a row must know, in one text."""
    failed = ""
    if run.result is not None and not run.measured:
        failed = f"{run.result.status.value}: {run.result.reason}"
    own = ", ".join(f"{name} {value}" for name, value in run.row.run.items())
    instead = f"run with {own}" if own else ""
    return "; ".join(filter(None, [run.reason, failed, *run.labels, instead, run.row.note]))


def trend_words(trend: Trend) -> str:
    """Describe a trend: "Caffe: agrees: same best row; 1 of 1 pairs of rows go the same way."."""
    best = "the same best row" if trend.same_best else "another best row"
    words = f"{best}, {trend.alike} of {count(trend.pairs, 'pair')} of rows the same way"
    if trend.rank is not None:
        words += f", rank correlation {trend.rank:.2f}"
    scope = trend.scope or "all rows"
    return " ".join(filter(None, [f"{scope}: {trend.verdict} ({words}).", trend.why]))


def claim_words(judged: Judged) -> str:
    """Describe a claim of the paper and whether it holds here."""
    label = FIGURES[judged.claim.figure].label
    words = f'"{judged.claim.says}" ({label}: {judged.order}): {judged.verdict} here'
    return f"{words}: {judged.words}" if judged.words else f"{words}."


def paper_header(result: PaperResult) -> str:
    """Describe the experiment: "Wu et al., table X · mnist · model default · cores 2"."""
    source, _ = find_paper(result.paper)
    facts = [
        f"{source.short}, {result.paper.where}",
        result.dataset,
        f"model {result.model}",
        f"cores {result.cores}",
        f"study {result.study_id}",
    ]
    return printable(" · ".join(facts))


def paper_headline(result: PaperResult) -> list[str]:
    """Return the findings in lines that can be quoted."""
    found, claims = trends(result), judged_claims(result)
    measured = sum(each.measured or each.diverged for each in result.runs)
    lines = [f"Measured: {measured} of {count(len(result.runs), 'row')}: {result.paper.about}."]
    if found:
        agree = sum(each.verdict == AGREES for each in found)
        lines.append(f"Trends: {agree} of {len(found)} agree with the paper's.")
    if claims:
        told = [each for each in claims if each.verdict != UNKNOWN]
        hold = sum(each.verdict == HOLDS for each in told)
        rest = len(claims) - len(told)
        words = f"{hold} of {len(told)} that can be told hold here" if told else ""
        unknown = f"{rest} cannot be told" if rest else ""
        lines.append(f"Claims: {'; '.join(filter(None, [words, unknown]))}.")
    if not found and not any(each.verdict != UNKNOWN for each in claims):
        lines.append("Compared: nothing, as too few rows could be measured.")
    return lines


def paper_metrics(result: PaperResult) -> dict[str, float]:
    """Return the figures to sort experiments by in MLflow."""
    found, claims = trends(result), judged_claims(result)
    return {
        "rows_measured": float(sum(each.measured or each.diverged for each in result.runs)),
        "trends": float(len(found)),
        "trends_that_agree": float(sum(each.verdict == AGREES for each in found)),
        "claims": float(len(claims)),
        "claims_that_hold": float(sum(each.verdict == HOLDS for each in claims)),
    }


def paper_interruption(result: PaperResult) -> str:
    """Return the warning of an experiment that was interrupted; else empty."""
    if result.complete:
        return ""
    return "It was interrupted: rows are missing, and the same command continues it."


def paper_notes(result: PaperResult) -> list[str]:
    """Return what the figures depend on, and what of the paper is missing."""
    source, machine = find_paper(result.paper)
    notes = [
        f"Theirs: {citation(source)}; {result.paper.where}. {machine_words(machine)}.",
        f"Held fixed: {result.paper.held}.",
        f"Ours: {result.dataset}, {result.train_images:,} training images, model {result.model}, "
        f"on {result.machine.get('cpu', 'this machine')}, {count(result.cores, 'core')}; "
        f"{result.elapsed_s:,.0f} s of {result.budget_s:,.0f} s.",
        "× is the ratio to the first row that both sides have. A trend agrees if the best row is "
        "the same and two thirds of the pairs of rows go the same way; differences within "
        "5 % of a time, 2 points of CPU and 0.2 points of accuracy count as none.",
    ]
    if any(each.startswith("cpu_") for each in result.paper.metrics):
        notes.append("CPU is of the trial's cores over the worker's whole life, set-up included.")
    if "efficiency_pct" in result.paper.metrics:
        notes.append(
            "Scaling efficiency is images/s over those of as many times one worker with as many "
            "threads, and as many images of a batch, as each."
        )
    discarded = sum(len(each.result.discarded) for each in result.runs if each.result)
    if discarded:
        notes.append(f"{count(discarded, 'disturbed measurement')} discarded and repeated.")
    return [*notes, *(f"Not run: {each}" for each in result.paper.missing)]


def citation(source: PaperSource) -> str:
    """Return a paper as references name it."""
    doi = f", doi:{source.doi}" if source.doi else ""
    return f"{source.authors}: {source.title}. {source.venue}{doi}"


def machine_words(machine: PaperMachine) -> str:
    """Return what a paper measured on."""
    return f"Measured on {machine.words}"
