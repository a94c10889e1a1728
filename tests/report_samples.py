"""Finished studies to report on: real values with the numbers of Caffe's LeNet on MNIST."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tuner.values.params import UNSET, ParamValue
from tuner.values.pareto import find_objective
from tuner.values.results import StudyResult
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.trial import (
    Checkpoint,
    Interval,
    Measurement,
    Trial,
    TrialKind,
    TrialResult,
    TrialStatus,
)
from tuner.values.verified import Comparison, Role, Verified

HOSTILE = "<script>alert('x')</script>\"'&$^{[red]"
MIB = 2**20
DEFAULT_PARAMS: Mapping[str, ParamValue] = {
    "batch_size": 64,
    "iterations": 10_000,
    "learning_rate": 0.01,
    "blas": "openblas-pthread",
    "threads": UNSET,
    "blas_kernel": UNSET,
}


def make_params(**changes: ParamValue) -> dict[str, ParamValue]:
    """The default's params with some changed."""
    return {**DEFAULT_PARAMS, **changes}


def make_measurement(train_time_s: float, **changes: Any) -> Measurement:
    """A measurement that fits its training time."""
    plain = Measurement(
        setup_time_s=1.2,
        train_time_s=train_time_s,
        test_time_s=0.8,
        wall_time_s=train_time_s + 2.4,
        cpu_user_s=1.6 * train_time_s,
        cpu_system_s=0.1 * train_time_s,
        cpu_iowait_s=0.01 * train_time_s,
        cpu_user_pct=80.0,
        cpu_system_pct=5.0,
        cpu_iowait_pct=0.5,
        avg_memory_bytes=210 * MIB,
        peak_memory_bytes=264 * MIB,
        foreign_cpu_pct=1.0,
        threads_seen=2,
        blas_loaded="/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3",
    )
    return dataclasses.replace(plain, **changes)


def make_result(
    number: int,
    accuracy: float,
    train_time_s: float,
    *,
    test: float | None = None,
    **params: ParamValue,
) -> TrialResult:
    """A complete trial with a learning curve; trial 0 is the default."""
    asked = make_params(**params)
    kind = TrialKind.SEARCH if number else TrialKind.DEFAULT
    iterations = int(asked["iterations"] or 0)
    curve = tuple(
        Checkpoint(
            iteration=int(iterations * share),
            train_time_s=train_time_s * share,
            loss=0.3 * (1 - share) + 0.01,
            val_accuracy=accuracy - 0.06 * (1 - share) ** 2,
        )
        for share in (0.1, 0.25, 0.5, 0.75, 1.0)
    )
    return TrialResult(
        trial=Trial(number, asked, kind),
        status=TrialStatus.COMPLETE,
        iterations=iterations,
        val_accuracy=accuracy,
        test_accuracy=test,
        checkpoints=curve,
        measurement=make_measurement(train_time_s),
        versions={"caffe": "1.0.0", "python": "3.9.2"},
    )


def make_failed(number: int, status: TrialStatus, reason: str, log: str = "") -> TrialResult:
    """A trial that gave no usable figures."""
    return TrialResult(Trial(number, make_params(learning_rate=0.3)), status, reason, log_tail=log)


def make_search() -> list[TrialResult]:
    """Search trials from 8 s at 97.5 % to 60 s at 99.0 %, and duller ones between."""
    rows: list[tuple[int, float, float, int, int, float, str, ParamValue]] = [
        (1, 0.9750, 8.1, 64, 420, 0.02, "mkl", 2),
        (2, 0.9660, 15.0, 32, 900, 0.005, "blis", 2),
        (3, 0.9822, 13.9, 64, 730, 0.015, "mkl", 2),
        (4, 0.9861, 21.3, 64, 1_150, 0.012, "mkl", 2),
        (5, 0.9420, 44.0, 16, 2_000, 0.001, "reference", 1),
        (6, 0.9874, 28.8, 128, 900, 0.02, "openblas-pthread", 1),
        (7, 0.9850, 61.0, 256, 600, 0.01, "atlas", UNSET),
        (8, 0.9902, 58.1, 64, 3_100, 0.01, "mkl", 2),
        (9, 0.9888, 40.5, 64, 2_200, 0.011, "openblas-openmp", 1),
        (10, 0.9871, 95.0, 64, 4_000, 0.006, "blis", UNSET),
        (11, 0.9893, 72.0, 32, 4_500, 0.008, "openblas-pthread", 2),
        (12, 0.1135, 30.0, 64, 1_500, 0.09, "mkl", 2),
    ]
    return [
        make_result(
            number, accuracy, seconds, batch_size=batch, iterations=iterations,
            learning_rate=rate, blas=blas, threads=threads,
        )
        for number, accuracy, seconds, batch, iterations, rate, blas, threads in rows
    ]  # fmt: skip


def make_trials() -> tuple[TrialResult, ...]:
    """The default, the search, and one trial of each other fate."""
    disturbed = make_measurement(33.0, foreign_cpu_pct=41.0, disturbed="others used 41 %")
    search = make_search()
    search[3] = dataclasses.replace(search[3], discarded=(disturbed,))
    stopped = make_result(13, 0.962, 9.0, blas="atlas", threads=1)
    stopped = dataclasses.replace(
        stopped, status=TrialStatus.STOPPED, iterations=2_000, reason="cannot reach the front"
    )
    marked = make_result(14, 0.984, 26.0, blas="blis", threads=2, batch_size=128)
    marked = dataclasses.replace(marked, measurement=disturbed)
    return (
        make_result(0, 0.9908, 190.2),
        *search,
        stopped,
        marked,
        make_failed(15, TrialStatus.DIVERGED, "loss is not finite at iteration 40"),
        make_failed(16, TrialStatus.CRASHED, f"exit 134 {HOSTILE}", f"Aborted\n{HOSTILE}\n"),
        make_failed(17, TrialStatus.INVALID, "asked for mkl, but openblas-pthread was loaded"),
    )


def make_verified(
    number: int,
    accuracy: float,
    train_time_s: float,
    params: Mapping[str, ParamValue],
    versus: Comparison | None,
    role: Role = Role.DEFAULT,
) -> Verified:
    """One verified configuration; without a comparison it is the default."""
    return Verified(
        name=f"trial {number}" if number else "default",
        trial_number=number,
        params=params,
        full_runs=1 if number == 0 else 3,
        rate_runs=2 if number == 0 else 0,
        rate_share=0.1 if number == 0 else 1.0,
        projected=False,
        test_accuracy=Interval(accuracy, accuracy - 0.0019, accuracy + 0.0017),
        train_time_s=Interval(train_time_s, train_time_s * 0.985, train_time_s * 1.02),
        test_time_s=0.8,
        cpu_user_s=1.61 * train_time_s,
        cpu_system_s=0.12 * train_time_s,
        avg_memory_bytes=210.4 * MIB,
        peak_memory_bytes=264.2 * MIB,
        runs=tuple(f"verify-{index:04d}" for index in range(number, number + 3)),
        against_default=versus,
        role=role,
    )


def make_verified_points(trials: tuple[TrialResult, ...]) -> tuple[Verified, ...]:
    """The default and three finalists: faster and less accurate, and faster and no worse."""
    roles = {4: Role.TRADE_OFF, 9: Role.NO_LOSS, 8: Role.NO_LOSS}
    by_number = {each.trial.number: each.params for each in trials}
    rows = [
        (4, 0.9858, 21.4, Interval(8.9, 8.7, 9.1), Interval(-0.0052, -0.0078, -0.0026)),
        (9, 0.9886, 40.6, Interval(4.68, 4.6, 4.76), Interval(-0.0024, -0.0048, 0.0001)),
        (8, 0.9905, 58.3, Interval(3.26, 3.2, 3.32), Interval(-0.0005, -0.0019, 0.0019)),
    ]
    finalists = [
        make_verified(
            number, accuracy, seconds, by_number[number],
            Comparison(
                speedup, 1e-6, gain, 0.001 if gain.high < 0 else 0.4, gain.low > -0.002,
                loss_ruled_out=-gain.low,
            ),
            roles[number],
        )
        for number, accuracy, seconds, speedup, gain in rows
    ]  # fmt: skip
    return (make_verified(0, 0.9910, 190.2, DEFAULT_PARAMS, None), *finalists)


def make_study(**changes: Any) -> StudyResult:
    """A complete, verified study of Caffe on MNIST."""
    trials = make_trials()
    study = StudyResult(
        study_id="3f9a1c20",
        framework="caffe",
        title="Caffe 1.0",
        dataset="mnist",
        dataset_facts={
            "images": "55,000 train, 5,000 validation, 10,000 test",
            "image": "28 x 28 x 1, 10 classes",
            "source": "cache",
            "digest": "8d1f0c5b",
        },
        model="lenet",
        objectives=(find_objective("accuracy"), find_objective("train_time_s")),
        constraints=("peak_memory_mb<=2048",),
        trials=trials,
        verifications=(
            dataclasses.replace(
                make_result(1, 0.9905, 58.2, test=0.9906, blas="mkl", threads=2),
                trial=Trial(1, make_params(blas="mkl", threads=2), TrialKind.VERIFY, seed=101),
            ),
        ),
        verified=make_verified_points(trials),
        machine={"cpu": "AMD EPYC 7B13", "cores": "2 of 2", "memory": "7.7 GiB"},
        runtime={"python3-caffe": "1.0.0+git20180821.99bd997-8", "libopenblas0-pthread": "0.3.13"},
        started="2026-11-21T09:14:00+00:00",
        elapsed_s=1710.0,
        budget={"name": "default", "time": "1,800 s", "trials": "no limit"},
        command="python -m tuner framework=caffe dataset=mnist",
    )
    return dataclasses.replace(study, **changes)


def with_recorded_default(study: StudyResult) -> StudyResult:
    """The study with its default's accuracy from a reference, its time from its own rate."""
    default, *others = study.verified
    trial_0 = study.trials[0]
    source = "reference of 5 seeds"
    rate = {"projected": True, "full_runs": 0, "rate_runs": 4, "rate_share": 0.03}
    return dataclasses.replace(
        study,
        verified=(dataclasses.replace(default, accuracy_from=source, **rate), *others),
        trials=(
            dataclasses.replace(
                trial_0,
                trial=dataclasses.replace(trial_0.trial, share=0.1),
                accuracy_from=source,
            ),
            *study.trials[1:],
        ),
        reference=(
            "The default's accuracy is that of a reference of 5 seeds, as the first part of its "
            "training here matched the recording. Its time comes from its rate on this machine."
        ),
    )


def make_part() -> StudyResult:
    """A study that knows only the first tenth of its default."""
    part = "the first 1,000 of 10,000 iterations"
    default = dataclasses.replace(make_result(0, 0.9790, 19.0, iterations=1000), reason=part)
    trials = (default, *make_trials()[1:])
    rows = [
        (1, 0.9752, 8.1, Interval(2.35, 2.3, 2.4), Interval(-0.0038, -0.006, -0.0016)),
        (3, 0.9823, 13.9, Interval(1.37, 1.35, 1.39), Interval(0.0033, 0.001, 0.0056)),
        (9, 0.9886, 40.6, Interval(0.47, 0.46, 0.48), Interval(0.0096, 0.007, 0.012)),
    ]
    verified = [
        make_verified(
            number, accuracy, seconds, trials[number].params,
            Comparison(speedup, 1e-6, gain, 0.001, False), Role.NO_LOSS,
        )
        for number, accuracy, seconds, speedup, gain in rows
    ]  # fmt: skip
    params = make_params(iterations=1000)
    return make_study(
        trials=trials,
        verified=(make_verified(0, 0.9790, 19.0, params, None), *verified),
        default_part=part,
        warnings=(f"everything is compared with {part} of the default",),
    )


def make_part_at_a_faster_setting() -> StudyResult:
    """A study that knows only the first tenth of its default, and a setting that is faster."""
    study = make_part()
    comparison = Comparison(Interval(1.8, 1.7, 1.9), 1e-6, Interval(0, 0, 0), 1.0, True)
    params = make_params(iterations=1000, blas="mkl", threads=1)
    runtime = make_verified(2, 0.9790, 10.6, params, comparison, Role.RUNTIME_ONLY)
    runtime = dataclasses.replace(runtime, name="runtime only")
    return dataclasses.replace(study, verified=(*study.verified, runtime))


def make_factored() -> StudyResult:
    """A study whose runtime settings were raced, one of its finalists being a derived point."""
    study = make_study()
    fast = {"blas": "mkl", "threads": 1, "blas_kernel": "auto"}
    slow = {"blas": "atlas", "threads": 1, "blas_kernel": "auto"}
    runtimes = RuntimeMap(
        [
            *(PaceProbe(fast, batch, 3e-4 * batch) for batch in (16, 64, 512)),
            PaceProbe(slow, 64, 0.05),
        ]
    )
    runtimes.faults.append(({**slow, "threads": 2}, "INVALID: 1 thread was seen"))
    origin = study.trials[2]
    derived = tuple(
        dataclasses.replace(
            origin,
            trial=origin.trial.derive(
                index + 1, {**origin.params, "iterations": 300 * (index + 1)}
            ),
            iterations=300 * (index + 1),
            val_accuracy=0.97 + 0.005 * index,
            measurement=make_measurement(4.0 * (index + 1)),
        )
        for index in range(3)
    )
    default, first, *others = study.verified
    composed = dataclasses.replace(
        first, name=derived[0].trial.title, trial_number=derived[0].trial.number,
        composed=(first.train_time_s.value / 2, 0.97),
    )  # fmt: skip
    return dataclasses.replace(
        study, derived=derived, runtimes=runtimes, verified=(default, composed, *others)
    )


def make_answered() -> StudyResult:
    """A study that proves all three answers, against a default of recorded accuracy."""
    study = with_recorded_default(make_study())
    default, fast, *others = study.verified
    far = dataclasses.replace(
        fast, name="trial 2 at 1,061", trial_number=2, test_accuracy=Interval(0.9715, 0.97, 0.973),
        train_time_s=Interval(5.4, 5.3, 5.5),
        against_default=Comparison(
            Interval(35.2, 34.6, 35.9), 1e-9, Interval(-0.0195, -0.021, -0.018), 1e-6, False
        ),
    )  # fmt: skip
    runtime = make_verified(
        18, 0.9910, 111.9, make_params(blas="mkl", threads=2),
        Comparison(Interval(1.7, 1.67, 1.73), 1e-6, Interval(0.0, -0.001, 0.001), 1.0, True),
        Role.RUNTIME_ONLY,
    )  # fmt: skip
    runtime = dataclasses.replace(
        runtime, name="runtime only", projected=True, full_runs=0, rate_runs=4, rate_share=0.03,
        accuracy_from="the default's (reference of 5 seeds); only its rate was measured",
    )  # fmt: skip
    accurate = make_verified(
        11, 0.9931, 139.0, make_params(batch_size=32, learning_rate=0.008, blas="mkl", threads=2),
        Comparison(
            Interval(1.37, 1.35, 1.39), 1e-6, Interval(0.0021, 0.0008, 0.0034), 0.004, True,
        ),
        Role.ACCURACY,
    )  # fmt: skip
    return dataclasses.replace(
        study,
        verified=(default, far, fast, *others, runtime, accurate),
        notes=("The budget was extended by 120 s for the proof of no loss",),
    )


def make_unproven() -> StudyResult:
    """A study in which everything faster loses accuracy, or may."""
    study = make_study()
    return dataclasses.replace(study, verified=study.verified[:3])


def make_grouped() -> StudyResult:
    """A study that raced one process of one and two threads, and a group of two processes."""
    found = RuntimeMap()
    for workers, threads in ((1, 1), (1, 2), (2, 1)):
        setting = {"blas": "mkl", "workers": workers, "threads": threads}
        for batch in (16, 64, 512):
            images = batch / workers
            found.add(
                PaceProbe(
                    setting,
                    batch,
                    1e-3 + 2e-4 * images / threads**0.7 + (2e-3 if workers > 1 else 0.0),
                    sent_bytes=3.5e6 if workers > 1 else 0.0,
                )
            )
    return make_study(runtimes=found)
