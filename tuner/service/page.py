"""The HTML page: what is on record, plots of verified configurations, and a query form."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import jinja2

from tuner import __version__
from tuner.recommendation.evidence import Evidence, shown
from tuner.recommendation.study_answers import StudyAnswers, answers_among
from tuner.service.claims import Balance, Drift
from tuner.service.records import Snapshot
from tuner.service.study_job import COMPLETE, OPEN, StudyJob
from tuner.tracking import StudyRecord

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 720, 380, 64, 44, 16
_MAX_STUDIES = 50
_COLOURS = ("#0b57a4", "#b3441c", "#0b6b3a", "#7a3fa0", "#8a6d00", "#00707a", "#a3163f", "#4d5661")
_TIMES = [step * 10.0**power for power in range(-3, 7) for step in (1, 3)]


@dataclass(frozen=True)
class Mark:
    """One configuration in a plot."""

    x: float
    y: float
    colour: str
    is_default: bool
    words: str


@dataclass(frozen=True)
class Plot:
    """The verified configurations of all frameworks on one data set.

    Attributes:
        dataset: Its name.
        marks: The configurations.
        legend: Framework and its colour.
        across, up: Ticks of the two axes: position and text.
    """

    dataset: str
    marks: Sequence[Mark]
    legend: Sequence[tuple[str, str]]
    across: Sequence[tuple[float, str]]
    up: Sequence[tuple[float, str]]


def render_page(
    now: Snapshot, jobs: Sequence[StudyJob], balance: Balance, drifts: Sequence[Drift]
) -> str:
    """Render the page as HTML; all text from studies and clients is escaped."""
    datasets = list(dict.fromkeys(each.dataset for each in now.evidence))
    return _ENVIRONMENT.get_template("page.html.j2").render(
        version=__version__,
        now=now,
        balance=balance,
        drifts=drifts[:_MAX_STUDIES],
        plots=[_plot(each, now.evidence_for("", each)) for each in datasets],
        answers=_answers(now),
        studies=now.studies[:_MAX_STUDIES],
        jobs=[each for each in jobs if each.state != COMPLETE][:_MAX_STUDIES],
        open_states=OPEN,
        datasets=datasets,
        frameworks=sorted({each.framework for each in now.evidence}),
        size=(_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE),
    )


def _answers(now: Snapshot) -> list[tuple[StudyRecord, StudyAnswers]]:
    """Return the answers of the newest studies, without those that verified nothing."""
    points: dict[str, list[Evidence]] = {}
    for each in now.evidence:
        points.setdefault(each.study, []).append(each)
    studies = [each for each in now.studies[:_MAX_STUDIES] if each.run_id in points]
    return [(each, answers_among(points[each.run_id])) for each in studies]


def _in_short(point: Evidence | None) -> str:
    """Format an answer as a table cell: speed-up, training time and accuracy."""
    if point is None:
        return "none proven"
    ratio = point.speedup.value
    pace = f"{ratio:.3g}x faster" if ratio >= 1 else f"{1 / ratio:.3g}x slower"
    time_s, reached = _three(point.train_time_s), shown(point.quality, point.test_accuracy)
    return ", ".join(filter(None, [pace, f"{time_s} s", reached, point.default_part]))


def _three(number: float) -> str:
    """Format a number with three digits, and without an exponent below a million."""
    return f"{float(f'{number:.3g}'):g}"


def _plot(dataset: str, evidence: Sequence[Evidence]) -> Plot:
    """Plot test accuracy against training time (logarithmic)."""
    names = sorted({each.framework for each in evidence})
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names)}
    logs = [math.log(max(each.train_time_s, 1e-6)) for each in evidence]
    least, most = min(logs) - 0.2, max(logs) + 0.2
    low = min(each.accuracy for each in evidence)
    high = max(each.accuracy for each in evidence)
    margin = max(0.1 * (high - low), 0.002)
    low, high = low - margin, min(1.0, high + margin)

    def across(log: float) -> float:
        return round(_LEFT + (log - least) / (most - least) * (_WIDTH - _LEFT - _EDGE), 1)

    def up(accuracy: float) -> float:
        part = (accuracy - low) / (high - low)
        return round(_EDGE + (1 - part) * (_HEIGHT - _BOTTOM - _EDGE), 1)

    marks = [
        Mark(
            across(log),
            up(each.accuracy),
            colours[each.framework],
            each.is_default,
            f"{each.framework}, {each.figures['name']}: {_three(each.train_time_s)} s, "
            f"{each.assurance}",
        )
        for each, log in zip(evidence, logs, strict=True)
    ]
    ticks = [low + (high - low) * part / 4 for part in range(5)]
    return Plot(
        dataset,
        marks,
        list(colours.items()),
        [(across(math.log(t)), f"{t:g} s") for t in _TIMES if least < math.log(t) < most],
        [(up(tick), f"{tick:.2%}") for tick in ticks],
    )


def _ago(seconds_since_epoch: float) -> str:
    minutes = max(0.0, time.time() - seconds_since_epoch) / 60
    if minutes < 90:
        return f"{minutes:.0f} min ago"
    return f"{minutes / 60:.0f} h ago" if minutes < 2880 else f"{minutes / 1440:.0f} days ago"


def _hours(seconds: float) -> str:
    """Format a span in the unit that suits it."""
    for unit, size in (("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number:,} {one if number == 1 else more or one + 's'}"


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("tuner.service", "."),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"ago": _ago, "hours": _hours, "count": _count, "in_short": _in_short}
