"""What every executor must do; a new one is one more entry of ``EXECUTORS``."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import time
from types import SimpleNamespace

import pytest

from tuner import measure
from tuner.config.schema import ExecutorConfig, MeasureConfig
from tuner.executors import CrowdedExecutor, LocalExecutor, crowded, run_undisturbed
from tuner.executors.node import CoreSlot
from tuner.measure import marked_processes
from tuner.trials.session import run_trial
from tuner.values.trial import Checkpoint, Measurement, TrialKind, TrialResult, TrialStatus

# processes are started, which takes longer where neighbours take the CPU
pytestmark = pytest.mark.timeout(20)

CORES = sorted(os.sched_getaffinity(0))


def make_crowded(setup):
    """One trial on the first CPU, another beside it on the second."""
    return CrowdedExecutor(dataclasses.replace(setup, cores=(CORES[0],)), [(CORES[1],)])


two_cores = pytest.mark.skipif(len(CORES) < 2, reason="two jobs want two CPUs")
EXECUTORS = [LocalExecutor, pytest.param(make_crowded, marks=two_cores)]


@pytest.fixture(params=EXECUTORS)
def executor(request, setup):
    made = request.param(setup)
    yield made
    made.close()


def test_a_submitted_trial_comes_back(executor, make_trial):
    result = executor.submit(make_trial(3)).result()
    assert (result.trial.number, result.status) == (3, TrialStatus.COMPLETE)


def test_a_failing_trial_is_a_result(executor, make_trial):
    result = executor.submit(make_trial(fault="segfault")).result()
    assert result.status is TrialStatus.CRASHED


@pytest.mark.slow
def test_no_more_trials_run_at_once_than_there_are_slots(executor, make_trial):
    futures = [executor.submit(make_trial(number, fault="burn")) for number in range(2)]
    start = time.monotonic()
    results = [future.result() for future in futures]
    assert [each.reason for each in results if not each.usable] == []
    assert time.monotonic() - start > 1.0 * (2 / executor.slots) - 0.2


@two_cores
def test_trials_of_accuracy_alone_run_side_by_side_on_a_core_each(setup, make_trial):
    executor = LocalExecutor(dataclasses.replace(setup, cores=tuple(CORES[:2])))
    trials = [make_trial(number, fault="rest", accuracy_only=True) for number in (1, 2)]
    futures = [executor.submit(each) for each in trials]
    try:
        deadline, seen = time.monotonic() + 10, {}
        while len({*seen.values()}) < 2 and time.monotonic() < deadline:
            for pid in marked_processes(setup.marker):
                with contextlib.suppress(ProcessLookupError):
                    cores = os.sched_getaffinity(pid)
                    if len(cores) == 1:  # a worker that has just begun is not bound yet
                        seen[pid] = min(cores)
        assert {*seen.values()} == {*CORES[:2]}
        assert not any(each.done() for each in futures)
        executor.cancel()
        results = [each.result() for each in futures]
        assert {each.status for each in results} == {TrialStatus.INTERRUPTED}
    finally:
        executor.close()


def test_what_counts_for_its_accuracy_alone_is_not_measured_again(setup, make_trial):
    strict = dataclasses.replace(setup, measure=MeasureConfig(max_foreign_pct=-1, repeats=2))
    executor = LocalExecutor(strict)
    try:
        results = [
            executor.submit(make_trial(number, accuracy_only=only)).result()
            for number, only in ((1, True), (2, False))
        ]
    finally:
        executor.close()
    assert [len(each.discarded) for each in results] == [0, 2]


def test_cancel_ends_what_runs(executor, setup, make_trial):
    future = executor.submit(make_trial(fault="hang"))
    time.sleep(0.3)
    executor.cancel()
    assert future.result().status is TrialStatus.INTERRUPTED
    assert marked_processes(setup.marker) == []


def test_close_is_safe_while_a_trial_runs(setup, make_trial):
    executor = LocalExecutor(setup)
    executor.submit(make_trial(fault="hang"))
    time.sleep(0.2)
    executor.close()
    assert marked_processes(setup.marker) == []


@two_cores
@pytest.mark.slow
def test_a_trial_on_a_shared_host_has_company_until_it_ends(setup, make_trial, monkeypatch):
    company = []

    def noted(setup, trial, **given):
        start = time.monotonic()
        result = run_trial(setup, trial, **given)
        company.append((start, setup.cores, trial.params, result.status))
        return result

    monkeypatch.setattr(crowded, "run_trial", noted)
    executor = make_crowded(setup)
    trial = make_trial(3, fault="burn")
    result = executor.submit(trial).result()
    ended = time.monotonic()
    executor.close()
    starts, cores, params, statuses = zip(*company, strict=True)
    assert result.status is TrialStatus.COMPLETE
    assert starts[0] < ended - result.measurement.wall_time_s, "the others came first"
    assert set(cores) == {(CORES[1],)}
    assert all(each == trial.params for each in params)
    assert set(statuses) <= {TrialStatus.COMPLETE, TrialStatus.INTERRUPTED}


@pytest.mark.parametrize("raises", [False, True])
def test_a_trial_that_loses_its_company_does_not_count(setup, make_trial, monkeypatch, raises):
    def beside(setup, trial, **_given):
        if raises:
            raise OSError("no room")
        return TrialResult(trial, TrialStatus.OUT_OF_MEMORY, reason="no room")

    monkeypatch.setattr(crowded, "run_trial", beside)
    executor = make_crowded(setup)
    result = executor.submit(make_trial(3)).result()
    executor.close()
    assert result.status is TrialStatus.INVALID
    assert result.reason == "a training beside it ended first: no room"


@pytest.mark.parametrize(
    ("cores", "named"), [((2,), "2"), (range(128), "0-127"), (range(0, 256, 2), "0,2,4,")]
)
def test_a_slot_of_many_cpus_has_a_folder_and_a_name(home, monkeypatch, cores, named):
    taken = SimpleNamespace(cores=tuple(cores))
    monkeypatch.setattr(measure, "claim", lambda *_, **__: taken)
    monkeypatch.setattr(os, "nice", lambda _: 0)  # tests may be, slots may not
    slot = CoreSlot(ExecutorConfig(), "study")
    assert slot.folder.is_dir()
    assert f", CPUs {named}" in slot.name


def _burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.slow
@pytest.mark.timeout(20)
def test_a_trial_beside_a_cpu_burner_is_repeated_and_counted(setup, make_trial):
    strict = dataclasses.replace(setup, measure=MeasureConfig(max_steal_pct=100, repeats=1))
    burner = multiprocessing.get_context("spawn").Process(target=_burn, args=(4.0,))
    burner.start()
    time.sleep(0.5)
    executor = LocalExecutor(strict)
    result = executor.submit(make_trial(fault="burn")).result()
    executor.close()
    burner.kill()
    burner.join()
    assert len(result.discarded) == 1
    assert "others used" in result.discarded[0].disturbed


def _result(trial, train_time_s, disturbed):
    figures = dict.fromkeys((each.name for each in dataclasses.fields(Measurement)), 0)
    measurement = Measurement(**{**figures, "train_time_s": train_time_s, "disturbed": disturbed})
    return TrialResult(trial, TrialStatus.COMPLETE, val_accuracy=0.9, measurement=measurement)


def test_only_the_rate_of_a_long_run_is_measured_again(make_trial):
    runs = []

    def run(trial):
        runs.append(trial)
        return _result(trial, 100.0 if len(runs) == 1 else 80.0, "noise" if len(runs) == 1 else "")

    result = run_undisturbed(run, make_trial(7, test=True), repeats=2)
    assert [each.name for each in runs] == ["search-0007", "search-0007-repeat-1"]
    assert runs[1].share == pytest.approx(0.05)
    assert not runs[1].test
    assert result.trial.number == 7
    assert result.measurement.train_time_s == 80.0
    assert [each.train_time_s for each in result.discarded] == [100.0]


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_all_times_of_a_run_are_at_the_rate_that_was_measured_again(make_trial, share):
    whole = make_trial(7, share=share, iterations=1000)

    def run(trial):
        # 100 s of training and 6 s of start and looks; then a short part, of 80 s if projected
        repeated = trial.repeat > 0
        result = _result(trial, 80.0 if repeated else 100.0, "" if repeated else "noise")
        wall_s = 7.0 if repeated else 100.0 * share + 6.0
        looks = (Checkpoint(50, 5.0, 0.1, 0.8), Checkpoint(100, 10.0, 0.1, 0.9))
        return dataclasses.replace(
            result,
            iterations=round(1000 * trial.share),
            checkpoints=looks[:1] if repeated else looks,
            measurement=dataclasses.replace(result.measurement, wall_time_s=wall_s),
        )

    result = run_undisturbed(run, whole, repeats=1)
    assert [each.train_time_s for each in result.checkpoints] == pytest.approx([4.0, 8.0])
    assert [each.val_accuracy for each in result.checkpoints] == [0.8, 0.9]
    assert result.measurement.train_time_s == 80.0
    assert result.measurement.wall_time_s == pytest.approx(80.0 * share + 6.0)


def test_a_repeat_has_a_folder_that_no_other_trial_has(make_trial):
    asked = []

    def run(trial):
        asked.append(trial.name)
        return _result(trial, 1.0, "noise")

    for kind in (TrialKind.SEARCH, TrialKind.VERIFY):
        run_undisturbed(run, make_trial(1, kind=kind), repeats=2)
    assert len(set(asked)) == 6


def test_the_first_part_of_a_training_that_was_stopped_is_measured_anew_as_the_whole(make_trial):
    asked = []

    def run(trial):
        asked.append(trial)
        stopped = dataclasses.replace(
            _result(trial, 400.0, "" if asked[1:] else "noise"), iterations=90
        )
        return stopped if asked[1:] else dataclasses.replace(stopped, status=TrialStatus.STOPPED)

    result = run_undisturbed(run, make_trial(share=0.1), repeats=1)
    assert [each.params["iterations"] for each in asked] == [1000, 1000]
    assert 0 < asked[1].share <= 0.1
    assert result.metrics["train_time_s"] == 400.0


def test_a_measurement_that_stays_disturbed_is_kept_and_marked(make_trial):
    result = run_undisturbed(lambda trial: _result(trial, 1.0, "noise"), make_trial(), repeats=2)
    assert result.measurement.disturbed == "noise"
    assert len(result.discarded) == 2


def test_trials_that_may_share_a_worker_do_and_others_have_their_own(setup, make_trial):
    executor = LocalExecutor(setup)
    try:
        for number, warm in ((1, True), (2, True), (3, False), (4, True)):
            trial = make_trial(number, warm=warm)
            assert executor.submit(trial).result().status is TrialStatus.COMPLETE
    finally:
        executor.close()
    logs = sorted(path.parent.name for path in setup.folder.glob("*/log.txt"))
    assert logs == ["search-0001", "search-0003", "search-0004"]
    assert marked_processes(setup.marker) == []
