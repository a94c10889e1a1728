"""The ledger: each framework's best verified configuration against its own default."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass

from tuner.progress import format_seconds, printable
from tuner.report.answers import (
    best_tried,
    priced_words,
    same_accuracy,
    study_metrics,
    three_answers,
    trade_offs,
)
from tuner.report.wording import VerifiedRow, count, verified_rows
from tuner.values.quality import Quality
from tuner.values.results import CrossResult, StudyResult
from tuner.values.verified import CostRatio, Verified

ANSWERS = 3
"""Number of leading columns that hold the three answers."""

WORTH = 5.0
"""The report explains every no-loss speed-up below this."""

_MAX_NAMED = 4  # frameworks that a headline can name one by one
NOT_PROVEN = "not proven"

Cell = tuple[str, str, str]
"""Value, interval (or the default's value) and p-value (or a remark); any may be empty."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One framework in the ledger.

    Attributes:
        title: Title of the framework, made unique if others have the same title.
        study: Its study.
        default: Its verified default.
        best: The configuration that represents it: its no-loss answer, if it has one.
        cells: The figures under ``columns``, rounded for print: the three answers, each with its
            own configuration, then the figures of ``best``.
    """

    title: str
    study: StudyResult
    default: VerifiedRow
    best: VerifiedRow
    cells: tuple[Cell, ...]


def ledger(result: CrossResult) -> list[LedgerRow]:
    """Return a row for each framework with a verified result, in their order."""
    names = titles(result)
    return [_row(names[study.framework], study) for study in result.studies if study.verified]


def titles(result: CrossResult) -> dict[str, str]:
    """Return the printed title of each framework, by name; no two are the same."""
    seen = Counter(each.title for each in result.outcomes)
    return {
        each.framework: printable(
            each.title if seen[each.title] == 1 else f"{each.title} ({each.framework})"
        )
        for each in result.outcomes
    }


def columns(quality: Quality) -> list[str]:
    """Return the headings of the figures in two lines, in the order of ``LedgerRow.cells``."""
    return [
        "no loss,\nspeed-up ×",
        "runtime\nonly, ×",
        f"best {'change' if quality.is_perplexity else 'gain'},\n{quality.gain_unit}",
        "train\ntime, s",
        "perplexity\ntest" if quality.is_perplexity else "accuracy\ntest, %",
        "CPU\nchange, %",
        "peak memory\nchange, %",
    ]


def finest(study: StudyResult) -> Verified:
    """Return the point that represents a verified study.

    It is the first answer (no loss, or same accuracy), else the most accurate configuration, else
    the one that came closest to no loss, else the fastest of all.
    """
    found = study.answers
    return (
        found.no_loss
        or same_accuracy(study)
        or found.most_accurate
        or best_tried(study)
        or max(study.verified, key=lambda each: each.speedup)
    )


def _row(title: str, study: StudyResult) -> LedgerRow:
    rows = {row.point.name: row for row in verified_rows(study)}
    best = finest(study)
    mine = rows[best.name]
    default = next(each for each in rows.values() if each.point.is_default)
    versus = best.against_default
    part = "(first part)" if study.default_part else ""
    cells = (
        *_answer_cells(study, rows),
        (mine.train_time[0], f"from {default.train_time[0]}", part),
        (mine.accuracy[0], f"from {default.accuracy[0]}", part),
        cost_cell(versus.cpu if versus else None),
        cost_cell(versus.memory if versus else None),
    )
    return LedgerRow(title, study, default, mine, cells)


def _answer_cells(study: StudyResult, rows: dict[str, VerifiedRow]) -> tuple[Cell, Cell, Cell]:
    """Return the cells of no-loss speed-up, runtime-only speed-up and best accuracy gain."""
    found, tried = study.answers, best_tried(study)
    why = tried.quality.shown_gain(tried.gain) if tried else ""
    lossless = _speed_cell(found.no_loss, rows, why)
    if study.default_part and found.no_loss is None:
        lossless = _part_cell(study, rows)
    runtime = _speed_cell(found.runtime_only, rows, "")
    better = found.most_accurate
    if better is None or better.against_default is None:
        return lossless, runtime, (NOT_PROVEN, "", "")
    return (
        lossless,
        runtime,
        (*rows[better.name].gain, p_text(better.against_default.accuracy_p)),
    )


def _speed_cell(point: Verified | None, rows: dict[str, VerifiedRow], why: str) -> Cell:
    if point is None or point.against_default is None:
        return NOT_PROVEN, why, ""
    return *rows[point.name].speedup, p_text(point.against_default.speedup_p)


def _part_cell(study: StudyResult, rows: dict[str, VerifiedRow]) -> Cell:
    """Return the no-loss cell of a study that proved nothing beyond its default's first part."""
    point = same_accuracy(study)
    return (
        NOT_PROVEN,
        study.quality.same,
        f"{rows[point.name].speedup[0]}×" if point else NOT_PROVEN,
    )


def p_text(p: float | None) -> str:
    """Format a p-value with two digits: "p 0.24", "p <0.001"."""
    if p is None or math.isnan(p):
        return ""
    return "p <0.001" if p < 0.001 else f"p {p:.2g}"


def cost_cell(cost: CostRatio | None) -> Cell:
    """Format a cost as its difference from the default's in percent; minus is less."""
    if cost is None or math.isnan(cost.value):
        return ("-", "", "")
    if cost.low is None or cost.high is None:
        return (_change(cost.value), "no interval", "")
    return _change(cost.value), f"{_change(cost.low)} to {_change(cost.high)}", p_text(cost.p)


def _change(ratio: float) -> str:
    change = 100 * (ratio - 1)
    return f"{change:+,.0f}" if abs(change) >= 99.95 else f"{change:+.1f}"


def cross_header(result: CrossResult) -> str:
    """Describe what was compared: "Frameworks compared · mnist · model lenet · cores 2 of 2"."""
    facts = ["Frameworks compared", result.dataset, f"model {result.model}"]
    facts += [f"cores {result.machine['cores']}"] if "cores" in result.machine else []
    return printable(" · ".join([*facts, f"study {result.cross_id}"]))


def cross_headline(result: CrossResult) -> list[str]:
    """Return the findings in lines that can be quoted."""
    rows = ledger(result)
    if not rows:
        return ["Not verified: nothing may be claimed of any framework."]
    gained = [each for each in rows if each.study.answers.no_loss]
    lines = [_gained_line(rows, gained)]
    whole = [each for each in gained if not each.study.default_part]
    if len(whole) > 1:
        quick = min(whole, key=lambda each: each.best.point.train_time_s.value)
        exact = max(whole, key=lambda each: each.best.point.test_accuracy.value)
        best = f"of {name}" if (name := result.quality.best) != "most accurate" else name
        said = [_figures(quick, "fastest"), _figures(exact, best)]
        if quick is exact:
            said = [_figures(quick, f"fastest and {best}")]
        lines.append(f"Of these, {', '.join(said)}.")
    return [*lines, *_part_lines(rows)]


def _gained_line(rows: list[LedgerRow], gained: list[LedgerRow]) -> str:
    if not gained:
        of = count(len(rows), "framework")
        return f"None of {of} is proven to train faster without loss than with its own default."
    if len(rows) == 1:
        faster = f"trains {_gain(rows[0])} faster than with its own default"
        return f"{rows[0].title} {faster} and loses no {rows[0].study.quality.name}."
    does = "train faster than with their own defaults and lose"
    if len(gained) == 1:
        does = "trains faster than with its own default and loses"
    name, of = rows[0].study.quality.name, f"{len(gained)} of {len(rows)} compared frameworks"
    return f"{of} {does} no {name}: {_gains(gained)}."


def no_loss_mean(result: CrossResult) -> float | None:
    """Return the geometric mean of the no-loss speed-ups of all studies; unproven ones are 1.

    It is ``None`` if nothing was verified for any framework.
    """
    if not any(each.verified for each in result.studies):
        return None
    speedups = [
        each.answers.no_loss.speedup if each.answers.no_loss else 1.0 for each in result.studies
    ]
    return statistics.geometric_mean(speedups)


def mean_line(result: CrossResult) -> str:
    """Describe the mean over all frameworks; empty if nothing was verified."""
    mean = no_loss_mean(result)
    if mean is None:
        return ""
    names = titles(result)
    unproven = [names[each.framework] for each in result.studies if not each.answers.no_loss]
    line = f"Geometric mean of the no-loss speed-up over {count(len(result.studies), 'framework')}"
    line += f": {mean:.2f}x"
    if unproven:
        line += f"; not proven of {', '.join(unproven)}, which counts as 1.0"
    return f"{line}."


def cross_lines(result: CrossResult) -> list[str]:
    """Return the findings in a few lines: the headline and the mean over all frameworks."""
    return [*cross_headline(result), *filter(None, [mean_line(result)])]


def cross_metrics(result: CrossResult) -> dict[str, float]:
    """Return the figures to sort comparisons by; empty if nothing was verified.

    They are ``no_loss_geometric_mean`` and, for each verified framework, its speed-up, such as
    ``no_loss_speedup.caffe``.
    """
    mean = no_loss_mean(result)
    if mean is None:
        return {}
    speedups = {
        f"no_loss_speedup.{each.framework}": study_metrics(each)["no_loss_speedup"]
        for each in result.studies
        if each.verified
    }
    return {"no_loss_geometric_mean": mean, **speedups}


def shortfalls(result: CrossResult) -> list[tuple[str, str]]:
    """Return title and reason of each ledger framework with a no-loss speed-up below ``WORTH``."""
    return [
        (row.title, _why_short(row.study))
        for row in ledger(result)
        if not row.study.answers.no_loss or row.study.answers.no_loss.speedup < WORTH
    ]


def _why_short(study: StudyResult) -> str:
    """Explain why a study's no-loss speed-up is below ``WORTH``."""
    answer = three_answers(study)[0]
    if study.default_part:
        found = study.answers.no_loss
        said = f"{found.speedup:.1f}x by the runtime setting alone" if found else NOT_PROVEN
        return f"{said}: only the first part of the default was trained. {answer.sentence}"
    if study.answers.no_loss is None:
        return answer.text
    said = f"{study.answers.no_loss.speedup:.1f}x without loss, as"
    beyond = trade_offs(study)
    if not beyond:
        return f"{said} nothing faster that was verified is worth its price."
    nearest = beyond[-1]
    loses = "loses" if nearest.is_worse else "may lose"
    lost = f"{loses} {study.quality.name}"
    return f"{said} what is faster {lost}: {nearest.name}, {priced_words(nearest)}."


def _part_lines(rows: list[LedgerRow]) -> list[str]:
    """List frameworks that prove nothing beyond the first part of their default."""
    parts = [
        f"{row.title} ({f'{point.speedup:.1f}x' if point else NOT_PROVEN})"
        for row in rows
        if row.study.default_part and not row.study.answers.no_loss
        for point in [same_accuracy(row.study)]
    ]
    if not parts:
        return []
    return [
        f"{rows[0].study.quality.same.capitalize()} only, as only the first part of the default "
        f"was trained: {', '.join(parts)}."
    ]


def _gains(faster: list[LedgerRow]) -> str:
    """List every gain; for more than four frameworks only the least and the greatest."""
    if len(faster) <= _MAX_NAMED:
        return ", ".join(f"{each.title} {_gain(each)}" for each in faster)
    ordered = sorted(faster, key=lambda each: each.best.point.speedup)
    ends = (ordered[0], ordered[-1])
    return "from " + " to ".join(f"{_gain(each)} ({each.title})" for each in ends)


def _gain(row: LedgerRow) -> str:
    return f"{row.best.point.speedup:.1f}x"


def _figures(row: LedgerRow, praise: str) -> str:
    point = row.best.point
    seconds = f"{format_seconds(point.train_time_s.value)} s"
    return (
        f"{row.title} is {praise} ({seconds} at {point.quality.shown(point.test_accuracy.value)})"
    )


def cross_notes(result: CrossResult) -> list[str]:
    """Explain how the figures were obtained and what they do not show, one line each."""
    rows = ledger(result)
    notes = []
    if rows:
        notes += [
            f"No loss, runtime only, {result.quality.gain_name}: the three answers of each "
            "framework's study. The other figures are those of its no-loss configuration or, "
            "where none is proven, of the one that the verdict names, against its own default, "
            f"run in turn with it; intervals at {100 * rows[0].best.point.confidence:g} % "
            "confidence, p-values two-sided.",
            "Speed-up, CPU (user and system, of the whole process tree) and peak memory are "
            "ratios round by round; minus is less than the default. Training time is the "
            "training loop alone.",
            *_projections(rows),
            *_gaps(rows),
            "The frameworks were measured one after the other, not in turn: figures of two "
            "frameworks stand side by side without a p-value.",
        ]
    work = (
        "each framework trains its own network, so training times are not of equal work"
        if result.model == "default"
        else "the same network in every framework"
    )
    notes.append(f"Model {result.model}: {work}.")
    studies = ", ".join(
        f"{name} {study.study_id}"
        for study in result.studies
        for name in [titles(result)[study.framework]]
    )
    notes.append(f"Studies: {studies}.")
    return notes


def _projections(rows: list[LedgerRow]) -> list[str]:
    """List the training times that are projections rather than whole trainings."""
    names = [
        f"{row.title} ({' and '.join(measured)})"
        for row in rows
        for points in [{each.name: each for each in (row.default.point, row.best.point)}]
        for measured in [[name for name, each in points.items() if each.projected]]
        if measured
    ]
    return [f"Training time from the measured rate: {', '.join(names)}."] if names else []


def _gaps(rows: list[LedgerRow]) -> list[str]:
    """Explain why some costs have no interval, or no value at all."""
    gaps: dict[str, list[str]] = {}
    for row in rows:
        versus = row.best.point.against_default
        for what, cost in (("CPU", versus and versus.cpu), ("memory", versus and versus.memory)):
            gap = cost.gap if cost else "not compared"
            if gap:
                gaps.setdefault(gap, []).append(f"{row.title} ({what})")
    return [f"No interval for {', '.join(names)}: {gap}." for gap, names in gaps.items()]


def reasons(result: CrossResult) -> list[tuple[str, str]]:
    """Return title and reason of every framework that the ledger leaves out."""
    names = titles(result)
    return [(names[each.framework], printable(each.reason)) for each in result.left_out]


def cross_interruption(result: CrossResult) -> str:
    """Tell how to resume an interrupted comparison; empty for a complete one."""
    if result.complete:
        return ""
    return f"Interrupted: everything shown was measured; resume with {result.command}"
