"""The page's plots, as plotly figures that scripts draw without a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from tuner.pareto import Direction
from tuner.progress import format_seconds
from tuner.report.view import (
    COLOURS,
    VERIFIED_COLOUR,
    FrontView,
    Growth,
    Point,
    VerifiedPoint,
    label,
    log_ticks,
    rounded,
)
from tuner.report.wording import front_label
from tuner.results import StudyResult
from tuner.runtime_map import RuntimeMap
from tuner.trial import Interval, Measurement, TrialKind, TrialResult

# Ink that reads on white and on black; the page's style sheet overrides it for text.
GREY = "#808080"
_SYMBOLS = ("circle", "square", "triangle-up", "cross", "x", "pentagon", "hexagon")
_CURVES = 12
_MIB = 2**20


def pareto_figure(view: FrontView) -> go.Figure:
    """Every usable trial, the front, the default and the verified configurations."""
    figure = new_figure(label(view.x), _y_title(view), height=560)
    for index, (name, points) in enumerate(view.groups.items()):
        colour, symbol = COLOURS[index % len(COLOURS)], _SYMBOLS[index % len(_SYMBOLS)]
        figure.add_trace(_trial_dots(name, points, colour, symbol))
    if view.line:
        # across, the cheaper side reaches right to the next corner; the dearer side reaches left
        rightward = view.x is not None and view.x.direction is Direction.MINIMIZE
        figure.add_trace(
            go.Scatter(
                x=[each.x for each in view.line], y=[each.y for each in view.line],
                mode="lines", name=view.line_name, hoverinfo="skip",
                line={"shape": "hv" if rightward else "vh", "color": GREY, "width": 2},
            )
        )  # fmt: skip
    if view.verified:
        figure.add_trace(_verified_dots(view.verified))
    if view.default is not None:
        _add_default(figure, view, view.default)
    figure.update_yaxes(range=view.y_range)
    if view.log_x:
        figure.update_xaxes(**log_axis([each.x for each in view.points]))
    return figure


def log_axis(values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis with plain numbers; plotly's own ticks say "2" for 20."""
    ticks = log_ticks(values) if values else []
    texts = [rounded(each) for each in ticks]
    return {"type": "log", "tickmode": "array", "tickvals": ticks, "ticktext": texts}


def _y_title(view: FrontView) -> str:
    return "accuracy, %" if view.y.metric.endswith("accuracy") else label(view.y)


def _trial_dots(group: str, points: Sequence[Point], colour: str, symbol: str) -> go.Scatter:
    return go.Scatter(
        x=[each.x for each in points], y=[each.y for each in points],
        mode="markers", name=f"{escape(group)} (validation)",
        text=[hover(each.result) for each in points], hoverinfo="text",
        marker={
            "color": colour,
            "symbol": [f"{symbol}-open" if _is_derived(each) else symbol for each in points],
            "size": [13 if each.on_front else 8 for each in points],
            "opacity": [1.0 if each.on_front else 0.6 for each in points],
        },
    )  # fmt: skip


def _is_derived(point: Point) -> bool:
    return point.result.trial.kind is TrialKind.DERIVED


def hover(result: TrialResult) -> str:
    """A trial in words; escaped, as plotly reads some HTML in its texts."""
    figures = [f"validation accuracy {100 * (result.val_accuracy or 0.0):.2f} %"]
    if result.measurement is not None:
        figures.append(f"train time {format_seconds(result.measurement.train_time_s)} s")
        figures.append(f"peak memory {result.measurement.peak_memory_bytes / _MIB:,.0f} MiB")
    return "<br>".join(map(escape, (*front_label(result).split(": ", 1), *figures)))


def _verified_dots(verified: Sequence[VerifiedPoint]) -> go.Scatter:
    return go.Scatter(
        x=[each.x.value for each in verified], y=[each.y.value for each in verified],
        mode="markers+text", name="verified (test split, with intervals)",
        text=[escape(each.label) if each.point.against_default else "" for each in verified],
        textposition="top left", textfont={"size": 13},
        hovertext=[escape(f"{each.point.name}: {each.point.verdict}") for each in verified],
        hoverinfo="text",
        error_x=error_bars([each.x for each in verified]),
        error_y=error_bars([each.y for each in verified]),
        marker={"symbol": "diamond", "size": 12, "color": VERIFIED_COLOUR},
    )  # fmt: skip


def error_bars(intervals: Sequence[Interval], colour: str = VERIFIED_COLOUR) -> dict[str, Any]:
    """Bars from the low to the high end of each interval."""
    return {
        "type": "data", "symmetric": False, "color": colour, "thickness": 1.5,
        "array": [each.high - each.value for each in intervals],
        "arrayminus": [each.value - each.low for each in intervals],
    }  # fmt: skip


def _add_default(figure: go.Figure, view: FrontView, default: Point) -> None:
    figure.add_trace(
        go.Scatter(
            x=[default.x], y=[default.y], mode="markers+text", name="default (validation)",
            text=["default"], textposition="top left" if view.x else "top right",
            textfont={"size": 13},
            hovertext=[hover(default.result)], hoverinfo="text",
            marker={"symbol": "star", "size": 18, "color": GREY},
        )
    )  # fmt: skip
    dashed = {"line": {"dash": "dash", "width": 1, "color": GREY}}
    figure.add_hline(y=default.y, **dashed)
    if view.x is not None:
        figure.add_vline(x=default.x, **dashed)


def growth_figure(growth: Growth) -> go.Figure:
    """The hypervolume against the wall time of the trials."""
    figure = new_figure("wall time of the trials so far, s", "hypervolume, % of the box")
    figure.add_trace(
        go.Scatter(
            x=[0.0, *growth.elapsed_s], y=[0.0, *growth.share], mode="lines",
            line={"shape": "hv", "color": COLOURS[0], "width": 2}, name="hypervolume",
        )
    )  # fmt: skip
    figure.update_yaxes(rangemode="tozero")
    return figure


def runtimes_figure(runtimes: RuntimeMap) -> go.Figure:
    """Time an image takes by runtime setting and batch size, the fastest settings on top."""
    settings = runtimes.contenders(math.inf)
    sizes = runtimes.batch_sizes
    times = [
        [
            1e6 * runtimes.pace_s(setting, size) / size
            if runtimes.was_probed(setting, size)
            else math.nan
            for size in sizes
        ]
        for setting in settings
    ]
    figure = new_figure("batch size", "", height=80 + 26 * len(settings))
    figure.add_trace(
        go.Heatmap(
            z=[[math.log10(each) for each in row] for row in times],
            x=[str(each) for each in sizes],
            y=[escape(" ".join(map(str, each.values()))) for each in settings],
            text=[[_microseconds(each) for each in row] for row in times],
            texttemplate="%{text}", hoverinfo="skip", showscale=False, colorscale="Viridis_r",
            xgap=2, ygap=2,
        )
    )  # fmt: skip
    figure.update_xaxes(type="category")
    figure.update_yaxes(autorange="reversed", automargin=True, type="category")
    return figure


def _microseconds(value: float) -> str:
    return "" if math.isnan(value) else rounded(float(f"{value:.3g}"))


def cpu_figure(result: StudyResult) -> go.Figure:
    """User, system and I/O-wait share of each trial's cores."""
    measured = _measured(result)
    figure = new_figure("trial", "CPU, % of the trial's cores")
    for name, field, colour in (
        ("user", "cpu_user_pct", COLOURS[0]),
        ("system", "cpu_system_pct", COLOURS[1]),
        ("I/O wait", "cpu_iowait_pct", COLOURS[6]),
    ):
        values = [getattr(measurement, field) for _, measurement in measured]
        figure.add_trace(_bar(measured, values, name, colour, "%{y:.1f} %"))
    figure.update_layout(barmode="stack")
    figure.update_xaxes(type="category")
    return figure


def memory_figure(result: StudyResult) -> go.Figure:
    """Average and maximum memory of each trial's process tree."""
    measured = _measured(result)
    figure = new_figure("trial", "memory, MiB")
    for name, field, colour in (
        ("average", "avg_memory_bytes", COLOURS[4]),
        ("maximum", "peak_memory_bytes", COLOURS[0]),
    ):
        values = [getattr(measurement, field) / _MIB for _, measurement in measured]
        figure.add_trace(_bar(measured, values, name, colour, "%{y:,.0f} MiB"))
    figure.update_layout(barmode="group")
    figure.update_xaxes(type="category")
    return figure


def _measured(result: StudyResult) -> list[tuple[TrialResult, Measurement]]:
    return [(each, each.measurement) for each in result.trials if each.measurement]


def _bar(
    measured: Sequence[tuple[TrialResult, Measurement]],
    values: Sequence[float],
    name: str,
    colour: str,
    form: str,
) -> go.Bar:
    names = [each.trial.title.removeprefix("trial ") for each, _ in measured]
    return go.Bar(
        x=names, y=values, name=name, marker={"color": colour},
        hovertemplate=f"%{{x}}: {name} {form}<extra></extra>",
    )  # fmt: skip


def curves_figure(result: StudyResult) -> go.Figure:
    """Accuracy while training, of the default and of the front's trials (at most twelve)."""
    figure = new_figure("train time, s", "validation accuracy, %")
    curves = [point for each in curve_trials(result) for point in each.checkpoints]
    times = [point.train_time_s for point in curves if point.train_time_s > 0]
    figure.update_xaxes(**log_axis(times))
    for index, each in enumerate(curve_trials(result)):
        figure.add_trace(
            go.Scatter(
                x=[point.train_time_s for point in each.checkpoints],
                y=[100 * point.val_accuracy for point in each.checkpoints],
                mode="lines+markers", name=escape(each.trial.title),
                line={
                    "color": GREY if each is result.default else COLOURS[index % 6],
                    "dash": ("solid", "dash", "dot")[index // 6 % 3],
                },
                hovertemplate=f"%{{x:.3g}} s: %{{y:.2f}} %<br>{hover(each)}<extra></extra>",
            )
        )  # fmt: skip
    return figure


def curve_trials(result: StudyResult) -> list[TrialResult]:
    """The default and the runs behind the front that have a curve, twelve at most."""
    origins = {
        each.trial.origin: None for each in [*filter(None, [result.default]), *result.front]
    }
    runs = {each.trial.number: each for each in result.trials}
    chosen = [runs[number] for number in origins if number in runs]
    return [each for each in chosen if each.checkpoints][:_CURVES]


def new_figure(x_title: str, y_title: str, height: int = 380) -> go.Figure:
    """An empty figure in the page's style."""
    axis = {"gridcolor": GREY, "zeroline": False, "automargin": True, "exponentformat": "none"}
    figure = go.Figure()
    figure.update_layout(
        template="none", height=height, paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)", margin={"l": 60, "r": 20, "t": 20, "b": 60},
        font={"family": "system-ui, sans-serif", "size": 14, "color": GREY},
        hoverlabel={"bgcolor": "#ffffff", "font": {"color": "#111111"}},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
    )  # fmt: skip
    figure.update_xaxes(title=x_title, **axis)
    figure.update_yaxes(title=y_title, **axis)
    return figure
