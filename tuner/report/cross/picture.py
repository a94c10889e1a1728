"""The fronts and gains across frameworks as a PNG, for places where scripts do not run."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tuner.report.cross.view import ComparedFramework, CrossView, Gain, view_cross, view_gains
from tuner.report.picture import (
    INK,
    draw_legend,
    draw_trials,
    label_axes,
    literal,
    mark,
    plain_numbers,
    write_label,
)
from tuner.report.view import COLOURS
from tuner.values.pareto import Direction
from tuner.values.results import CrossResult

_WIDTH, _FRONT_HEIGHT, _DPI = 10.0, 6.25, 160
_GAINS_HEIGHT, _ROW_HEIGHT = 1.3, 0.3


def draw_cross(result: CrossResult) -> bytes:
    """Draw all fronts, and the gains over the defaults below; return the bytes of a PNG file.

    The picture is 1600 pixels wide. It is 1000 high without gains; with gains, its height grows
    with the number of frameworks.
    """
    view, gains = view_cross(result), view_gains(result)
    below = _GAINS_HEIGHT + _ROW_HEIGHT * len(result.studies) if gains else 0.0
    figure = Figure(figsize=(_WIDTH, _FRONT_HEIGHT + below), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    heights = [_FRONT_HEIGHT, below] if gains else [1.0]
    grid = figure.add_gridspec(len(heights), max(1, len(gains)), height_ratios=heights)
    axes = figure.add_subplot(grid[0, :])
    axes.set_title(
        literal(
            f"{len(result.studies)} frameworks on {result.dataset}, model {result.model}: "
            "each against its own default"
        ),
        loc="left",
    )
    if view is not None:
        _draw_fronts(axes, view)
        draw_legend(figure, axes)
    if gains:
        _draw_gains([figure.add_subplot(grid[1, index]) for index in range(len(gains))], gains)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _draw_fronts(axes: Axes, view: CrossView) -> None:
    draw_trials(axes, view.frame)
    for index, each in enumerate(view.entrants):
        _draw_entrant(axes, view, each, COLOURS[index % len(COLOURS)])
    label_axes(axes, view.frame)
    for marker, words in (
        ("*", "a framework's own default (test split)"),
        ("D", "its best, verified (test split)"),
    ):
        axes.plot([], [], marker, color=INK, markersize=7, label=words, linestyle="none")


def _draw_entrant(axes: Axes, view: CrossView, each: ComparedFramework, colour: str) -> None:
    across, scale = view.frame.x, view.frame.scale
    if across is not None:
        rightward = across.direction is Direction.MINIMIZE
        axes.plot(
            [point.x for point in each.line], [scale.height(point.y) for point in each.line],
            color=colour, drawstyle="steps-post" if rightward else "steps-pre", linewidth=0.9,
            zorder=0.9,
        )  # fmt: skip
    if each.default and each.best:
        axes.plot(
            [each.default.x.value, each.best.x.value],
            [scale.height(each.default.y.value), scale.height(each.best.y.value)],
            color=colour, linestyle=":", linewidth=1.8, zorder=3,
        )  # fmt: skip
    if each.default:
        mark(axes, view.frame, each.default, fmt="*", markersize=17, color=colour)
    if each.best:
        mark(axes, view.frame, each.best, fmt="D", markersize=9, color=colour)
        place = each.best.x.value, scale.height(each.label_y)
        write_label(axes, place, each.side, each.label, colour, weight=700)


def _draw_gains(row: list[Axes], gains: list[Gain]) -> None:
    """Draw one panel per figure of the ledger, one line per framework, the first at the top."""
    names = list(dict.fromkeys(name for gain in gains for name, _ in gain.rows))
    for column, (axes, gain) in enumerate(zip(row, gains, strict=True)):
        for name, figure in gain.rows:
            place = names.index(name)
            axes.errorbar(
                figure.value, -place,
                xerr=[[figure.value - figure.low], [figure.high - figure.value]],
                fmt="D", color=COLOURS[place % len(COLOURS)], capsize=3, markersize=6,
            )  # fmt: skip
        axes.axvline(gain.neutral, color=INK, linestyle="--", linewidth=0.9, zorder=0)
        axes.set_ylim(0.6 - len(names), 0.6)
        axes.set_yticks(
            [-place for place in range(len(names))],
            [literal(name) for name in names] if column == 0 else [],
        )
        axes.set_xlabel(f"{gain.title}\n{gain.better}", fontsize=9)
        axes.tick_params(axis="x", labelsize=8)
        if gain.log:
            axes.set_xscale("log")
            plain_numbers(axes, (1.0, 1.5, 2.0, 3.0, 5.0))
        axes.margins(x=0.1)
        axes.grid(visible=True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
