"""Tests of ``tuner.values.runtime_map``."""

import math
import random

import pytest

from tuner.values.runtime_map import PaceProbe, RuntimeMap

FAST, SLOW = {"blas": "fast", "threads": 1}, {"blas": "slow", "threads": 1}
BATCHES = (16, 64, 256)


def seconds(setting, batch_size):
    """A fixed cost and one in proportion, as real frameworks have them."""
    return (20 + batch_size) * 1e-4 * (1 if setting == FAST else 20)


def probed(spread=0.0, repeats=3):
    noise = random.Random(1)
    return RuntimeMap(
        PaceProbe(setting, batch, seconds(setting, batch) * math.exp(noise.gauss(0, spread)))
        for setting in (SLOW, FAST)
        for batch in BATCHES
        for _ in range(repeats)
    )


@pytest.mark.parametrize("batch", [16, 24, 64, 100, 256])
def test_times_between_the_probes_are_near_the_truth(batch):
    found = probed().iteration_s(FAST, batch)
    assert found.value == pytest.approx(seconds(FAST, batch), rel=0.1)
    assert found.low <= seconds(FAST, batch) <= found.high


def test_a_machine_of_another_pace_changes_the_times_alone():
    known, before = probed(), probed().iteration_s(FAST, 64).value
    known.disturbed, known.settled = 3, True
    known.rescale(2.0)
    assert known.iteration_s(FAST, 64).value == pytest.approx(2 * before)
    assert (known.disturbed, known.settled) == (3, True)


def test_times_beyond_the_probes_go_on_as_they_went():
    known = probed()
    assert known.iteration_s(FAST, 512).value == pytest.approx(seconds(FAST, 512), rel=0.15)
    assert known.iteration_s(FAST, 4).value < seconds(FAST, 16)
    once = RuntimeMap([PaceProbe(FAST, 64, 0.01)])
    assert once.iteration_s(FAST, 128).value == pytest.approx(0.02)


def test_intervals_hold_what_they_promise():
    held = 0
    for seed in range(200):
        noise = random.Random(seed)
        known = RuntimeMap(
            PaceProbe(FAST, batch, seconds(FAST, batch) * math.exp(noise.gauss(0, 0.05)))
            for batch in BATCHES
            for _ in range(5)
        )
        found = known.iteration_s(FAST, 64)
        held += found.low <= seconds(FAST, 64) <= found.high
    assert held >= 0.9 * 200


def test_the_fastest_is_found_at_each_batch_size():
    known = probed(0.02)
    assert known.fastest(16) == FAST
    # another one that starts dearly and is cheap per image
    wide = {"blas": "wide", "threads": 2}
    for batch in BATCHES:
        known.add(PaceProbe(wide, batch, 5e-3 + batch * 5e-5))
    assert known.fastest(512) == wide
    assert known.fastest(8) == FAST
    assert known.contenders(1.3) == [wide, FAST] or known.contenders(1.3) == [FAST, wide]
    assert len(known.contenders(100)) == 3


def test_a_slow_minute_crowns_no_other_setting():
    """A run that took longer says as much of the machine as of its setting."""
    known = RuntimeMap([PaceProbe(FAST, 64, 0.010), PaceProbe(SLOW, 64, 0.012)])
    known.add_run(PaceProbe(FAST, 64, 0.027))
    assert known.fastest(64) == FAST
    assert known.pace_s(SLOW, 64) == pytest.approx(0.012 * 2.7)


def test_runs_of_several_settings_tell_which_one_is_slower_than_its_probes():
    known = RuntimeMap([PaceProbe(FAST, 64, 0.010), PaceProbe(SLOW, 64, 0.012)])
    for _ in range(4):
        known.add_run(PaceProbe(FAST, 64, 0.020))
        known.add_run(PaceProbe(SLOW, 64, 0.012))
    assert known.fastest(64) == SLOW
    assert known.pace_s(SLOW, 64) == pytest.approx(0.012, rel=0.1)
    assert known.pace_s(FAST, 64) == pytest.approx(0.020, rel=0.1)


def test_a_setting_whose_runs_fail_twice_is_left_out_unless_it_is_the_only_one():
    known = RuntimeMap([PaceProbe(FAST, 64, 0.010), PaceProbe(SLOW, 64, 0.2)])
    known.note_failure(FAST)
    assert known.fastest(64) == FAST
    known.note_failure(FAST)
    assert known.settings == known.contenders(math.inf) == [SLOW]
    for _ in range(3):
        known.note_failure(SLOW)
    assert known.fastest(64) == SLOW


def test_what_was_given_up_in_one_study_is_kept_for_the_next():
    known = RuntimeMap([PaceProbe(FAST, 64, 0.010), PaceProbe(SLOW, 64, 0.2)])
    for _ in range(2):
        known.note_failure(FAST)
    assert known.probed == [FAST, SLOW]
    assert known.promised_s({**FAST, "batch_size": 64}) == pytest.approx(0.010)
    assert RuntimeMap.from_json(known.to_json()).fastest(64) == FAST


def test_a_run_is_compared_with_what_is_probed_after_it_too():
    known = RuntimeMap()
    known.add_run(PaceProbe(FAST, 64, 0.020))
    known.add(PaceProbe(FAST, 64, 0.010))
    assert known.pace_s(FAST, 64) == pytest.approx(0.020)
    known.add(PaceProbe(FAST, 64, 0.020))
    assert known.pace_s(FAST, 64) == pytest.approx(0.020)
    assert known.promised_s({**FAST, "batch_size": 64}) == pytest.approx(0.015), "by probes alone"


def test_a_run_of_what_was_never_probed_tells_nothing():
    known = RuntimeMap([PaceProbe(FAST, 64, 0.010)])
    known.add_run(PaceProbe(SLOW, 64, 0.5))
    assert known.settings == [FAST]
    assert known.pace_s(FAST, 64) == pytest.approx(0.010)


def test_trainings_beside_others_tell_how_much_slower_these_are_at_such_batch_sizes():
    known = probed()
    assert known.beside_s(FAST, 64) == pytest.approx(known.pace_s(FAST, 64)), "nothing is known"
    for batch, slower in ((16, 1.1), (17, 1.0), (18, 1.1), (200, 1.5), (256, 1.6), (300, 1.4)):
        known.add_beside(PaceProbe(FAST, batch, slower * known.pace_s(FAST, batch)))
    known.add_beside(PaceProbe({"blas": "new", "threads": 1}, 256, 9.0))
    for batch, slower in ((16, 1.1), (256, 1.5)):
        assert known.beside_s(FAST, batch) == pytest.approx(slower * known.pace_s(FAST, batch))
    known = probed()
    known.add_beside(PaceProbe(FAST, 64, 0.5 * known.pace_s(FAST, 64)))
    assert known.beside_s(FAST, 64) == pytest.approx(known.pace_s(FAST, 64)), "never faster"


def test_it_is_read_back_as_it_was_written():
    known = probed(0.05)
    again = RuntimeMap.from_json(known.to_json())
    assert again.probes == known.probes
    assert again.settings == known.settings == [SLOW, FAST]
    assert again.batch_sizes == list(BATCHES)
    assert again.iteration_s(SLOW, 100) == known.iteration_s(SLOW, 100)


def test_an_unknown_setting_is_refused():
    with pytest.raises(KeyError):
        probed().iteration_s({"blas": "other"}, 64)
    with pytest.raises(ValueError, match="empty"):
        RuntimeMap().fastest(64)
