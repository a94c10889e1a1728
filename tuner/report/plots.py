"""The page's plots, as plotly figures that need no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from tuner.progress import format_seconds
from tuner.report.axes import label, log_ticks, rounded
from tuner.report.growth import Growth
from tuner.report.view import (
    COLOURS,
    LIMIT_COLOUR,
    VERIFIED_COLOUR,
    FrontView,
    Point,
    VerifiedPoint,
    height_label,
    limit,
)
from tuner.report.wording import front_label
from tuner.values.pareto import Direction
from tuner.values.results import StudyResult
from tuner.values.runtime_map import RuntimeMap
from tuner.values.trial import Interval, Measurement, TrialKind, TrialResult

# Legible on white and on black; the page's style sheet overrides it for text.
GREY = "#808080"
_SYMBOLS = ("circle", "square", "triangle-up", "cross", "x", "pentagon", "hexagon")
_CURVES = 12
_MIB = 2**20


def pareto_figure(view: FrontView) -> go.Figure:
    """Draw every usable trial, the front, the default and the verified configurations."""
    figure = new_figure(label(view.x), height_label(view), height=560)
    if view.lossless is not None:
        bottom, top = (view.scale.height(each) for each in view.lossless)
        figure.add_hrect(
            y0=bottom, y1=top, fillcolor=LIMIT_COLOUR, opacity=0.16, line_width=0, layer="below",
            name=limit(view), showlegend=True,
        )  # fmt: skip
    for index, name in enumerate(view.groups):
        colour, symbol = COLOURS[index % len(COLOURS)], _SYMBOLS[index % len(_SYMBOLS)]
        figure.add_trace(_trial_dots(view, name, colour, symbol))
    if view.line:
        # if smaller x is better, each step runs right from its corner, else left
        rightward = view.x is not None and view.x.direction is Direction.MINIMIZE
        figure.add_trace(
            go.Scatter(
                x=[each.x for each in view.line],
                y=[view.scale.height(each.y) for each in view.line],
                mode="lines", name=view.line_name, hoverinfo="skip",
                line={"shape": "hv" if rightward else "vh", "color": GREY, "width": 2},
            )
        )  # fmt: skip
    finalists = [each for each in view.verified if not each.point.is_default]
    if finalists:
        figure.add_trace(_verified_dots(view, finalists))
    if view.verified:
        figure.add_trace(_labels(view))
    _add_default(figure, view)
    _lay_out(figure, view)
    return figure


def _lay_out(figure: go.Figure, view: FrontView) -> None:
    """Set ranges and ticks."""
    figure.update_yaxes(range=view.height_range)
    if not view.scale.is_linear:
        lowest = min([view.y_range[0], *(each.y for each in view.points)])
        ticks = sorted({*view.scale.ticks(lowest, 100.0), *view.scale.ticks(*view.y_range)})
        heights = [view.scale.height(each) for each in ticks]
        texts = [f"{each:g}" for each in ticks]
        figure.update_yaxes(tickmode="array", tickvals=heights, ticktext=texts)
    if view.points:
        left, right = view.x_range
        figure.update_xaxes(
            range=[math.log10(left), math.log10(right)] if view.log_x else [left, right]
        )
    if view.log_x:
        figure.update_xaxes(**log_axis([each.x for each in view.points]))


def log_axis(values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis with plain numbers; plotly's own ticks say "2" for 20."""
    ticks = log_ticks(values) if values else []
    texts = [rounded(each) for each in ticks]
    return {"type": "log", "tickmode": "array", "tickvals": ticks, "ticktext": texts}


def _trial_dots(view: FrontView, group: str, colour: str, symbol: str) -> go.Scatter:
    points = view.groups[group]
    return go.Scatter(
        x=[each.x for each in points], y=[view.scale.height(each.y) for each in points],
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
    """Describe a trial; the text is escaped, as plotly interprets some HTML."""
    quality = result.quality
    figures = [f"validation {quality.name} {quality.shown(result.val_accuracy or 0.0)}"]
    if result.measurement is not None:
        figures.append(f"train time {format_seconds(result.measurement.train_time_s)} s")
        figures.append(f"peak memory {result.measurement.peak_memory_bytes / _MIB:,.0f} MiB")
    return "<br>".join(map(escape, (*front_label(result).split(": ", 1), *figures)))


def _verified_dots(view: FrontView, verified: Sequence[VerifiedPoint]) -> go.Scatter:
    heights = [view.scale.interval(each.y) for each in verified]
    return go.Scatter(
        x=[each.x.value for each in verified], y=[each.value for each in heights],
        mode="markers", name="verified (test split, with intervals)",
        hovertext=[escape(f"{each.point.name}: {each.point.verdict}") for each in verified],
        hoverinfo="text",
        error_x=error_bars([each.x for each in verified]), error_y=error_bars(heights),
        marker={
            "symbol": "diamond", "size": [14 if each.answers else 10 for each in verified],
            "color": VERIFIED_COLOUR, "line": {"width": 1, "color": "white"},
        },
    )  # fmt: skip


def _labels(view: FrontView) -> go.Scatter:
    return go.Scatter(
        x=[each.x.value for each in view.verified],
        y=[view.scale.height(each.label_y) for each in view.verified],
        mode="markers+text", showlegend=False, hoverinfo="skip",
        text=[
            _bold(each.label) if each.answers or each.point.is_default else escape(each.label)
            for each in view.verified
        ],
        textposition=[each.side for each in view.verified], textfont={"size": 13},
        marker={"size": 14, "opacity": 0},
    )  # fmt: skip


def _bold(text: str) -> str:
    return f"<b>{escape(text)}</b>"


def error_bars(intervals: Sequence[Interval], colour: str = VERIFIED_COLOUR) -> dict[str, Any]:
    """Return bars from the low to the high end of each interval."""
    return {
        "type": "data", "symmetric": False, "color": colour, "thickness": 1.5,
        "array": [each.high - each.value for each in intervals],
        "arrayminus": [each.value - each.low for each in intervals],
    }  # fmt: skip


def _add_default(figure: go.Figure, view: FrontView) -> None:
    """Add the star: the verified default, or trial 0 if nothing was verified."""
    if view.reference is not None:
        height = view.scale.interval(view.reference.y)
        place = view.reference.x.value, height.value
        words, label_words = f"{view.default_title} (test split, with intervals)", ""
        side, shown = "top left", f"{view.default_title}: {view.reference.point.verdict}"
        bars = {
            "error_x": error_bars([view.reference.x], GREY), "error_y": error_bars([height], GREY)
        }  # fmt: skip
    elif view.default is not None:
        place = view.default.x, view.scale.height(view.default.y)
        words = f"{view.default_title} (validation)"
        label_words = _bold(view.default_title)
        side = "top left" if view.x else "top right"
        shown, bars = hover(view.default.result), {}
    else:
        return
    figure.add_trace(
        go.Scatter(
            x=[place[0]], y=[place[1]], mode="markers+text", name=words,
            text=[label_words], textposition=side, textfont={"size": 13},
            hovertext=[shown], hoverinfo="text",
            marker={"symbol": "star", "size": 18, "color": GREY}, **bars,
        )
    )  # fmt: skip
    dashed = {"line": {"dash": "dash", "width": 1, "color": GREY}}
    figure.add_hline(y=place[1], **dashed)
    if view.x is not None:
        figure.add_vline(x=place[0], **dashed)


def growth_figure(growth: Growth) -> go.Figure:
    """Plot the hypervolume against the wall time of the trials."""
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
    """Plot the time per image by runtime setting and batch size, the fastest setting on top."""
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
    """Plot the user, system and I/O-wait share of each trial's cores."""
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
    """Plot the average and maximum memory of each trial's process tree."""
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
    """Plot what was learnt during training, of the default and the front's runs (at most 12)."""
    quality = result.quality
    figure = new_figure("train time, s", f"validation {quality.heading}")
    if quality.is_perplexity:
        figure.update_yaxes(type="log")
    unit = "" if quality.is_perplexity else " %"
    curves = [point for each in curve_trials(result) for point in each.checkpoints]
    times = [point.train_time_s for point in curves if point.train_time_s > 0]
    figure.update_xaxes(**log_axis(times))
    for index, each in enumerate(curve_trials(result)):
        figure.add_trace(
            go.Scatter(
                x=[point.train_time_s for point in each.checkpoints],
                y=[quality.in_unit(point.val_accuracy) for point in each.checkpoints],
                mode="lines+markers", name=escape(each.trial.title),
                line={
                    "color": GREY if each is result.default else COLOURS[index % 6],
                    "dash": ("solid", "dash", "dot")[index // 6 % 3],
                },
                hovertemplate=f"%{{x:.3g}} s: %{{y:.2f}}{unit}<br>{hover(each)}<extra></extra>",
            )
        )  # fmt: skip
    return figure


def curve_trials(result: StudyResult) -> list[TrialResult]:
    """Return the default and the runs behind the front that have a curve, at most twelve."""
    origins = {
        each.trial.number: None for each in [*filter(None, [result.default]), *result.front]
    }
    runs = {each.trial.number: each for each in result.trials}
    chosen = [runs[number] for number in origins if number in runs]
    return [each for each in chosen if each.checkpoints][:_CURVES]


def new_figure(x_title: str, y_title: str, height: int = 380) -> go.Figure:
    """Create an empty figure in the page's style."""
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
