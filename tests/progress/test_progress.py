from __future__ import annotations

import dataclasses
import io
import re
import threading
import time

import pytest
from rich.console import Console

from tests.report_samples import HOSTILE, make_failed, make_params, make_result, make_study
from tuner.progress import (
    StudyProgress,
    abbreviate_params,
    describe_outcome,
    describe_params,
    format_seconds,
    make_progress,
    no_progress,
)
from tuner.progress.live import REFRESH_HZ, LiveProgress
from tuner.progress.plain import PlainProgress
from tuner.values.params import UNSET
from tuner.values.trial import Trial, TrialKind, TrialStatus

# what runs here is not only Python of ours: slower where neighbours take the CPU
pytestmark = pytest.mark.timeout(20)


def make_console(terminal: bool, width: int = 120) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, height=60)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        (
            make_params(iterations=2300, learning_rate=0.012, blas="mkl", threads=2),
            "batch 64, 2,300 iterations, lr 0.012, mkl, 2 threads",
        ),
        (
            make_params(threads=1, blas_kernel="Haswell"),
            "batch 64, 10,000 iterations, lr 0.01, openblas-pthread, 1 thread, kernel Haswell",
        ),
        (
            {"threads": UNSET, "momentum": 0.9, "shuffle": True},
            "threads unset, momentum 0.9, shuffle on",
        ),
        ({"workers": 1, "exchange": "exact", "bucket_cap_mb": UNSET}, ""),
        ({"workers": 2, "bucket_cap_mb": 1}, "2 workers, buckets of 1 MiB"),
        ({"workers": 2, "bytes_per_pack": 0}, "2 workers"),
        ({"workers": 2, "bytes_per_pack": 1048576}, "2 workers, packs of 1,048,576 bytes"),
        ({"threads": 1, "average_weights": True}, "1 thread, averaged weights"),
        ({"threads": 1, "average_weights": False}, "1 thread"),
        ({"blas": "a\x1b[2J\nb"}, "a [2J b"),
        ({}, ""),
    ],
)  # fmt: skip
def test_params_are_described_in_words(params, wanted):
    assert describe_params(params) == wanted


def test_params_are_abbreviated_for_tables():
    params = make_params(iterations=2300, blas="mkl", threads=2, blas_kernel="Haswell")
    assert abbreviate_params(params) == "64 × 2,300, lr 0.01, mkl/2/Haswell"
    assert abbreviate_params({"momentum": 0.9}) == "momentum 0.9"


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (0.1234, "0.123"),
        (8.1, "8.10"),
        (9.999, "10.0"),
        (21.34, "21.3"),
        (99.97, "100"),
        (1234.4, "1,234"),
    ],
)
def test_seconds_have_three_digits(seconds, wanted):
    assert format_seconds(seconds) == wanted


def test_an_outcome_names_what_a_reader_must_know():
    assert describe_outcome(make_result(4, 0.9861, 21.3)) == "accuracy 98.61 %, 21.3 s"
    failed = make_failed(5, TrialStatus.CRASHED, "exit 134\x07")
    assert describe_outcome(failed) == "CRASHED: exit 134"
    assert describe_outcome(make_failed(5, TrialStatus.TIMEOUT, "")) == "TIMEOUT"
    by_number = {each.trial.number: each for each in make_study().trials}
    assert "stopped after 2,000 iterations" in describe_outcome(by_number[13])
    assert "disturbed: others used 41 %" in describe_outcome(by_number[14])
    early = dataclasses.replace(by_number[13], iterations=0, reason="its curve falls short")
    assert describe_outcome(early).endswith(", ended early: its curve falls short")


def test_plain_progress_prints_a_line_for_each_event():
    console, study = make_console(terminal=False, width=40), make_study()
    with make_progress("auto", console=console) as progress:
        assert isinstance(progress, PlainProgress)
        progress.phase("search", "Caffe 1.0 on mnist")
        progress.budget(1.0, 720.0, 3, 0)
        progress.trial_started(study.trials[4].trial)
        progress.trial_progress(study.trials[4].trial, 500, 9.0)
        progress.trial_finished(study.trials[4], study.front)
        progress.trial_finished(study.trials[16], study.front)
        progress.warn("two\nlines")
        progress.message("done")
    lines = text_of(console).splitlines()
    assert lines[0] == "[   0 s] == search: Caffe 1.0 on mnist"
    assert lines[1] == (
        "[   0 s] trial 4: batch 64, 1,150 iterations, lr 0.012, mkl, 2 threads"
        " -> accuracy 98.61 %, 21.3 s, on the front"
    )
    assert HOSTILE in lines[2]
    assert lines[3:] == ["[   0 s] WARNING: two lines", "[   0 s] done"]


def test_plain_tasks_speak_at_quarters_only():
    console = make_console(terminal=False)
    progress = make_progress("plain", console=console)
    for percent in range(101):
        progress.task("downloading", percent / 100)
    for _ in range(3):
        progress.task("unpacking", None)
    said = [line.split("] ")[1] for line in text_of(console).splitlines()]
    quarters = [f"downloading: {percent} %" for percent in (0, 25, 50, 75, 100)]
    assert said == [*quarters, "unpacking"]


def test_a_long_trial_says_how_far_it_is(monkeypatch):
    console = make_console(terminal=False)
    progress = make_progress("plain", console=console)
    monkeypatch.setattr("tuner.progress.plain._PLAIN_INTERVAL_S", 0.0)
    progress.trial_progress(Trial(0, make_params(), TrialKind.DEFAULT), 2500, 47.5)
    progress.trial_progress(Trial(3, {"lr": 0.1}), 0, 47.5)
    said = [line.split("] ")[1] for line in text_of(console).splitlines()]
    assert said == ["default: 2,500 of 10,000 iterations in 47.5 s", "trial 3: running for 47.5 s"]


@pytest.mark.parametrize(
    ("mode", "terminal", "wanted"),
    [
        ("auto", True, LiveProgress),
        ("auto", False, PlainProgress),
        ("live", True, LiveProgress),
        ("live", False, PlainProgress),
        ("plain", True, PlainProgress),
        ("none", True, StudyProgress),
    ],
)
def test_the_mode_chooses_the_display(mode, terminal, wanted):
    assert type(make_progress(mode, console=make_console(terminal))) is wanted


def test_without_a_console_a_pipe_gets_plain_lines_on_standard_error(capsys):
    with make_progress("auto") as progress:
        progress.message("hello")
    out, err = capsys.readouterr()
    assert out == ""
    assert "hello" in err


def test_no_progress_shows_nothing_but_logs_warnings(capsys, caplog):
    with make_progress("none") as progress:
        progress.message("hello")
        progress.phase("search")
        progress.warn("the data set was replaced")
    no_progress("task", 0.5)
    assert capsys.readouterr() == ("", "")
    assert "the data set was replaced" in caplog.text


def draw(progress: StudyProgress, width: int = 120) -> str:
    """What the live display shows now, at a width."""
    assert isinstance(progress, LiveProgress)
    console = make_console(terminal=False, width=width)
    console.print(progress._render())
    return text_of(console)


def test_live_progress_shows_budget_trials_and_front():
    progress, study = make_progress("live", console=make_console(terminal=True)), make_study()
    progress.phase("search", "Caffe 1.0 on mnist")
    progress.budget(120.0, 720.0, 6, 12)
    progress.task("downloading", 0.5)
    progress.task("unpacking", 1.0)
    for each in study.trials:
        progress.trial_finished(each, study.front)
    progress.trial_started(Trial(18, make_params(iterations=1000)))
    progress.trial_progress(Trial(18, make_params(iterations=1000)), 500, 9.5)
    shown = draw(progress)
    assert "120 of 720 s, 6 of 12 trials, 120 s left" in shown
    assert "downloading" in shown
    assert "unpacking" not in shown
    assert "500 iterations, 9.50 s: batch 64" in shown
    assert re.search(r"trial 4 +98\.61 +21\.3 +8\.9x as fast, -0\.47 points", shown)
    assert re.search(r"default +99\.08 +190 +reference", shown)
    assert "DIVERGED: loss" in shown
    assert "trial 11 " not in shown  # neither on the front nor one of the last six


def test_live_progress_names_the_fastest_that_lost_nothing_so_far():
    progress = make_progress("live", console=make_console(terminal=True))
    default, slower, faster = (
        make_result(number, accuracy, seconds)
        for number, accuracy, seconds in ((0, 0.99, 190.0), (1, 0.993, 90.0), (2, 0.991, 60.0))
    )
    quick, poor = make_result(3, 0.985, 20.0), make_result(4, 0.94, 2.0)
    front = (slower, faster, quick, poor)  # the default makes 1 % errors, the last one 6 %
    for each in (default, *front):
        progress.trial_finished(each, front)
    table = draw(progress, width=140).partition("front so far")[2]
    assert re.search(r"trial 2 +99\.10 +60\.0 +no loss so far: 3\.2x as fast, \+0\.10 po", table)
    assert table.count("no loss so far") == table.count("trial 2 ") == 1
    assert "trial 3 " in table
    assert "trial 4 " not in table


def test_live_progress_says_no_loss_of_a_whole_default_alone():
    progress = make_progress("live", console=make_console(terminal=True))
    default = dataclasses.replace(make_result(0, 0.97, 19.0), reason="the first 1,000 of 10,000")
    progress.trial_finished(default, ())
    progress.trial_finished(make_result(1, 0.975, 9.5), (make_result(1, 0.975, 9.5),))
    shown = draw(progress, width=140)
    assert "as accurate so far: 2.0x as fast" in shown
    assert "no loss" not in shown


def test_live_progress_needs_no_default_and_little_room():
    progress, study = make_progress("live", console=make_console(terminal=True)), make_study()
    assert draw(progress).strip() == ""
    progress.trial_finished(study.trials[1], study.front[1:] * 3)
    shown = draw(progress, width=50)
    assert "97.50" in shown
    assert max(map(len, shown.splitlines())) <= 50


def test_live_progress_leaves_nothing_but_messages():
    console = make_console(terminal=True)
    with make_progress("auto", console=console) as progress:
        progress.phase("search")
        progress.warn(f"odd {HOSTILE}")
        progress.message("kept")
    lines = [line.strip() for line in text_of(console).splitlines()]
    assert f"WARNING: odd {HOSTILE}" in lines
    assert "kept" in lines


@pytest.mark.parametrize("terminal", [True, False])
def test_displays_may_be_told_from_many_threads(terminal):
    console, study = make_console(terminal), make_study()

    def tell() -> None:
        for each in study.trials:
            progress.trial_started(each.trial)
            progress.trial_progress(each.trial, 10, 0.1)
            progress.trial_finished(each, study.front)
            progress.task("downloading", each.trial.number / 17)
            progress.message("told")

    with make_progress("auto", console=console) as progress:
        threads = [threading.Thread(target=tell) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    lines = [line.split("] ")[-1].strip() for line in text_of(console).splitlines()]
    assert lines.count("told") == 4 * len(study.trials)


@pytest.mark.slow
def test_the_live_display_is_drawn_once_a_second_however_often_it_is_told(monkeypatch):
    """What that costs beside a measured trial, ``benchmarks/overhead.py`` says."""
    study, drawn = make_study(), []
    render = LiveProgress._render
    monkeypatch.setattr(LiveProgress, "_render", lambda self: drawn.append(1) or render(self))
    with make_progress("live", console=make_console(terminal=True)) as progress:
        drawn.clear()
        until = time.monotonic() + 2.2 / REFRESH_HZ
        while time.monotonic() < until:
            progress.trial_progress(study.trials[4].trial, 10, 0.1)
        assert 1 <= len(drawn) <= 3
