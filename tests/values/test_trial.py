"""The values that travel: what is written is read back equal, and missing figures stay missing."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report_samples import make_failed, make_measurement, make_result
from tuner.values.trial import (
    Checkpoint,
    Measurement,
    Trial,
    TrialKind,
    TrialResult,
    TrialStatus,
)

number = st.floats(allow_nan=False, allow_infinity=False)
fraction = st.floats(0, 1)
params = st.dictionaries(
    st.text(max_size=10),
    st.none() | st.booleans() | st.integers() | number | st.text(max_size=10),
    max_size=5,
)
trials = st.builds(
    Trial,
    number=st.integers(0, 9999),
    params=params,
    kind=st.sampled_from(TrialKind),
    seed=st.integers(0, 2**31),
    train_time_limit_s=st.none() | number,
    time_limit_s=number,
    test=st.booleans(),
    share=st.floats(0.01, 1),
    rivals=st.lists(st.tuples(number, fraction), max_size=3).map(tuple),
)

reproducible = settings(derandomize=True, deadline=None, max_examples=60)
checkpoints = st.builds(
    Checkpoint,
    iteration=st.integers(1, 10**6),
    train_time_s=number,
    loss=st.none() | number,
    val_accuracy=fraction,
)
measurements = st.builds(
    Measurement,
    **{
        each.name: {
            "float": number,
            "float | None": st.none() | number,
            "int": st.integers(0, 2**50),
            "str": st.text(max_size=20),
        }[str(each.type)]
        for each in dataclasses.fields(Measurement)
    },
)
results = st.builds(
    TrialResult,
    trial=trials,
    status=st.sampled_from(TrialStatus),
    reason=st.text(max_size=30),
    iterations=st.integers(0, 10**6),
    val_accuracy=st.none() | fraction,
    test_accuracy=st.none() | fraction,
    checkpoints=st.lists(checkpoints, max_size=3).map(tuple),
    measurement=st.none() | measurements,
    versions=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    log_tail=st.text(max_size=30),
    discarded=st.lists(measurements, max_size=2).map(tuple),
)


@reproducible
@given(results)
def test_a_result_is_read_back_as_it_was_written(result):
    assert TrialResult.from_json(result.to_json()) == result


@pytest.mark.parametrize("status", TrialStatus)
def test_every_status_survives(status):
    result = dataclasses.replace(make_result(3, 0.98, 12.5, test=0.97), status=status)
    back = TrialResult.from_json(result.to_json())
    assert back == result
    assert back.trial.kind is TrialKind.SEARCH
    assert isinstance(back.checkpoints[0], Checkpoint)
    assert isinstance(back.measurement, Measurement)


def test_discarded_measurements_and_rivals_come_back_as_tuples():
    result = make_result(1, 0.9, 5.0)
    trial = dataclasses.replace(result.trial, rivals=((1.5, 0.91), (2.5, 0.95)))
    disturbed = make_measurement(7.0, disturbed="others used 41 %")
    result = dataclasses.replace(result, trial=trial, discarded=(disturbed,))
    back = TrialResult.from_json(result.to_json())
    assert back.trial.rivals == ((1.5, 0.91), (2.5, 0.95))
    assert back.discarded == (disturbed,)
    hash(back.trial.rivals)


def test_json_is_plain_ascii_and_has_no_python_in_it():
    text = make_result(1, 0.9, 5.0, blas="müll").to_json()
    assert text.isascii()
    assert json.loads(text)["status"] == "COMPLETE"
    assert json.loads(text)["trial"]["kind"] == "search"


@pytest.mark.parametrize(
    "text", ["", "{", "{}", '{"trial": {}}', '{"trial": {"kind": "strange", "rivals": []}}']
)
def test_what_is_no_result_is_refused(text):
    with pytest.raises((ValueError, KeyError)):
        TrialResult.from_json(text)


def test_a_stopped_trial_counts_for_the_iterations_it_reached():
    complete = make_result(1, 0.9, 5.0, iterations=1000)
    stopped = dataclasses.replace(complete, status=TrialStatus.STOPPED, iterations=400)
    assert stopped.params == {**complete.trial.params, "iterations": 400}
    assert stopped.trial.params["iterations"] == 1000
    assert complete.params == complete.trial.params


@pytest.mark.parametrize(
    "status", [each for each in TrialStatus if each is not TrialStatus.STOPPED]
)
def test_other_trials_keep_the_params_they_were_asked(status):
    result = dataclasses.replace(make_result(1, 0.9, 5.0), status=status, iterations=7)
    assert result.params == result.trial.params
    assert result.params is not result.trial.params


def test_only_complete_and_stopped_trials_with_figures_are_usable():
    usable = {status for status in TrialStatus if status.usable}
    assert usable == {TrialStatus.COMPLETE, TrialStatus.STOPPED}
    result = make_result(1, 0.9, 5.0)
    assert result.usable
    assert not dataclasses.replace(result, measurement=None).usable
    assert not dataclasses.replace(result, status=TrialStatus.INVALID).usable


identities = st.tuples(
    st.sampled_from(TrialKind), st.integers(0, 20_000), st.integers(0, 300), st.integers(0, 300)
)


@reproducible
@given(identities, identities)
def test_two_trials_of_a_study_never_share_a_folder(one, other):
    names = [
        Trial(number, {}, kind=kind, repeat=repeat, point=point).name
        for kind, number, repeat, point in (one, other)
    ]
    assert (names[0] == names[1]) == (one == other)


def test_a_derived_point_knows_its_run_however_many_that_run_has():
    run = make_result(3, 0.98, 12.5).trial
    points = [
        run.derive(place, {**run.params, "iterations": 10 * place}) for place in (1, 101, 250)
    ]
    assert [each.number for each in points] == [3, 3, 3]
    assert len({each.name for each in points}) == 3
    assert points[1].title == "trial 3 at 1,010"


def test_metrics_have_every_figure_under_its_name():
    metrics = make_result(1, 0.9, 5.0, test=0.89).metrics
    numbers = {
        each.name for each in dataclasses.fields(Measurement) if each.type in ("float", "int")
    }
    assert set(metrics) == numbers | {"val_accuracy", "test_accuracy"}
    assert metrics["train_time_s"] == 5.0
    assert metrics["test_accuracy"] == 0.89
    assert all(type(value) is float for value in metrics.values())


def test_what_was_not_measured_is_no_metric():
    assert "test_accuracy" not in make_result(1, 0.9, 5.0).metrics
    assert make_failed(1, TrialStatus.CRASHED, "exit 1").metrics == {}


def test_names_are_unique_within_a_study_and_sort_by_number():
    names = [Trial(number, {}, kind).name for kind in TrialKind for number in (0, 9, 10, 9999)]
    assert len(set(names)) == len(names)
    assert names[:4] == sorted(names[:4])
    assert Trial(7, {}, TrialKind.VERIFY).name == "verify-0007"


def test_a_share_below_one_is_a_projection():
    assert Trial(0, {}, share=0.05).projected
    assert not Trial(0, {}).projected


def test_of_a_stopped_trial_time_and_cpu_time_are_projected_to_all_iterations():
    run = dataclasses.replace(
        make_result(1, 0.9, 5.0), status=TrialStatus.STOPPED, iterations=2500
    )
    whole = run.projected("its limit was reached")
    assert (whole.status, whole.trial.share) == (TrialStatus.COMPLETE, 0.25)
    for name in ("train_time_s", "cpu_user_s", "cpu_system_s"):
        assert whole.metrics[name] == pytest.approx(4 * run.metrics[name])
    assert whole.val_accuracy == run.val_accuracy
    again = whole.projected("its limit was reached")
    assert again.metrics == whole.metrics, "what is of all iterations already is left as it is"
