"""The plots across frameworks, as plotly figures that need no network."""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tuner.report.cross.view import ComparedFramework, CrossView, Gain
from tuner.report.plots import GREY, error_bars, log_axis, new_figure, pareto_figure
from tuner.report.scale import Scale
from tuner.report.view import COLOURS, VerifiedPoint
from tuner.values.pareto import Direction
from tuner.values.trial import Interval

_FRONTS_PX, _GAINS_PX, _ROW_PX = 660, 130, 34


def fronts_figure(view: CrossView) -> go.Figure:
    """Plot all trials, each framework's front, default and best, and the front over all."""
    figure, scale = pareto_figure(view.frame), view.frame.scale
    figure.add_traces(_own_fronts(view))
    own = len(view.entrants)
    figure.data = (*figure.data[-own:], *figure.data[:-own])  # below everything else
    for index, each in enumerate(view.entrants):
        colour = COLOURS[index % len(COLOURS)]
        if each.default and each.best:
            figure.add_trace(_line_to_best(scale, each.default, each.best, colour))
        if each.default:
            figure.add_trace(
                _mark(scale, each.default, f"default of {each.title}", colour, "star", 16)
            )
        if each.best:
            figure.add_trace(
                _mark(scale, each.best, f"best of {each.title}", colour, "diamond", 13)
            )
            figure.add_trace(_label(scale, each, each.best))
    for words, symbol in (("own default", "star"), ("its best", "diamond")):
        figure.add_trace(
            go.Scatter(
                x=[None], y=[None], mode="markers", name=f"{words} (test split, with intervals)",
                marker={"symbol": symbol, "size": 12, "color": GREY},
            )
        )  # fmt: skip
    figure.update_layout(height=_FRONTS_PX)
    return figure


def _own_fronts(view: CrossView) -> list[go.Scatter]:
    across = view.frame.x
    rightward = across is not None and across.direction is Direction.MINIMIZE
    shape = "hv" if rightward else "vh"
    return [
        go.Scatter(
            x=[point.x for point in each.line],
            y=[view.frame.scale.height(point.y) for point in each.line],
            mode="lines", showlegend=False, hoverinfo="skip",
            line={"shape": shape, "color": COLOURS[index % len(COLOURS)], "width": 1},
        )
        for index, each in enumerate(view.entrants)
    ]  # fmt: skip


def _line_to_best(
    scale: Scale, default: VerifiedPoint, best: VerifiedPoint, colour: str
) -> go.Scatter:
    return go.Scatter(
        x=[default.x.value, best.x.value],
        y=[scale.height(each.y.value) for each in (default, best)], mode="lines",
        showlegend=False, hoverinfo="skip", line={"dash": "dot", "color": colour, "width": 2},
    )  # fmt: skip


def _mark(
    scale: Scale, place: VerifiedPoint, words: str, colour: str, symbol: str, size: int
) -> go.Scatter:
    """Plot a verified configuration with its intervals."""
    height = scale.interval(place.y)
    return go.Scatter(
        x=[place.x.value], y=[height.value], mode="markers", name=escape(words),
        showlegend=False, hoverinfo="text",
        hovertext=[f"{escape(words)}: {escape(place.point.verdict)}"],
        error_x=error_bars([place.x], colour), error_y=error_bars([height], colour),
        marker={
            "symbol": symbol, "size": size, "color": colour, "line": {"width": 1, "color": "white"}
        },
    )  # fmt: skip


def _label(scale: Scale, each: ComparedFramework, best: VerifiedPoint) -> go.Scatter:
    return go.Scatter(
        x=[best.x.value], y=[scale.height(each.label_y)],
        mode="markers+text", text=[f"<b>{escape(each.label)}</b>"],
        textposition=each.side, textfont={"size": 13}, showlegend=False, hoverinfo="skip",
        marker={"size": 14, "opacity": 0},
    )  # fmt: skip


def gains_figure(gains: list[Gain]) -> go.Figure:
    """Plot the gains of the ledger: one row per framework, one column per gain."""
    names = list(dict.fromkeys(name for gain in gains for name, _ in gain.rows))
    base = new_figure("", "", height=_GAINS_PX + _ROW_PX * len(names))
    figure = make_subplots(rows=1, cols=len(gains), shared_yaxes=True, horizontal_spacing=0.03)
    figure.update_layout(base.layout, showlegend=False)
    axis = base.layout.xaxis.to_plotly_json()
    for column, gain in enumerate(gains, 1):
        intervals = [each for _, each in gain.rows]
        colours = [COLOURS[names.index(name) % len(COLOURS)] for name, _ in gain.rows]
        figure.add_trace(_gain_marks(gain, intervals, colours), row=1, col=column)
        figure.add_vline(
            x=gain.neutral, line={"dash": "dash", "width": 1, "color": GREY}, row=1, col=column
        )
        figure.update_xaxes(**axis, row=1, col=column)
        figure.update_xaxes(title=f"{gain.title}<br>{gain.better}", row=1, col=column)
        if gain.log:
            ends = [end for each in intervals for end in (each.low, each.high)]
            figure.update_xaxes(**log_axis([gain.neutral, *ends]), row=1, col=column)
    figure.update_yaxes(
        categoryorder="array", categoryarray=[escape(name) for name in reversed(names)],
        gridcolor=GREY, automargin=True,
    )  # fmt: skip
    return figure


def _gain_marks(gain: Gain, intervals: list[Interval], colours: list[str]) -> go.Scatter:
    return go.Scatter(
        x=[each.value for each in intervals], y=[escape(name) for name, _ in gain.rows],
        mode="markers", error_x=error_bars(intervals, GREY),
        marker={"size": 11, "symbol": "diamond", "color": colours},
        hovertemplate="%{y}: %{x:.3g}<extra></extra>",
    )  # fmt: skip
