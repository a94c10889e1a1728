"""The content of a study's pictures, computed once for the page and the PNG.

Values are in printed units: accuracies in percent, times in seconds, memory in MiB.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.progress import printable
from tuner.report.answers import FIRST_PART, labels, verified_default
from tuner.report.axes import choose_axes, is_accuracy, label, shown
from tuner.report.labels import Spot, place_labels
from tuner.report.scale import LINEAR, Scale, error_scale
from tuner.report.wording import in_unit
from tuner.values.pareto import Direction, Objective
from tuner.values.results import StudyResult, front_of, least_of_interest
from tuner.values.trial import Interval, TrialResult
from tuner.values.verified import Verified

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C6D31", "#7F7F7F")
"""Okabe and Ito's colours, safe for red-green colour blindness; vermilion marks verified."""

VERIFIED_COLOUR = "#D55E00"
LIMIT_COLOUR = "#009E73"
_PADDING = 0.18  # of the range of x, left and right of it
_MARGIN = 0.08  # of the picture's height, above and below what matters


@dataclass(frozen=True, slots=True)
class Point:
    """A usable trial in the picture.

    Attributes:
        result: The trial, or the point derived from one.
        x, y: Where it is drawn.
        on_front: Whether no other trial dominates it, over all objectives.
    """

    result: TrialResult
    x: float
    y: float
    on_front: bool


@dataclass(frozen=True, slots=True)
class VerifiedPoint:
    """A verified configuration in the picture.

    Attributes:
        point: The configuration.
        x, y: Where it is drawn, with its intervals.
        answers: The answers that it gives, in lower case.
        title: Its name where it gives none.
        label_y, side: The value of ``y`` where its label is attached, and the side on which the
            label covers least: "top left", "bottom center" …
    """

    point: Verified
    x: Interval
    y: Interval
    answers: tuple[str, ...]
    title: str
    label_y: float = 0.0
    side: str = "top left"

    @property
    def heights(self) -> tuple[float, ...]:
        """Where a label may be attached: at the mark and at the ends of its interval."""
        return self.y.value, self.y.high, self.y.low

    @property
    def label(self) -> str:
        """Its answers or its name, with the accuracy gain or the speed-up if significant."""
        name = ", ".join(self.answers) or printable(self.title)
        quality = self.point.quality
        if self.answers == (quality.best,):
            return f"{name}: {quality.shown_gain(self.point.gain)}"
        ratio = self.point.speedup
        if self.point.is_faster:
            return f"{name}: {ratio:.1f}x faster"
        return f"{name}: {1 / ratio:.1f}x slower" if self.point.is_slower else name


@dataclass(frozen=True, slots=True)
class FrontView:
    """The Pareto picture.

    Attributes:
        x: Objective on the horizontal axis; ``None`` for the trial's number, if there is only one
            objective.
        y: Objective on the vertical axis.
        groups: The usable trials by colour group (their BLAS library), names in order.
        line: Corners of the front in these two objectives, from left to right.
        default: Trial 0, if usable.
        verified: The verified configurations including the default, in no order.
        log_x: Whether ``x`` can be drawn on a logarithmic axis.
        y_range: The visible range of ``y``, so that the front fills the picture.
        hidden: Number of usable trials outside ``y_range``.
        line_name: The name of ``line`` in legends.
        scale: The scale of ``y``.
        floor: Least accuracy of interest, %, or the greatest perplexity; ``None`` if ``y`` is
            neither, or the default's is not known.
        lossless: The lowest accuracy that counts as no loss and the default's accuracy, %, or the
            default's perplexity and the greatest; ``None`` if no default was verified or ``y`` is
            neither.
        part: The first part of the default that is drawn, in words; empty for the whole.
    """

    x: Objective | None
    y: Objective
    groups: dict[str, list[Point]]
    line: list[Point]
    default: Point | None
    verified: list[VerifiedPoint]
    log_x: bool
    y_range: tuple[float, float]
    hidden: int
    line_name: str = "front (validation)"
    scale: Scale = LINEAR
    floor: float | None = None
    lossless: tuple[float, float] | None = None
    part: str = ""

    @property
    def reference(self) -> VerifiedPoint | None:
        """The verified default."""
        return next((each for each in self.verified if each.point.is_default), None)

    @property
    def default_title(self) -> str:
        """The name of the default: "default" or "default, first part"."""
        return _default_title(self.part)

    @property
    def x_range(self) -> tuple[float, float]:
        """The visible range of ``x``: all points in ``y_range``, with room for labels."""
        bottom, top = self.y_range
        seen = [each.x for each in self.points if bottom <= each.y <= top]
        seen = [*seen, *(each.x.value for each in self.verified)] or [e.x for e in self.points]
        if not seen:
            return (0.0, 1.0)
        low, high = min(seen), max(seen)
        if self.log_x:
            room = (high / low) ** _PADDING if high > low else 2.0
            return low / room, high * room
        room = _PADDING * (high - low) or 1.0
        return low - room, high + room

    def spot(self, x: float, y: float) -> Spot:
        """Return where a point lies in the picture, as fractions of its width and height."""
        left, right = self.x_range
        bottom, top = self.height_range
        if self.log_x:
            x, left, right = math.log(x), math.log(left), math.log(right)
        return (x - left) / (right - left), (self.scale.height(y) - bottom) / (top - bottom)

    @property
    def height_range(self) -> tuple[float, float]:
        """``y_range`` as heights of ``scale``."""
        low, high = self.y_range
        return self.scale.height(low), self.scale.height(high)

    @property
    def points(self) -> list[Point]:
        """All usable trials."""
        return [point for points in self.groups.values() for point in points]


def view_front(result: StudyResult) -> FrontView:
    """Lay out the study over its first two objectives, an accuracy or perplexity on y."""
    x, y = choose_axes(result.objectives)
    floor = _floor(result) if y.is_quality else None
    points = _points(result, x, y, floor)
    axes = [each for each in (y, x) if each is not None]
    line = {id(each) for each in front_of(result.points, axes)} if x else set()
    verified = [
        VerifiedPoint(
            each,
            place_x,
            place_y,
            answers=tuple(labels(result, each)),
            title=_default_title(result.default_part) if each.is_default else each.name,
        )
        for each in result.verified
        for place_x, place_y in [(_verified_value(each, x), _verified_value(each, y))]
        if place_x is not None and place_y is not None
    ]
    heights = [*(each.y for each in points), *(each.y.high for each in verified)]
    heights += [] if floor is None else [floor]
    scale = error_scale(heights) if is_accuracy(y) else LINEAR
    y_range = _focus(points, verified, scale, floor, y)
    places = [*(each.x for each in points), *(each.x.low for each in verified)]
    groups: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda each: _blas(each.result)):
        groups.setdefault(_blas(point.result), []).append(point)
    view = FrontView(
        x=x,
        y=y,
        groups=groups,
        line=sorted(
            (each for each in points if id(each.result) in line and _worth(each.y, floor, y)),
            key=lambda each: each.x,
        ),
        default=next((each for each in points if each.result is result.default), None),
        verified=verified,
        log_x=x is not None and all(each > 0 for each in places),
        y_range=y_range,
        hidden=sum(1 for each in points if not y_range[0] <= each.y <= y_range[1]),
        scale=scale,
        floor=floor,
        lossless=_lossless(result) if y.is_quality else None,
        part=result.default_part,
    )
    return dataclasses.replace(view, verified=_with_sides(view))


def _default_title(part: str) -> str:
    return f"default, {FIRST_PART}" if part else "default"


def _with_sides(view: FrontView) -> list[VerifiedPoint]:
    """Return the verified configurations with labels placed to cover as little as possible."""
    ordered = sorted(view.verified, key=lambda each: (not each.answers, each.x.value))
    spots = [[view.spot(each.x.value, height) for height in each.heights] for each in ordered]
    covers = [spot for own in spots for spot in own]
    covers += [view.spot(x, y) for x, y in rises(view.line)]
    covers += [view.spot(each.x, each.y) for each in view.points]
    marks = [own[0] for own in spots]
    places = place_labels(spots, [each.label for each in ordered], covers, marks)
    return [
        dataclasses.replace(each, side=side, label_y=each.heights[index])
        for each, (index, side) in zip(ordered, places, strict=True)
    ]


def rises(line: Sequence[Point]) -> list[Spot]:
    """Return places along the steps of a front, which no label should cover."""
    return [
        (right.x, left.y + part * (right.y - left.y))
        for left, right in itertools.pairwise(line)
        for part in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]


def _floor(result: StudyResult) -> float | None:
    """Return the least accuracy of interest, %, or perplexity; ``None`` if it is not known."""
    default, quality = verified_default(result), result.quality
    if default is not None:
        return quality.in_unit(least_of_interest(default.test_accuracy.value, quality))
    if result.default is None or result.default.val_accuracy is None:
        return None
    return quality.in_unit(least_of_interest(result.default.val_accuracy, quality))


def _worth(figure: float, floor: float | None, y: Objective) -> bool:
    if floor is None:
        return True
    return figure >= floor if y.direction is Direction.MAXIMIZE else figure <= floor


def _lossless(result: StudyResult) -> tuple[float, float] | None:
    default = verified_default(result)
    if default is None:
        return None
    own, quality = default.test_accuracy.value, default.quality
    ends = sorted([quality.in_unit(own - result.accuracy_margin), quality.in_unit(own)])
    return ends[0], ends[1]


def height_label(view: FrontView) -> str:
    """Return the title of the vertical axis."""
    return "accuracy, % (log scale of the error)" if not view.scale.is_linear else label(view.y)


def limit(view: FrontView) -> str:
    """Name the band of ``lossless`` for legends."""
    low, high = view.lossless or (0.0, 0.0)
    kept = f"same {view.y.name}" if view.part else "no loss"
    if is_accuracy(view.y):
        return f"{kept}: at most {high - low:.2g} points below the default"
    return f"{kept}: at most {100 * (high / low - 1):.2g} % above the default"


def usable_points(result: StudyResult) -> list[TrialResult]:
    """Return the usable points for which every objective is a finite number."""
    return [
        each
        for each in result.points
        if each.usable
        and all(
            math.isfinite(each.metrics.get(objective.metric, math.nan))
            for objective in result.objectives
        )
    ]


def _points(
    result: StudyResult, x: Objective | None, y: Objective, floor: float | None
) -> list[Point]:
    front = {id(each) for each in result.front}
    return [
        Point(
            result=each,
            x=shown(x, x.value(each.metrics)) if x else float(each.trial.number),
            y=height,
            on_front=id(each) in front and _worth(height, floor, y),
        )
        for each in usable_points(result)
        for height in [shown(y, y.value(each.metrics))]
    ]


def _verified_value(point: Verified, objective: Objective | None) -> Interval | None:
    """Return a verified figure in printed units; ``None`` if verification does not measure it."""
    if objective is None:
        return Interval(*[float(point.trial_number)] * 3)
    if objective.is_quality:
        return in_unit(point.quality, point.test_accuracy)
    name = objective.metric
    figure = getattr(point, name, None)
    if isinstance(figure, int | float):
        figure = Interval(figure, figure, figure)
    if not isinstance(figure, Interval):
        return None
    ends = (figure.value, figure.low, figure.high)
    return Interval(*(shown(objective, each * objective.scale) for each in ends))


def _focus(
    points: Sequence[Point],
    verified: Sequence[VerifiedPoint],
    scale: Scale,
    floor: float | None,
    y: Objective,
) -> tuple[float, float]:
    """Return the range of ``y`` that matters: front, default and verified, with a margin."""
    matter = [each.y for each in points if each.on_front or each.result.trial.is_default]
    matter += [end for each in verified for end in (each.y.low, each.y.high)]
    matter = [each for each in matter if _worth(each, floor, y)] or matter
    if not matter:
        return (0.0, 1.0)
    low, high = scale.height(min(matter)), scale.height(max(matter))
    margin = _MARGIN * (high - low) or 0.01 * abs(high) or 1.0
    bottom, top = scale.value(low - margin), scale.value(high + margin)
    if floor is None or not all(_worth(each, floor, y) for each in matter):
        return bottom, top
    return (max(bottom, floor), top) if is_accuracy(y) else (bottom, min(top, floor))


def _blas(result: TrialResult) -> str:
    return printable(str(result.params.get("blas", "trials")))
