"""Trial 0: completed by a reference that holds, and what is known of it without one."""

from __future__ import annotations

import dataclasses
import statistics

import pytest

from tests.report_samples import make_failed, make_measurement, make_result
from tests.verify_samples import LOOKS, SEEDS, first_looks, make_reference
from tuner.convergence.default_run import (
    KnownDefault,
    first_part,
    is_part,
    judge,
    least_compared,
    with_reference,
)
from tuner.values.trial import ENDED_ITSELF, TrialStatus

REFERENCE = make_reference()
IMAGES = 5000
WHOLE = make_result(0, 0.9911, 100.0, test=0.9909)


def make_part(shift=0.0, *, seed=2, share=0.1, status=TrialStatus.COMPLETE, reached=1000):
    """The default's first part; its time is projected to 10,000 iterations."""
    part = make_result(0, 0.9, 100.0, test=0.88)
    return dataclasses.replace(
        part,
        trial=dataclasses.replace(part.trial, share=share, seed=seed),
        status=status,
        iterations=reached,
        checkpoints=first_looks(REFERENCE, seed, reached, shift),
    )


# -- with a reference ---------------------------------------------------------------------------


def test_a_first_part_that_goes_as_recorded_is_completed_by_the_reference():
    known = judge(make_part(), REFERENCE, "", IMAGES)
    assert known.whole
    assert known.reference is REFERENCE
    assert known.accuracies == SEEDS
    assert known.deviation == pytest.approx(statistics.stdev(SEEDS))
    assert "reference of 5 seeds" in known.words
    assert known.result.test_accuracy == pytest.approx(0.99)
    assert known.result.val_accuracy == pytest.approx(0.99)
    assert known.result.metrics["train_time_s"] == 100.0
    assert known.part == ""


@pytest.mark.parametrize("shift", [0.005, -0.005])
def test_one_that_departs_by_half_a_point_is_noticed_and_no_reference_used(shift):
    part = make_part(shift)
    known = judge(part, REFERENCE, "", IMAGES)
    assert known == KnownDefault(part, words=known.words)
    assert known.words.startswith("the recorded reference is not used: ")
    assert f"{100 * shift:+.2f} points from the recorded curve of seed 2" in known.words


@pytest.mark.parametrize("shift", [0.001, -0.001])
def test_rounding_is_no_departure(shift):
    assert judge(make_part(shift), REFERENCE, "", IMAGES).whole


def scattered(part, by=0.004):
    """The same part with its looks higher by 0 to twice ``by``, in turn."""
    looks = tuple(
        dataclasses.replace(each, val_accuracy=each.val_accuracy + 2 * by * (place % 2))
        for place, each in enumerate(part.checkpoints)
    )
    return dataclasses.replace(part, checkpoints=looks)


def test_what_rounding_alone_leads_elsewhere_is_completed_by_the_reference():
    part = scattered(make_part())
    assert not judge(part, REFERENCE, "", IMAGES).whole, "trained at the recording's own setting"
    known = judge(part, REFERENCE, "", IMAGES, make_part)
    assert known.accuracies == SEEDS
    assert known.result.test_accuracy == pytest.approx(0.99)
    assert "matched the recording at the runtime setting of the recording" in known.words
    assert "it does not: its validation accuracy is +0.40 points" in known.words


@pytest.mark.parametrize(
    "again",
    [
        make_failed(1, TrialStatus.CRASHED, "exit 1"),
        make_part(0.003),
        make_part(reached=100),
        scattered(make_part()),
    ],
    ids=["failed", "shifted", "short", "scattered"],
)
def test_a_reference_that_is_not_followed_at_its_own_setting_either_is_not_used(again):
    known = judge(scattered(make_part()), REFERENCE, "", IMAGES, lambda: again)
    assert not known.whole
    assert known.words.startswith("the recorded reference is not used: its validation accuracy")


def test_one_that_is_shifted_at_its_own_setting_is_not_trained_again():
    def again():
        raise AssertionError

    assert not judge(make_part(0.005), REFERENCE, "", IMAGES, again).whole


def test_of_a_version_that_was_not_recorded_nothing_is_known():
    other = dataclasses.replace(make_part(), versions={"caffe": "1.1"})
    known = judge(other, REFERENCE, "", IMAGES)
    assert (known.accuracies, known.reference) == ((), None)
    assert "not used: it was recorded with caffe 1.0.0" in known.words


def test_a_part_too_short_to_be_compared_proves_nothing():
    known = judge(make_part(reached=100), REFERENCE, "", IMAGES)
    assert not known.whole
    assert "has 1 of the recorded looks, and at least 2 are needed" in known.words


def test_one_too_slow_to_be_compared_may_follow_at_the_setting_of_the_recording():
    slow = make_part(reached=LOOKS[0])
    known = judge(slow, REFERENCE, "", IMAGES, make_part)
    assert known.accuracies == SEEDS
    assert "it does not: the default's first part has 1 of the recorded looks" in known.words
    assert not judge(slow, REFERENCE, "", IMAGES, lambda: slow).whole
    assert not judge(slow, REFERENCE, "", IMAGES, lambda: make_part(0.005)).whole
    assert least_compared(REFERENCE, 2) == LOOKS[1]


def test_a_whole_training_counts_beside_the_recorded_ones():
    fresh = dataclasses.replace(WHOLE, trial=dataclasses.replace(WHOLE.trial, seed=77))
    assert with_reference(fresh, REFERENCE).accuracies == (*SEEDS, 0.9909)
    # the same seed again is not one more
    again = dataclasses.replace(WHOLE, trial=dataclasses.replace(WHOLE.trial, seed=3))
    assert with_reference(again, REFERENCE).accuracies == SEEDS
    assert with_reference(make_part(seed=77, reached=0), REFERENCE).accuracies == SEEDS


# -- without one --------------------------------------------------------------------------------


def test_a_whole_training_is_known_by_its_own_test_accuracy():
    known = judge(WHOLE, None, "it was recorded on other images", IMAGES)
    assert known.accuracies == (0.9909,)
    assert known.words == "it was recorded on other images"
    assert known.deviation == 0.0, "one seed tells nothing of the spread"
    assert known.result is WHOLE


def test_of_a_part_the_end_is_not_known():
    known = judge(make_part(), None, "", IMAGES)
    assert not known.whole
    assert known.accuracies == ()


def test_a_default_that_failed_is_handed_on_as_it_is():
    failed = make_failed(0, TrialStatus.CRASHED, "exit 1")
    assert judge(failed, REFERENCE, "", IMAGES) == KnownDefault(failed)
    assert KnownDefault(failed).part == ""


def test_a_part_is_what_ended_before_the_default_would_have():
    stopped = dataclasses.replace(WHOLE, status=TrialStatus.STOPPED, reason="time is up")
    assert is_part(stopped)
    assert is_part(make_part())
    assert not is_part(WHOLE)
    assert not is_part(dataclasses.replace(stopped, reason=ENDED_ITSELF))


def test_a_first_part_becomes_a_training_of_its_own():
    part = first_part(make_part())
    assert part.params["iterations"] == 1000
    assert part.metrics["train_time_s"] == pytest.approx(10.0)
    assert part.metrics["cpu_user_s"] == pytest.approx(16.0)
    assert not part.trial.projected
    assert not is_part(part)
    assert KnownDefault(part).part == "the first 1,000 of 10,000 iterations"


def test_so_does_one_that_was_stopped_on_the_way():
    stopped = dataclasses.replace(
        WHOLE, status=TrialStatus.STOPPED, iterations=6000, measurement=make_measurement(60.0)
    )
    part = first_part(stopped)
    assert part.status is TrialStatus.COMPLETE
    assert part.params["iterations"] == 6000
    assert part.metrics["train_time_s"] == 60.0, "it is the time that was measured"
    # of a share that was stopped the time is projected to all iterations
    early = first_part(make_part(status=TrialStatus.STOPPED, reached=400))
    assert early.metrics["train_time_s"] == pytest.approx(4.0)
    assert early.params["iterations"] == 400
