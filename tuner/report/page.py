"""The report as one HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import plotly.io

from tuner.progress import describe_params, format_seconds
from tuner.report import plots
from tuner.report.answers import Answer, further_lines, three_answers
from tuner.report.axes import is_accuracy, quantity, rounded
from tuner.report.front import framework_versions
from tuner.report.growth import view_growth
from tuner.report.view import FrontView, limit, view_front
from tuner.report.wording import (
    NOT_VERIFIED,
    count,
    footnotes,
    front_label,
    headline,
    interruption,
    objective_text,
    status_counts,
    verified_rows,
)
from tuner.values.groups import Group
from tuner.values.params import UNSET, ParamValue
from tuner.values.quality import Quality
from tuner.values.results import StudyResult
from tuner.values.trial import TrialResult

if TYPE_CHECKING:
    import plotly.graph_objects as go

_KNOWN_PARAMS = ("batch_size", "iterations", "learning_rate", "blas", "threads", "blas_kernel")
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot of the page: its heading, what to see in it, and its HTML."""

    anchor: str
    title: str
    caption: str
    html: str


@dataclass(frozen=True, slots=True)
class Card:
    """One of the three answers on the page, and the params of its configuration."""

    answer: Answer
    params: str


def render_page(result: StudyResult) -> str:
    """Render the whole page; text of params, failures and logs is HTML-escaped."""
    front, cards = {id(each) for each in result.front}, _cards(result)
    return page_template("report.html.j2").render(
        result=result,
        headline="" if cards else headline(result)[0],
        cards=cards,
        further=further_lines(result),
        interruption=interruption(result),
        not_verified=NOT_VERIFIED,
        rows=verified_rows(result),
        front=_front_rows(result),
        notes=footnotes(result),
        plots=list(_plots(result)),
        groups=[_group_row(each) for each in result.groups],
        lossy_groups=any(not each.exact for each in result.groups),
        names=_param_names(result),
        trials=[_trial_row(each, id(each) in front) for each in result.trials],
        runs=[_trial_row(each, id(each) in front) for each in result.verifications],
        facts=_facts(result),
        counts=status_counts(result.trials),
        discarded=list(_discarded(result)),
    )


def page_template(name: str) -> jinja2.Template:
    """Load a template from this folder, with autoescaping and plotly's script as a global."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["plotly_script"] = plotly.offline.get_plotlyjs()
    return environment.get_template(name)


def _cards(result: StudyResult) -> list[Card]:
    """Return a card for each of the three answers; none if nothing was verified."""
    rows = {row.point.name: row for row in verified_rows(result)}
    return [
        Card(answer, rows[answer.point.name].params if answer.point else "")
        for answer in three_answers(result)
    ]


def _front_rows(result: StudyResult) -> list[tuple[str, list[str]]]:
    """Return the front on the validation split: description and objectives of each trial."""
    return [
        (front_label(each), [objective_text(each, objective) for objective in result.objectives])
        for each in result.front
    ]


def _plots(result: StudyResult) -> Iterator[Plot]:
    view = view_front(result)
    if not view.points:
        return
    pareto = plots.pareto_figure(view)
    yield make_plot("front", "Pareto front", _front_caption(result, view), pareto)
    growth = view_growth(result)
    if growth is not None:
        caption = f"Larger is better; it never falls. Reference point: {growth.reference}."
        figure = plots.growth_figure(growth)
        yield make_plot("growth", "Hypervolume over time", caption, figure)
    if plots.curve_trials(result):
        caption = "Each point is a checkpoint on the validation split."
        figure = plots.curves_figure(result)
        title = f"{result.quality.name.capitalize()} while training"
        yield make_plot("curves", title, caption, figure)
    if result.runtimes is not None:
        caption = (
            "Microseconds an image takes to train, from short probes in warm workers; an empty "
            "cell was not tried, because the setting was clearly slower."
        )
        figure = plots.runtimes_figure(result.runtimes)
        yield make_plot("runtimes", "Runtime settings", caption, figure)
    caption = "Of the trial's cores, over the whole life of the worker's process tree."
    yield make_plot("cpu", "CPU", caption, plots.cpu_figure(result))
    caption = "Of the worker's process tree, over its whole life."
    yield make_plot("memory", "Memory", caption, plots.memory_figure(result))


def _group_row(group: Group) -> list[str]:
    """Return the cells of one row of the table of groups."""
    scale = (group.speedup, group.efficiency, group.against_one)
    return [
        f"{group.workers} × {group.threads}"
        + (f" on {group.nodes} nodes" if group.nodes > 1 else "")
        + ("" if group.exact else f", {group.exchange}"),
        f"{group.samples_s.value:,.0f}",
        *("–" if each is None else f"{each:.2f}" for each in scale),
        f"{group.sent_bytes / _MIB:.2f}" if group.sent_bytes else "–",
        describe_params(group.setting),
    ]


def make_plot(anchor: str, title: str, caption: str, figure: go.Figure) -> Plot:
    """Convert a figure to HTML that needs only the plotly script of the page."""
    html = plotly.io.to_html(
        figure,
        include_plotlyjs=False,
        full_html=False,
        div_id=f"plot-{anchor}",
        config={"displayModeBar": False, "responsive": True},
    )
    return Plot(anchor, title, caption, html)


def _front_caption(result: StudyResult, view: FrontView) -> str:
    """Return the picture's text alternative, for readers who cannot see it."""
    words = [f"{count(len(view.points), 'usable point')}, coloured by BLAS library."]
    if result.derived:
        words.append(
            "Open marks are derived: a checkpoint of a run, at the pace of the fastest runtime "
            "setting."
        )
    if view.line:
        ends = [view.line[0], view.line[-1]]
        said = [f"{quantity(view.y, each.y)} at {quantity(view.x, each.x)}" for each in ends]
        words.append(f"The front (larger marks) runs from {said[0]} to {said[1]}.")
    if not view.scale.is_linear:
        words.append("Equal heights are equal ratios of errors.")
    if view.default is not None or view.reference is not None:
        of = f"{view.part} of the" if view.part else "the"
        words.append(f"The star and its dashed lines are {of} framework's default.")
    if view.lossless is not None:
        words.append(f"The band is {limit(view)}.")
    if view.verified:
        words.append("Diamonds are verified on the test split, with their intervals.")
    if len(result.objectives) > 2:
        drawn = ", ".join(each.name for each in result.objectives)
        words.append(
            f"Of the {len(result.objectives)} objectives ({drawn}) the first two are drawn; "
            "larger marks are on the front over all of them."
        )
    if view.hidden:
        outside = f"{count(view.hidden, 'point')} outside the picture{_edge(view)}"
        words.append(f"{outside}: double-click shows all.")
    return " ".join(words)


def _edge(view: FrontView) -> str:
    """Tell where the picture ends, beyond which nothing is of interest."""
    if view.floor is None:
        return ""
    if is_accuracy(view.y):
        return f", which begins at {rounded(view.y_range[0])} %"
    return f", which ends at {rounded(view.y_range[1])}"


def _param_names(result: StudyResult) -> list[str]:
    """Return the params of all trials: known ones first, the others as they appear."""
    found = {name: None for each in result.trials for name in each.params}
    known = [name for name in _KNOWN_PARAMS if name in found]
    return known + [name for name in found if name not in known]


def _trial_row(trial: TrialResult, on_front: bool) -> dict[str, object]:
    """Return one row of the trials' table: printed texts and the values to sort by."""
    measured = trial.measurement
    cells: list[tuple[str, object]] = [_score(trial.quality, trial.val_accuracy)]
    if measured is not None:
        figures = (
            measured.train_time_s, measured.wall_time_s, measured.cpu_user_s,
            measured.cpu_system_s, measured.cpu_iowait_s,
        )  # fmt: skip
        cells += [(format_seconds(each), each) for each in figures]
        cells += [
            _number(each / _MIB, 0)
            for each in (measured.avg_memory_bytes, measured.peak_memory_bytes)
        ]
    else:
        cells += [("", "")] * 7
    return {
        "name": trial.trial.title,
        "number": trial.trial.number,
        "seed": trial.trial.seed,
        "status": trial.status.value,
        "usable": trial.usable,
        "front": on_front,
        "params": {name: _param(value) for name, value in trial.params.items()},
        "cells": cells,
        "test_accuracy": _score(trial.quality, trial.test_accuracy)[0],
        "remarks": list(_remarks(trial)),
        "log": trial.log_tail,
    }


def _score(quality: Quality, score: float | None) -> tuple[str, object]:
    return _number(None if score is None else quality.in_unit(score), 2)


def _number(value: float | None, digits: int) -> tuple[str, object]:
    return ("", "") if value is None else (f"{value:,.{digits}f}", value)


def _param(value: ParamValue) -> tuple[str, object]:
    if isinstance(value, float):
        return f"{value:.4g}", value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}", value
    return (UNSET, UNSET) if value is None else (str(value), str(value))


def _remarks(trial: TrialResult) -> Iterator[str]:
    if trial.reason:
        yield trial.reason
    if trial.trial.share < 1:
        yield f"time: from the rate over {100 * trial.trial.share:.3g} % of the iterations"
    if trial.trial.accuracy_only:
        yield f"{trial.quality.name} only: it ran beside other trials, so its times are not used"
    if trial.accuracy_from:
        yield f"{trial.quality.name}: {trial.accuracy_from}"
    if trial.measurement and trial.measurement.disturbed:
        yield f"disturbed: {trial.measurement.disturbed}"
    if trial.discarded:
        yield f"{count(len(trial.discarded), 'disturbed measurement')} discarded"
    if trial.measurement and trial.measurement.threads_seen:
        loaded = trial.measurement.blas_loaded
        threads = count(trial.measurement.threads_seen, "thread")
        yield f"seen: {threads}{f', {loaded}' if loaded else ''}"


def _discarded(result: StudyResult) -> Iterator[tuple[str, str, str, str]]:
    """Yield each disturbed measurement: trial, train time (s), foreign CPU %, its fate."""
    for each in (*result.trials, *result.verifications):
        kept = [each.measurement] if each.measurement and each.measurement.disturbed else []
        for measurement, fate in (
            *((measurement, "discarded and repeated") for measurement in each.discarded),
            *((measurement, "kept and marked") for measurement in kept),
        ):
            yield (
                front_label(each),
                format_seconds(measurement.train_time_s),
                f"{measurement.foreign_cpu_pct:.1f}",
                f"{measurement.disturbed or 'disturbed'}; {fate}",
            )


def _facts(result: StudyResult) -> dict[str, dict[str, str]]:
    """Return the conditions of the measurements, by heading: budget, machine, versions."""
    study = {
        "study": result.study_id,
        "framework": result.title,
        "data set": result.dataset,
        "model": result.model,
        "objectives": ", ".join(
            f"{each.name} ({each.direction.value})" for each in result.objectives
        ),
        "constraints": ", ".join(result.constraints) or "none",
        "started": result.started,
        "elapsed": f"{result.elapsed_s:,.0f} s",
        "complete": "yes" if result.complete else "no, interrupted",
    }
    return {
        "Study": study,
        "Budget": dict(result.budget),
        "Data set": dict(result.dataset_facts),
        "Machine": dict(result.machine),
        "Framework as it reported itself": framework_versions(result),
        "Runtime packages": dict(result.runtime),
    }
