"""What a running program has spent: CPU time by steps, and when it is plainly beaten."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from tuner.wrap.objective import Objective
from tuner.wrap.spending import Spending
from tuner.wrap.window import Mark, Window

WINDOW = Window(10, 40)


@dataclass
class Monitor:
    used_s: float = 0.0
    peak_bytes: int = 0

    def cpu_s(self) -> float:
        return self.used_s


def spending(objective: Objective, *, beaten=math.inf, in_steps=True) -> Spending:
    return Spending(objective, Monitor(), beaten, in_steps)


def train(found: Spending, steps: int, each_s: float) -> list[Mark]:
    """Follow a program that uses so much CPU time a step, and tells of each."""
    marks = []
    for step in range(1, steps + 1):
        marks.append(Mark(step, 0.05 * step))
        found.monitor.used_s = each_s * step
        found.follow(marks, at_the_end=True)
    return marks


def test_cpu_time_is_that_of_the_steps_in_the_window():
    found = spending(Objective.CPU)
    train(found, 50, 0.2)
    assert found.cpu_s(WINDOW) == pytest.approx(6.0)


def test_cpu_time_of_steps_that_were_told_at_once_is_unknown():
    found = spending(Objective.CPU)
    found.monitor.used_s = 9.0
    found.follow([Mark(step, 0.1 * step) for step in range(1, 51)], at_the_end=True)
    assert found.cpu_s(WINDOW) is None


def test_cpu_time_that_is_no_objective_is_not_followed():
    found = spending(Objective.TIME)
    train(found, 50, 0.2)
    assert found.cpu_s(WINDOW) is None


@pytest.mark.parametrize(("steps", "beaten"), [(15, False), (25, True)])
def test_steps_that_use_too_much_are_beaten_once_a_third_was_seen(steps, beaten):
    found = spending(Objective.CPU, beaten=5.0)
    assert found.is_beaten(train(found, steps, 0.2), WINDOW, 1.0) is beaten


def test_steps_that_use_less_are_not_beaten_however_long_they_take():
    found = spending(Objective.CPU, beaten=7.0)
    assert not found.is_beaten(train(found, 40, 0.2), WINDOW, 1000.0)


def test_a_whole_run_is_beaten_by_what_it_used():
    found = spending(Objective.CPU, beaten=5.0, in_steps=False)
    train(found, 20, 0.2)
    assert not found.is_beaten([], None, 1000.0)
    train(found, 30, 0.2)
    assert found.is_beaten([], None, 1.0)


def test_memory_is_beaten_by_its_peak_alone():
    found = spending(Objective.MEMORY, beaten=100)
    found.monitor.peak_bytes = 100
    assert not found.is_beaten([], WINDOW, 1000.0)
    found.monitor.peak_bytes = 101
    assert found.is_beaten([], WINDOW, 1.0)
