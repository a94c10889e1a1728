"""A trial that goes wrong is a named result, and nothing it started outlives it."""

from __future__ import annotations

import dataclasses
import os
import threading
import time

import pytest

from tuner.config.schema import BlasConfig
from tuner.measure import ResourceMonitor, marked_processes
from tuner.trials.session import WorkerSession, run_trial
from tuner.values.errors import ConfigError
from tuner.values.trial import TrialStatus

# processes are started, which takes longer where neighbours take the CPU
pytestmark = [pytest.mark.slow, pytest.mark.timeout(20)]


def test_a_good_trial_is_complete_and_measured(setup, make_trial):
    result = run_trial(setup, make_trial(test=True))
    assert result.status is TrialStatus.COMPLETE, result.reason
    assert result.val_accuracy == pytest.approx(0.987, abs=0.01)
    assert result.test_accuracy == pytest.approx(result.val_accuracy, abs=0.01)
    assert result.measurement.train_time_s == pytest.approx(1000 * 84e-9 * 20, rel=0.01)
    assert result.measurement.train_time_s <= result.measurement.wall_time_s
    assert [point.iteration for point in result.checkpoints] == [125, 250, 500, 1000]
    assert result.versions["synthetic"] == "1.0"
    assert 2**22 < result.measurement.peak_memory_bytes < 2**27


def test_the_test_split_is_touched_only_when_asked(setup, make_trial):
    assert run_trial(setup, make_trial()).test_accuracy is None


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("nan", TrialStatus.DIVERGED, "loss is nan"),
        ("segfault", TrialStatus.CRASHED, "Segmentation fault"),
        ("exit", TrialStatus.CRASHED, "exit code 7"),
        ("garbage", TrialStatus.INVALID, "not JSON"),
        ("hang", TrialStatus.STALLED, "no sign of life for 1 s"),
        ("memory", TrialStatus.OUT_OF_MEMORY, "more than 256 MiB"),
        ("disk", TrialStatus.DISK_FULL, "too large"),
        ("children", TrialStatus.LEFT_PROCESSES, "sleep"),
        ("impossible", TrialStatus.IMPOSSIBLE, "cannot be"),
        ("lie_threads", TrialStatus.INVALID, "reports 7"),
        ("lie_blas", TrialStatus.INVALID, "reports another"),
        ("time", TrialStatus.INVALID, "but the trial took"),
    ],
)
@pytest.mark.timeout(20)
def test_every_misbehaviour_has_a_name(setup, make_trial, fault, status, reason):
    impatient = dataclasses.replace(setup.framework, stall_limit_s=1 if fault == "hang" else 10)
    limited = dataclasses.replace(setup, framework=impatient, memory_limit_bytes=2**28)
    result = run_trial(limited, make_trial(fault=fault, threads=1))
    assert (result.status, reason in result.reason) == (status, True), result
    assert not result.usable
    assert marked_processes(setup.marker) == []


def test_the_last_words_of_a_dead_worker_are_kept(setup, make_trial):
    assert "these are the last words" in run_trial(setup, make_trial(fault="exit")).log_tail


def test_a_time_limit_kills(setup, make_trial):
    patient = dataclasses.replace(setup.framework, stall_limit_s=60)
    result = run_trial(
        dataclasses.replace(setup, framework=patient), make_trial(fault="hang", time_limit_s=0.5)
    )
    assert result.status is TrialStatus.TIMEOUT


def test_a_missing_library_is_never_a_data_point(setup, make_trial):
    blas = {"slow": BlasConfig(loaded=r"/no-such-blas\.so")}
    framework = dataclasses.replace(setup.framework, blas=blas)
    result = run_trial(dataclasses.replace(setup, framework=framework), make_trial())
    assert result.status is TrialStatus.INVALID
    assert "slow was requested but none" in result.reason


def test_a_library_really_mapped_is_recorded(setup, make_trial):
    blas = {"slow": BlasConfig(loaded=r"/libc[.-]"), "fast": BlasConfig(loaded=r"/no-such")}
    framework = dataclasses.replace(setup.framework, blas=blas)
    result = run_trial(dataclasses.replace(setup, framework=framework), make_trial())
    assert result.status is TrialStatus.COMPLETE, result.reason
    assert result.measurement.blas_loaded == "slow"


def test_a_trial_past_its_limit_stops_with_a_valid_result(setup, make_trial):
    trial = make_trial(fault="slow", iterations=100_000, train_time_limit_s=0.3)
    result = run_trial(setup, trial)
    assert result.status is TrialStatus.STOPPED, result.reason
    assert 0 < result.iterations < 100_000
    assert result.val_accuracy is not None
    assert result.params["iterations"] == result.iterations


@pytest.mark.slow
def test_what_would_take_far_too_long_ends_soon_unless_a_part_is_of_use(setup, make_trial):
    asked = {"fault": "slow", "iterations": 100_000_000, "train_time_limit_s": 4.0}
    whole = run_trial(setup, make_trial(1, **asked))
    assert "it would have taken" in whole.reason
    part = run_trial(setup, make_trial(2, share=0.5, **asked))
    assert "its limit of 4 s was reached" in part.reason
    assert part.iterations > whole.iterations


@pytest.mark.slow
def test_a_framework_may_end_its_training_by_itself(setup, make_trial):
    result = run_trial(setup, make_trial(fault="patience", iterations=100_000))
    assert result.status is TrialStatus.STOPPED
    assert result.ended_itself
    assert result.params["iterations"] == result.iterations < 100_000
    stopped = run_trial(
        setup, make_trial(2, fault="slow", iterations=100_000, train_time_limit_s=0.3)
    )
    assert not stopped.ended_itself


def test_a_trial_far_behind_its_rivals_stops(setup, make_trial):
    trial = make_trial(fault="slow", iterations=64_000, blas="fast", rivals=((0.001, 2.0),))
    result = run_trial(setup, trial)
    assert result.status is TrialStatus.STOPPED
    assert "another trial had" in result.reason


def test_a_trial_is_held_against_rivals_at_the_pace_that_it_stands_for(setup, make_trial):
    asked = {"fault": "slow", "rivals": ((0.001, 2.0),)}
    own = run_trial(setup, make_trial(1, iterations=64_000, **asked))
    assert own.status is TrialStatus.STOPPED
    asked |= {"accuracy_only": True, "pace_s": 1e-7}
    faster = run_trial(setup, make_trial(2, iterations=2_000, **asked))
    assert faster.status is TrialStatus.COMPLETE, faster.reason


def test_a_share_of_the_iterations_is_projected(setup, make_trial):
    whole = run_trial(setup, make_trial(1))
    part = run_trial(setup, make_trial(2, share=0.1))
    assert part.iterations == 100
    assert part.measurement.train_time_s == pytest.approx(whole.measurement.train_time_s, rel=0.01)


def test_cancelling_ends_the_worker_at_once(setup, make_trial):
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    result = run_trial(setup, make_trial(fault="hang"), cancel=cancel)
    assert result.status is TrialStatus.INTERRUPTED


def test_a_warm_session_trains_many_trials_in_one_process(setup, make_trial):
    with WorkerSession(setup, make_trial().params) as session:
        first = session.run(make_trial(1))
        pid = session._process.pid
        second = session.run(make_trial(2, learning_rate=0.02))
        assert session._process.pid == pid
    assert first.usable
    assert second.val_accuracy > first.val_accuracy


def test_a_warm_session_survives_a_crash_of_its_worker(setup, make_trial):
    with WorkerSession(setup, make_trial().params) as session:
        assert session.run(make_trial(1, fault="segfault")).status is TrialStatus.CRASHED
        assert session.run(make_trial(2)).status is TrialStatus.COMPLETE


def test_a_worker_has_a_folder_for_compiled_code_until_it_ends(setup, make_trial):
    setup.framework.runtime.cache = True

    def first_free():
        with setup.runtime.own_cache() as (folder,):
            return folder.name

    with WorkerSession(setup, make_trial().params) as session:
        assert session.run(make_trial(1)).status is TrialStatus.COMPLETE
        assert first_free() == "1"
        assert session.run(make_trial(2, fault="segfault")).status is TrialStatus.CRASHED
        assert first_free() == "0"
        assert session.run(make_trial(3)).status is TrialStatus.COMPLETE
        assert first_free() == "1"
    assert first_free() == "0"


def test_a_warm_worker_is_watched_before_it_begins(setup, make_trial, monkeypatch):
    start = ResourceMonitor.start

    def start_late(monitor):
        time.sleep(0.3)  # a busy machine may take that long, and the worker less
        start(monitor)

    monkeypatch.setattr(ResourceMonitor, "start", start_late)
    with WorkerSession(setup, make_trial().params) as session:
        results = [session.run(make_trial(number, fault="slow")) for number in (1, 2)]
    assert [each.status for each in results] == [TrialStatus.COMPLETE] * 2


@pytest.mark.slow
def test_memory_of_one_trial_is_not_charged_to_the_next(setup, make_trial):
    with WorkerSession(setup, make_trial().params) as session:
        hungry = session.run(make_trial(1, fault="allocate"))
        modest = session.run(make_trial(2))
    assert hungry.measurement.peak_memory_bytes > 200 * 2**20
    assert modest.measurement.peak_memory_bytes < 100 * 2**20


def test_a_session_refuses_another_environment(setup, make_trial):
    with (
        WorkerSession(setup, make_trial(threads=1).params) as session,
        pytest.raises(ConfigError, match="another runtime environment"),
    ):
        session.run(make_trial(threads=2))


def test_the_worker_sees_nothing_of_our_environment(setup, make_trial, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "13")
    monkeypatch.setenv("LD_PRELOAD", "")
    session = WorkerSession(setup, make_trial().params)
    environment = session._whole_environment(setup.folder)
    assert "OMP_NUM_THREADS" not in environment
    assert not {"LD_PRELOAD", "VIRTUAL_ENV"} & set(environment)
    threads = WorkerSession(setup, make_trial(threads=2).params)._whole_environment(setup.folder)
    assert threads["OMP_NUM_THREADS"] == "2"


def test_a_trial_keeps_to_its_cores(setup, make_trial):
    one = dataclasses.replace(setup, cores=setup.cores[:1])
    assert f"cores {[*one.cores]}" in run_trial(one, make_trial(fault="cores")).log_tail
    assert os.sched_getaffinity(0) >= set(setup.cores)
