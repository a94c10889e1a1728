"""References: read back as written, found in their order, refused where they do not hold."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report_samples import make_measurement, make_result
from tests.verify_samples import LOOKS, SEEDS
from tests.verify_samples import make_reference as make_recorded
from tuner.convergence.references import (
    Accuracies,
    Reference,
    ReferenceRun,
    find_reference,
    read_reference,
    run_of,
)
from tuner.values.errors import ConfigError
from tuner.values.trial import Checkpoint, TrialStatus

PARAMS = {"batch_size": 64, "iterations": 100, "learning_rate": 0.1, "blas": "mkl", "threads": 1}


def make_reference(*finals, **changes):
    runs = tuple(
        ReferenceRun(
            seed, (Accuracies(50, final - 0.1, final - 0.11), Accuracies(100, final, final - 0.01))
        )
        for seed, final in enumerate(finals or (0.99, 0.97), 1)
    )
    return Reference(
        **{
            "framework": "caffe", "dataset": "mnist", "model": "default",
            "dataset_digest": "abc", "params": PARAMS, "setting": {"blas": "x", "threads": 2},
            "versions": {"caffe": "1.0", "python": "3.9"}, "machine": {"cpu": "z"}, "runs": runs,
        }
        | changes
    )  # fmt: skip


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    return tmp_path


accuracy = st.floats(0, 1)
looks = st.lists(st.builds(Accuracies, st.integers(1, 10**6), accuracy, accuracy), min_size=1)


settings_of_runs = st.dictionaries(st.sampled_from(["blas", "threads"]), st.integers(1, 9))
recorded_runs = st.builds(ReferenceRun, st.integers(0, 99), looks.map(tuple), settings_of_runs)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.lists(recorded_runs))
def test_it_is_read_back_as_it_was_written(runs):
    written = make_reference(runs=tuple(runs))
    assert Reference.from_json(written.to_json()) == written


def test_its_figures_are_means_over_the_seeds():
    found = make_reference()
    assert found.val_accuracy == pytest.approx(0.98)
    assert found.test_accuracy == pytest.approx(0.97)
    assert found.test_accuracies == pytest.approx([0.98, 0.96])
    assert [each.iteration for each in found.curve] == [50, 100]
    assert found.curve[0].val_accuracy == pytest.approx(0.88)
    assert found.iterations == 100
    assert found.looks_of(2)[50].val_accuracy == pytest.approx(0.87)
    assert found.looks_of(3) == {}


def test_a_run_may_have_been_recorded_at_another_setting_than_the_first():
    one = make_reference()
    both = one.with_run(ReferenceRun(3, one.runs[0].looks, {"threads": 1}))
    assert both.setting_of(1) == {"blas": "x", "threads": 2}
    assert both.setting_of(3) == {"blas": "x", "threads": 1}
    assert '"setting": {"threads": 1}' in both.to_json().splitlines()[-3]
    assert "setting" not in both.to_json().splitlines()[-5]


def test_its_curve_has_only_what_all_seeds_were_looked_at():
    run = ReferenceRun(9, (Accuracies(50, 0.5, 0.5), Accuracies(70, 0.6, 0.6)))
    assert [each.iteration for each in make_reference().with_run(run).curve] == [50]


def test_it_holds_for_the_same_default_on_the_same_images():
    found = make_reference()
    assert found.refusal("abc", {**PARAMS, "blas": "other", "threads": 8}) == ""
    assert "images" in found.refusal("abd", PARAMS)
    assert "learning_rate=0.1" in found.refusal("abc", {**PARAMS, "learning_rate": 0.2})


def test_it_holds_for_no_lossy_exchange_of_gradients():
    group = {**PARAMS, "workers": 2, "exchange": "exact"}
    assert make_reference().refusal("abc", group) == ""
    assert "lossy exchange" in make_reference().refusal("abc", {**group, "exchange": "fp16"})
    lossy = dataclasses.replace(make_reference(), setting={"workers": 2, "exchange": "fp16"})
    assert "lossy exchange" in lossy.refusal("abc", group)


def test_it_holds_for_the_same_version_under_whatever_python():
    found = make_reference()
    assert found.version_refusal({"caffe": "1.0", "python": "3.13"}) == ""
    assert "caffe 1.0" in found.version_refusal({"caffe": "1.1"})


def test_one_s_own_recording_goes_before_the_project_s(home):
    (home / "references").mkdir()
    path = home / "references" / "caffe-mnist-default.json"
    path.write_text(make_reference(0.5).to_json())
    assert find_reference("caffe", "mnist", "default").val_accuracy == pytest.approx(0.5)
    path.write_text(make_reference(runs=()).to_json())
    other = find_reference("caffe", "mnist", "default")
    assert other is None or other.runs, "a recording without a run is none"


def test_there_may_be_none(home):
    assert find_reference("no_such", "mnist", "default") is None


def test_a_damaged_one_is_named_with_the_remedy(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"x\.json cannot be read.*record it again"):
        read_reference(path)


def test_a_run_is_what_both_splits_were_looked_at():
    points = (
        Checkpoint(10, 1.0, None, 0.8, 0.7),
        Checkpoint(20, 2.0, None, 0.9),
        Checkpoint(40, 4.0, None, 0.95, 0.94),
    )
    result = dataclasses.replace(make_result(3, 0.95, 4.0), checkpoints=points)
    assert run_of(result).looks == (Accuracies(10, 0.8, 0.7), Accuracies(40, 0.95, 0.94))


def test_a_study_s_seed_has_a_recorded_one_to_be_compared_with():
    found = make_reference(0.9, 0.91, 0.92)
    assert [found.seed_for(seed) for seed in range(6)] == [1, 2, 3, 1, 2, 3]


# -- trial 0 completed --------------------------------------------------------------------------

RECORDED = make_recorded()


def make_part(**changes):
    """A tenth of the default, its time projected to all 10,000 iterations."""
    part = make_result(0, 0.9, 100.0, test=0.88)
    trial = dataclasses.replace(part.trial, share=0.1)
    return dataclasses.replace(part, trial=trial, iterations=1000, **changes)


def test_a_part_is_completed_as_recorded_at_its_own_rate():
    found = RECORDED.completed(make_part())
    assert found.status is TrialStatus.COMPLETE
    assert found.iterations == 10_000
    assert found.test_accuracy == pytest.approx(0.99)
    assert found.metrics["train_time_s"] == pytest.approx(100.0)
    assert found.metrics["cpu_user_s"] == pytest.approx(160.0)
    assert found.trial.share == 0.1, "what was trained is still said"
    assert found.accuracy_from == "reference of 5 seeds"
    assert [each.iteration for each in found.checkpoints] == list(LOOKS)
    assert [each.val_accuracy for each in found.checkpoints] == [
        each.val_accuracy for each in RECORDED.curve
    ]
    times = [each.train_time_s for each in found.checkpoints]
    assert times == pytest.approx([each / 100 for each in LOOKS])


def test_a_part_that_was_stopped_sooner_is_completed_too():
    stopped = make_part(status=TrialStatus.STOPPED, reason="time is up")
    stopped = dataclasses.replace(stopped, iterations=400)
    found = RECORDED.completed(stopped)
    assert (found.status, found.reason) == (TrialStatus.COMPLETE, "")
    assert found.metrics["train_time_s"] == pytest.approx(100.0)
    assert found.trial.share == 0.04
    # and one that was to be whole, whose time is the one of what it trained
    whole = dataclasses.replace(
        make_result(0, 0.9, 30.0),
        status=TrialStatus.STOPPED,
        iterations=3000,
        measurement=make_measurement(30.0),
    )
    found = RECORDED.completed(whole)
    assert found.metrics["train_time_s"] == pytest.approx(100.0)
    assert found.trial.share == 0.3
    assert found.params["iterations"] == 10_000


def test_a_whole_one_keeps_its_time_and_takes_the_mean_of_the_seeds():
    found = RECORDED.completed(make_result(0, 0.9, 120.0, test=0.88))
    assert found.metrics["train_time_s"] == pytest.approx(120.0)
    assert not found.trial.projected
    assert found.test_accuracy == pytest.approx(sum(SEEDS) / 5)


def test_where_the_default_ends_by_itself_its_time_is_that_until_there():
    short = make_recorded(looks=(100, 400, 800))
    found = short.completed(make_part())
    assert found.iterations == 800
    assert found.ended_itself
    assert found.params["iterations"] == 800, "of which a rate is measured in verification"
    assert found.metrics["train_time_s"] == pytest.approx(8.0)
    assert found.trial.share == 1.0


def test_seeds_that_end_at_different_iterations_end_at_their_mean():
    runs = make_recorded().runs
    early = dataclasses.replace(runs[0], looks=runs[0].looks[:-1])
    found = dataclasses.replace(RECORDED, runs=(early, *runs[1:])).completed(make_part())
    assert found.iterations == round((3200 + 4 * 10_000) / 5)
    assert [each.iteration for each in found.checkpoints] == [*LOOKS[:-1], found.iterations]
    assert found.checkpoints[-1].val_accuracy == found.val_accuracy
    assert found.checkpoints[-1].train_time_s == pytest.approx(found.metrics["train_time_s"])
