"""The time of a study of a program: how long it takes, and how many pairs of runs it affords."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.wrap.samples import run
from tuner.wrap.aim import Seen
from tuner.wrap.comparison import MIN_PAIRS
from tuner.wrap.objective import Objective
from tuner.wrap.params import ParamSpace, read_params
from tuner.wrap.program import Program
from tuner.wrap.request import Request
from tuner.wrap.schedule import Schedule
from tuner.wrap.window import Window

PARAMS = read_params({"epochs": "int(1, 10)"}, None, 2)
FASTER = {"OMP_NUM_THREADS": 1}


def scheduled(first_s, params=None, *, steps=False, reached=None, elapsed_s=0.0, **asked):
    """Plan a study whose first run took so long, and one with another setting half as long."""
    program = Program(("train",), Path(), params=params or ParamSpace())
    first = run(first_s, number=0)
    record = SimpleNamespace(
        first=first,
        tried=[first, run(first_s / 2, params=FASTER)],
        seen=Seen(window=Window(10, 60) if steps else None, start_s=1.0),
        reached=reached,
        folder=SimpleNamespace(elapsed_s=elapsed_s),
    )
    return Schedule(Request(program, **asked), record)


@pytest.mark.parametrize(
    ("study", "seconds"),
    [
        (scheduled(1), 60),
        (scheduled(10), 100),
        (scheduled(10, steps=True), 300),
        (scheduled(60, steps=True, reached=0.9), 600),
        (scheduled(5, PARAMS, reached=0.9), 300),
        (scheduled(20, PARAMS, reached=0.9), 600),
        (scheduled(20, PARAMS, reached=0.9, budget_s=42), 42),
    ],
)
def test_a_study_is_as_long_as_its_runs_need_or_as_it_is_told(study, seconds):
    assert study.budget_s == seconds


def test_the_search_for_a_setting_leaves_most_of_the_time_to_that_for_params():
    assert scheduled(1, PARAMS, reached=0.9, budget_s=400).kept_s(1.0, found=True) == 300
    assert scheduled(1, budget_s=400).kept_s(1.0, found=True) == pytest.approx(10 * 2.3)
    assert scheduled(1, budget_s=400).kept_s(1.0, found=False) == pytest.approx(6 * 2.3)
    assert scheduled(1, budget_s=20).kept_s(1.0, found=True) == 8


def test_the_first_finalist_gets_a_proof_however_late_it_is_and_no_other_does():
    late = scheduled(10, budget_s=100, elapsed_s=90)
    assert late.affordable_pairs(FASTER, True) == MIN_PAIRS
    assert late.affordable_pairs(FASTER, False) == 0


def test_a_proof_takes_as_many_pairs_as_there_is_time_for():
    assert scheduled(10, budget_s=100).affordable_pairs(FASTER, True) == int(100 / 17.6)
    assert scheduled(10, budget_s=1000).affordable_pairs(FASTER, True) == 10


def test_a_slow_run_is_cut_short_only_where_time_is_not_what_is_minimised():
    memory = scheduled(10, budget_s=100, elapsed_s=20, objective=Objective.MEMORY)
    assert memory.search_limit_s(30) == 50
    assert scheduled(10, budget_s=100, elapsed_s=20).search_limit_s(30) == 260
