"""Progress on a terminal: bars, the last trials and the front so far."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tuner.progress.display import StudyProgress
from tuner.progress.wording import (
    ABBREVIATED,
    abbreviate_params,
    describe_params,
    format_seconds,
    printable,
)
from tuner.values.quality import ACCURACY, Quality
from tuner.values.results import least_of_interest
from tuner.values.trial import Trial, TrialResult, TrialStatus

REFRESH_HZ = 1.0
"""Redraws per second; they cost 0.3 % of a core (measured with full tables)."""

_RECENT = 6
_FRONT_ROWS = 8


@dataclass
class _Budget:
    """The part of the budget used at a moment of the monotonic clock (``at``)."""

    elapsed_s: float
    total_s: float
    trials: int
    max_trials: int
    at: float

    def now_s(self) -> float:
        """Return the seconds used by now: the clock runs on between two calls."""
        return min(self.total_s, self.elapsed_s + time.monotonic() - self.at)

    def left_s(self) -> float:
        """Return the seconds until time or trials run out, whichever is first at this pace."""
        left = self.total_s - self.now_s()
        if self.max_trials and self.trials:
            pace = self.elapsed_s / self.trials
            left = min(left, pace * max(0, self.max_trials - self.trials))
        return max(0.0, left)


class _Drawn:
    """Content drawn only once for each width: tables change far less often than bars."""

    def __init__(self, what: RenderableType) -> None:
        self._what = what
        self._drawn: tuple[int, list[Segment]] | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._drawn is None or self._drawn[0] != options.max_width:
            self._drawn = (options.max_width, list(console.render(self._what, options)))
        return self._drawn[1]


class LiveProgress(StudyProgress):
    """A display that redraws itself below printed lines, and disappears at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._phase = ("", "")
        self._tasks: dict[str, float | None] = {}
        self._budget: _Budget | None = None
        self._running: dict[str, tuple[Trial, int, float]] = {}
        self._recent: deque[TrialResult] = deque(maxlen=_RECENT)
        self._front: tuple[TrialResult, ...] = ()
        self._default: TrialResult | None = None
        self._tables = _Drawn(Group())

    def __enter__(self) -> LiveProgress:
        # standard output is for results: rich would send it to this console instead
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=REFRESH_HZ,
            transient=True,
            redirect_stdout=False,
        )
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def task(self, task: str, fraction: float | None) -> None:
        """Show the task with a bar until its fraction is 1 or a phase begins."""
        with self._lock:
            self._tasks[task] = fraction
            if fraction is not None and fraction >= 1:
                del self._tasks[task]

    def phase(self, name: str, detail: str = "") -> None:
        """Show the phase in the first line."""
        with self._lock:
            self._phase = (name, printable(detail))
            self._tasks.clear()

    def budget(self, elapsed_s: float, total_s: float, trials: int, max_trials: int) -> None:
        """Move the budget's bar."""
        with self._lock:
            self._budget = _Budget(elapsed_s, total_s, trials, max_trials, time.monotonic())

    def trial_started(self, trial: Trial) -> None:
        """Show the trial's bar."""
        self.trial_progress(trial, 0, 0.0)

    def trial_progress(self, trial: Trial, iteration: int, train_time_s: float) -> None:
        """Move the trial's bar."""
        with self._lock:
            self._running[trial.name] = (trial, iteration, train_time_s)

    def trial_finished(self, result: TrialResult, front: Sequence[TrialResult]) -> None:
        """Move the trial to the list of the last ones."""
        with self._lock:
            self._running.pop(result.trial.name, None)
            self._recent.append(result)
            self._front = tuple(front)
            if result.trial.is_default and result.usable:
                self._default = result
            trials = self._trials_table()
            tables = [trials, self._front_table()] if self._front else [trials]
            self._tables = _Drawn(Group(*tables))

    def warn(self, text: str) -> None:
        """Print the warning above the display, where it stays."""
        self._print(f"WARNING: {text}", "bold yellow")

    def message(self, text: str) -> None:
        """Print the message above the display, where it stays."""
        self._print(text, "")

    def _print(self, text: str, style: str) -> None:
        self._console.print(printable(text), style=style, markup=False, highlight=False)

    def _render(self) -> Group:
        with self._lock:
            name, detail = self._phase
            title = Text.assemble((name, "bold"), "  ", (detail, "dim"), no_wrap=True)
            return Group(title, self._bars(), self._tables)

    def _bars(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True, max_width=40)
        grid.add_column(width=24)
        grid.add_column()
        for label, share, text in self._bar_rows():
            bar = ProgressBar(total=1.0, completed=share or 0.0, pulse=share is None, width=24)
            grid.add_row(label, bar, Text(text, no_wrap=True, overflow="ellipsis"))
        return grid

    def _bar_rows(self) -> list[tuple[str, float | None, str]]:
        """Return label, fraction and text of each bar: tasks, the budget, the running trials."""
        rows: list[tuple[str, float | None, str]] = [
            (printable(task), share, "" if share is None else f"{share:.0%}")
            for task, share in self._tasks.items()
        ]
        if self._budget is not None:
            now, total = self._budget.now_s(), self._budget.total_s
            most = f" of {self._budget.max_trials}" if self._budget.max_trials else ""
            text = f"{now:,.0f} of {total:,.0f} s, {self._budget.trials}{most} trials, "
            text += f"{self._budget.left_s():,.0f} s left"
            rows.append(("budget", now / total if total else 1.0, text))
        for trial, iteration, train_time_s in self._running.values():
            asked = trial.params.get("iterations")
            wanted = asked * trial.share if isinstance(asked, int) else 0
            done = f"{iteration:,} iterations, " if iteration or wanted else ""
            text = f"{done}{format_seconds(train_time_s)} s: {describe_params(trial.params)}"
            rows.append((trial.title, iteration / wanted if wanted else None, text))
        return rows

    @property
    def _quality(self) -> Quality:
        return next((each.quality for each in self._recent), ACCURACY)

    def _trials_table(self) -> Table:
        table = _table("last trials", self._quality, "status", ABBREVIATED)
        for each in self._recent:
            status = "" if each.status is TrialStatus.COMPLETE else each.status.value
            if each.reason and not each.usable:
                status = f"{status}: {printable(each.reason)}"
            _add_row(table, each, status, abbreviate_params(each.trial.params))
        return table

    def _front_table(self) -> Table:
        title = "front so far, on the validation split"
        table = _table(title, self._quality, "against the default", ABBREVIATED)
        rows = _spread(_worth(self._front, self._default), _FRONT_ROWS)
        lossless = _lossless(self._front, self._default)
        first = [each for each in (self._default, lossless) if each is not None]
        rows = [*first, *(each for each in rows if not any(each is other for other in first))]
        for each in rows:
            words = f"{_kept(self._default)} so far: " if each is lossless else ""
            words += _against(each, self._default)
            _add_row(table, each, words, abbreviate_params(each.params))
        return table


def _table(title: str, quality: Quality, *elastic: str) -> Table:
    """Make a table that shortens its ``elastic`` columns in narrow terminals, never figures."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="dim")
    table.add_column("trial", no_wrap=True, min_width=9)
    for name in (quality.heading.replace(",", ""), "train time s"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in elastic:
        table.add_column(Text(name, no_wrap=True, overflow="ellipsis"))
    return table


def _add_row(table: Table, result: TrialResult, *texts: str) -> None:
    # as Text and not as str, which is read for markup: params and reasons are untrusted
    cells = (result.trial.title, *_figures(result), *texts)
    style = "bold" if result.trial.is_default else ""
    table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells), style=style)


def _figures(result: TrialResult) -> tuple[str, str]:
    """Return accuracy in percent and training time in seconds; a dash if not measured."""
    accuracy = result.test_accuracy if result.test_accuracy is not None else result.val_accuracy
    seconds = result.measurement.train_time_s if result.measurement else None
    return (
        "-" if accuracy is None else f"{result.quality.in_unit(accuracy):.2f}",
        "-" if seconds is None else format_seconds(seconds),
    )


def _against(result: TrialResult, default: TrialResult | None) -> str:
    if result is default:
        return "reference"
    mine: Mapping[str, float] = result.metrics
    theirs: Mapping[str, float] = default.metrics if default else {}
    words = []
    if mine.get("train_time_s") and "train_time_s" in theirs:
        words.append(f"{theirs['train_time_s'] / mine['train_time_s']:.1f}x as fast")
    if default and None not in (result.val_accuracy, default.val_accuracy):
        gain = (result.val_accuracy or 0.0) - (default.val_accuracy or 0.0)
        words.append(result.quality.shown_gain(gain))
    return ", ".join(words)


def _worth(front: Sequence[TrialResult], default: TrialResult | None) -> list[TrialResult]:
    """Return the front without points that make many times the default's errors."""
    known = default.val_accuracy if default else None
    if default is None or known is None:
        return list(front)
    least = least_of_interest(known, default.quality)
    return [each for each in front if each.val_accuracy is None or each.val_accuracy >= least]


def _lossless(front: Sequence[TrialResult], default: TrialResult | None) -> TrialResult | None:
    """Return the fastest point that beats the default's time at no lower accuracy, if any."""
    if default is None or default.val_accuracy is None:
        return None
    kept = [
        each
        for each in front
        if each is not default
        and (each.val_accuracy or 0.0) >= default.val_accuracy
        and each.metrics.get("train_time_s", math.inf) < default.metrics.get("train_time_s", 0.0)
    ]
    return min(kept, key=lambda each: each.metrics["train_time_s"], default=None)


def _kept(default: TrialResult | None) -> str:
    """Return the claim on accuracy: weaker if only the default's first part was trained."""
    part = default and default.status is TrialStatus.COMPLETE and default.reason
    return f"as {default.quality.good}" if default and part else "no loss"


def _spread(front: Sequence[TrialResult], most: int) -> list[TrialResult]:
    """Return at most ``most`` points of the front, evenly from its first to its last."""
    if len(front) <= most:
        return list(front)
    return [front[round(index * (len(front) - 1) / (most - 1))] for index in range(most)]
