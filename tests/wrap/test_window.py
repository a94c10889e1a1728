"""Windows of steps: which are measured, and how long they take without pauses."""

from __future__ import annotations

import pytest

from tuner.wrap.window import Mark, Window, choose_window, steady_s


def even(steps: int, each_s: float, start_s: float = 0.0) -> list[Mark]:
    return [Mark(step, start_s + step * each_s) for step in range(1, steps + 1)]


def test_long_steps_that_come_often_are_no_pauses():
    marks, now = [Mark(0, 0.0)], 0.0
    for step in range(1, 61):  # one step in six takes long, as of a second network
        now += 0.6 if step % 6 == 0 else 0.05
        marks.append(Mark(step, now))
    assert steady_s(marks, Window(0, 60)) == pytest.approx(now)


def test_steady_time_leaves_out_pauses_and_interpolates():
    marks = [*even(50, 0.1), *even(50, 0.1, 100.0)]
    marks[50:] = [Mark(50 + each.step, each.time_s) for each in marks[50:]]
    assert steady_s(marks, Window(10, 90)) == pytest.approx(8.0)
    sparse = [Mark(10, 1.0), Mark(20, 2.0), Mark(30, 3.0)]
    assert steady_s(sparse, Window(15, 25)) == pytest.approx(1.0)
    assert steady_s(sparse, Window(5, 25)) is None
    assert steady_s(sparse, Window(15, 31)) is None


def test_the_window_begins_after_the_warm_up():
    marks = even(100, 0.1)
    window = choose_window(marks[:60], 5.0)
    assert window is None, "only 4.9 s since the warm-up"
    window = choose_window(marks[:62], 5.0)
    assert window == Window(11, 62)
    assert choose_window(even(3, 10.0), 1.0) is None, "too few steps"
    assert choose_window([], 1.0) is None
