"""The content of the pictures across frameworks, computed once for the page and the PNG."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.report.answers import FIRST_PART
from tuner.report.axes import choose_axes, is_accuracy
from tuner.report.cross.ledger import LedgerRow, finest, ledger, titles
from tuner.report.labels import Spot, place_labels
from tuner.report.scale import LINEAR, error_scale
from tuner.report.view import FrontView, Point, VerifiedPoint, rises, view_front
from tuner.report.wording import gain_in_unit
from tuner.values.pareto import Direction
from tuner.values.results import CrossResult, StudyResult, front_of
from tuner.values.trial import Interval
from tuner.values.verified import Answers, Comparison, CostRatio, Verified

_BELOW = 1.2  # room below the verified points, as a multiple of their vertical extent
_MORE, _LESS = "more is better", "less is better"


@dataclass(frozen=True, slots=True)
class ComparedFramework:
    """One framework in the picture.

    Attributes:
        title: Title of the framework.
        line: Corners of its own front, from left to right.
        default, best: Verified, on the test split; ``None`` if not measured.
        label_y: The value of ``y`` where the label of ``best`` is attached.
        side: The side of that place: "top left", "bottom center" …
    """

    title: str
    line: list[Point]
    default: VerifiedPoint | None
    best: VerifiedPoint | None
    label_y: float = 0.0
    side: str = ""

    @property
    def label(self) -> str:
        """The title and, if significant, the speed-up: "Caffe 1.0 4.9x".

        Without proof of no loss it adds the difference in accuracy or perplexity, or "(first
        part)" if the answer is only the same accuracy as the default's first part.
        """
        if self.best is None or not (self.best.point.is_faster or self.best.point.is_slower):
            return self.title
        point, quality = self.best.point, self.best.point.quality
        price = "" if point.loses_nothing else f" at {quality.gain_in_unit(point.gain):+.2f}"
        if quality.is_perplexity and price:
            price += " %"
        if quality.same in self.best.answers:
            price = f" ({FIRST_PART})"
        return f"{self.title} {self.best.point.speedup:.2g}x{price}"


@dataclass(frozen=True, slots=True)
class CrossView:
    """The picture of all fronts.

    Attributes:
        frame: All frameworks' trials, grouped by framework, with the front over all of them.
        entrants: The frameworks in the order of ``frame.groups``.
    """

    frame: FrontView
    entrants: list[ComparedFramework]


def view_cross(result: CrossResult) -> CrossView | None:
    """Lay out all studies on common axes; return ``None`` without a usable trial."""
    names = titles(result)
    views = [(names[study.framework], study, view_front(study)) for study in result.studies]
    views = [(title, study, view) for title, study, view in views if view.points]
    if not views:
        return None
    entrants = [_entrant(title, study, view) for title, study, view in views]
    frame = _merge(result, {title: view for title, _, view in views}, entrants)
    return CrossView(frame, _with_labels(entrants, frame))


def _merge(
    result: CrossResult, views: dict[str, FrontView], entrants: Sequence[ComparedFramework]
) -> FrontView:
    x, y = choose_axes(result.objectives)
    trials = [point.result for view in views.values() for point in view.points]
    front = {id(each) for each in front_of(trials, result.objectives)}
    corners = {id(each) for each in front_of(trials, [each for each in (y, x) if each])}
    scale = error_scale([each.y for view in views.values() for each in view.points])
    scale = scale if is_accuracy(y) else LINEAR
    groups = {
        title: [
            dataclasses.replace(each, on_front=each.on_front and id(each.result) in front)
            for each in view.points
        ]
        for title, view in views.items()
    }
    every = [each for points in groups.values() for each in points]
    worth = {id(each.result) for view in views.values() for each in view.line}
    line = [each for each in every if id(each.result) in corners & worth]
    low = min(view.y_range[0] for view in views.values())
    high = max(view.y_range[1] for view in views.values())
    matter = [scale.height(y) for each in entrants for _, y in _verified_places(each)]
    if matter and y.direction is Direction.MAXIMIZE:  # keep the verified points apart
        low = max(low, scale.value(min(matter) - _BELOW * (max(matter) - min(matter))))
    return FrontView(
        x=x,
        y=y,
        groups=groups,
        line=sorted(line, key=lambda each: each.x) if x else [],
        default=None,
        verified=[],
        log_x=all(view.log_x for view in views.values()),
        y_range=(low, high),
        hidden=sum(1 for each in every if not low <= each.y <= high),
        line_name="front over all (validation)",
        scale=scale,
    )


def _entrant(title: str, study: StudyResult, view: FrontView) -> ComparedFramework:
    best = finest(study) if study.verified else None
    return ComparedFramework(
        title=title,
        line=view.line,
        default=next((each for each in view.verified if not each.point.against_default), None),
        best=next((each for each in view.verified if each.point is best), None),
    )


def _with_labels(
    entrants: Sequence[ComparedFramework], frame: FrontView
) -> list[ComparedFramework]:
    """Return the entrants with labels placed to cover as little as possible."""
    covers = [frame.spot(*place) for each in entrants for place in _drawn(each)]
    covers += [frame.spot(each.x, each.y) for each in frame.points]
    heights = {each.title: each.best.heights for each in entrants if each.best}
    spots = {
        each.title: [frame.spot(each.best.x.value, height) for height in heights[each.title]]
        for each in entrants
        if each.best
    }
    labels = [each.label for each in entrants if each.best]
    verified = [place for each in entrants for place in (each.default, each.best) if place]
    marks = [frame.spot(each.x.value, each.y.value) for each in verified]
    found = place_labels(list(spots.values()), labels, covers, marks)
    places = dict(zip(spots, found, strict=True))
    return [
        dataclasses.replace(each, side=side, label_y=heights[each.title][index])
        if each.title in places
        else each
        for each in entrants
        for index, side in [places.get(each.title, (0, ""))]
    ]


def _verified_places(each: ComparedFramework) -> list[Spot]:
    """Return the places of an entrant's verified marks and the ends of their intervals."""
    marks = [place for place in (each.default, each.best) if place]
    return [(mark.x.value, height) for mark in marks for height in mark.heights]


def _drawn(each: ComparedFramework) -> list[Spot]:
    """Return what no label should cover: front, marks, intervals and the line between marks."""
    places = _verified_places(each)
    marks = [place for place in (each.default, each.best) if place]
    if each.default and each.best:
        (one, low), (other, high) = [(mark.x.value, mark.y.value) for mark in marks]
        places += [
            (one ** (1 - part) * other**part, (1 - part) * low + part * high)
            for part in (0.2, 0.4, 0.6, 0.8)
        ]
    return [*rises(each.line), *places]


@dataclass(frozen=True, slots=True)
class Gain:
    """One figure of the ledger for all frameworks.

    Attributes:
        title: Title with its unit.
        better: "more is better" or "less is better".
        neutral: The value that means no difference from the default.
        log: Whether it is a ratio, for a logarithmic axis.
        rows: Framework and figure; an interval of zero width means there is no interval.
    """

    title: str
    better: str
    neutral: float
    log: bool
    rows: list[tuple[str, Interval]]


_Figure = Callable[[StudyResult], Interval | None]
_SPEEDS: tuple[tuple[str, str, float, bool, _Figure], ...] = (
    ("no-loss speed-up, ×", _MORE, 1.0, True, lambda study: _speed(study.answers.no_loss)),
    ("runtime only, ×", _MORE, 1.0, True, lambda study: _speed(study.answers.runtime_only)),
)
_COSTS: tuple[tuple[str, str, float, bool, _Figure], ...] = (
    ("CPU, %", _LESS, 0.0, False, lambda study: _change(study, lambda versus: versus.cpu)),
    (
        "peak memory, %", _LESS, 0.0, False,
        lambda study: _change(study, lambda versus: versus.memory),
    ),
)  # fmt: skip


def view_gains(result: CrossResult) -> list[Gain]:
    """Return the gains of the ledger, each over all frameworks; empty without a verified study."""
    quality = result.quality
    learnt = (
        f"{quality.gain_name}, {quality.gain_unit}",
        _LESS if quality.is_perplexity else _MORE,
        0.0,
        False,
        lambda study: _gain(study.answers),
    )
    gains = [
        Gain(title, better, neutral, log, _figures(ledger(result), figure))
        for title, better, neutral, log, figure in (*_SPEEDS, learnt, *_COSTS)
    ]
    return [each for each in gains if each.rows]


def _figures(
    rows: Sequence[LedgerRow], figure: Callable[[StudyResult], Interval | None]
) -> list[tuple[str, Interval]]:
    found = [(row.title, figure(row.study)) for row in rows]
    return [(title, each) for title, each in found if each is not None]


def _speed(point: Verified | None) -> Interval | None:
    return point.against_default.speedup if point and point.against_default else None


def _gain(answers: Answers) -> Interval | None:
    point = answers.most_accurate
    if point is None or point.against_default is None:
        return None
    return gain_in_unit(point.quality, point.against_default.accuracy_gain)


def _change(study: StudyResult, pick: Callable[[Comparison], CostRatio | None]) -> Interval | None:
    """Return a cost as a difference in percent; ``None`` if it was not compared."""
    versus = finest(study).against_default
    cost = pick(versus) if versus else None
    if cost is None or math.isnan(cost.value):
        return None
    low = cost.value if cost.low is None else cost.low
    high = cost.value if cost.high is None else cost.high
    return Interval(*(100 * (each - 1) for each in (cost.value, low, high)))
