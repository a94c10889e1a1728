"""What every framework must do, run over the folder listing: a new one adds no line here."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import time

import numpy as np
import pytest

from tests.conftest import chosen_frameworks
from tuner.config.catalogue import (
    find_setting_file,
    load_dataset_config,
    load_framework,
    tuner_home,
    worker_script,
)
from tuner.config.schema import MeasureConfig
from tuner.datasets.images import encode_idx
from tuner.datasets.provide import Dataset, load_dataset
from tuner.measure import cpu_flags, parse_cores
from tuner.runtimes import ensure_installed, find_runtime
from tuner.trials.session import TrialSetup, WorkerSession, run_trial
from tuner.values.errors import RuntimeUnavailable
from tuner.values.params import AVERAGE_WEIGHTS
from tuner.values.ranges import Choices
from tuner.values.space import SearchSpace
from tuner.values.trial import Trial, TrialKind, TrialResult, TrialStatus

pytestmark = [pytest.mark.runtime, pytest.mark.slow, pytest.mark.timeout(900)]
CORES = parse_cores("")
PATH = os.environ.get("TUNER_FRAMEWORK_PATH")
"""A user's own tree, whose frameworks are tested like those of the project."""
LENET_AFTER_100 = 0.93
"""Validation accuracy of Caffe's LeNet after 100 iterations at batch 64 on 5,000 images. Workers
start from the same weights, so only rounding parts them; Caffe draws its own."""
LENET_BAND = 0.02
FIRST_LOSSES = {"alexnet": None, "vgg": 1.9426, "resnet50": 2.1450}
"""Loss of the first batch of the shared networks on the made-up images in colour. All frameworks
begin with the same weights and images; that of AlexNet depends on what is dropped out."""
PERPLEXITIES = [53.94, 45.29, 28.14]
"""Of the shared language model on the made-up text of 50 words, after 5, 10 and 20 iterations."""
COMMON = (
    "batch_size", "iterations", "learning_rate", "blas", "threads", "blas_kernel", "workers",
    "exchange",
)  # fmt: skip
SENT = {
    "fp16": (0.4, 0.6), "powersgd": (0.001, 0.4), "2bit": (0.4, 0.7), "async": (0.7, 1.5),
    "1bit": (0.05, 0.1),
}  # fmt: skip
"""Bytes that a lossy exchange sends, over those of the exact one: half of each value, or two bits
of it on the way to the server and all on the way back, or one bit and two thresholds a column.
PowerSGD sends its first two iterations whole, which a busy host may begin to count too late."""


def pytest_generate_tests(metafunc):
    """Every framework of the folder listing that ``--frameworks`` selects."""
    names = chosen_frameworks(metafunc.config, PATH)
    if "blas" in metafunc.fixturenames:
        pairs = [(name, blas) for name in names for blas in load_framework(name, PATH).blas]
        metafunc.parametrize(("name", "blas"), pairs)
    elif "knob" in metafunc.fixturenames:
        knobs = [(name, knob) for name in names for knob in _space(name).params]
        metafunc.parametrize(("name", "knob"), [each for each in knobs if each[1] not in COMMON])
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names)


@pytest.fixture(scope="session")
def make_setup(tmp_path_factory):
    """The setup of a framework, its runtime installed where it can be."""
    made = {}

    def make(name: str) -> TrialSetup:
        if name not in made:
            framework = load_framework(name, PATH)
            runtime = find_runtime(framework)
            try:
                ensure_installed(runtime)
            except RuntimeUnavailable as error:
                pytest.skip(str(error))
            made[name] = TrialSetup(
                framework=framework,
                runtime=runtime,
                dataset=load_dataset(load_dataset_config("mnist_5k"), tuner_home()),
                model=_model(name),
                worker=worker_script(framework, PATH),
                folder=tmp_path_factory.mktemp(name),
                marker=f"contract-{os.getpid()}",
                cores=CORES,
                memory_limit_bytes=4 * 2**30,
                measure=MeasureConfig(max_foreign_pct=100, max_steal_pct=100),
            )
        return made[name]

    return make


def _space(name: str) -> SearchSpace:
    path = find_setting_file("search_spaces", name, PATH)
    return SearchSpace.load(path, cores=len(CORES), cpu_flags=cpu_flags())


def _model(name: str) -> str:
    """LeNet, or the framework's own network where it has no LeNet."""
    return "lenet" if "lenet" in {each.model for each in _space(name).defaults} else "default"


def _trial(name: str, number: int = 1, **values: object) -> Trial:
    """LeNet as the framework ships it, with one thread, for a hundred iterations."""
    default = _space(name).default("mnist", _model(name))
    params = {**default.params, "iterations": 100, "threads": 1}
    fields = {each.name for each in dataclasses.fields(Trial)}
    given = {key: value for key, value in values.items() if key in fields}
    params |= {key: value for key, value in values.items() if key not in fields}
    return Trial(number, params, **{"time_limit_s": 300.0, **given})


def test_it_trains_lenet(make_setup, name):
    if _model(name) != "lenet":
        pytest.skip(f"{name} has no default for model=lenet")
    result = run_trial(make_setup(name), _trial(name, test=True))
    assert result.status is TrialStatus.COMPLETE, (result.reason, result.log_tail)
    assert result.val_accuracy == pytest.approx(LENET_AFTER_100, abs=LENET_BAND)
    assert abs(result.test_accuracy - result.val_accuracy) < 0.08
    assert result.checkpoints[-1].iteration == 100
    assert result.checkpoints[-1].loss < 1.2
    measured = result.measurement
    assert 0 < measured.train_time_s < measured.wall_time_s
    assert measured.setup_time_s > 0
    assert measured.test_time_s > 0
    assert measured.avg_memory_bytes <= measured.peak_memory_bytes


def test_every_blas_is_really_used(make_setup, name, blas):
    for number, threads in enumerate(_space(name).params["threads"].values({"blas": blas})):
        asked = {"blas": blas, "threads": threads, "batch_size": 8, "iterations": 5}
        trial = _trial(name, number, kind=TrialKind.PROBE, **asked)
        # what one worker leaves in its home, the next one in it meets
        with WorkerSession(make_setup(name), trial.params) as session:
            result = session.run(trial)
        assert result.status is TrialStatus.COMPLETE, (threads, result.reason, result.log_tail)
        # of an own build nobody knows which files its BLAS is in
        own = make_setup(name).framework.runtime.kind == "system"
        assert result.measurement.blas_loaded in ({blas, ""} if own else {blas})
        extra = make_setup(name).framework.extra_threads
        if isinstance(threads, int) and extra >= 0:
            assert 1 <= result.measurement.threads_seen <= threads + extra


def test_every_kernel_is_really_used(make_setup, name, blas):
    param = _space(name).params.get("blas_kernel")
    for number, kernel in enumerate(param.values({"blas": blas}) if param else ()):
        trial = _trial(name, number, blas=blas, blas_kernel=kernel, iterations=4)
        result = run_trial(make_setup(name), trial)
        assert result.status is TrialStatus.COMPLETE, (kernel, result.reason, result.log_tail)


def test_every_other_knob_is_really_used(make_setup, name, knob):
    param, default = _space(name).params[knob], _trial(name).params
    for number, value in enumerate(param.values(default) if isinstance(param, Choices) else ()):
        result = run_trial(make_setup(name), _trial(name, number, iterations=6, **{knob: value}))
        assert result.status is TrialStatus.COMPLETE, (value, result.reason, result.log_tail)


@pytest.fixture(scope="session")
def as_shipped(make_setup):
    """What a framework learns with the runtime setting of its default."""

    @functools.cache
    def train(name: str) -> TrialResult:
        return run_trial(make_setup(name), _trial(name, iterations=60))

    return train


def test_accuracy_does_not_depend_on_the_runtime_setting(make_setup, as_shipped, name, blas):
    """References rest on this: a seed learns the same whatever computes it, but for rounding."""
    other = _space(name).completed({**_trial(name).params, "blas": blas, "threads": 1})
    result = run_trial(make_setup(name), _trial(name, 2, **{**other, "iterations": 60}))
    assert {as_shipped(name).status, result.status} == {TrialStatus.COMPLETE}
    assert result.val_accuracy == pytest.approx(as_shipped(name).val_accuracy, abs=0.02)


def test_a_group_learns_what_one_process_learns(make_setup, name):
    if "workers" not in _space(name).params:
        pytest.skip(f"{name} has no param workers")
    # a batch that cannot be divided evenly shows whether the parts are weighted
    asked = {"batch_size": 63, "iterations": 60}
    setup = make_setup(name)
    alone = run_trial(setup, _trial(name, 1, **asked))
    trials = [_trial(name, number, workers=2, **asked) for number in (2, 3)]
    with WorkerSession(setup, trials[0].params) as session:
        first, group = map(session.run, trials)
        assert session.close() is None, "nothing of it is left"
    assert first.val_accuracy == group.val_accuracy
    assert alone.status is TrialStatus.COMPLETE, (alone.reason, alone.log_tail)
    assert group.status is TrialStatus.COMPLETE, (group.reason, group.log_tail)
    assert group.versions["workers"] == "2"
    assert group.measurement.processes_seen >= 2
    assert group.val_accuracy == pytest.approx(alone.val_accuracy, abs=0.005)


def test_every_knob_that_only_a_group_has_is_really_used_and_learns_the_same(make_setup, name):
    space, default, group = _space(name), _trial(name).params, {"batch_size": 63, "workers": 2}
    knobs = {
        knob: param.values(group)
        for knob, param in space.params.items()
        if knob not in COMMON
        and isinstance(param, Choices)
        and len(param.values(group)) > len(param.values(default))
    }
    if not knobs:
        pytest.skip(f"groups of {name} have no knob of their own")
    setup, asked = make_setup(name), {**group, "iterations": 60}
    for knob, (own, *others) in knobs.items():
        alike = run_trial(setup, _trial(name, 1, **asked))
        assert alike.status is TrialStatus.COMPLETE, (alike.reason, alike.log_tail)
        assert alike.versions[knob] == str(own)
        for number, value in enumerate(others, 2):
            result = run_trial(setup, _trial(name, number, **asked, **{knob: value}))
            assert result.status is TrialStatus.COMPLETE, (value, result.reason, result.log_tail)
            assert result.versions[knob] == str(value)
            assert result.val_accuracy == pytest.approx(alike.val_accuracy, abs=0.005)


def test_every_lossy_exchange_is_really_used_and_learns(make_setup, name):
    exchange = _space(name).params.get("exchange")
    if exchange is None:
        pytest.skip(f"{name} has no param exchange")
    setup, group = make_setup(name), {"batch_size": 63, "workers": 2}
    exact, *lossy = exchange.values(group)
    alike = run_trial(setup, _trial(name, exchange=exact, **group))
    assert alike.versions["exchange"] == exact == "exact"
    for number, value in enumerate(lossy, 2):
        trials = [_trial(name, 10 * number + each, exchange=value, **group) for each in (0, 1)]
        with WorkerSession(setup, trials[0].params) as session:
            first, result = map(session.run, trials)
            assert session.close() is None, "nothing of it is left"
        for each in (first, result):
            assert each.status is TrialStatus.COMPLETE, (value, each.reason, each.log_tail)
            assert each.versions["exchange"] == value
            assert each.val_accuracy == pytest.approx(alike.val_accuracy, abs=0.1)
        if alike.measurement.sent_bytes:  # without a sandbox nobody counts them
            least, most = SENT[value]
            ratio = result.measurement.sent_bytes / alike.measurement.sent_bytes
            assert least < ratio < most, value


def test_its_own_default_trains(make_setup, name):
    setup = dataclasses.replace(make_setup(name), model="default")
    own = _space(name).default("mnist", "default").params
    trial = Trial(0, {**own, "threads": 1}, share=30 / own["iterations"], time_limit_s=300.0)
    result = run_trial(setup, trial)
    assert result.status is TrialStatus.COMPLETE, (result.reason, result.log_tail)
    assert result.iterations == 30


@pytest.fixture(scope="session")
def colours(tmp_path_factory):
    """A user's data set of the shape of CIFAR-10, of seven classes: small, and no photographs."""
    folder = tmp_path_factory.mktemp("colours")
    sizes = {"train": 200, "validation": 50, "test": 50}
    for split, count in sizes.items():
        labels = np.arange(count, dtype=np.uint8) % 7
        images = np.random.default_rng(1).integers(0, 25, (count, 3, 32, 32), np.uint8)
        images += 25 * labels[:, None, None, None]
        (folder / f"{split}-images.idx").write_bytes(encode_idx(images))
        (folder / f"{split}-labels.idx").write_bytes(encode_idx(labels))
    shape = {"height": 32, "width": 32, "channels": 3, "classes": 7}
    facts = dict.fromkeys(("split", "digest", "origin", "source"), "made up")
    return Dataset("flowers", "flowers", folder, sizes=sizes, **shape, **facts)


@pytest.mark.parametrize("model", ["default", "lenet"])
def test_it_trains_on_colour_images_where_it_has_a_default(make_setup, name, model, colours):
    defaults = [each for each in _space(name).defaults if "cifar10" in each.datasets]
    own = next((each.params for each in defaults if each.model == model), None)
    if own is None:
        pytest.skip(f"{name} has no default for cifar10 with model={model}")
    setup = dataclasses.replace(make_setup(name), model=model, dataset=colours)
    trial = Trial(0, {**own, "threads": 1}, share=8 / own["iterations"], time_limit_s=300.0)
    result = run_trial(setup, trial)
    assert result.status is TrialStatus.COMPLETE, (result.reason, result.log_tail)
    assert result.iterations == 8


@pytest.mark.parametrize("model", FIRST_LOSSES)
def test_the_shared_networks_are_the_same_everywhere(make_setup, name, model, colours):
    """And they are judged as they are: nothing is dropped out then, as one accuracy shows."""
    default = next((each for each in _space(name).defaults if each.model == model), None)
    if default is None:
        pytest.skip(f"{name} has no default with model={model}")
    setup = dataclasses.replace(make_setup(name), model=model, dataset=colours)
    # so low a rate leaves the weights as they are
    few = {"batch_size": 16, "iterations": 2, "learning_rate": 1e-9}
    result = run_trial(setup, Trial(1, {**default.params, **few}, time_limit_s=300.0, test=True))
    assert result.status is TrialStatus.COMPLETE, (result.reason, result.log_tail)
    first, last = result.checkpoints
    if FIRST_LOSSES[model]:
        assert first.loss == pytest.approx(FIRST_LOSSES[model], abs=5e-4)
    else:
        assert first.val_accuracy == last.val_accuracy


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """Fifty words that follow each other always in the same order: soon learnt."""
    folder = tmp_path_factory.mktemp("text")
    sizes = {"train": 4000, "validation": 1000, "test": 1000}
    for split, count in sizes.items():
        words = (7 * np.arange(count + 1) % 50).astype(np.int16)
        (folder / f"{split}-images.idx").write_bytes(encode_idx(words[:-1]))
        (folder / f"{split}-labels.idx").write_bytes(encode_idx(words[1:]))
    shape = {"height": 0, "width": 0, "channels": 0, "classes": 50}
    facts = dict.fromkeys(("split", "digest", "origin", "source"), "made up")
    return Dataset("verse", "verse", folder, sizes=sizes, **shape, **facts)


def test_the_language_model_is_the_same_everywhere_and_learns(make_setup, name, text):
    default = next((each for each in _space(name).defaults if each.model == "lstm"), None)
    if default is None:
        pytest.skip(f"{name} has no default with model=lstm")
    setup = dataclasses.replace(make_setup(name), model="lstm", dataset=text)
    params = {**default.params, "threads": 1, "iterations": 40}
    trial = Trial(1, params, TrialKind.REFERENCE, time_limit_s=300.0)
    with WorkerSession(setup, trial.params) as session:
        result, again = session.run(trial), session.run(trial)
    assert result.status is TrialStatus.COMPLETE, (result.reason, result.log_tail)
    *first, last = [text.quality.figure(each.val_accuracy) for each in result.checkpoints]
    assert first == pytest.approx(PERPLEXITIES, rel=0.01)
    assert last < PERPLEXITIES[-1] / 2, "later, rounding parts the frameworks"
    assert again.val_accuracy == pytest.approx(result.val_accuracy, abs=1e-6)


def test_a_seed_decides_the_weights(make_setup, name):
    setup = make_setup(name)
    with WorkerSession(setup, _trial(name).params) as session:
        runs = [
            session.run(_trial(name, number, iterations=30, seed=seed))
            for number, seed in enumerate((1, 1, 2))
        ]
    losses = [run.checkpoints[-1].loss for run in runs]
    assert losses[0] == losses[1] != losses[2]


def test_averaged_weights_are_judged_and_training_goes_on_from_its_own(make_setup, name):
    if AVERAGE_WEIGHTS not in _space(name).params:
        pytest.skip(f"{name} does not average weights")
    setup, asked = make_setup(name), {"iterations": 40, "test": True, "test_at": (10, 20)}
    with WorkerSession(setup, _trial(name).params) as session:
        own, averaged = (
            session.run(_trial(name, number, **asked, **{AVERAGE_WEIGHTS: value}))
            for number, value in enumerate((False, True))
        )
    assert {own.status, averaged.status} == {TrialStatus.COMPLETE}, averaged.log_tail
    looks = [[each.iteration for each in run.checkpoints] for run in (own, averaged)]
    assert looks == [[10, 20, 40]] * 2
    # judging the average changes nothing of what is trained; the first average is the weights
    losses = [[each.loss for each in run.checkpoints] for run in (own, averaged)]
    assert losses[0] == losses[1]
    assert averaged.checkpoints[0].val_accuracy == own.checkpoints[0].val_accuracy
    assert averaged.test_accuracy != own.test_accuracy


def test_a_warm_session_is_one_process_and_as_good_as_cold(make_setup, name):
    setup = make_setup(name)
    cold = run_trial(setup, _trial(name, 1))
    with WorkerSession(setup, _trial(name).params) as session:
        session.run(_trial(name, 2, iterations=20))
        time.sleep(1.0)  # is no part of its set-up
        warm = session.run(_trial(name, 3))
    assert warm.val_accuracy == cold.val_accuracy
    took = warm.measurement
    assert took.setup_time_s + took.train_time_s <= took.wall_time_s
    if cold.measurement.setup_time_s > 1.0:  # else it has hardly anything to import
        assert took.setup_time_s < cold.measurement.setup_time_s


def test_divergence_is_named(make_setup, name):
    setup = make_setup(name)
    for number, rate in enumerate((0.3, 30.0) if _model(name) == "lenet" else (1e6,)):
        trial = _trial(name, number, learning_rate=rate, batch_size=16, iterations=400)
        result = run_trial(setup, trial)
        assert result.status is TrialStatus.DIVERGED, (rate, result.status, result.reason)


def test_a_stop_leaves_a_valid_result(make_setup, name):
    trial = _trial(name, iterations=1_000_000, train_time_limit_s=1.5)
    result = run_trial(make_setup(name), trial)
    assert result.status is TrialStatus.STOPPED, result.reason
    assert 0 < result.iterations < 1_000_000
    # of what was trained by then, however little that is on a busy machine
    assert result.checkpoints[-1].iteration == result.iterations
    assert 0 < result.val_accuracy < 1
    # on a slow or busy machine it is hopeless, and stopped at a quarter of its limit
    assert 1.5 / 4 < result.measurement.train_time_s < 60


def test_a_batch_larger_than_the_data_is_impossible(make_setup, name):
    result = run_trial(make_setup(name), _trial(name, batch_size=100_000))
    assert result.status in (TrialStatus.IMPOSSIBLE, TrialStatus.OUT_OF_MEMORY), result.reason


def test_a_memory_cap_holds(make_setup, name):
    limit_mb = 100 if _model(name) == "lenet" else 20  # less than any interpreter with data needs
    capped = dataclasses.replace(make_setup(name), memory_limit_bytes=limit_mb * 2**20)
    result = run_trial(capped, _trial(name, batch_size=1000, iterations=10_000))
    assert result.status is TrialStatus.OUT_OF_MEMORY


class Timed:
    """A runtime whose workers GNU time starts, so that both look at one and the same run."""

    def __init__(self, runtime, report):
        self.runtime, self.report = runtime, report

    def __getattr__(self, name):
        return getattr(self.runtime, name)

    def command(self, script, **folders):
        # in a process namespace of its own a worker's usage is lost to whoever waits for bwrap
        command = self.runtime.command(script, **folders)
        command = [word for word in command if word not in ("--unshare-all", "--unshare-pid")]
        return ["/usr/bin/time", "-v", "-o", str(self.report), *command]


def test_cpu_and_memory_agree_with_gnu_time(make_setup, name, tmp_path):
    """Of the same run, while this process holds a gigabyte."""
    if shutil.which("/usr/bin/time") is None:
        pytest.skip("GNU time is not installed (apt-get install time)")
    report = tmp_path / "time.txt"
    setup = make_setup(name)
    setup = dataclasses.replace(setup, runtime=Timed(setup.runtime, report))
    trial = _trial(name, iterations=400)
    ballast = bytearray(b"x" * 2**30)
    with WorkerSession(setup, trial.params) as session:
        result = session.run(trial)
    assert result.status is TrialStatus.COMPLETE, (result.reason, result.log_tail)
    assert len(ballast) == 2**30
    figures = dict(
        line.strip().rsplit(": ", 1) for line in report.read_text().splitlines() if ": " in line
    )
    theirs = float(figures["User time (seconds)"]) + float(figures["System time (seconds)"])
    peak = int(figures["Maximum resident set size (kbytes)"]) * 1024
    ours = result.measurement
    # what the interpreter does at its end comes after our last look
    cpu_s = ours.cpu_user_s + ours.cpu_system_s
    assert cpu_s == pytest.approx(theirs, rel=0.05, abs=0.15)
    # GNU time knows the largest process alone, we all of them together; a framework that compiles
    # has its compiler beside it (Theano does not keep all that it compiles), so there are two
    at_once = 2 if setup.framework.runtime.cache else 1
    assert 0.95 * peak <= ours.peak_memory_bytes <= (at_once + 0.1) * peak


def test_the_worker_is_small_and_imports_nothing_of_the_host(name):
    source = worker_script(load_framework(name, PATH), PATH).read_text()
    assert len(source.splitlines()) <= 135
    assert "import tuner" not in source
    assert "from tuner" not in source
