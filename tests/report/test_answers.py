"""What may be claimed of a study: the three answers, what is below them, and the axis they use."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report_samples import (
    make_answered,
    make_failed,
    make_part,
    make_part_at_a_faster_setting,
    make_study,
    make_unproven,
    make_verified,
)
from tuner.report.answers import roles, study_metrics, three_answers, trade_offs
from tuner.report.scale import LINEAR, Scale, error_scale
from tuner.report.wording import footnotes, headline, verified_rows
from tuner.values.trial import Interval, TrialStatus
from tuner.values.verified import Comparison, Role


def versus(
    speedup: float, gain: float, *, p: float = 0.001, no_loss: bool = True, gain_p: float = 0.001
) -> Comparison:
    return Comparison(
        Interval(speedup, speedup * 0.9, speedup * 1.1), p, Interval(gain, gain, gain), gain_p,
        no_loss,
    )  # fmt: skip


def make_compared(*comparisons: Comparison, role: Role = Role.TRADE_OFF):
    """A study of which trials 1, 2 … were verified, with these comparisons."""
    default, *_ = make_study().verified
    points = [
        dataclasses.replace(
            make_verified(number, 0.991 + each.accuracy_gain.value, 20.0, {}, each, role)
        )
        for number, each in enumerate(comparisons, 1)
    ]
    return make_study(verified=(default, *points))


def test_the_headline_is_three_answers_and_the_trade_offs():
    assert headline(make_answered()) == [
        "No loss: trial 8 trains 3.3x faster than the default of Caffe 1.0 (58.3 s instead of "
        "190 s) at 99.05 % test accuracy against 99.10 %; a loss of more than 0.2 "
        "points is ruled out at 95 % confidence.",
        "Runtime only: the default with mkl, 2 threads trains 1.7x faster (112 s instead of "
        "190 s), nothing else changed.",
        "Most accurate: trial 11 reaches 99.31 % test accuracy against 99.10 % (+0.21 points), "
        "1.4x faster than the default.",
        "Trade-offs: trial 2 at 1,061 trains 35.2x faster at -1.95 points; trial 4 trains 8.9x "
        "faster at -0.52 points; trial 9 trains 4.7x faster at -0.24 points (not significant).",
    ]


def test_what_is_not_proven_is_said_with_the_best_that_was_tried():
    lossless, runtime, accurate, *_ = headline(make_unproven())
    assert lossless == (
        "No loss: no faster configuration is proven to keep the accuracy. The best that was "
        "tried is trial 9: 98.86 %, -0.24 points, where a loss of more than 0.2 points is not "
        "ruled out."
    )
    assert runtime.startswith("Runtime only: no runtime setting is proven")
    assert accurate == (
        "Most accurate: the default itself (99.10 %); nothing was proven to be more accurate."
    )


def test_a_study_that_was_too_short_to_prove_anything_says_what_it_needs():
    study = dataclasses.replace(make_unproven(), elapsed_s=300.0)
    assert headline(study)[0].endswith(
        "The default alone trains for 190 s, and the study took 300 s: one of 380 s "
        "(budget.time_s=) could prove more."
    )


@pytest.mark.parametrize(
    ("comparisons", "label", "words"),
    [
        ([versus(2.0, 0.004)], "No loss", "trial 1 trains 2.0x faster than the default"),
        ([versus(9.0, -0.02, no_loss=False), versus(2.0, 0.0)], "No loss", "trial 2 trains 2.0x"),
        ([versus(3.0, -0.001)], "No loss", "trial 1 trains 3.0x"),
        ([versus(3.0, -0.02, no_loss=False)], "No loss", "trial 1: 97.10 %, -2.00 points."),
        ([versus(3.0, 0.001, p=0.5)], "No loss", "trial 1: it loses none, but being 3.0x faster"),
        (
            [versus(3.0, -0.02, no_loss=False), versus(1.5, 0.004, p=0.5)],
            "No loss",
            "trial 2: it loses none, but being 1.5x faster (20.0 s instead of 30.0 s) is not "
            "significant.",
        ),
        ([versus(0.5, 0.004, p=0.5)], "No loss", "is proven to keep the accuracy."),
        ([versus(0.5, 0.01)], "Most accurate", "(+1.00 points), 2.0x slower than the default"),
        ([versus(1.1, 0.01, p=0.5)], "Most accurate", "in no significantly different time"),
        ([versus(3.0, 0.01, gain_p=0.3)], "Most accurate", "the default itself (99.10 %)"),
        (
            [versus(3.0, 0.0, gain_p=0.5), versus(2.0, 0.001, gain_p=0.04)],
            "Most accurate",
            "As the best of several, trial 2 (+0.10 points) is not significant.",
        ),
        ([versus(2.0, 0.0)], "Runtime only", "no runtime setting is proven"),
    ],
)  # fmt: skip
def test_an_answer_claims_what_was_proven(comparisons, label, words):
    (answer,) = [
        each for each in three_answers(make_compared(*comparisons)) if each.label == label
    ]
    assert words in answer.text
    assert (answer.figure in ("not proven", "the default")) is (answer.point is None)


def test_a_runtime_setting_that_may_lose_accuracy_is_no_answer():
    comparison = versus(1.7, -0.01, no_loss=False)
    _, runtime, _ = three_answers(make_compared(comparison, role=Role.RUNTIME_ONLY))
    assert runtime.figure == "not proven"
    assert "1.7x faster, accuracy -1.00 points" in runtime.text


def test_the_default_stopped_earlier_is_named_by_where_it_stops():
    study = make_compared(versus(2.8, -0.0005), role=Role.STOPPED)
    (point,) = [each for each in study.verified if not each.is_default]
    point = dataclasses.replace(
        point, name="default at 4,643", accuracy_from="reference of 5 seeds at this stop",
        params={**study.verified[0].params, "iterations": 4643, "threads": 2},
    )  # fmt: skip
    study = dataclasses.replace(study, verified=(study.verified[0], point))
    lossless, runtime, _ = three_answers(study)
    assert lossless.text.startswith(
        "the default, stopped after 4,643 of 10,000 iterations, with 2 threads, trains 2.8x faster"
    )
    assert "a loss of more than 0.2 points is ruled out at 95 % confidence" in lossless.text
    assert runtime.figure == "not proven", "it trains for less"
    assert roles(study, point) == "no loss"


@pytest.mark.parametrize(
    ("comparisons", "names"),
    [
        ([versus(9.0, -0.02, no_loss=False), versus(2.0, 0.0)], ["trial 1"]),
        ([versus(1.5, -0.02, no_loss=False), versus(2.0, 0.0)], []),  # slower and no better
        ([versus(9.0, -0.02, no_loss=False), versus(5.0, -0.03, no_loss=False)], ["trial 1"]),
        ([versus(9.0, -0.035, no_loss=False)], ["trial 1"]),
        ([versus(9.0, -0.037, no_loss=False)], []),  # over five times the default's 0.9 % errors
        ([versus(9.0, -0.02, p=0.2, no_loss=False)], []),
    ],
)
def test_a_trade_off_is_worth_a_thought(comparisons, names):
    assert [each.name for each in trade_offs(make_compared(*comparisons))] == names


def test_a_study_that_proves_nothing_says_so_in_one_line():
    assert headline(make_study(verified=())) == [
        "Not verified: nothing may be claimed. 7 trials on the front of the validation split."
    ]
    failed = make_failed(0, TrialStatus.TIMEOUT, "killed")
    assert headline(make_study(trials=(failed,), verified=())) == [
        "No trial gave usable figures: there is nothing to compare."
    ]


def test_against_a_part_of_the_default_the_same_accuracy_is_all_that_is_claimed():
    study = make_part()
    assert headline(study) == [
        "Same accuracy: trial 3 trains 1.4x faster (13.9 s instead of 19.0 s) to 98.23 % test "
        "accuracy; the default reaches 97.90 % after the first 1,000 of 10,000 iterations.",
        "Runtime only: no runtime setting is proven to train the default's own params faster "
        "without loss.",
        "Trade-offs: trial 1 trains 2.4x faster at -0.38 points.",
    ]
    assert [roles(study, each) for each in study.verified] == [
        "first part", "tried for no loss", "same accuracy", "tried for no loss",
    ]  # fmt: skip
    assert [row.tone for row in verified_rows(study)] == ["reference", "trade", "good", "trade"]
    figures = study_metrics(study)
    assert figures["same_accuracy_speedup"] == 1.37
    assert figures["no_loss_speedup"] == figures["runtime_only_speedup"] == 1.0
    assert study.verified[-1].is_best_of(3), "than that part"
    assert study.answers.most_accurate is None, "which is not claimed"
    assert figures["best_accuracy"] == figures["default_accuracy"] == 0.979


def test_a_runtime_setting_loses_nothing_even_if_only_a_part_of_the_default_is_known():
    study = make_part_at_a_faster_setting()
    same, runtime = three_answers(study)
    assert same.point is runtime.point
    assert same.sentence.startswith("Same accuracy: the default with mkl, 1 thread trains 1.8x")
    assert runtime.sentence == "Runtime only: the same configuration, 1.8x faster."
    assert roles(study, study.verified[-1]) == "same accuracy, runtime only"
    figures = study_metrics(study)
    assert figures["no_loss_speedup"] == figures["runtime_only_speedup"] == 1.8

    sooner = dataclasses.replace(
        study.verified[2],
        against_default=dataclasses.replace(
            study.verified[2].against_default, speedup=Interval(2.5, 2.4, 2.6)
        ),
    )
    both = dataclasses.replace(study, verified=(*study.verified[:2], sooner, study.verified[-1]))
    assert both.answers.no_loss is both.verified[-1], "what else is faster may lose at the end"
    assert three_answers(both)[1].sentence == (
        "Runtime only: the default with mkl, 1 thread trains 1.8x faster (10.6 s instead of "
        "19.1 s over the first 1,000 of 10,000 iterations), nothing else changed."
    )


def test_what_reaches_no_part_of_the_default_is_said_so():
    default, lossy, *_ = make_part().verified
    study = dataclasses.replace(make_part(), verified=(default, lossy))
    answer, _ = three_answers(study)
    assert answer.figure == "not proven"
    assert answer.sentence == (
        "Same accuracy: nothing is proven to be faster and as accurate as the default after the "
        "first 1,000 of 10,000 iterations."
    )
    assert study_metrics(study)["same_accuracy_speedup"] == 1.0


def test_one_configuration_that_is_two_answers_is_told_once():
    study = make_compared(versus(1.7, 0.0), role=Role.RUNTIME_ONLY)
    lossless, runtime, _ = three_answers(study)
    assert lossless.point is runtime.point
    assert runtime.sentence == "Runtime only: the same configuration, 1.7x faster."
    assert roles(study, study.verified[1]) == "no loss, runtime only"


def test_what_trains_the_default_s_params_keeps_its_accuracy_by_construction():
    study = make_answered()
    points = [each for each in study.verified if each.is_default or each.accuracy_from]
    lossless, *_ = headline(dataclasses.replace(study, verified=tuple(points)))
    assert lossless == (
        "No loss: the default with mkl, 2 threads trains 1.7x faster than the default of Caffe "
        "1.0 (112 s instead of 190 s) at its accuracy (99.10 %), as nothing but the runtime "
        "setting differs."
    )


def test_a_default_that_is_slower_in_some_rounds_is_said_so_and_compared_within_rounds():
    study = make_answered()
    note = "Each speed-up compares runs of the same rounds."
    assert not any(note in each for each in footnotes(study))
    uneven = [
        dataclasses.replace(each, against_default=versus(2.4, -0.0005))
        if each is study.answers.no_loss
        else each
        for each in study.verified
    ]
    study = dataclasses.replace(study, verified=tuple(uneven))
    lossless, *_ = headline(study)
    assert "trains 2.4x faster than the default of Caffe 1.0 (58.3 s instead of 140 s)" in lossless
    (said,) = (each for each in footnotes(study) if note in each)
    assert said == f"The default trained in 140 s in some rounds and in 190 s in others. {note}"


def test_a_footnote_says_each_way_of_measuring_once():
    notes = footnotes(make_answered())
    assert notes[:4] == [
        "Time and accuracy of trial 2 at 1,061, trial 4, trial 9, trial 8 and trial 11: from 3 "
        "whole, interleaved runs each.",
        "Training time of the default and runtime only: from their rates over 3 % of the "
        "iterations, in 4 interleaved runs.",
        "The default's accuracy is that of a reference of 5 seeds, as the first part of its "
        "training here matched the recording. Its time comes from its rate on this machine.",
        "Accuracy of runtime only: the default's, as nothing but the runtime setting differs.",
    ]
    assert notes[-1].endswith("extended by 120 s for the proof of no loss.")
    assert len(notes) == len(set(notes))


def test_footnotes_say_how_a_default_was_measured_that_trained_whole():
    study = make_study(reference="the recorded reference is not used: it is of other data")
    notes = footnotes(study)
    assert notes[1:3] == [
        "Accuracy of the default: from 1 whole run; time from its rate over 10 % of the "
        "iterations, in 2 interleaved runs.",
        "The recorded reference is not used: it is of other data.",
    ]
    default, *others = study.verified
    first = dataclasses.replace(default, full_runs=0, rate_runs=3, accuracy_from="its first run")
    assert "Accuracy of the default: from its first run." in footnotes(
        dataclasses.replace(study, verified=(first, *others))
    )


def test_what_own_images_became_is_said_with_their_default():
    facts = {
        "images": "45 train, 6 validation, 9 test; 28x28x1",
        "classes": "2: daisy, tulip",
        "prepared": "as they are, 28x28 in grey",
        "defaults_of": "mnist",
        "default": "an example; as for mnist",
    }
    notes = footnotes(make_study(dataset_facts=facts))
    assert {
        "Your images: 45 train, 6 validation, 9 test; 28x28x1; as they are, 28x28 in grey; "
        "classes 2: daisy, tulip.",
        "Default: an example; as for mnist.",
    } <= set(notes)
    assert not [each for each in footnotes(make_study()) if "Your images" in each]


def test_runs_that_differ_in_number_are_told_by_their_extent():
    study = make_study()
    default, first, *others = study.verified
    fewer = dataclasses.replace(first, full_runs=2)
    notes = footnotes(dataclasses.replace(study, verified=(default, fewer, *others)))
    assert "from 2–3 whole, interleaved runs each" in notes[0]


def test_an_earlier_stop_rests_on_the_runs_of_the_longer_training():
    study = make_study()
    default, first, *others = study.verified
    stop = dataclasses.replace(
        first,
        name="trial 4 at 3,200",
        stop_of="trial 4",
        full_runs=2,
        rate_runs=4,
        rate_share=0.05,
    )
    notes = footnotes(dataclasses.replace(study, verified=(default, stop, *others)))
    assert (
        "Accuracy of trial 4 at 3,200: on the way of 2 runs of trial 4; time from its rate over "
        "5 % of the iterations, in 4 interleaved runs."
    ) in notes


def test_equal_confidences_share_a_place():
    default, *others = make_study().verified
    study = make_study(verified=(dataclasses.replace(default, on_front=0.52), *others))
    said = (
        "Probability of being on the front of what was verified: 100 % trial 4, trial 9, trial 8; "
    )
    assert f"{said}52 % default." in footnotes(study)


def test_what_was_composed_of_a_rate_alone_is_a_time():
    default, *_, runtime, _ = make_answered().verified
    runtime = dataclasses.replace(runtime, composed=(110.0, 0.9913))
    notes = footnotes(make_study(verified=(default, runtime)))
    assert "Runtime only: 110 s predicted, 112 s verified." in notes


def test_what_noise_cost_is_said():
    assert "1 disturbed measurement discarded and repeated, which cost 35.4 s." in footnotes(
        make_study()
    )


def test_a_role_says_what_is_proven_and_what_was_only_tried():
    study = make_answered()
    assert [roles(study, each) for each in study.verified] == [
        "reference", "trade-off", "trade-off", "tried for no loss", "no loss", "runtime only",
        "most accurate",
    ]  # fmt: skip
    tones = [row.tone for row in verified_rows(study)]
    assert tones == ["reference", "trade", "trade", "trade", "good", "good", "good"]
    slower = dataclasses.replace(
        study.verified[4], name="trial 8 at 9,000", train_time_s=Interval(70.0, 69.0, 71.0)
    )
    assert roles(study, slower) == "also no loss"


def test_the_metrics_of_a_study_are_its_answers():
    assert study_metrics(make_answered()) == {
        "no_loss_speedup": 3.26, "no_loss_accuracy_gain": -0.0005, "runtime_only_speedup": 1.7,
        "best_accuracy": 0.9931, "default_train_time_s": 190.2, "default_accuracy": 0.991,
        "elapsed_s": 1710.0, "trials": 18.0,
    }  # fmt: skip


def test_where_nothing_is_proven_the_default_is_the_answer():
    figures = study_metrics(make_unproven())
    assert (figures["no_loss_speedup"], figures["runtime_only_speedup"]) == (1.0, 1.0)
    assert figures["best_accuracy"] == figures["default_accuracy"] == 0.991
    assert set(study_metrics(make_study(verified=()))) == {"elapsed_s", "trials"}


# the axis of errors

accuracies = st.floats(1.0, 99.99)


@given(accuracies, accuracies)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_better_is_higher_and_heights_can_be_read_back(one, other):
    scale = error_scale([one, other])
    assert (scale.height(one) < scale.height(other)) is (100.0 - one > 100.0 - other)
    assert scale.value(scale.height(one)) == pytest.approx(one)


def test_small_errors_lie_apart():
    scale = Scale(0.01)
    assert scale.height(99.1) - scale.height(98.8) == pytest.approx(
        scale.height(91.0) - scale.height(88.0)
    )
    assert LINEAR.height(99.1) == 99.1


def test_an_accuracy_without_errors_is_drawn():
    scale = error_scale([99.0, 99.8, 100.0])
    assert scale.height(100.0) == scale.height(99.9) > scale.height(99.8)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (88.0, 99.6, [90, 95, 98, 99, 99.5]),
        (98.1, 99.4, [98.2, 98.5, 98.8, 99, 99.1, 99.2, 99.3, 99.4]),
        (40.0, 70.0, [40, 50, 60, 70]),
    ],
)
def test_ticks_are_round_accuracies(low, high, ticks):
    found = Scale(0.001).ticks(low, high)
    assert found == ticks


def test_no_tick_lies_beyond_the_least_error():
    assert max(Scale(0.4).ticks(90.0, 100.0)) < 99.6
