"""The synthetic framework, ready to run: what unit tests use in place of a real one."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import shutil
import signal
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from tuner.config.catalogue import (
    framework_folder,
    list_frameworks,
    load_dataset_config,
    load_framework,
)
from tuner.config.schema import BudgetConfig, MeasureConfig, SearchConfig, TuneConfig, VerifyConfig
from tuner.datasets.provide import Dataset, load_dataset
from tuner.measure import SCOPE, parse_cores
from tuner.runtimes import find_runtime
from tuner.trials.session import TrialSetup
from tuner.values.trial import Trial, TrialKind

SYNTHETIC = Path(__file__).parent / "synthetic"
MLFLOW, OPTUNA = "mlflow.db", "search.db"
DEFAULT = {
    "batch_size": 64,
    "iterations": 1000,
    "learning_rate": 0.01,
    "blas": "slow",
    "threads": "unset",
    "blas_kernel": "auto",
    "fault": "",
}


def free_port(host: str) -> int:
    """A port for a server that takes its time to start.

    It is none of those that the kernel gives to whoever asks for any, as others do meanwhile.
    """
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            return port
    raise AssertionError(f"no port is free on {host}")


def _empty_database(name: str) -> Path:
    """Where the empty database of this name is, by the version of the library that made it."""
    version = metadata.version("mlflow-skinny" if name == MLFLOW else "optuna")
    return Path(__file__).parents[1] / ".pytest_cache" / "databases" / version / name


def pytest_sessionstart(session: pytest.Session) -> None:
    """Make empty databases for all tests to come: it takes MLflow seconds."""
    if hasattr(session.config, "workerinput") or all(
        _empty_database(each).exists() for each in (MLFLOW, OPTUNA)
    ):
        return
    import optuna

    from tuner.tracking import connect

    with tempfile.TemporaryDirectory() as folder:
        for name, make in ((MLFLOW, connect), (OPTUNA, optuna.storages.RDBStorage)):
            make(f"sqlite:///{folder}/{name}")
            _empty_database(name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(Path(folder) / name, _empty_database(name))


def add_database(folder: Path, name: str) -> str:
    """Put an empty database there unless there is one: ``MLFLOW`` or ``OPTUNA``. Its address."""
    if not (folder / name).exists():
        shutil.copy(_empty_database(name), folder / name)
    return f"sqlite:///{folder}/{name}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--frameworks caffe,torch`` runs the contract suite for these; all without it."""
    parser.addoption("--frameworks", default="", help="run the contract suite for these alone")


def chosen_frameworks(config: pytest.Config, path: str | None = None) -> list[str]:
    """The frameworks that ``--frameworks`` selects."""
    chosen = config.getoption("frameworks").split(",")
    return [name for name in list_frameworks(path) if chosen == [""] or name in chosen]


_SLOW_LIMIT_S = 180.0  # of each at least, as a busy machine must not fail it


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share a fixture in one worker; begin with what may take longest.

    Else each worker would make the fixture, such as a cluster, and one would have a slow test left
    when the others are done. How long a test may take is its timeout; a group has the sum.
    """
    units: dict[str, list[pytest.Item]] = {}
    for each in items:
        fixtures = each._fixtureinfo.name2fixturedefs.values()
        unit = each.nodeid
        if group := each.get_closest_marker("xdist_group"):
            unit = group.args[0]
        elif any(used[-1].scope == "module" for used in fixtures):
            unit = each.nodeid.partition("::")[0]
            each.add_marker(pytest.mark.xdist_group(unit))
        units.setdefault(unit, []).append(each)

    def rank(unit: list[pytest.Item]) -> tuple[bool, float]:
        slow = [each for each in unit if each.get_closest_marker("slow")]
        return not slow, -sum(map(_limit_s, unit))

    items[:] = itertools.chain.from_iterable(sorted(units.values(), key=rank))
    for each in items:
        if each.get_closest_marker("slow") and _limit_s(each) < _SLOW_LIMIT_S:
            each.add_marker(pytest.mark.timeout(_SLOW_LIMIT_S), append=False)


def _limit_s(item: pytest.Item) -> float:
    """How long a test may take, in seconds."""
    limit = item.get_closest_marker("timeout")
    return float(limit.args[0] if limit else item.config.getini("timeout"))


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> None:
    """A shell starts background jobs deaf to Ctrl-C, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def claims_are_its_own() -> None:
    """Tests run side by side, and do not wait for each other's CPUs."""
    os.environ[SCOPE] = f"tests-{os.getpid()}"


@pytest.fixture(scope="session", autouse=True)
def databases_do_not_wait_for_the_disk() -> None:
    """No test cuts the power, and waiting for the disk took a fifth of their time."""
    from sqlalchemy import Engine, event

    def relax(connection: object, *_: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", relax)


@pytest.fixture(scope="session")
def session_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that tests share, for what is dear to make."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def digits(session_home: Path) -> Dataset:
    """The smallest real data set."""
    return load_dataset(load_dataset_config("digits"), session_home)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty TUNER_HOME of the test's own."""
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "home"


def _marker(tmp_path: Path) -> str:
    """Of a test's processes: tests that run side by side have folders of the same name."""
    return "-".join(tmp_path.parts[-3:])


@pytest.fixture
def setup(digits: Dataset, tmp_path: Path) -> TrialSetup:
    """Everything that trials of the synthetic framework share."""
    framework = load_framework("synthetic", str(SYNTHETIC))
    return TrialSetup(
        framework=framework,
        runtime=find_runtime(framework, tmp_path / "home"),
        dataset=digits,
        model="default",
        worker=framework_folder("synthetic", str(SYNTHETIC)) / framework.worker,
        folder=tmp_path / "trials",
        marker=_marker(tmp_path),
        cores=parse_cores(""),
        memory_limit_bytes=2**30,
        measure=MeasureConfig(max_foreign_pct=100, max_steal_pct=100),
    )


@pytest.fixture
def make_trial() -> Callable[..., Trial]:
    """Trials of the synthetic framework; params by name, the rest as fields of ``Trial``."""
    fields = {each.name for each in dataclasses.fields(Trial)}

    def make(number: int = 1, **values: object) -> Trial:
        params = {name: value for name, value in values.items() if name not in fields}
        given = {name: value for name, value in values.items() if name in fields}
        given.setdefault("kind", TrialKind.SEARCH)
        given.setdefault("time_limit_s", 20.0)
        return Trial(number=number, params={**DEFAULT, **params}, **given)

    return make


@pytest.fixture
def config(home: Path, tmp_path: Path) -> TuneConfig:
    """A study of the synthetic framework that takes seconds."""
    add_database(tmp_path, MLFLOW)
    return TuneConfig(
        framework=load_framework("synthetic", str(SYNTHETIC)),
        framework_path=str(SYNTHETIC),
        dataset=load_dataset_config("digits"),
        search=SearchConfig("joint", warm_start=False),
        budget=BudgetConfig(time_s=60, trials=12),
        verify=VerifyConfig(finalists=2, repeats=2),
        measure=MeasureConfig(max_foreign_pct=100, max_steal_pct=100),
        output=str(tmp_path),
        progress="none",
    )


@pytest.fixture(autouse=True)
def no_worker_survives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does, no process of its trials outlives it."""
    from tuner.measure import marked_processes

    runs_trials = "setup" in request.fixturenames
    marker = _marker(request.getfixturevalue("tmp_path")) if runs_trials else ""
    yield
    if marker:
        assert marked_processes(marker) == []
