"""The Pareto picture as a PNG, for READMEs and wherever scripts do not run."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from tuner.pareto import Direction
from tuner.report.view import (
    COLOURS,
    VERIFIED_COLOUR,
    FrontView,
    Point,
    VerifiedPoint,
    label,
    rounded,
    view_front,
)
from tuner.report.wording import count
from tuner.results import StudyResult

_SIZE_INCHES, _DPI = (10.0, 6.25), 160
_MARKERS = ("o", "s", "^", "P", "X", "p", "h")
INK = "#444444"


def draw_front(result: StudyResult) -> bytes:
    """The front against the default, 1600 × 1000 pixels, as the bytes of a PNG file."""
    view = view_front(result)
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw_trials(axes, view)
    for each in view.verified:
        _draw_verified(axes, each)
    if view.default is not None:
        _draw_default(axes, view, view.default)
    label_axes(axes, view)
    status = "" if result.verified else ", not verified"
    axes.set_title(
        literal(f"{result.title} on {result.dataset}, model {result.model}{status}"), loc="left"
    )
    if axes.get_legend_handles_labels()[0]:
        upwards = view.y.direction is Direction.MAXIMIZE
        axes.legend(loc="lower right" if upwards else "upper right", framealpha=0.9)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def draw_trials(axes: Axes, view: FrontView) -> None:
    """Every usable trial, coloured by its group, and the front."""
    for index, (name, points) in enumerate(view.groups.items()):
        colour, marker = COLOURS[index % len(COLOURS)], _MARKERS[index % len(_MARKERS)]
        for on_front in (False, True):
            drawn = [each for each in points if each.on_front is on_front]
            axes.scatter(
                [each.x for each in drawn], [each.y for each in drawn],
                s=70 if on_front else 34, alpha=1.0 if on_front else 0.5, color=colour,
                marker=marker, linewidths=0,
                label=f"{literal(name)} (validation)" if points[-1] in drawn else None,
            )  # fmt: skip
    if view.line:
        rightward = view.x is not None and view.x.direction is Direction.MINIMIZE
        axes.plot(
            [each.x for each in view.line], [each.y for each in view.line], color=INK,
            drawstyle="steps-post" if rightward else "steps-pre", linewidth=1.4, zorder=1,
            label=view.line_name,
        )  # fmt: skip


def _draw_verified(axes: Axes, each: VerifiedPoint) -> None:
    first = each.point.against_default is None
    axes.errorbar(
        each.x.value, each.y.value,
        xerr=[[each.x.value - each.x.low], [each.x.high - each.x.value]],
        yerr=[[each.y.value - each.y.low], [each.y.high - each.y.value]],
        fmt="D", markersize=8, color=VERIFIED_COLOUR, capsize=3, zorder=4,
        label="verified (test split, with intervals)" if first else None,
    )  # fmt: skip
    if not first:
        axes.annotate(
            literal(each.label), (each.x.value, each.y.value), xytext=(-9, 9),
            textcoords="offset points", ha="right", va="bottom", fontsize=12,
            fontweight="bold", color=VERIFIED_COLOUR, zorder=6,
        )  # fmt: skip


def _draw_default(axes: Axes, view: FrontView, default: Point) -> None:
    axes.plot(
        default.x, default.y, "*", color="black", markersize=19, zorder=5,
        label="default (validation)", linestyle="none",
    )  # fmt: skip
    axes.annotate(
        "default", (default.x, default.y), xytext=(-11 if view.x else 11, 5),
        textcoords="offset points", ha="right" if view.x else "left", va="bottom",
        fontsize=12, fontweight="bold", zorder=6,
    )  # fmt: skip
    axes.axhline(default.y, color=INK, linestyle="--", linewidth=0.9, zorder=0)
    if view.x is not None:
        axes.axvline(default.x, color=INK, linestyle="--", linewidth=0.9, zorder=0)


def label_axes(axes: Axes, view: FrontView) -> None:
    """Titles, ranges and ticks."""
    axes.set_xlabel(label(view.x))
    axes.set_ylabel("accuracy, %" if view.y.metric.endswith("accuracy") else label(view.y))
    axes.set_ylim(*view.y_range)
    if view.hidden:
        note = f"{count(view.hidden, 'trial')} outside the picture"
        axes.annotate(note, (0.01, 0.015), xycoords="axes fraction", color=INK, style="italic")
    if view.log_x and view.points:
        axes.set_xscale("log")
        axes.margins(x=0.35)  # room for labels on the left
        places = {point.x for point in view.points}
        if len(places) == 1:  # an interrupted study: matplotlib warns of an axis without extent
            axes.set_xlim(min(places) / 2, 2 * min(places))
        plain_numbers(axes)
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def plain_numbers(axes: Axes, steps: tuple[float, ...] = (1.0, 2.0, 5.0)) -> None:
    """Ticks of a logarithmic axis across as numbers, not as powers of ten; ``steps`` a decade."""
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: rounded(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def literal(text: str) -> str:
    """``text`` with the sign that starts a formula escaped: names are untrusted."""
    return text.replace("$", r"\$")
