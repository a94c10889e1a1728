"""The ledger: each framework's best verified configuration against its own default."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from tuner.progress import format_seconds, printable
from tuner.report.wording import (
    VerifiedRow,
    best_point,
    count,
    is_faster,
    loses_accuracy,
    verified_rows,
)
from tuner.results import CostRatio, CrossResult, StudyResult, Verified

COLUMNS = (
    "train\ntime, s",
    "speed-up\n×",
    "accuracy\ntest, %",
    "accuracy\ngain, points",
    "CPU\nchange, %",
    "peak memory\nchange, %",
)
"""Headings of the figures in two lines, in the order of ``LedgerRow.cells``."""

_MOST_NAMED = 4  # frameworks that a headline can name one by one

Cell = tuple[str, str, str]
"""Value, interval (or the default's value) and p-value as printed; each may be empty."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One framework in the ledger.

    Attributes:
        title: Of the framework, told apart from others of the same title.
        study: Its study.
        default: Its verified default.
        best: The configuration that is held against it.
        cells: The figures under ``COLUMNS``, rounded for print.
    """

    title: str
    study: StudyResult
    default: VerifiedRow
    best: VerifiedRow
    cells: tuple[Cell, ...]


def ledger(result: CrossResult) -> list[LedgerRow]:
    """A row for each framework of which something was verified, in their order."""
    names = titles(result)
    return [_row(names[study.framework], study) for study in result.studies if study.verified]


def titles(result: CrossResult) -> dict[str, str]:
    """What each framework is called in print, by its name; never two of them the same."""
    seen = Counter(each.title for each in result.outcomes)
    return {
        each.framework: printable(
            each.title if seen[each.title] == 1 else f"{each.title} ({each.framework})"
        )
        for each in result.outcomes
    }


def finest(study: StudyResult) -> Verified:
    """The point that stands for a verified study: the best, else the fastest of its finalists."""
    finalists = [each for each in study.verified if each.against_default is not None]
    return best_point(study) or min(finalists, key=lambda each: each.train_time_s.value)


def _row(title: str, study: StudyResult) -> LedgerRow:
    rows = verified_rows(study)
    best = finest(study)
    mine = next(each for each in rows if each.point is best)
    default = next(each for each in rows if each.point.against_default is None)
    versus = best.against_default
    assert versus is not None
    cells = (
        (_time(mine), f"default {_time(default)}", ""),
        (*mine.speedup, p_text(versus.speedup_p)),
        (mine.accuracy[0], f"default {default.accuracy[0]}", ""),
        (*mine.gain, p_text(versus.accuracy_p)),
        cost_cell(versus.cpu),
        cost_cell(versus.memory),
    )
    return LedgerRow(title, study, default, mine, cells)


def _time(row: VerifiedRow) -> str:
    return f"{row.train_time[0]}{' (projected)' if row.point.projected else ''}"


def p_text(p: float | None) -> str:
    """A p-value in two digits: "p 0.24", "p <0.001"."""
    if p is None or math.isnan(p):
        return ""
    return "p <0.001" if p < 0.001 else f"p {p:.2g}"


def cost_cell(cost: CostRatio | None) -> Cell:
    """A cost against the default's as a difference in percent: minus is less."""
    if cost is None or math.isnan(cost.value):
        return ("-", "", "")
    if cost.low is None or cost.high is None:
        return (_change(cost.value), "no interval", "")
    return _change(cost.value), f"{_change(cost.low)} to {_change(cost.high)}", p_text(cost.p)


def _change(ratio: float) -> str:
    change = 100 * (ratio - 1)
    return f"{change:+,.0f}" if abs(change) >= 99.95 else f"{change:+.1f}"


def cross_header(result: CrossResult) -> str:
    """What was compared: "Frameworks compared · mnist · model lenet · cores 2 of 2"."""
    facts = ["Frameworks compared", result.dataset, f"model {result.model}"]
    facts += [f"cores {result.machine['cores']}"] if "cores" in result.machine else []
    return printable(" · ".join([*facts, f"study {result.cross_id}"]))


def cross_headline(result: CrossResult) -> str:
    """What was found, in two sentences that every reader may quote."""
    rows = ledger(result)
    if not rows:
        return "Not verified: nothing may be claimed of any framework."
    faster = [each for each in rows if is_faster(each.best.point)]
    if not faster:
        return f"None of {count(len(rows), 'framework')} beats its own default significantly."
    note = _projection_note(rows)
    if len(rows) < 2:
        return f"{rows[0].title} trains {_gain(rows[0])} faster than with its own default.{note}"
    sentence = (
        f"{len(faster)} of {len(rows)} compared frameworks train faster than with their own "
        f"defaults: {_gains(faster)}."
    )
    quick = min(rows, key=lambda each: each.best.point.train_time_s.value)
    exact = max(rows, key=lambda each: each.best.point.test_accuracy.value)
    if quick is exact:
        return f"{sentence} Of their best, {_figures(quick, 'fastest and most accurate')}.{note}"
    return (
        f"{sentence} Of their best, {_figures(quick, 'fastest')}, "
        f"{_figures(exact, 'most accurate')}.{note}"
    )


def _projection_note(rows: list[LedgerRow]) -> str:
    """What a speed-up against a default that was cut short does not say."""
    cut = [each.title for each in rows if each.default.point.projected]
    if not cut:
        return ""
    if len(cut) == len(rows):
        subject = "No default was"
    elif len(cut) == 1:
        subject = f"The default of {cut[0]} was not"
    else:
        subject = f"The defaults of {', '.join(cut)} were not"
    return (
        f" {subject} trained to its end: such times are projected, final accuracies unknown; "
        "baseline=full measures both."
    )


def _gains(faster: list[LedgerRow]) -> str:
    """Every gain, or of many the least and the greatest."""
    if len(faster) <= _MOST_NAMED:
        return ", ".join(f"{each.title} {_gain(each)}" for each in faster)
    ordered = sorted(faster, key=_speedup)
    ends = (ordered[0], ordered[-1])
    return "from " + " to ".join(f"{_gain(each)} ({each.title})" for each in ends)


def _speedup(row: LedgerRow) -> float:
    versus = row.best.point.against_default
    return versus.speedup.value if versus else 1.0


def _gain(row: LedgerRow) -> str:
    versus = row.best.point.against_default
    assert versus is not None
    loss = f" (at {row.best.gain[0]} points of accuracy)"
    return f"{versus.speedup.value:.1f}x{loss if loses_accuracy(row.best.point) else ''}"


def _figures(row: LedgerRow, praise: str) -> str:
    point = row.best.point
    seconds = f"{format_seconds(point.train_time_s.value)} s"
    return f"{row.title} is {praise} ({seconds} at {100 * point.test_accuracy.value:.2f} %)"


def cross_notes(result: CrossResult) -> list[str]:
    """How the figures came about and what they do not say, one line each."""
    rows = ledger(result)
    notes = []
    if rows:
        notes += [
            "Each framework's best verified configuration against its own default, run in turn "
            f"with it; intervals at {100 * rows[0].best.point.confidence:g} % confidence, "
            "p-values two-sided.",
            "Speed-up, CPU (user and system, of the whole process tree) and peak memory are "
            "ratios round by round; minus is less than the default. Training time is the "
            "training loop alone.",
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


def _gaps(rows: list[LedgerRow]) -> list[str]:
    """Why some costs have no interval, or no value at all."""
    gaps: dict[str, list[str]] = {}
    for row in rows:
        versus = row.best.point.against_default
        for what, cost in (("CPU", versus and versus.cpu), ("memory", versus and versus.memory)):
            gap = cost.gap if cost else "not compared"
            if gap:
                gaps.setdefault(gap, []).append(f"{row.title} ({what})")
    return [f"No interval for {', '.join(names)}: {gap}." for gap, names in gaps.items()]


def reasons(result: CrossResult) -> list[tuple[str, str]]:
    """Title and reason of every framework that the ledger leaves out."""
    names = titles(result)
    return [(names[each.framework], printable(each.reason)) for each in result.left_out]


def cross_interruption(result: CrossResult) -> str:
    """How to go on after a stop; empty for a complete one."""
    if result.complete:
        return ""
    return f"Interrupted: what is here was measured; resume with {result.command}"
