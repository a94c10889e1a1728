"""What the pictures of a study show, worked out once for the page and for the PNG.

Values are as printed: accuracies in percent, times in seconds, memory in MiB.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.pareto import Direction, Objective
from tuner.progress import printable
from tuner.results import StudyResult, Verified, front_of, hypervolume_over_time
from tuner.trial import Interval, TrialResult

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C6D31", "#7F7F7F")
"""Okabe and Ito's colours, told apart without red and green; vermilion is kept for verified."""

VERIFIED_COLOUR = "#D55E00"
_DEFAULT_SLACK = 1.1


@dataclass(frozen=True, slots=True)
class Point:
    """A usable trial in the picture.

    Attributes:
        result: The trial, or what was derived from one.
        x, y: Where it is drawn.
        on_front: Whether no other trial dominates it, over all objectives.
    """

    result: TrialResult
    x: float
    y: float
    on_front: bool


@dataclass(frozen=True, slots=True)
class VerifiedPoint:
    """A verified configuration in the picture, with its intervals."""

    point: Verified
    x: Interval
    y: Interval

    @property
    def label(self) -> str:
        """The name, and how much faster it is where that is significant."""
        versus, name = self.point.against_default, printable(self.point.name)
        if versus is None or versus.speedup_p >= 1 - self.point.confidence:
            return name
        ratio = versus.speedup.value
        return f"{name}: {ratio:.1f}x faster" if ratio > 1 else f"{name}: {1 / ratio:.1f}x slower"


@dataclass(frozen=True, slots=True)
class FrontView:
    """The Pareto picture.

    Attributes:
        x: Objective across; ``None`` for the trial's number, where there is one objective only.
        y: Objective upwards.
        groups: The usable trials by what colours them (their BLAS library), names in order.
        line: Corners of the front in these two objectives, from left to right.
        default: Trial 0, if usable.
        verified: The verified configurations, the default among them.
        log_x: Whether ``x`` can be drawn on a logarithmic axis.
        y_range: What to show of ``y``, so that the front fills the picture.
        hidden: Usable trials outside ``y_range``.
        line_name: What ``line`` is called in legends.
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

    @property
    def points(self) -> list[Point]:
        """All usable trials."""
        return [point for points in self.groups.values() for point in points]


def view_front(result: StudyResult) -> FrontView:
    """Lay the study out over its first two objectives, accuracy upwards where it is one."""
    x, y = choose_axes(result.objectives)
    points = _points(result, x, y)
    axes = [each for each in (y, x) if each is not None]
    line = {id(each) for each in front_of(result.points, axes)} if x else set()
    verified = [
        VerifiedPoint(each, place_x, place_y)
        for each in result.verified
        for place_x, place_y in [(_verified_value(each, x), _verified_value(each, y))]
        if place_x is not None and place_y is not None
    ]
    y_range = _focus(points, verified)
    places = [*(each.x for each in points), *(each.x.low for each in verified)]
    groups: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda each: _blas(each.result)):
        groups.setdefault(_blas(point.result), []).append(point)
    return FrontView(
        x=x,
        y=y,
        groups=groups,
        line=sorted((each for each in points if id(each.result) in line), key=_across),
        default=next((each for each in points if each.result is result.default), None),
        verified=verified,
        log_x=x is not None and all(each > 0 for each in places),
        y_range=y_range,
        hidden=sum(1 for each in points if not y_range[0] <= each.y <= y_range[1]),
    )


def choose_axes(objectives: Sequence[Objective]) -> tuple[Objective | None, Objective]:
    """The two objectives to draw: the first two, an accuracy upwards; one alone goes upwards."""
    if len(objectives) == 1:
        return None, objectives[0]
    first, second = objectives[:2]
    if second.metric.endswith("accuracy") and not first.metric.endswith("accuracy"):
        return first, second
    return second, first


def label(objective: Objective | None) -> str:
    """An axis title with its unit: "train time, s"."""
    if objective is None:
        return "trial number"
    words = objective.name.replace("_", " ")
    if objective.metric.endswith("accuracy"):
        return f"{words}, %"
    if words.endswith(" mb"):
        return f"{words.removesuffix(' mb')}, MiB"
    return f"{words.removesuffix(' s')}, s"


def shown(objective: Objective, value: float) -> float:
    """An objective's value as printed: a fraction becomes percent."""
    return 100 * value if objective.metric.endswith("accuracy") else value


def quantity(objective: Objective | None, value: float) -> str:
    """A drawn value with its unit: "8.1 s", "97.5 %", "trial 4"."""
    return f"trial {value:.0f}" if objective is None else f"{rounded(value)}{_unit(objective)}"


def rounded(value: float) -> str:
    """Four digits, never as a power of ten: 0.0123, 8.1, 12,345."""
    return f"{value:,.4g}" if abs(value) < 9_999.5 else f"{value:,.0f}"


def log_ticks(values: Sequence[float]) -> list[float]:
    """The 1, 2 and 5 of each decade from the least to the greatest of ``values``, all above 0."""
    decades = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    return [each for each in ticks if min(values) / 2 <= each <= max(values) * 2]


def usable_points(result: StudyResult) -> list[TrialResult]:
    """The points for which every objective was measured as a finite number."""
    return [
        each
        for each in result.points
        if each.usable
        and all(
            math.isfinite(each.metrics.get(objective.metric, math.nan))
            for objective in result.objectives
        )
    ]


def _points(result: StudyResult, x: Objective | None, y: Objective) -> list[Point]:
    front = {id(each) for each in result.front}
    return [
        Point(
            result=each,
            x=shown(x, x.value(each.metrics)) if x else float(each.trial.origin),
            y=shown(y, y.value(each.metrics)),
            on_front=id(each) in front,
        )
        for each in usable_points(result)
    ]


def _verified_value(point: Verified, objective: Objective | None) -> Interval | None:
    """A verified figure as drawn, ``None`` where verification does not measure it."""
    if objective is None:
        return Interval(*[float(point.trial_number)] * 3)
    name = "test_accuracy" if objective.metric == "val_accuracy" else objective.metric
    figure = getattr(point, name, None)
    if isinstance(figure, int | float):
        figure = Interval(figure, figure, figure)
    if not isinstance(figure, Interval):
        return None
    ends = (figure.value, figure.low, figure.high)
    return Interval(*(shown(objective, each * objective.scale) for each in ends))


def _focus(points: Sequence[Point], verified: Sequence[VerifiedPoint]) -> tuple[float, float]:
    """The range of ``y`` that matters: front, default and verified, with a margin."""
    matter = [each.y for each in points if each.on_front or each.result.trial.number == 0]
    matter += [end for each in verified for end in (each.y.low, each.y.high)]
    if not matter:
        return (0.0, 1.0)
    low, high = min(matter), max(matter)
    margin = 0.08 * (high - low) or 0.01 * abs(high) or 1.0
    return (low - margin, high + margin)


def _across(point: Point) -> float:
    return point.x


def _blas(result: TrialResult) -> str:
    return printable(str(result.params.get("blas", "trials")))


@dataclass(frozen=True, slots=True)
class Growth:
    """The hypervolume of the front as the study went on.

    Attributes:
        elapsed_s: Wall time of the trials up to and with each trial, discarded measurements
            included, seconds.
        share: Hypervolume as a percentage of the box between reference point and ideal.
        reference: The reference point, in words.
    """

    elapsed_s: list[float]
    share: list[float]
    reference: str


def view_growth(result: StudyResult) -> Growth | None:
    """How the front grew; ``None`` without any usable trial.

    The reference point is a tenth worse than the default in each objective, or the worst
    measured where the default gave no figures. The ideal is zero for costs and 1 for accuracies.
    """
    usable = usable_points(result)
    if not usable:
        return None
    corner = [_reference(each, result.default, usable) for each in result.objectives]
    box = math.prod(
        abs(end - (0.0 if each.direction is Direction.MINIMIZE else 1.0))
        for each, end in zip(result.objectives, corner, strict=True)
    )
    volumes = hypervolume_over_time(result.trials, result.objectives, corner, result.derived)
    words = [
        f"{label(each).rpartition(', ')[0]} {quantity(each, shown(each, end))}"
        for each, end in zip(result.objectives, corner, strict=True)
    ]
    source = "a tenth worse than the default" if result.default else "the worst measured"
    return Growth(
        elapsed_s=list(itertools.accumulate(map(_wall_s, result.trials))),
        share=[100 * each / box if box else 0.0 for each in volumes],
        reference=f"{', '.join(words)} ({source})",
    )


def _reference(
    objective: Objective, default: TrialResult | None, usable: Sequence[TrialResult]
) -> float:
    cost = objective.direction is Direction.MINIMIZE
    if default is not None and objective.metric in default.metrics:
        value = objective.value(default.metrics)
        return value * _DEFAULT_SLACK if cost else value / _DEFAULT_SLACK
    values = [objective.value(each.metrics) for each in usable]
    return max(values) if cost else min(values)


def _unit(objective: Objective) -> str:
    _, _, unit = label(objective).rpartition(", ")
    return f" {unit}"


def _wall_s(result: TrialResult) -> float:
    measured = [*result.discarded, *([result.measurement] if result.measurement else [])]
    return sum(each.wall_time_s for each in measured)
