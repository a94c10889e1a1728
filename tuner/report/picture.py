"""The Pareto picture as a PNG, for READMEs and other places where scripts do not run."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from tuner.report.axes import label, rounded
from tuner.report.labels import Spot
from tuner.report.view import (
    COLOURS,
    LIMIT_COLOUR,
    VERIFIED_COLOUR,
    FrontView,
    VerifiedPoint,
    height_label,
    limit,
    view_front,
)
from tuner.report.wording import count
from tuner.values.pareto import Direction
from tuner.values.results import StudyResult

_SIZE_INCHES, _DPI = (10.0, 6.25), 160
_MARKERS = ("o", "s", "^", "P", "X", "p", "h")
_LEGEND_COLUMNS, _LEGEND_MARK = 3, 7
_ALIGNED = {"left": "right", "right": "left", "center": "center"}
INK = "#444444"


def draw_front(result: StudyResult) -> bytes:
    """Draw the front against the default, 1600 × 1000 pixels; return the bytes of a PNG file."""
    view = view_front(result)
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_limit(axes, view)
    draw_trials(axes, view)
    finalists = [each for each in view.verified if not each.point.is_default]
    for each in finalists:
        _draw_verified(axes, view, each, first=each is finalists[0])
    _draw_default(axes, view)
    label_axes(axes, view)
    status = "" if result.verified else ", not verified"
    axes.set_title(
        literal(f"{result.title} on {result.dataset}, model {result.model}{status}"), loc="left"
    )
    draw_legend(figure, axes)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def draw_legend(figure: Figure, axes: Axes) -> None:
    """Draw the legend below the picture, where it covers nothing."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, names, loc="outside lower center", ncols=_LEGEND_COLUMNS, frameon=False,
            fontsize=9,
        )  # fmt: skip


def draw_trials(axes: Axes, view: FrontView) -> None:
    """Draw every usable trial, coloured by its group, and the front."""
    for index, (name, points) in enumerate(view.groups.items()):
        colour, marker = COLOURS[index % len(COLOURS)], _MARKERS[index % len(_MARKERS)]
        for on_front in (False, True):
            drawn = [each for each in points if each.on_front is on_front]
            axes.scatter(
                [each.x for each in drawn], [view.scale.height(each.y) for each in drawn],
                s=70 if on_front else 34, alpha=1.0 if on_front else 0.5, color=colour,
                marker=marker, linewidths=0,
                label=f"{literal(name)} (validation)" if points[-1] in drawn else None,
            )  # fmt: skip
    if view.line:
        rightward = view.x is not None and view.x.direction is Direction.MINIMIZE
        axes.plot(
            [each.x for each in view.line], [view.scale.height(each.y) for each in view.line],
            color=INK, drawstyle="steps-post" if rightward else "steps-pre", linewidth=1.4,
            zorder=1,
            label=view.line_name,
        )  # fmt: skip


def _draw_limit(axes: Axes, view: FrontView) -> None:
    """Draw the band of accuracies that count as no loss."""
    if view.lossless is None:
        return
    low, high = view.lossless
    heights = view.scale.height(low), view.scale.height(high)
    axes.axhspan(
        *heights, color=LIMIT_COLOUR, alpha=0.16, linewidth=0, zorder=0, label=limit(view)
    )


def _draw_verified(axes: Axes, view: FrontView, each: VerifiedPoint, *, first: bool) -> None:
    mark(
        axes, view, each, fmt="D", markersize=9 if each.answers else 6.5, color=VERIFIED_COLOUR,
        label="verified (test split, with intervals)" if first else None,
    )  # fmt: skip
    colour = VERIFIED_COLOUR if each.answers else INK
    place = each.x.value, view.scale.height(each.label_y)
    weight = 700 if each.answers else 400
    write_label(axes, place, each.side, each.label, colour, weight=weight)


def _draw_default(axes: Axes, view: FrontView) -> None:
    """Draw the star: the verified default, or trial 0 if nothing was verified."""
    if view.reference is not None:
        mark(
            axes, view, view.reference, fmt="*", markersize=17, color="black",
            label=f"{view.default_title} (test split, with intervals)",
        )  # fmt: skip
        place = view.reference.x.value, view.scale.height(view.reference.y.value)
        top = place[0], view.scale.height(view.reference.label_y)
        write_label(axes, top, view.reference.side, view.default_title, "black", weight=700)
    elif view.default is not None:
        place = view.default.x, view.scale.height(view.default.y)
        axes.plot(
            *place, "*", color="black", markersize=19, zorder=5, linestyle="none",
            label=f"{view.default_title} (validation)",
        )  # fmt: skip
        axes.annotate(
            view.default_title, place, xytext=(-11 if view.x else 11, 5),
            textcoords="offset points", ha="right" if view.x else "left", va="bottom",
            fontsize=12, fontweight="bold", zorder=6,
        )  # fmt: skip
    else:
        return
    axes.axhline(place[1], color=INK, linestyle="--", linewidth=0.9, zorder=0)
    if view.x is not None:
        axes.axvline(place[0], color=INK, linestyle="--", linewidth=0.9, zorder=0)


def mark(
    axes: Axes,
    view: FrontView,
    place: VerifiedPoint,
    *,
    fmt: str,
    color: str,
    label: str | None = None,
    **style: Any,
) -> None:
    """Draw a verified configuration with its intervals; ``label`` is for the legend."""
    if label:  # a legend would draw the error bars over the mark: give it the bare mark
        axes.plot([], [], fmt, color=color, markersize=_LEGEND_MARK, label=label)
    x, y = place.x, view.scale.interval(place.y)
    axes.errorbar(
        x.value, y.value, xerr=[[x.value - x.low], [x.high - x.value]],
        yerr=[[y.value - y.low], [y.high - y.value]],
        fmt=fmt, color=color, markeredgecolor="white", capsize=3, zorder=4, **style,
    )  # fmt: skip


def write_label(
    axes: Axes, place: Spot, side: str, text: str, colour: str, *, weight: int
) -> None:
    """Write a label on one side of a place ("top left"), with a halo."""
    vertical, _, horizontal = side.partition(" ")
    axes.annotate(
        literal(text), place,
        xytext=({"left": -9, "right": 9, "center": 0}[horizontal], 9 if vertical == "top" else -9),
        textcoords="offset points", ha=_ALIGNED[horizontal],
        va="bottom" if vertical == "top" else "top",
        fontsize=12, fontweight=weight, color=colour, zorder=6,
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )  # fmt: skip


def label_axes(axes: Axes, view: FrontView) -> None:
    """Set titles, ranges and ticks."""
    axes.set_xlabel(label(view.x))
    axes.set_ylabel(height_label(view))
    axes.set_ylim(*view.height_range)
    if not view.scale.is_linear:
        ticks = view.scale.ticks(*view.y_range)
        axes.set_yticks([view.scale.height(each) for each in ticks], [f"{e:g}" for e in ticks])
    if view.hidden:
        note = f"{count(view.hidden, 'point')} outside the picture"
        axes.annotate(
            note, (0.01, 0.985), xycoords="axes fraction", va="top", color=INK, style="italic"
        )
    if view.log_x and view.points:
        axes.set_xscale("log")
        plain_numbers(axes)
    axes.set_xlim(*view.x_range)
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def plain_numbers(axes: Axes, steps: tuple[float, ...] = (1.0, 2.0, 5.0)) -> None:
    """Label a logarithmic x axis with plain numbers, at ``steps`` times each power of ten."""
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: rounded(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def literal(text: str) -> str:
    """Escape the ``$`` that starts a formula: names are untrusted."""
    return text.replace("$", r"\$")
