"""The pace of groups: samples a second, and what several processes are worth."""

from __future__ import annotations

import pytest

from tuner.values.groups import groups
from tuner.values.runtime_map import PaceProbe, RuntimeMap


def known(*paces: tuple[int, object, float], blas: str = "fast") -> RuntimeMap:
    """A map of settings by workers, threads and seconds an iteration of 64 samples."""
    return RuntimeMap(
        PaceProbe({"blas": blas, "workers": workers, "threads": threads}, 64, seconds)
        for workers, threads, seconds in paces
    )


def test_samples_count_once_whoever_trains_them():
    two, one = groups(known((1, 1, 0.064), (2, 1, 0.04)), 64)
    assert (two.workers, one.workers) == (2, 1)
    assert two.samples_s.value == pytest.approx(1600)
    assert one.samples_s.value == pytest.approx(1000)
    assert two.samples_s.low < two.samples_s.value < two.samples_s.high


def test_the_speed_up_is_over_as_many_threads_and_over_the_fastest_process():
    found = groups(known((1, 1, 0.064), (1, 2, 0.05), (2, 1, 0.04)), 64)
    two = found[0]
    assert two.speedup == pytest.approx(1.6)
    assert two.efficiency == pytest.approx(0.8)
    assert two.against_one == pytest.approx(1.25)
    assert [each.against_one for each in found if each.workers == 1] == pytest.approx([1, 0.78125])


def test_what_was_not_measured_is_not_made_up():
    two, _ = groups(known((1, "unset", 0.064), (2, 1, 0.04)), 64)
    assert two.speedup is None
    assert two.efficiency is None
    assert two.against_one == pytest.approx(1.6)


def test_without_a_single_process_nothing_is_compared_with_one():
    settings = known((1, 1, 0.064), (2, 1, 0.05))
    for _ in range(2):
        settings.note_failure({"blas": "fast", "workers": 1, "threads": 1})
    (two,) = groups(settings, 64)
    assert (two.workers, two.against_one, two.speedup) == (2, None, None)


def test_processes_on_two_nodes_are_a_layout_of_their_own():
    settings = known((1, 1, 0.064), (2, 1, 0.05))
    settings.add(PaceProbe({"blas": "fast", "workers": 1, "nodes": 2, "threads": 1}, 64, 0.04))
    found = groups(settings, 64)
    assert [(each.workers, each.nodes) for each in found] == [(2, 2), (2, 1), (1, 1)]
    assert found[0].against_one == pytest.approx(1.6)


def test_each_layout_counts_with_its_fastest_setting():
    settings = known((1, 1, 0.064), (2, 1, 0.04))
    settings.add(PaceProbe({"blas": "slow", "workers": 2, "threads": 1}, 64, 0.4))
    found = groups(settings, 64)
    assert [each.workers for each in found] == [2, 1]
    assert found[0].setting["blas"] == "fast"


def test_single_processes_alone_are_no_groups():
    assert groups(known((1, 1, 0.064), (1, 2, 0.05)), 64) == []
    assert groups(known((1, 1, 0.064), (2, 1, 0.05)), 128) == [], "never measured at that size"
    assert groups(RuntimeMap(), 64) == []


def test_bytes_are_those_of_an_iteration():
    settings = known((1, 1, 0.064))
    sent = {"blas": "fast", "workers": 2, "threads": 1}
    settings.add(PaceProbe(sent, 64, 0.04, sent_bytes=3.5e6))
    two, one = groups(settings, 64)
    assert two.sent_bytes == pytest.approx(3.5e6)
    assert one.sent_bytes == 0
