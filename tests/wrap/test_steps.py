"""Progress: reports, hooks and matches in the output."""

from __future__ import annotations

import json
import tempfile

import pytest

from tuner.trials.worker_folder import WorkerFolder
from tuner.values.errors import ProtocolError
from tuner.wrap.goal import Goal
from tuner.wrap.program import REPORTS
from tuner.wrap.steps import Progress
from tuner.wrap.window import Mark


@pytest.fixture
def progress(tmp_path):
    with WorkerFolder(tmp_path / "own") as own, tempfile.TemporaryFile() as output:
        yield Progress(own, output, step=r"^step", metric=r"acc (?P<accuracy>\S+)")


def report(progress: Progress, *lines: object) -> None:
    with (progress.own.path / REPORTS).open("a") as target:
        for line in lines:
            target.write(f"{line if isinstance(line, str) else json.dumps(line)}\n")


def test_reports_count_before_a_hook_and_a_hook_before_the_output(progress):
    progress.output.write(b"step 1\nstep 2\n")
    progress.output.flush()
    progress.step = "step"
    progress.read()
    assert (progress.source, [each.step for each in progress.marks]) == ("output", [1, 2])
    report(progress, {"v": 1, "step": 9, "t": 1.5, "hook": "PyTorch", "pid": 7})
    progress.read()
    assert (progress.source, list(progress.marks)) == ("hook PyTorch", [Mark(9, 1.5)])
    report(progress, {"v": 1, "step": 3, "t": 2.0})
    progress.read()
    assert (progress.source, list(progress.marks)) == ("reports", [Mark(3, 2.0)])


def test_processes_that_report_beside_one_another_are_told_apart(progress):
    for step, pid in ((1, 7), (1, 8), (2, 7), (2, 8), (3, 8)):
        report(progress, {"v": 1, "step": step, "t": float(step), "pid": pid})
    progress.read()
    assert [each.step for each in progress.marks] == [1, 2, 3]


def test_a_report_without_time_is_stamped_when_it_is_read(progress):
    report(progress, {"v": 1, "step": 1})
    progress.read()
    report(progress, {"v": 1, "step": 2})
    progress.read()
    first, second = progress.marks
    assert first.time_s <= second.time_s


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "[]",
        "{}",
        '{"v": 2, "step": 1}',
        '{"v": 1, "step": -1}',
        '{"v": 1, "step": 1.5}',
        '{"v": 1, "step": true}',
        '{"v": 1, "step": "x"}',
        '{"v": 1, "step": 1, "t": NaN}',
        '{"v": 1, "metrics": 3}',
        '{"v": 1, "metrics": {"accuracy": "good"}}',
        '{"v": 1, "step": 1e400}',
        '{"v": 1, "step": 9007199254740992}',
        '{"v": 1, "step": 1, "t": 1e300}',
        "[" * 5000,
    ],
)
def test_what_is_no_report_is_quoted(progress, line):
    report(progress, {"v": 1, "step": 1}, line)
    with pytest.raises(ProtocolError, match="line 2 of TUNER_REPORT is no report"):
        progress.read()


def test_steps_never_go_back(progress):
    report(progress, {"v": 1, "step": 5, "t": 1.0}, {"v": 1, "step": 4, "t": 2.0})
    with pytest.raises(ProtocolError, match="step 4 at 2 s was reported after step 5 at 1 s"):
        progress.read()


def test_accuracy_comes_from_reports_and_output(progress):
    report(progress, {"v": 1, "metrics": {"accuracy": 0.9}})
    progress.read()
    assert progress.accuracy == 0.9
    progress.output.write(b"acc 97.5%\n")
    progress.output.flush()
    progress.read()
    assert progress.accuracy == 0.975
    progress.output.write(b"{'acc 0.25}\n")
    progress.output.flush()
    progress.read()
    assert progress.accuracy == 0.25
    progress.output.write(b"acc 9846/10000 (98%)\n")
    progress.output.flush()
    progress.read()
    assert progress.accuracy == 0.9846


@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_an_accuracy_that_is_no_number_is_an_arithmetic_error(progress, value):
    report(progress, f'{{"v": 1, "metrics": {{"accuracy": {value}}}}}')
    with pytest.raises(ArithmeticError, match="the accuracy is"):
        progress.read()


@pytest.mark.parametrize(
    ("text", "fault"),
    [("-1", "from 0 to 1"), ("good", "which is no number"), ("1/0", "which is no number")],
)
def test_an_accuracy_out_of_range_is_refused(progress, text, fault):
    progress.output.write(f"acc {text}\n".encode())
    progress.output.flush()
    with pytest.raises(ProtocolError, match=fault):
        progress.read()


def test_each_match_in_the_output_is_a_step_and_the_last_line_may_be_unfinished(progress):
    progress.output.write(b"step\nstep\rstep\n" + b"x" * 2**21 + b"\nstep\nacc 0.5")
    progress.output.flush()
    progress.read(last=True)
    assert progress.marks[-1].step == 4
    assert progress.accuracy == 0.5


def test_reports_of_one_moment_count_as_one_mark(progress):
    report(progress, *({"v": 1, "step": step} for step in range(500)))
    progress.read()
    assert [each.step for each in progress.marks] == [0, 499]


def test_processes_that_report_are_bounded(progress):
    report(progress, *({"v": 1, "step": 1, "pid": pid} for pid in range(1001)))
    with pytest.raises(ProtocolError, match="more than 1000 processes report"):
        progress.read()


def test_lines_of_other_tools_count_as_steps_and_figures(progress):
    for step, accuracy in ((100, 0.5), (200, 0.9), (150, 0.8)):
        line = {
            "time_ms": 1000 * step, "key": "eval_accuracy", "value": accuracy,
            "metadata": {"samples_count": step},
        }  # fmt: skip
        progress.output.write(f":::MLLOG {json.dumps(line)}\n".encode())
    progress.output.flush()
    progress.read()
    assert progress.source == "MLPerf logging, samples_count"
    assert list(progress.marks) == [Mark(100, 100.0), Mark(200, 200.0)]
    assert progress.accuracy == 0.8


def test_figures_of_the_training_split_tell_nothing_of_quality(progress):
    report(progress, {"v": 1, "split": "train", "metrics": {"accuracy": 0.99}})
    report(progress, {"v": 1, "split": "val", "metrics": {"accuracy": 0.9, "loss": 0.3}})
    report(progress, {"v": 1, "metrics": {"odd\nname": 1.0, "val_accuracy": 91.0}})
    progress.read()
    assert progress.figures == {"accuracy": 0.9, "loss": 0.3, "val_accuracy": 91.0}
    assert progress.accuracy == 0.91, "that of the validation, where both are told"


@pytest.mark.parametrize(
    ("in_percent", "told", "accuracy"),
    [
        (None, 0.97, 0.97),
        (None, 97.0, 0.97),
        (True, 0.97, 0.0097),
        (True, 1.0, 0.01),
        (False, 1.0, 1.0),
        (None, 1.0000001, 1.0),
        (False, 1.0000001, 1.0),
        (True, 100.00001, 1.0),
    ],
)
def test_the_unit_of_accuracies_is_that_of_the_first_run(progress, in_percent, told, accuracy):
    progress.in_percent = in_percent
    report(progress, {"v": 1, "metrics": {"accuracy": told}})
    progress.read()
    assert progress.accuracy == pytest.approx(accuracy)


def test_a_fraction_above_one_is_refused_where_accuracies_are_fractions(progress):
    progress.in_percent = False
    report(progress, {"v": 1, "metrics": {"accuracy": 97.0}})
    with pytest.raises(ProtocolError, match="the accuracy must be from 0 to 1, got 97"):
        progress.read()


def test_the_curve_is_of_what_is_evaluated_and_in_fractions(progress, monkeypatch):
    times = iter(range(100, 1000))
    monkeypatch.setattr("tuner.wrap.steps.time.monotonic", lambda: next(times))
    for accuracy in (10.0, 50.0, 90.0):
        metrics = {"accuracy": 99.0, "val_accuracy": accuracy}
        report(progress, {"v": 1, "split": "train", "metrics": {"accuracy": 100.0}})
        report(progress, {"v": 1, "metrics": metrics}, {"v": 1, "metrics": {"loss": 1.0}})
        progress.read()
    curve = progress.curve(100.0)
    assert [each for _, each in curve] == [0.1, 0.5, 0.9]
    assert [at for at, _ in curve] == sorted({at for at, _ in curve})
    assert curve[0][0] >= 0


def test_a_long_curve_is_thinned_and_keeps_its_ends(progress, monkeypatch):
    times = iter(range(10**6))
    monkeypatch.setattr("tuner.wrap.steps.time.monotonic", lambda: next(times))
    report(progress, *({"v": 1, "metrics": {"accuracy": each / 2000}} for each in range(2000)))
    progress.read()
    figures = [each for _, each in progress.curve(0.0)]
    assert len(figures) <= 500
    assert (figures[0], figures[-1]) == (0.0, 1999 / 2000)
    assert figures == sorted(figures)


def test_another_goal_ends_the_run_when_it_is_no_number(progress):
    progress.goal = Goal("perplexity", maximize=False)
    report(progress, {"v": 1, "metrics": {"loss": float("nan")}})
    progress.read()
    report(progress, {"v": 1, "metrics": {"val_perplexity": float("inf")}})
    with pytest.raises(ArithmeticError, match="the perplexity is inf"):
        progress.read()
