"""What the pictures across frameworks show, worked out once for the page and for the PNG."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.pareto import Direction
from tuner.report.cross.labels import Spot, place_labels
from tuner.report.cross.ledger import finest, ledger, titles
from tuner.report.view import FrontView, Point, VerifiedPoint, choose_axes, view_front
from tuner.report.wording import is_faster, is_slower
from tuner.results import Comparison, CostRatio, CrossResult, StudyResult, front_of
from tuner.trial import Interval

_PADDING = 0.18  # of the range across, left and right of it: room for labels

_BELOW = 1.2  # room below what is verified, as a multiple of its height
_MORE, _LESS = "more is better", "less is better"


@dataclass(frozen=True, slots=True)
class Entrant:
    """One framework in the picture.

    Attributes:
        title: Of the framework.
        line: Corners of its own front, from left to right.
        default, best: Verified, on the test split; ``None`` where that was not measured.
        label_y: The height at which the label of ``best`` has room.
        side: On which side of that: "top left", "bottom center" …
    """

    title: str
    line: list[Point]
    default: VerifiedPoint | None
    best: VerifiedPoint | None
    label_y: float = 0.0
    side: str = ""

    @property
    def label(self) -> str:
        """The title and, where it is significant, the speed-up: "Caffe 1.0 4.9x"."""
        if self.best is None or not (is_faster(self.best.point) or is_slower(self.best.point)):
            return self.title
        versus = self.best.point.against_default
        return f"{self.title} {versus.speedup.value:.2g}x" if versus else self.title


@dataclass(frozen=True, slots=True)
class CrossView:
    """The picture of all fronts.

    Attributes:
        frame: All frameworks' trials, grouped by framework, with the front over all of them.
        entrants: The frameworks in the order of ``frame.groups``.
    """

    frame: FrontView
    entrants: list[Entrant]

    @property
    def x_range(self) -> tuple[float, float]:
        """What to show across: the points in ``y_range``, with room for labels on either side."""
        return _x_range(self.frame)


def view_cross(result: CrossResult) -> CrossView | None:
    """Lay all studies out on common axes; ``None`` if no trial gave usable figures."""
    names = titles(result)
    views = [(names[study.framework], study, view_front(study)) for study in result.studies]
    views = [(title, study, view) for title, study, view in views if view.points]
    if not views:
        return None
    entrants = [_entrant(title, study, view) for title, study, view in views]
    frame = _merge(result, {title: view for title, _, view in views}, entrants)
    return CrossView(frame, _with_labels(entrants, frame))


def _merge(
    result: CrossResult, views: dict[str, FrontView], entrants: Sequence[Entrant]
) -> FrontView:
    x, y = choose_axes(result.objectives)
    trials = [point.result for view in views.values() for point in view.points]
    front = {id(each) for each in front_of(trials, result.objectives)}
    corners = {id(each) for each in front_of(trials, [each for each in (y, x) if each])}
    groups = {
        title: [
            dataclasses.replace(each, on_front=id(each.result) in front) for each in view.points
        ]
        for title, view in views.items()
    }
    every = [each for points in groups.values() for each in points]
    line = [each for each in every if id(each.result) in corners]
    low = min(view.y_range[0] for view in views.values())
    high = max(view.y_range[1] for view in views.values())
    matter = [height for each in entrants for _, height in _verified_places(each)]
    if matter and y.direction is Direction.MAXIMIZE:  # what is verified shall not be crowded
        low = max(low, min(matter) - _BELOW * (max(matter) - min(matter)))
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
    )


def _entrant(title: str, study: StudyResult, view: FrontView) -> Entrant:
    best = finest(study) if study.verified else None
    return Entrant(
        title=title,
        line=view.line,
        default=next((each for each in view.verified if not each.point.against_default), None),
        best=next((each for each in view.verified if each.point is best), None),
    )


def _with_labels(entrants: Sequence[Entrant], frame: FrontView) -> list[Entrant]:
    """Each with its label where it covers no mark and no other label."""
    covers = [_spot(*place, frame) for each in entrants for place in _drawn(each)]
    heights = {each.title: _heights(each.best) for each in entrants if each.best}
    spots = {
        each.title: [_spot(each.best.x.value, height, frame) for height in heights[each.title]]
        for each in entrants
        if each.best
    }
    labels = [each.label for each in entrants if each.best]
    places = dict(zip(spots, place_labels(list(spots.values()), labels, covers), strict=True))
    return [
        dataclasses.replace(each, side=side, label_y=heights[each.title][index])
        if each.title in places
        else each
        for each in entrants
        for index, side in [places.get(each.title, (0, ""))]
    ]


def _heights(best: VerifiedPoint) -> tuple[float, ...]:
    """Where a label may be fastened: at the mark, and at the ends of its interval."""
    return best.y.value, best.y.high, best.y.low


def _verified_places(each: Entrant) -> list[Spot]:
    """Where its verified marks and the ends of their intervals are."""
    marks = [place for place in (each.default, each.best) if place]
    return [(mark.x.value, height) for mark in marks for height in _heights(mark)]


def _drawn(each: Entrant) -> list[Spot]:
    """Places of the front, marks, intervals and what joins them: no label should cover these."""
    rises = [
        (right.x, left.y + part * (right.y - left.y))
        for left, right in itertools.pairwise(each.line)
        for part in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    places = _verified_places(each)
    marks = [place for place in (each.default, each.best) if place]
    if each.default and each.best:
        (one, low), (other, high) = [(mark.x.value, mark.y.value) for mark in marks]
        places += [
            (one ** (1 - part) * other**part, (1 - part) * low + part * high)
            for part in (0.2, 0.4, 0.6, 0.8)
        ]
    return [*rises, *places]


def _spot(x: float, y: float, frame: FrontView) -> Spot:
    """Where a point lies in the picture, as fractions of its width and height."""
    left, right = _x_range(frame)
    bottom, top = frame.y_range
    if frame.log_x:
        x, left, right = math.log(x), math.log(left), math.log(right)
    return (x - left) / (right - left), (y - bottom) / (top - bottom)


def _x_range(frame: FrontView) -> tuple[float, float]:
    bottom, top = frame.y_range
    seen = [each.x for each in frame.points if bottom <= each.y <= top]
    across = seen or [each.x for each in frame.points]
    low, high = min(across), max(across)
    if frame.log_x:
        room = (high / low) ** _PADDING if high > low else 2.0
        return low / room, high * room
    room = _PADDING * (high - low) or 1.0
    return low - room, high + room


@dataclass(frozen=True, slots=True)
class Gain:
    """One figure of the ledger for all frameworks.

    Attributes:
        title: With its unit.
        better: Which way is better: "more is better" or "less is better".
        neutral: Where nothing differs from the default.
        log: Whether it is a ratio, for a logarithmic axis.
        rows: Framework and figure; an interval without extent is none.
    """

    title: str
    better: str
    neutral: float
    log: bool
    rows: list[tuple[str, Interval]]


_GAINS: tuple[tuple[str, str, float, bool, Callable[[Comparison], Interval | None]], ...] = (
    ("speed-up, ×", _MORE, 1.0, True, lambda versus: versus.speedup),
    ("accuracy gain, points", _MORE, 0.0, False, lambda versus: _points(versus.accuracy_gain)),
    ("CPU, %", _LESS, 0.0, False, lambda versus: _change(versus.cpu)),
    ("peak memory, %", _LESS, 0.0, False, lambda versus: _change(versus.memory)),
)


def view_gains(result: CrossResult) -> list[Gain]:
    """The gains of the ledger, each over all frameworks; empty without a verified study."""
    pairs = [
        (row.title, row.best.point.against_default)
        for row in ledger(result)
        if row.best.point.against_default
    ]
    gains = [
        Gain(title, better, neutral, log, _figures(pairs, figure))
        for title, better, neutral, log, figure in _GAINS
    ]
    return [each for each in gains if each.rows]


def _figures(
    pairs: Sequence[tuple[str, Comparison]], figure: Callable[[Comparison], Interval | None]
) -> list[tuple[str, Interval]]:
    found = [(title, figure(versus)) for title, versus in pairs]
    return [(title, each) for title, each in found if each is not None]


def _points(gain: Interval) -> Interval:
    return Interval(100 * gain.value, 100 * gain.low, 100 * gain.high)


def _change(cost: CostRatio | None) -> Interval | None:
    """A cost as a difference in percent; ``None`` where it was not compared."""
    if cost is None or math.isnan(cost.value):
        return None
    low = cost.value if cost.low is None else cost.low
    high = cost.value if cost.high is None else cost.high
    return Interval(*(100 * (each - 1) for each in (cost.value, low, high)))
