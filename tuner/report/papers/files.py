"""The files of a paper's experiment: a page, a Markdown section and data for programs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.config.papers import find_paper
from tuner.report.files import drawing_missing, write_contents
from tuner.report.front import SCHEMA
from tuner.report.papers.comparison import cells, judged_claims, row_label, trends
from tuner.report.papers.figures import PaperResult, PaperRun
from tuner.report.papers.wording import (
    HEADINGS,
    claim_words,
    figure_tables,
    paper_header,
    paper_headline,
    paper_interruption,
    paper_notes,
    remarks,
)

PAGE, SECTION, DATA = "report.html", "report.md", "paper.json"


def write_paper_report(result: PaperResult, folder: Path) -> list[Path]:
    """Write ``report.html``, ``report.md`` and ``paper.json`` into ``folder``, each atomically.

    Returns:
        Their paths; without the page where the packages that it needs are missing.

    Raises:
        StorageError: If the folder cannot be written to.
    """
    page = "" if drawing_missing() else _page(result)
    data = json.dumps(paper_json(result), indent=2, allow_nan=False) + "\n"
    return write_contents(folder, {PAGE: page, SECTION: paper_section(result), DATA: data})


def paper_json(result: PaperResult) -> dict[str, Any]:
    """Return the experiment as plain JSON values; unknown figures are null.

    Returns:
        ``experiment``, ``study_id``, ``source`` (the paper), ``where``, ``dataset``, ``model``,
        ``cores``, ``machine``, ``complete``, ``command``, ``rows`` (each with ``of``,
        ``framework``, ``params``, ``status``, ``share`` of the iterations that was trained,
        ``remarks``, and ``figures`` by name, each with ``theirs``, ``ours``, ``their_ratio`` and
        ``our_ratio``), ``trends``, ``claims`` and ``missing``.
    """
    source, machine = find_paper(result.paper)
    columns = {figure: cells(result, figure) for figure in result.paper.metrics}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "experiment": result.paper.name,
        "study_id": result.study_id,
        "source": {**dataclasses.asdict(source), "machines": [machine.words]},
        "where": result.paper.where,
        "about": result.paper.about,
        "dataset": result.dataset,
        "model": result.model,
        "cores": result.cores,
        "machine": dict(result.machine),
        "warnings": list(result.warnings),
        "budget_s": result.budget_s,
        "elapsed_s": result.elapsed_s,
        "complete": result.complete,
        "command": result.command,
        "headline": paper_headline(result),
        "rows": [
            {
                **_row(run),
                "figures": {
                    name: dataclasses.asdict(column[place]) for name, column in columns.items()
                },
            }
            for place, run in enumerate(result.runs)
        ],
        "trends": [dataclasses.asdict(each) for each in trends(result)],
        "claims": [
            {
                "says": each.claim.says,
                "figure": each.claim.figure,
                "order": each.order,
                "verdict": each.verdict,
                "words": each.words,
            }
            for each in judged_claims(result)
        ],
        "missing": list(result.paper.missing),
    }
    plain: dict[str, Any] = _plain(document)
    return plain


def _row(run: PaperRun) -> dict[str, Any]:
    trial = run.result.trial if run.result else None
    return {
        "of": run.row.of,
        "label": row_label(run),
        "framework": run.row.framework or None,
        "params": dict(run.params),
        "status": run.result.status.value if run.result else None,
        "share": trial.share if trial else None,
        "remarks": remarks(run),
    }


def _plain(value: Any) -> Any:
    """Return a value as strict JSON has it: a number that is not finite is null."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def paper_section(result: PaperResult) -> str:
    """Return the report as a section of a Markdown page, without a heading of its own."""
    return "\n".join(_section(result)) + "\n"


def _section(result: PaperResult) -> Iterator[str]:
    yield paper_header(result)
    yield ""
    for line in filter(None, [*result.warnings, paper_interruption(result)]):
        yield f"**{line}**\n"
    yield " ".join(paper_headline(result))
    for table in figure_tables(result):
        yield f"\n**{table.title}**\n"
        yield f"| {' | '.join(HEADINGS)} |"
        yield f"|---|{'---:|' * (len(HEADINGS) - 2)}---|"
        for row in table.rows:
            yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
        yield ""
        yield from (f"- {each}" for each in table.verdicts)
    claims = judged_claims(result)
    if claims:
        yield "\n**Claims in words**\n"
        yield from (f"- {claim_words(each)}" for each in claims)
    yield ""
    yield from (f"- {note}" for note in paper_notes(result))


def _page(result: PaperResult) -> str:
    # the drawing libraries take a second to import: a failing run skips that
    from tuner.report.page import page_template

    return page_template("paper.html.j2").render(
        result=result,
        heading=paper_header(result),
        headline=" ".join(paper_headline(result)),
        interruption=paper_interruption(result),
        headings=HEADINGS,
        tables=figure_tables(result),
        claims=[claim_words(each) for each in judged_claims(result)],
        notes=paper_notes(result),
        plots=[],
    )
