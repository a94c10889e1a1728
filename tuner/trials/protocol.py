"""The host's side of the worker protocol, version 1: requests and permitted answers.

The worker's folder holds ``trial.json`` (one flat object, in), ``events.jsonl`` (append-only, one
flat object per line, out) and, to end the training, ``stop``. The worker's own output is not part
of the protocol: it goes to a log that the host keeps.

What a worker judges is the ``figure`` of the request: with ``perplexity``, its ``checkpoint`` and
``result`` have ``val_perplexity`` and ``test_perplexity`` in place of ``val_accuracy`` and
``test_accuracy``.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.datasets.provide import SPLITS, Dataset
from tuner.trials.worker_folder import WorkerFolder
from tuner.values.errors import ProtocolError
from tuner.values.params import iterations_of
from tuner.values.quality import ACCURACY, Quality
from tuner.values.trial import Checkpoint, Trial, TrialKind

PROTOCOL = 1
REQUEST, EVENTS, STOP = "trial.json", "events.jsonl", "stop"
MAX_LINE_BYTES = 64 * 1024
MAX_EVENTS_BYTES = 64 * 2**20
"""Limit per trial: some days of progress at two events a second, like ``_MAX_EVENTS``."""
_MAX_EVENTS = 1_000_000
_MAX_CHECKPOINTS = 10_000
_MAX_ITERATION = 2**53  # databases hold larger numbers no more
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Of terminals, and those that reverse the order in which text is shown (UAX #9)."""
_HALVINGS = 3  # of the iterations, at which accuracy is evaluated before the end
_FINE = 8  # evaluations per doubling where they are close together
_ROUNDING = 1e-3

_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "ready": (),
    "train_begin": ("setup_time_s",),
    "progress": ("iteration", "train_time_s"),
    "checkpoint": ("iteration", "train_time_s"),
    "train_end": ("iteration", "train_time_s"),
    "result": ("iteration", "test_time_s"),
    "error": ("kind", "message"),
}
"""Events a worker may write, each with the entries it must carry."""
_JUDGED = ("checkpoint", "result")  # these also carry the figure of the validation split
_NULLABLE = "result"  # a probe evaluates nothing
_TEXTS = ("kind", "message")


def checkpoint_grid(iterations: int, curve: int = 0) -> list[int]:
    """Return the iterations at which accuracy is evaluated, ascending, including the last one.

    The others are its half, quarter and eighth. For a ``curve`` (see ``Trial``) they are steps of
    the square root of two, down to a quarter of the least iterations of interest.
    """
    if not curve:
        return sorted({math.ceil(iterations / 2**number) for number in range(_HALVINGS + 1)})
    steps = max(0, math.floor(2 * math.log2(4 * iterations / curve) + _ROUNDING))
    return sorted({math.ceil(iterations / 2 ** (number / 2)) for number in range(steps + 1)})


def fine_grid(first: int, last: int) -> list[int]:
    """Return iterations from ``first`` to ``last``, eight per doubling, ascending."""
    if not 0 < first <= last:
        return []
    steps = math.floor(_FINE * math.log2(last / first) + _ROUNDING)
    return sorted({math.ceil(last / 2 ** (number / _FINE)) for number in range(steps + 1)})


def marks_of(trial: Trial) -> list[int]:
    """Return the iterations at which a worker is to evaluate accuracy; none for a probe."""
    iterations = trained_iterations(trial)
    if trial.kind is TrialKind.PROBE:
        return []
    if trial.share < 1 and not trial.curve:
        return [iterations]
    whole = checkpoint_grid(iterations_of(trial.params), trial.curve)
    marks = set(trial.test_at) or {*whole, *fine_grid(*trial.finely)}
    return [*sorted(mark for mark in marks if mark < iterations), iterations]


def tests_every_mark(trial: Trial) -> bool:
    """Return whether a worker is to evaluate the test split at each mark, not only at the end."""
    records = trial.kind is TrialKind.REFERENCE and not trial.projected
    return records or bool(trial.test_at)


def trained_iterations(trial: Trial) -> int:
    """Return the iterations a trial really trains: its share of them, at least one."""
    exact = iterations_of(trial.params) * trial.share
    return max(1, math.ceil(round(exact, 6)))  # a rounding error must not add an iteration


def request_text(trial: Trial, dataset: Dataset, model: str) -> str:
    """Return the content of ``trial.json``; its paths are the host's, valid in the sandbox too."""
    iterations = trained_iterations(trial)
    request: dict[str, Any] = {
        **trial.params,
        "protocol": PROTOCOL,
        "iterations": iterations,
        "eval_at": ",".join(map(str, marks_of(trial))),
        "model": model,
        "seed": trial.seed,
        "test": trial.test,
        "every_mark": tests_every_mark(trial),
        "dataset": dataset.name,
        "figure": dataset.quality.name,
        "classes": dataset.classes,
        "channels": dataset.channels,
        "height": dataset.height,
        "width": dataset.width,
    }
    for split in SPLITS:
        request[f"{split}_images"] = str(dataset.images(split))
        request[f"{split}_labels"] = str(dataset.labels(split))
        request[f"{split}_count"] = dataset.sizes[split]
    return json.dumps(request, indent=1)


def parse_event(line: bytes, quality: Quality = ACCURACY) -> dict[str, Any]:
    """Parse a line of ``events.jsonl``; raise ``ProtocolError`` if the protocol forbids it.

    Args:
        line: The line.
        quality: What the worker has to judge; its figures come back as scores, called
            ``val_accuracy`` and ``test_accuracy``.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"event line of more than {MAX_LINE_BYTES} bytes")
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError(f"event line is not JSON: {line[:80]!r}") from None
    name = str(event.get("event")) if isinstance(event, dict) else ""
    if name not in _REQUIRED:
        raise ProtocolError(f"unknown event {line[:80]!r}; known are {', '.join(_REQUIRED)}")
    figures = [f"{split}_{quality.name}" for split in ("val", "test")]
    required = [*_REQUIRED[name], *(figures[:1] if name in _JUDGED else [])]
    missing = [key for key in required if key not in event]
    if missing or any(isinstance(value, dict | list) for value in event.values()):
        raise ProtocolError(f"event {name!r} lacks {missing} or is not flat: {line[:80]!r}")
    _check_figures(name, event, required, figures)
    for figure in set(figures) & event.keys():
        value = event.pop(figure)
        score = None if value is None else quality.score(value)
        event[figure.replace(quality.name, "accuracy")] = score
    return {_encodable(key): _encodable(value) for key, value in event.items()}


def _encodable(value: Any) -> Any:
    """Return the value; text without what JSON allows but files, databases or terminals reject."""
    return printable(value) if isinstance(value, str) else value


def printable(text: str) -> str:
    """Return the text with ``?`` for lone surrogates and controls other than tab and newline."""
    return _CONTROLS.sub("?", text.encode("utf-8", "replace").decode())


def _check_figures(
    name: str, event: Mapping[str, Any], required: Collection[str], figures: Sequence[str]
) -> None:
    """Check that figures are finite and in range; only optional ones may be null or missing."""
    for key in sorted({*required, "loss", *figures} - set(_TEXTS)):
        value: Any = event.get(key)
        nullable = key not in required or (name == _NULLABLE and key in figures)
        if value is None and nullable:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not abs(value) <= sys.float_info.max:
            raise ProtocolError(f"event {name!r} has no finite number as {key}: {value!r}")
        if key.endswith("_accuracy") and not 0 <= value <= 1:
            raise ProtocolError(f"{key} is {value!r}, not a fraction from 0 to 1")
        if key.endswith("_perplexity") and value < 1:
            raise ProtocolError(f"{key} is {value!r}, not a number from 1 on")
        if value < 0 and key != "loss":
            raise ProtocolError(f"event {name!r} has a {key} below 0: {value!r}")
        if key == "iteration" and not (name == "checkpoint") <= value <= _MAX_ITERATION:
            raise ProtocolError(f"event {name!r} is of no iteration: {value!r}")


@dataclass
class EventLog:
    """A worker's answers so far, read from its growing event file.

    Attributes:
        ready, result, error: These events; ``None`` until they arrive.
        setup_time_s: Seconds of set-up; ``None`` until training begins.
        ended: Whether training has ended.
        iteration, train_time_s, loss: Values of the latest event that has them.
        attested: Settings in effect, as last reported by the worker.
        quality: What the worker has to judge.
    """

    folder: WorkerFolder
    ready: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    setup_time_s: float | None = None
    ended: bool = False
    iteration: int = 0
    train_time_s: float = 0.0
    loss: float | None = None
    checkpoints: list[Checkpoint] = field(default_factory=list)
    attested: dict[str, Any] = field(default_factory=dict)
    quality: Quality = ACCURACY
    _offset: int = 0
    _count: int = 0

    def read(self) -> bool:
        """Read what was appended since the last call; return whether anything was.

        Raises:
            ProtocolError: For a line that the protocol does not allow.
        """
        text = self.folder.read(EVENTS, MAX_LINE_BYTES * 4, self._offset)
        whole = text[: text.rfind(b"\n") + 1]
        if len(text) - len(whole) >= MAX_LINE_BYTES:
            raise ProtocolError(f"event line of more than {MAX_LINE_BYTES} bytes")
        self._offset += len(whole)
        if self._offset > MAX_EVENTS_BYTES:
            raise ProtocolError(f"more than {MAX_EVENTS_BYTES // 2**20} MiB of events")
        for line in whole.splitlines():
            self._take(parse_event(line, self.quality))
        return bool(whole)

    def _take(self, event: dict[str, Any]) -> None:
        name = event["event"]
        self._count += 1
        if self._count > _MAX_EVENTS:
            raise ProtocolError(f"more than {_MAX_EVENTS:,} events")
        if self.result is not None:
            raise ProtocolError(f"event {name!r} after the result")
        self._note(name, event)

    def _note(self, name: str, event: dict[str, Any]) -> None:
        if name == "train_begin":
            self.setup_time_s = float(event["setup_time_s"])
        elif name in ("progress", "checkpoint", "train_end"):
            self.iteration = int(event["iteration"])
            self.train_time_s = float(event["train_time_s"])
            self.loss = event.get("loss", self.loss)
        if name in ("ready", "result", "error"):
            setattr(self, name, event)
        if name in ("ready", "train_end"):
            self.attested |= event
        if name == "train_end":
            self.ended = True
        if name == "checkpoint":
            if len(self.checkpoints) >= _MAX_CHECKPOINTS:
                raise ProtocolError(f"more than {_MAX_CHECKPOINTS:,} checkpoints")
            accuracy, test = float(event["val_accuracy"]), event.get("test_accuracy")
            self.checkpoints.append(
                Checkpoint(self.iteration, self.train_time_s, event.get("loss"), accuracy, test)
            )


def log_tail(log: Path, lines: int = 12) -> str:
    """Return the last lines of the worker's own output, which the host keeps in ``log``."""
    try:
        with log.open("rb") as source:
            source.seek(max(0, source.seek(0, 2) - 8192))
            text = source.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(printable(text).splitlines()[-lines:])
