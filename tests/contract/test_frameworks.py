"""What every framework must do, run over the folder listing: a new one adds no line here."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess

import pytest

from tuner.config import MeasureConfig
from tuner.datasets import load_dataset
from tuner.errors import RuntimeUnavailable
from tuner.measure import cpu_flags, parse_cores
from tuner.registry import (
    find_setting_file,
    framework_folder,
    list_frameworks,
    load_dataset_config,
    load_framework,
    tuner_home,
)
from tuner.runner import WORKER_API, TrialSetup, WorkerSession, run_trial
from tuner.runtimes import ensure_installed, find_runtime
from tuner.space import SearchSpace
from tuner.trial import Trial, TrialStatus

pytestmark = [pytest.mark.runtime, pytest.mark.slow, pytest.mark.timeout(900)]
FRAMEWORKS = list_frameworks()
BLAS = [(name, blas) for name in FRAMEWORKS for blas in load_framework(name).blas]
CORES = parse_cores("")


@pytest.fixture(scope="session")
def make_setup(tmp_path_factory):
    """The setup of a framework, its runtime installed where it can be."""
    made = {}

    def make(name: str) -> TrialSetup:
        if name not in made:
            framework = load_framework(name)
            runtime = find_runtime(framework)
            try:
                ensure_installed(runtime)
            except RuntimeUnavailable as error:
                pytest.skip(str(error))
            made[name] = TrialSetup(
                framework=framework,
                runtime=runtime,
                dataset=load_dataset(load_dataset_config("mnist_5k"), tuner_home()),
                model="lenet",
                worker=framework_folder(name) / framework.worker,
                folder=tmp_path_factory.mktemp(name),
                marker=f"contract-{os.getpid()}",
                cores=CORES,
                memory_limit_bytes=4 * 2**30,
                measure=MeasureConfig(max_foreign_pct=100, max_steal_pct=100),
            )
        return made[name]

    return make


def _space(name: str) -> SearchSpace:
    path = find_setting_file("search_spaces", name)
    return SearchSpace.load(path, cores=len(CORES), cpu_flags=cpu_flags())


def _trial(name: str, number: int = 1, **values: object) -> Trial:
    """LeNet as the framework ships it, with one thread, for a hundred iterations."""
    params = {**_space(name).default("mnist", "lenet").params, "iterations": 100, "threads": 1}
    fields = {each.name for each in dataclasses.fields(Trial)}
    given = {key: value for key, value in values.items() if key in fields}
    params |= {key: value for key, value in values.items() if key not in fields}
    return Trial(number, params, **{"time_limit_s": 300.0, **given})


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_it_trains_lenet(make_setup, name):
    result = run_trial(make_setup(name), _trial(name, test=True))
    assert result.status is TrialStatus.COMPLETE, (result.reason, result.log_tail)
    assert 0.75 < result.val_accuracy < 0.97
    assert abs(result.test_accuracy - result.val_accuracy) < 0.08
    assert result.checkpoints[-1].iteration == 100
    assert result.checkpoints[-1].loss < 1.2
    measured = result.measurement
    assert 0 < measured.train_time_s < measured.wall_time_s
    assert measured.setup_time_s > 0
    assert measured.test_time_s > 0
    assert measured.avg_memory_bytes <= measured.peak_memory_bytes


@pytest.mark.parametrize(("name", "blas"), BLAS)
def test_every_blas_is_really_used(make_setup, name, blas):
    for number, threads in enumerate(_space(name).params["threads"].values({"blas": blas})):
        trial = _trial(name, number, blas=blas, threads=threads, iterations=6)
        result = run_trial(make_setup(name), trial)
        assert result.status is TrialStatus.COMPLETE, (threads, result.reason, result.log_tail)
        assert result.measurement.blas_loaded == blas
        if isinstance(threads, int):
            assert 1 <= result.measurement.threads_seen <= threads


@pytest.mark.parametrize(("name", "blas"), BLAS)
def test_every_kernel_is_really_used(make_setup, name, blas):
    kernels = _space(name).params["blas_kernel"].values({"blas": blas})
    for number, kernel in enumerate(kernels):
        trial = _trial(name, number, blas=blas, blas_kernel=kernel, iterations=4)
        result = run_trial(make_setup(name), trial)
        assert result.status is TrialStatus.COMPLETE, (kernel, result.reason, result.log_tail)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_seed_decides_the_weights(make_setup, name):
    setup = make_setup(name)
    with WorkerSession(setup, _trial(name).params) as session:
        runs = [
            session.run(_trial(name, number, iterations=30, seed=seed))
            for number, seed in enumerate((1, 1, 2))
        ]
    losses = [run.checkpoints[-1].loss for run in runs]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_warm_session_is_one_process_and_as_good_as_cold(make_setup, name):
    setup = make_setup(name)
    cold = run_trial(setup, _trial(name, 1))
    with WorkerSession(setup, _trial(name).params) as session:
        session.run(_trial(name, 2, iterations=20))
        warm = session.run(_trial(name, 3))
    assert warm.val_accuracy == cold.val_accuracy
    assert warm.measurement.setup_time_s < cold.measurement.setup_time_s


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_divergence_is_named(make_setup, name):
    setup = make_setup(name)
    for number, rate in enumerate((0.3, 30.0)):
        trial = _trial(name, number, learning_rate=rate, batch_size=16, iterations=400)
        result = run_trial(setup, trial)
        assert result.status is TrialStatus.DIVERGED, (rate, result.status, result.reason)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_stop_leaves_a_valid_result(make_setup, name):
    trial = _trial(name, iterations=500, train_time_limit_s=1.5)
    result = run_trial(make_setup(name), trial)
    assert result.status is TrialStatus.STOPPED, result.reason
    assert 0 < result.iterations < 500
    assert result.val_accuracy > 0.3
    assert 1.5 < result.measurement.train_time_s < 5


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_batch_larger_than_the_data_is_impossible(make_setup, name):
    result = run_trial(make_setup(name), _trial(name, batch_size=100_000))
    assert result.status in (TrialStatus.IMPOSSIBLE, TrialStatus.OUT_OF_MEMORY), result.reason


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_memory_cap_holds(make_setup, name):
    capped = dataclasses.replace(make_setup(name), memory_limit_bytes=100 * 2**20)
    result = run_trial(capped, _trial(name, batch_size=1000))
    assert result.status is TrialStatus.OUT_OF_MEMORY


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_cpu_and_memory_agree_with_gnu_time(make_setup, name, tmp_path):
    """The same worker run by hand, while this process holds a gigabyte."""
    if shutil.which("/usr/bin/time") is None:
        pytest.skip("GNU time is not installed (apt-get install time)")
    setup = make_setup(name)
    ballast = bytearray(b"x" * 2**30)
    trial = _trial(name, iterations=400)
    ours = run_trial(setup, trial).measurement
    folder = setup.folder / trial.name
    (folder / "events.jsonl").unlink()
    readable = [setup.worker.parent, WORKER_API, setup.dataset.folder]
    command = setup.runtime.command(setup.worker, readable=readable, writable=[folder])
    # in a process namespace of its own a worker's usage is lost to whoever waits for bwrap
    command = [word for word in command if word not in ("--unshare-all", "--unshare-pid")]
    # a process holding a gigabyte would lend its peak to what it forks: a small one starts time
    report = tmp_path / "time.txt"
    subprocess.run(
        ["/bin/sh", "-c", 'exec "$@"', "sh", "/usr/bin/time", "-v", "-o", str(report), *command],
        input=f"{folder}\n",
        text=True,
        cwd=folder,
        env=WorkerSession(setup, trial.params)._whole_environment(),
        check=True,
    )
    assert len(ballast) == 2**30
    figures = dict(
        line.strip().rsplit(": ", 1) for line in report.read_text().splitlines() if ": " in line
    )
    theirs = float(figures["User time (seconds)"]) + float(figures["System time (seconds)"])
    peak = int(figures["Maximum resident set size (kbytes)"]) * 1024
    assert ours.cpu_user_s + ours.cpu_system_s == pytest.approx(theirs, rel=0.1)
    assert ours.peak_memory_bytes == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_worker_is_small_and_imports_nothing_of_the_host(name):
    source = (framework_folder(name) / load_framework(name).worker).read_text()
    assert len(source.splitlines()) <= 130
    assert "import tuner" not in source
    assert "from tuner" not in source
