"""The report across frameworks as one HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.report.answers import same_accuracy
from tuner.report.axes import quantity
from tuner.report.cross.ledger import (
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
    titles,
)
from tuner.report.cross.plots import fronts_figure, gains_figure
from tuner.report.cross.view import CrossView, view_cross, view_gains
from tuner.report.front import framework_versions
from tuner.report.page import Plot, make_plot, page_template
from tuner.report.wording import count, status_counts, verified_rows
from tuner.values.results import CrossResult, StudyResult


def render_cross_page(result: CrossResult) -> str:
    """Render the whole page; text of params and of failures is HTML-escaped."""
    names = titles(result)
    return page_template("cross.html.j2").render(
        result=result,
        heading=cross_header(result),
        headline=" ".join(cross_headline(result)),
        mean=mean_line(result),
        worth=f"{WORTH:g}",
        shortfalls=shortfalls(result),
        tiles=_tiles(result),
        interruption=cross_interruption(result),
        columns=columns(result.quality),
        rows=ledger(result),
        left_out=reasons(result),
        notes=cross_notes(result),
        plots=list(_plots(result)),
        verified=[
            (names[study.framework], row)
            for study in result.studies
            for row in verified_rows(study)
        ],
        facts=_facts(result),
    )


def _tiles(result: CrossResult) -> list[tuple[str, str]]:
    """Return the headline figure of each framework: its no-loss speed-up over its own default."""
    return [_tile(row) for row in ledger(result)]


def _tile(row: LedgerRow) -> tuple[str, str]:
    value, interval, p = row.cells[0]
    if row.study.default_part and not row.study.answers.no_loss:
        figure = f"{row.best.speedup[0]}×" if same_accuracy(row.study) else NOT_PROVEN
        part = f"its default's first part ({row.study.default_part})"
        of = f"to the {row.study.quality.name} of {part}"
        return figure, f"{row.title}: {of}; no loss is not proven"
    if row.study.answers.no_loss:
        return f"{value}×", f"{row.title}: no-loss speed-up over its own default ({interval}, {p})"
    return value, f"{row.title}: a speed-up without loss{f' ({interval})' if interval else ''}"


def _plots(result: CrossResult) -> Iterator[Plot]:
    view = view_cross(result)
    if view is not None:
        caption = _fronts_caption(view)
        yield make_plot("fronts", "All fronts together", caption, fronts_figure(view))
    gains = view_gains(result)
    if gains:
        caption = (
            "Each framework against its own default, with intervals: its three answers, where "
            "proven, and the costs of its no-loss configuration; the dashed line is no "
            "difference. A mark without bars has no interval."
        )
        yield make_plot("gains", "Gains over the defaults", caption, gains_figure(gains))


def _fronts_caption(view: CrossView) -> str:
    """Return the picture's text alternative, for readers who cannot see it."""
    frame = view.frame
    words = [
        f"{count(len(frame.points), 'usable trial')} of {count(len(frame.groups), 'framework')}, "
        "on the validation split. Thin lines are each framework's own front; the thick line is "
        "the front over all of them."
    ]
    if frame.line:
        ends = [frame.line[0], frame.line[-1]]
        said = [f"{quantity(frame.y, each.y)} at {quantity(frame.x, each.x)}" for each in ends]
        words.append(f"It runs from {said[0]} to {said[1]}.")
    if any(each.default for each in view.entrants):
        words.append(
            "A star is a framework's own default and a diamond its best configuration, both "
            "verified on the test split with their intervals; a dotted line joins the two."
        )
    if frame.hidden:
        words.append(f"{count(frame.hidden, 'point')} outside the picture.")
    return " ".join(words)


def _facts(result: CrossResult) -> dict[str, dict[str, str]]:
    """Return the conditions of the measurements, by heading: budget, machine, versions."""
    names = titles(result)
    about = {
        "data set": result.dataset,
        "model": result.model,
        "objectives": ", ".join(
            f"{each.name} ({each.direction.value})" for each in result.objectives
        ),
        "budget": f"{result.budget_s:,.0f} s for all frameworks together",
        "complete": "yes" if result.complete else "no, interrupted",
    }
    studies = {names[each.framework]: _study_facts(each) for each in result.studies}
    return {"Comparison": about, "Machine": dict(result.machine), **studies}


def _study_facts(study: StudyResult) -> dict[str, str]:
    return {
        "study": study.study_id,
        "share of the budget": f"{study.budget.get('time_s', '?')} s",
        "elapsed": f"{study.elapsed_s:,.0f} s",
        "trials": status_counts(study.trials),
        "disturbed and repeated": str(study.discarded),
        **framework_versions(study),
    }
