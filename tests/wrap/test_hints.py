"""What a user is told whose program fails, or shows no steps."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from tests.wrap.samples import run
from tuner.measure import gpus
from tuner.progress import StudyProgress
from tuner.values.trial import Trial, TrialKind, TrialStatus
from tuner.wrap.hints import complaint, rangeless, telling
from tuner.wrap.params import read_params
from tuner.wrap.program import Program


@pytest.mark.parametrize(
    ("status", "confined", "hinted"),
    [
        (TrialStatus.CRASHED, True, True),
        (TrialStatus.CRASHED, False, False),
        (TrialStatus.STALLED, True, False),
    ],
)
def test_a_program_that_fails_is_told_where_its_output_is_and_what_it_sees(
    status, confined, hinted
):
    failed = dataclasses.replace(
        run(1.0), status=status, reason="exit code 1", log_tail="first\nno such file: ../data"
    )
    program = Program(argv=("python", "train.py"), folder=Path(), confined=confined)
    said = complaint(failed, Path("/studies/log.txt"), program)
    assert said.startswith(
        f"the program does not run as it is: {status.value}: exit code 1; the end of its output: "
        "no such file: ../data (all of it: /studies/log.txt)"
    )
    assert ("what --allow-read names" in said) is hinted


def test_of_a_module_that_is_missing_the_interpreter_is_told():
    why = "ModuleNotFoundError: No module named 'torch'"
    failed = dataclasses.replace(run(1.0), status=TrialStatus.CRASHED, log_tail=why)
    program = Program(argv=(sys.executable, "train.py"), folder=Path())
    said = complaint(failed, Path("/studies/log.txt"), program)
    assert f"{sys.executable} ran it" in said
    assert "--allow-read" in said, "or it is in a folder that the sandbox does not show"


@pytest.mark.parametrize(
    ("ranges", "names"), [({}, ["batch", "lr"]), ({"lr": "log(0.1, 1)"}, ["batch"])]
)
def test_a_name_in_braces_without_a_range_is_told(tmp_path, ranges, names):
    argv = ("python", "train.py", "--lr={lr=0.1}", "{batch}", "{seed}", "{}")
    program = Program(argv=argv, folder=tmp_path, params=read_params(ranges, None, 2))
    said = rangeless(program)
    assert [each.partition("}")[0] for each in said] == [
        f"the program gets {{{name}" for name in names
    ]


PROGRAM = Program(argv=("true",), folder=Path("/usr"))
CUDA = {"/lib/libc.so.6", "/venv/libcudart.so.13"}


class Heard(StudyProgress):
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.runs = 0

    def trial_progress(self, trial: Trial, iteration: int, train_time_s: float) -> None:
        self.runs += 1

    def message(self, text: str) -> None:
        self.messages.append(text)

    def warn(self, text: str) -> None:
        self.messages.append(text)


def test_a_first_run_that_shows_no_steps_is_explained_once():
    first, other = Trial(0, {}, TrialKind.DEFAULT), Trial(1, {})
    heard = Heard()
    tell = telling(heard, PROGRAM)
    tell(first, 0, 59.0, ())
    tell(first, 5, 90.0, ())
    tell(other, 0, 90.0, ())
    assert (heard.messages, heard.runs) == ([], 3)
    tell(first, 0, 61.0, ())
    tell(first, 0, 62.0, ())
    (said,) = heard.messages
    assert said.startswith("no steps are seen yet")


@pytest.mark.parametrize(
    ("options", "visible", "said"),
    [
        ({}, None, True),
        ({}, "0", True),
        ({}, "", False),
        ({}, "-1", False),
        ({"gpu": True}, None, False),
        ({"confined": False}, None, False),
    ],
)
def test_a_gpu_that_the_sandbox_hides_is_told_at_once(
    tmp_path, monkeypatch, options, visible, said
):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpus, "_DEV", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    heard = Heard()
    tell = telling(heard, dataclasses.replace(PROGRAM, **options))
    first = Trial(0, {}, TrialKind.DEFAULT)
    tell(first, 0, 0.1, {"/lib/libc.so.6"})
    assert heard.messages == []
    tell(first, 0, 1.0, CUDA)
    tell(first, 0, 2.0, {*CUDA, "/lib/more.so"})
    expected = ["the sandbox hides this machine's GPU from the program"] if said else []
    assert [each.partition(",")[0] for each in heard.messages] == expected
