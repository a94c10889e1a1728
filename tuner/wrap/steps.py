"""What a program has reached: by its own reports, those of a hook, or lines of its output.

A report is a line of JSON in the file that ``TUNER_REPORT`` names; ``docs/wrap.md`` describes it.
Only differences of its times count, so a program may use any clock that runs evenly.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from tuner.trials.worker_folder import WorkerFolder
from tuner.values.errors import ProtocolError
from tuner.wrap.goal import ACCURACY, Goal
from tuner.wrap.loglines import read_log_line
from tuner.wrap.program import REPORTS
from tuner.wrap.window import Mark

VERSION = 1
_READ_BYTES = 2**20  # at once
_MAX_MATCHED_BYTES = 4096  # of a line of the output: a regular expression may take long
_MAX_LINE_BYTES = 64 * 1024
_MAX_MARKS = 200_000
_MIN_APART_S = 0.05  # between marks, or points of the curve: more would tell no more
_MAX_PROCESSES = 1000  # that report
_MAX_POINTS = 500  # of the curve
_MAX_STEP = 2**53
_MAX_CLOCK_S = 1e12
_NAME_LETTERS = 40
_MAX_FIGURES = 50  # that a program reports, by name
_ROUNDED = 1 + 1e-5  # what an accuracy of 1 may be in single precision, as the mean of batches
_FIGURE = re.compile(r"[A-Za-z_][\w ./-]{0,39}")
_OF_TRAINING = ("train", "training")  # splits whose figures say nothing of quality
_RANKS = {"reports": 3, "hook": 2, "output": 1}  # sources of marks; 0 for lines of other tools


@dataclass
class Progress:
    """Reads the progress of one running program: its steps, and the figures that it tells.

    Args:
        own: Folder of the run, where the reports appear.
        output: The program's output.
        step: Regular expression: each match in the output is a step. Empty for none.
        metric: Regular expression whose named groups are figures. Empty for none.
        goal: The figure that tells how well the program has trained.
        in_percent: Whether accuracies are in per cent; ``None`` to tell by the first above 1.
    """

    own: WorkerFolder
    output: IO[bytes]
    step: str = ""
    metric: str = ""
    goal: Goal = field(default_factory=Goal)
    in_percent: bool | None = None
    figures: dict[str, float] = field(default_factory=dict)
    """The last figures that were reported, by name."""
    _told: set[str] = field(default_factory=set)
    """Names of the figures that were reported since the curve was last extended."""
    _points: list[tuple[float, float]] = field(default_factory=list)
    """When the figure of the goal was told, by the host's monotonic clock, and the figure."""
    _marks: dict[str, list[Mark]] = field(default_factory=lambda: defaultdict(list))
    """The marks by their source, with the process after a ``/`` where it is known."""
    _reports_at: int = 0
    _output_at: int = 0
    _line_number: int = 0
    _matches: int = 0
    _rest: bytes = b""

    @property
    def accuracy(self) -> float | None:
        """The last accuracy that was reported, as a fraction; ``None`` without any."""
        value = Goal(ACCURACY).choose(self.figures)
        return value / 100 if value is not None and self.in_percent else value

    def curve(self, began_s: float) -> list[tuple[float, float]]:
        """Return when the figure of the goal was told, seconds since ``began_s``, and the figure.

        Args:
            began_s: When the program began, by the host's monotonic clock.
        """
        in_percent = self.goal.name == ACCURACY and self.in_percent
        return [(at - began_s, each / 100 if in_percent else each) for at, each in self._points]

    @property
    def source(self) -> str:
        """Where the marks come from; empty without any."""
        return self._best[0].partition("/")[0]

    @property
    def marks(self) -> Sequence[Mark]:
        """The marks so far, of the process that has done most steps."""
        return self._best[1]

    @property
    def _best(self) -> tuple[str, Sequence[Mark]]:
        """The source and the marks that count: of the first rank, then with most steps."""

        def standing(entry: tuple[str, Sequence[Mark]]) -> tuple[int, int]:
            source, marks = entry
            return _RANKS.get(re.split("[ /]", source, maxsplit=1)[0], 0), marks[-1].step

        return max(self._marks.items(), key=standing, default=("", ()))

    def read(self, *, last: bool = False) -> None:
        """Read what is new.

        Args:
            last: Whether the program has ended, so that an unfinished line is its last.

        Raises:
            ProtocolError: If something was reported that may not be.
            ArithmeticError: If the figure of the goal is no finite number.
        """
        while self._read_reports() and last:
            pass
        while self._read_output() and last:
            pass
        if last:
            self._match(self._rest)

    def _read_reports(self) -> bool:
        data = self.own.read(REPORTS, _READ_BYTES, self._reports_at)
        end = data.rfind(b"\n") + 1
        if not end and len(data) > _MAX_LINE_BYTES:
            raise ProtocolError(f"line {self._line_number + 1} of TUNER_REPORT is too long")
        self._reports_at += end
        now = time.monotonic()
        for line in data[:end].splitlines():
            self._line_number += 1
            if line.strip():
                self._take(_parse(line, self._line_number), now)
        return end > 0

    def _take(self, report: Mapping[str, Any], now: float) -> None:
        if report["split"] not in _OF_TRAINING:
            for name, value in report["metrics"].items():
                self._note(name, value)
            self._extend_curve()
        if report["step"] is None:
            return
        hook = report["hook"]
        key = f"hook {hook}/{report['pid']}" if hook else f"reports/{report['pid']}"
        time_s = now if report["t"] is None else report["t"]
        self._add(key, Mark(report["step"], time_s))

    def _add(self, key: str, mark: Mark) -> None:
        if key not in self._marks and len(self._marks) >= _MAX_PROCESSES:
            raise ProtocolError(f"more than {_MAX_PROCESSES} processes report")
        marks = self._marks[key]
        if marks and (mark.step < marks[-1].step or mark.time_s < marks[-1].time_s):
            raise ProtocolError(
                f"step {mark.step} at {mark.time_s:g} s was reported after step "
                f"{marks[-1].step} at {marks[-1].time_s:g} s"
            )
        if len(marks) > 1 and mark.time_s - marks[-2].time_s < _MIN_APART_S:
            marks[-1] = mark
        elif len(marks) < _MAX_MARKS and (not marks or mark.step > marks[-1].step):
            marks.append(mark)

    def _read_output(self) -> bool:
        data = os.pread(self.output.fileno(), _READ_BYTES, self._output_at)
        self._output_at += len(data)
        *lines, self._rest = re.split(rb"[\r\n]+", self._rest + data)
        for line in lines:
            self._match(line)
        self._rest = self._rest[:_MAX_LINE_BYTES]
        return bool(data)

    def _match(self, line: bytes) -> None:
        """Read steps and figures from a line of the output."""
        text = line[:_MAX_MATCHED_BYTES].decode("utf-8", "replace")
        if self.step and (found := len(re.findall(self.step, text))):
            self._matches += found
            self._add("output", Mark(self._matches, time.monotonic()))
        for match in re.finditer(self.metric, text) if self.metric else ():
            for name, value in match.groupdict().items():
                if value is not None:
                    self._note(name, _number(value))
            self._extend_curve()
        if told := read_log_line(text):
            for name, figure in told.metrics.items():
                self._note(name, figure)
            self._extend_curve()
            time_s = time.monotonic() if told.time_s is None else told.time_s
            marks = self._marks.get(told.source) or [Mark(-1, -math.inf)]
            if told.step is not None and marks[-1].step < told.step < _MAX_STEP:
                self._add(told.source, Mark(told.step, max(time_s, marks[-1].time_s)))

    def _note(self, name: str, value: float) -> None:
        """Keep a figure that was told; raise as ``read`` does if it may not be."""
        of_goal = self.goal.choose({name: value}) is not None
        if of_goal and not math.isfinite(value):
            raise ArithmeticError(f"the {self.goal.name} is {value}")
        if Goal(ACCURACY).choose({name: value}) is not None:
            if not 0 <= value <= (1 if self.in_percent is False else 100) * _ROUNDED:
                unit = "from 0 to 1" if self.in_percent is False else "from 0 to 1, or to 100 %"
                raise ProtocolError(f"the accuracy must be {unit}, got {value:g}")
            if self.in_percent is None and value > _ROUNDED:
                self.in_percent = True
        known = name in self.figures or len(self.figures) < _MAX_FIGURES
        if of_goal or (known and _FIGURE.fullmatch(name) and math.isfinite(value)):
            self.figures[name] = value
            self._told.add(name)

    def _extend_curve(self) -> None:
        """Add the figure of the goal to the curve, if it was just told."""
        name, now = self.goal.named(self.figures), time.monotonic()
        if name in self._told:
            if len(self._points) > 1 and now - self._points[-2][0] < _MIN_APART_S:
                del self._points[-1]
            self._points.append((now, self.figures[name]))
            if len(self._points) > _MAX_POINTS:
                del self._points[1:-1:2]
        self._told.clear()


def _parse(line: bytes, number: int) -> dict[str, Any]:
    try:
        report = json.loads(line)
        step, at = report.get("step"), report.get("t")
        read: dict[str, Any] = {
            "step": None if step is None else int(step),
            "t": None if at is None else float(at),
            "metrics": {name: float(value) for name, value in report.get("metrics", {}).items()},
            "split": str(report.get("split", "")),
            "hook": str(report.get("hook", ""))[:_NAME_LETTERS],
            "pid": str(report.get("pid", ""))[:_NAME_LETTERS],
        }
        valid = (
            report["v"] == VERSION
            and (step is None or (step == read["step"] and not isinstance(step, bool)))
            and (step is None or 0 <= read["step"] < _MAX_STEP)
            and (at is None or abs(read["t"]) < _MAX_CLOCK_S)
        )
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        valid = False
    if not valid:
        shown = line[:80].decode("utf-8", "replace")
        raise ProtocolError(f"line {number} of TUNER_REPORT is no report: {shown!r}")
    return read


def _number(text: str) -> float:
    """Read a number, a percentage, or a ratio such as ``9846/10000``."""
    plain = text.rstrip(",;.)]}")
    count, slash, total = plain.partition("/")
    try:
        if slash:
            return float(count) / float(total)
        return float(plain.rstrip("%")) / (100 if plain.endswith("%") else 1)
    except (ValueError, ZeroDivisionError):
        raise ProtocolError(f"--metric matched {text[:40]!r}, which is no number") from None
