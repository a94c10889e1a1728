"""The host's end of the worker protocol: what is asked, and what is taken from an answer.

Whatever a worker writes, the host knows only two ends: it understood, or ``ProtocolError``.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tuner.trials.protocol import (
    EVENTS,
    MAX_LINE_BYTES,
    PROTOCOL,
    EventLog,
    checkpoint_grid,
    fine_grid,
    log_tail,
    marks_of,
    parse_event,
    request_text,
    trained_iterations,
)
from tuner.trials.worker_folder import WorkerFolder
from tuner.values.errors import ProtocolError
from tuner.values.trial import Checkpoint, Trial, TrialKind

reproducible = settings(derandomize=True, deadline=None, max_examples=examples(150))

READY = {"event": "ready", "python": "2.7.18", "threads": 2}
BEGIN = {"event": "train_begin", "setup_time_s": 1.5}
PROGRESS = {"event": "progress", "iteration": 10, "train_time_s": 0.5, "loss": 2.0}
CHECKPOINT = {
    "event": "checkpoint",
    "iteration": 50,
    "train_time_s": 2.5,
    "loss": 0.5,
    "val_accuracy": 0.9,
}
END = {"event": "train_end", "iteration": 100, "train_time_s": 5.0, "threads": 1}
RESULT = {
    "event": "result",
    "iteration": 100,
    "val_accuracy": 0.95,
    "test_accuracy": None,
    "test_time_s": 0.2,
}
ERROR = {"event": "error", "kind": "diverged", "message": "loss is nan"}
WHOLE = [READY, BEGIN, PROGRESS, CHECKPOINT, END, RESULT]


def as_lines(*events: dict) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def taken(text: bytes, folder: Path) -> EventLog:
    """The log of an event file with this text, read to its end."""
    with WorkerFolder(folder / "worker") as own:
        (own.path / EVENTS).write_bytes(text)
        log = EventLog(own)
        while log.read():
            pass
    return log


def refusal(text: bytes, folder: Path) -> str:
    with pytest.raises(ProtocolError) as refused:
        taken(text, folder)
    return str(refused.value)


# -- what is asked ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("iterations", "grid"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (10, [2, 3, 5, 10]),
        (10_000, [1250, 2500, 5000, 10_000]),
    ],
)
def test_accuracy_is_looked_at_after_each_doubling(iterations, grid):
    assert checkpoint_grid(iterations) == grid


@reproducible
@given(st.integers(1, 10**7), st.integers(0, 10**5))
def test_every_grid_rises_to_the_last_iteration(iterations, curve):
    grid = checkpoint_grid(iterations, curve)
    assert grid == sorted(set(grid))
    assert grid[-1] == iterations
    assert grid[0] >= 1


def test_a_curve_is_looked_at_twice_a_doubling():
    grid = checkpoint_grid(5120, curve=40)
    assert len(grid) == 19
    assert grid[::2] == [10 * 2**power for power in range(10)]


@pytest.mark.parametrize("steps", range(12))
def test_the_shortest_training_of_interest_is_among_the_looks_of_a_longer_one(steps):
    assert 200 in checkpoint_grid(int(200 * 2 ** (steps / 2) + 1e-6), curve=200)


def test_a_part_is_looked_at_more_often():
    assert fine_grid(0, 0) == fine_grid(5, 4) == []
    assert fine_grid(100, 100) == [100]
    grid = fine_grid(1000, 4000)
    assert len(grid) == 17
    assert grid[::8] == [1000, 2000, 4000]
    whole = Trial(1, {"batch_size": 64, "iterations": 10_000}, curve=200, finely=(1000, 4000))
    assert set(grid) <= set(marks_of(whole))
    assert marks_of(whole) == sorted(set(marks_of(whole)))
    short = Trial(1, {"batch_size": 64, "iterations": 1500}, curve=200, finely=(1000, 1500))
    assert marks_of(short)[-1] == 1500


def test_a_probe_is_never_looked_at(digits):
    trial = Trial(1, {"batch_size": 64, "iterations": 50}, TrialKind.PROBE)
    request = json.loads(request_text(trial, digits, "lenet"))
    assert request["eval_at"] == ""


@pytest.mark.parametrize(
    ("iterations", "share", "trained"),
    [
        *((1000, 1.0, 1000), (1000, 0.05, 50), (1001, 0.5, 501), (3, 0.01, 1), (1, 1.0, 1)),
        (6330, 30 / 6330, 30),
    ],
)
def test_a_share_trains_some_of_the_iterations(iterations, share, trained):
    assert trained_iterations(Trial(0, {"iterations": iterations}, share=share)) == trained


def test_the_request_is_one_flat_ascii_object_with_everything(digits):
    params = {
        "batch_size": 64,
        "iterations": 1000,
        "learning_rate": 0.01,
        "blas": "openblas-pthread",
        "threads": "unset",
        "nesterov": True,
        "schedule": None,
        "note": "größer",
    }
    text = request_text(Trial(3, params, seed=7, test=True), digits, "lenet")
    assert text.isascii()
    request = json.loads(text)
    assert all(isinstance(each, str | int | float | bool | None) for each in request.values())
    assert request.items() >= params.items()
    assert request["protocol"] == PROTOCOL
    assert request["eval_at"] == "125,250,500,1000"
    assert (request["model"], request["seed"], request["test"]) == ("lenet", 7, True)
    assert (request["channels"], request["height"], request["width"]) == (1, 28, 28)
    assert request["classes"] == 10
    for split in ("train", "validation", "test"):
        assert Path(request[f"{split}_images"]).is_file()
        assert Path(request[f"{split}_labels"]).is_file()
        assert request[f"{split}_count"] == digits.sizes[split] > 0


def test_a_share_is_asked_for_by_fewer_iterations_and_one_look(digits):
    request = json.loads(
        request_text(Trial(0, {"iterations": 1000}, share=0.05), digits, "default")
    )
    assert (request["iterations"], request["eval_at"]) == (50, "50")


def test_the_first_part_of_a_curve_is_looked_at_where_the_whole_is(digits):
    params = {"iterations": 1000}
    request = json.loads(request_text(Trial(0, params, share=0.3, curve=400), digits, "default"))
    marks = request["eval_at"].split(",")
    whole = checkpoint_grid(1000, 400)
    assert [int(each) for each in marks] == [*(each for each in whole if each < 300), 300]


def test_only_a_reference_looks_at_every_mark(digits):
    for kind in TrialKind:
        request = json.loads(request_text(Trial(0, {"iterations": 10}, kind), digits, "default"))
        assert request["every_mark"] is (kind is TrialKind.REFERENCE)


def test_a_trial_is_tested_on_the_way_where_it_asks_for_that(digits):
    trial = Trial(1, {"iterations": 800}, TrialKind.VERIFY, test=True, test_at=(500, 600))
    request = json.loads(request_text(trial, digits, "default"))
    assert request["every_mark"] is True
    assert request["eval_at"] == "500,600,800"


def test_params_cannot_replace_what_the_protocol_says(digits):
    trial = Trial(1, {"iterations": 10, "protocol": 99, "seed": 99, "test_images": "x"}, seed=5)
    request = json.loads(request_text(trial, digits, "default"))
    assert (request["protocol"], request["seed"]) == (PROTOCOL, 5)
    assert request["test_images"] != "x"


# -- what is answered ---------------------------------------------------------------------------


def test_a_whole_trial_is_understood(tmp_path):
    log = taken(as_lines(*WHOLE), tmp_path)
    assert log.ready == READY
    assert log.setup_time_s == 1.5
    assert log.checkpoints == [Checkpoint(50, 2.5, 0.5, 0.9)]
    assert (log.iteration, log.train_time_s, log.loss) == (100, 5.0, 0.5)
    assert log.ended
    assert log.result == RESULT
    assert log.error is None
    assert log.attested["threads"] == 1, "what was said last counts"


def test_nothing_is_heard_before_the_worker_writes(tmp_path):
    own = WorkerFolder(tmp_path / "worker")
    log = EventLog(own)
    assert log.read() is False
    (own.path / EVENTS).touch()
    assert log.read() is False
    assert (log.ready, log.result, log.error, log.setup_time_s) == (None, None, None, None)


def test_a_line_counts_once_its_end_is_there(tmp_path):
    own = WorkerFolder(tmp_path / "worker")
    log = EventLog(own)
    text = as_lines(*WHOLE)
    heard = 0
    with (own.path / EVENTS).open("ab", buffering=0) as target:
        for index in range(len(text)):
            target.write(text[index : index + 1])
            heard += log.read()
            assert (log.result is not None) == (index == len(text) - 1)
    assert heard == len(WHOLE)


@reproducible
@given(st.lists(st.integers(0, len(as_lines(*WHOLE))), max_size=6))
def test_how_writes_are_split_does_not_matter(tmp_path_factory, cuts):
    text = as_lines(*WHOLE)
    own = WorkerFolder(tmp_path_factory.mktemp("events"))
    log = EventLog(own)
    marks = [0, *sorted(cuts), len(text)]
    for start, end in itertools.pairwise(marks):
        with (own.path / EVENTS).open("ab") as target:
            target.write(text[start:end])
        log.read()
    whole = taken(text, own.path)
    assert {**vars(log), "folder": None} == {**vars(whole), "folder": None}


def test_more_than_one_read_of_events_is_taken_in(tmp_path):
    events = [{**PROGRESS, "iteration": n, "note": "x" * 300} for n in range(2000)]
    assert taken(as_lines(*events), tmp_path).iteration == 1999


@pytest.mark.parametrize(
    "line",
    [
        b"this is no event",
        b"",
        b"\xff\xfe\x00",
        b"{",
        b"[]",
        b"3",
        b"null",
        b'"ready"',
        b"{}",
        b'{"event": "speed"}',
        b'{"event": null}',
        b'{"event": ["ready"]}',
        b'{"event": "ready", "nested": {"a": 1}}',
        b'{"event": "ready", "list": []}',
        b'{"event": "error", "kind": "diverged"}',
        b"[" * 50_000,
        b'{"event": "ready", "n": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda line: repr(line[:24]),
)
def test_what_is_no_event_is_refused(tmp_path, line):
    message = refusal(line + b"\n", tmp_path)
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize("event", WHOLE, ids=lambda event: event["event"])
def test_each_event_needs_its_entries(tmp_path, event):
    needed = set(event) - {"event", "loss", "test_accuracy", "python", "threads"}
    for name in needed:
        rest = {key: value for key, value in event.items() if key != name}
        assert name in refusal(as_lines(rest), tmp_path)


FIGURES = [
    (event, name)
    for event in (BEGIN, PROGRESS, CHECKPOINT, END, RESULT)
    for name in event
    if name not in ("event", "loss", "test_accuracy", "threads")
]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e999", '"fast"', '"1"', "null", "true"])
@pytest.mark.parametrize(
    ("event", "name"), FIGURES, ids=[f"{event['event']}-{name}" for event, name in FIGURES]
)
def test_figures_are_finite_numbers(tmp_path, event, name, value):
    entries = {**event, name: "VALUE"}
    line = json.dumps(entries).replace('"VALUE"', value).encode()
    if (event["event"], name, value) == ("result", "val_accuracy", "null"):
        assert taken(line + b"\n", tmp_path).result["val_accuracy"] is None  # a probe's
        return
    assert event["event"] in refusal(line + b"\n", tmp_path)


@pytest.mark.parametrize("value", ['"0.5"', '"low"', "NaN", "Infinity", "true"])
def test_a_loss_is_a_number_or_missing(tmp_path, value):
    line = json.dumps({**PROGRESS, "loss": "VALUE"}).replace('"VALUE"', value).encode()
    assert "progress" in refusal(line + b"\n", tmp_path)
    assert taken(as_lines({**PROGRESS, "loss": None}), tmp_path).loss is None
    assert taken(as_lines({**CHECKPOINT, "loss": None}), tmp_path).checkpoints[0].loss is None


@pytest.mark.parametrize("value", [1.5, -0.1, 95, 1e300])
@pytest.mark.parametrize(
    ("event", "name"),
    [(CHECKPOINT, "val_accuracy"), (RESULT, "val_accuracy"), (RESULT, "test_accuracy")],
)
def test_an_accuracy_is_a_fraction(tmp_path, event, name, value):
    message = refusal(as_lines({**event, name: value}), tmp_path)
    assert message == f"{name} is {value!r}, not a fraction from 0 to 1"


@pytest.mark.parametrize(
    ("event", "iteration"),
    [(CHECKPOINT, 0), (CHECKPOINT, 2**63), (PROGRESS, 1e300), (END, 2**63), (RESULT, 2**63)],
)
def test_an_iteration_is_one_that_a_database_holds(tmp_path, event, iteration):
    said = refusal(as_lines({**event, "iteration": iteration}), tmp_path)
    assert said == f"event {event['event']!r} is of no iteration: {iteration!r}"


@pytest.mark.parametrize("value", [0, 1, 0.5])
def test_the_ends_of_the_fraction_are_accuracies(tmp_path, value):
    result = taken(as_lines({**RESULT, "val_accuracy": value}), tmp_path).result
    assert result["val_accuracy"] == value


@pytest.mark.parametrize(
    ("name", "event"), [("setup_time_s", BEGIN), ("train_time_s", END), ("iteration", END)]
)
def test_time_does_not_run_backwards_from_nothing(tmp_path, name, event):
    refusal(as_lines({**event, name: -1}), tmp_path)


def test_there_is_one_result_and_it_is_the_last(tmp_path):
    assert refusal(as_lines(RESULT, RESULT), tmp_path) == "event 'result' after the result"
    for event in (READY, PROGRESS, ERROR):
        assert "after the result" in refusal(as_lines(RESULT, event), tmp_path)


def test_what_came_before_a_fault_was_heard(tmp_path):
    own = WorkerFolder(tmp_path / "worker")
    (own.path / EVENTS).write_bytes(as_lines(READY, BEGIN) + b"noise\n")
    log = EventLog(own)
    with pytest.raises(ProtocolError, match="noise"):
        log.read()
    assert log.setup_time_s == 1.5


@pytest.mark.parametrize("end", [b"", b"\n"], ids=["unended", "ended"])
def test_a_line_has_a_greatest_length(tmp_path, end):
    line = as_lines({**READY, "note": "x" * MAX_LINE_BYTES})[:-1]
    assert refusal(line + end, tmp_path) == f"event line of more than {MAX_LINE_BYTES} bytes"
    nearly = as_lines({**READY, "note": "x" * (MAX_LINE_BYTES - 100)})
    assert taken(nearly, tmp_path).ready


def test_endless_noise_is_given_up_at_once(tmp_path):
    own = WorkerFolder(tmp_path / "worker")
    (own.path / EVENTS).write_bytes(b"x" * (MAX_LINE_BYTES * 40))
    with pytest.raises(ProtocolError):
        EventLog(own).read()


def test_more_events_than_any_training_has_are_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.trials.protocol.MAX_EVENTS_BYTES", 4096)
    assert "of events" in refusal(as_lines(READY, *[PROGRESS] * 500), tmp_path)


def test_an_error_is_kept_with_its_kind(tmp_path):
    assert taken(as_lines(READY, ERROR), tmp_path).error == ERROR


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
keys = st.sampled_from(sorted({key for event in [*WHOLE, ERROR] for key in event}))
names = st.sampled_from([event["event"] for event in [*WHOLE, ERROR]])
mutants = st.builds(
    lambda event, name, changes: {**event, **changes, "event": name},
    st.sampled_from([*WHOLE, ERROR]),
    names,
    st.dictionaries(keys, json_values, max_size=3),
)
lines = st.one_of(
    st.binary(max_size=60),
    json_values.map(lambda value: json.dumps(value).encode()),
    mutants.map(lambda event: json.dumps(event).encode()),
)


@settings(reproducible, max_examples=examples(200))
@given(st.lists(lines, max_size=5))
@pytest.mark.slow
def test_nothing_but_a_protocol_error_ever_comes_out(tmp_path_factory, written):
    folder = tmp_path_factory.getbasetemp()
    try:
        log = taken(b"\n".join([*written, b""]), folder)
    except ProtocolError:
        return
    # what was accepted can be reckoned with
    assert 0 <= log.train_time_s < float("inf")
    assert log.iteration >= 0
    assert all(0 <= each.val_accuracy <= 1 for each in log.checkpoints)
    if log.result:
        assert 0 <= log.result["val_accuracy"] <= 1
        assert float(log.result["test_time_s"]) >= 0


@reproducible
@given(st.binary(max_size=200))
def test_one_line_parses_or_is_refused(line):
    try:
        event = parse_event(line)
    except ProtocolError:
        return
    assert event["event"]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (rb"loss \ud800 is nan", "loss ? is nan"),
        (rb"\udc00\ud83d", "??"),
        (b"loss \xed\xa0\x80", "loss ?"),
        (rb"\ud83d\ude00 \u00df", "\U0001f600 \u00df"),
        ("größer".encode(), "größer"),
    ],
    ids=["alone", "in the wrong order", "as bytes", "a pair", "none"],
)
def test_a_text_can_be_written_wherever_it_goes(tmp_path, written, message):
    line = b'{"event": "error", "kind": "diverged", "message": "%s", "\\udfff": 1}' % written
    error = taken(line + b"\n", tmp_path).error
    assert error == {"event": "error", "kind": "diverged", "message": message, "?": 1}


# -- what it said besides -----------------------------------------------------------------------


def test_the_last_words_are_the_last_lines(tmp_path):
    log = tmp_path / "log.txt"
    assert log_tail(log) == ""
    log.write_bytes(b"")
    assert log_tail(log) == ""
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(5000)))
    assert log_tail(log, lines=2) == "line 4998\nline 4999"
    assert len(log_tail(log).splitlines()) == 12
    log.write_bytes(b"\xff broken \xfe\n")
    assert "broken" in log_tail(log)
