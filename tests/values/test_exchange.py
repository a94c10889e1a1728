"""What a group of processes learns: exactly what one process learns, or something else."""

from __future__ import annotations

import pytest

from tests.exchange_samples import (
    ALONE,
    FINE,
    GROUP,
    ROUGH,
    grouped_map,
    grouped_space,
    probes,
    setting,
)
from tuner.values.exchange import changes, lossy
from tuner.values.groups import groups
from tuner.values.runtime_map import RuntimeMap


def test_what_is_learned_depends_on_a_lossy_exchange_and_its_workers():
    assert [lossy(each) for each in ({}, ALONE, GROUP)] == [None] * 3
    assert lossy(ROUGH) == ("rough", 2) != lossy({**ROUGH, "workers": 4})
    assert changes(GROUP) == ""
    assert changes(ROUGH) == "rough exchange of 2 workers changes what is learned"


def test_one_process_has_no_exchange_to_choose():
    space = grouped_space()
    assert space.params["exchange"].values(ALONE) == ("exact",)
    assert space.params["exchange"].values(GROUP) == ("exact", "rough", "fine")
    assert space.completed({**setting(**ROUGH), "workers": 1})["exchange"] == "exact"


def test_the_fastest_setting_is_an_exact_one_unless_asked_for_otherwise():
    known = grouped_map(exact=0.8, rough=0.2, fine=0.3)
    assert known.fastest(64) == setting(**GROUP)
    assert known.fastest(64, ("rough", 2)) == setting(**ROUGH)
    assert known.settings_of(("fine", 2)) == [setting(**FINE)]
    with pytest.raises(ValueError, match="empty"):
        known.fastest(64, ("fine", 4))


def test_a_lossy_exchange_is_worth_it_only_where_it_is_surely_faster():
    assert grouped_map(exact=0.8, rough=0.2, fine=0.5).lossy_kinds(64) == [
        ("rough", 2),
        ("fine", 2),
    ]
    assert grouped_map(exact=0.8, rough=0.78).lossy_kinds(64) == []
    assert grouped_map(exact=0.8).lossy_kinds(64) == []
    assert grouped_map(exact=3.0, rough=0.5).lossy_kinds(64) == [("rough", 2)], "beats one process"
    assert grouped_map(exact=3.0, rough=1.0).lossy_kinds(64) == [], "one process is as fast"
    unsteady = grouped_map(exact=1.0)
    for pace in (0.2, 1.4, 0.7):
        unsteady.add(probes(ROUGH, 1e-5 * pace)[3])
    assert unsteady.lossy_kinds(64) == [], "it may have been luck"


def test_a_lossy_exchange_that_fails_is_given_up_and_an_exact_one_stays():
    known = grouped_map(rough=0.2)
    for each in (ROUGH, ALONE):
        for _ in range(2):
            known.note_failure(setting(**each))
    assert known.lossy_kinds(64) == []
    assert known.fastest(64) == setting(**ALONE)


def test_a_lossy_group_is_listed_apart():
    found = groups(grouped_map(exact=0.8, rough=0.2), 64)
    assert [(each.workers, each.exchange, each.exact) for each in found] == [
        (2, "rough", False),
        (2, "exact", True),
        (1, "exact", True),
    ]
    assert [each.speedup for each in found] == pytest.approx([5.0, 1.25, 1.0])


def test_it_is_read_back_as_it_was_written():
    known = grouped_map(exact=0.8, rough=0.2)
    assert RuntimeMap.from_json(known.to_json()).lossy_kinds(64) == known.lossy_kinds(64)
