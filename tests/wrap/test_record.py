"""The record of a study of a program: what is kept, and what MLflow is told."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.conftest import MLFLOW, add_database
from tests.wrap.samples import run
from tuner.config.schema import ExecutorConfig
from tuner.progress import StudyProgress
from tuner.tracking import connect
from tuner.values.errors import ConfigError
from tuner.values.trial import TrialKind
from tuner.wrap.program import Program
from tuner.wrap.record import Record
from tuner.wrap.request import Request

pytestmark = pytest.mark.timeout(60)


class Said(StudyProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def sent(uri: str) -> dict[str, float]:
    """The times of the runs that MLflow has, by name."""
    client = connect(uri)
    experiment = client.get_experiment_by_name("programs")
    assert experiment is not None
    return {
        each.data.tags["trial"]: each.data.metrics["train_time_s"]
        for each in client.search_runs([experiment.experiment_id])
        if "trial" in each.data.tags
    }


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (ExecutorConfig("ray", cores_per_trial=9999), "--cores-per-trial=9999: there are "),
        (ExecutorConfig(cores="9999"), "--cores '9999' names CPUs beyond those here"),
    ],
)
def test_cpus_that_there_are_not_are_named_as_options(tmp_path: Path, asked, said: str) -> None:
    request = Request(Program(("true",), tmp_path), executor=asked, output=tmp_path)
    with contextlib.ExitStack() as stack, pytest.raises(ConfigError, match=f"^{said}"):
        Record(request, StudyProgress(), stack)


@pytest.mark.usefixtures("home")
def test_a_damaged_run_is_sent_anew_once_it_is_measured_again(tmp_path: Path) -> None:
    uri, said = add_database(tmp_path, MLFLOW), Said()
    request = Request(Program(("true",), tmp_path), output=tmp_path)
    with contextlib.ExitStack() as stack:
        record = Record(request, said, stack)
        record.begin()
        record.keep(run(3.0, kind=TrialKind.DEFAULT, number=0))
        record.keep(run(2.0, number=1))
        kept = record.folder.trials / "search-0001" / "result.json"
    assert (sent(uri), said.messages) == ({"default-0000": 3.0, "search-0001": 2.0}, [])
    kept.write_text("{}")
    with contextlib.ExitStack() as stack:
        record = Record(request, said, stack)
        record.begin()
        assert sent(uri) == {"default-0000": 3.0}
        record.keep(run(1.0, number=1))
    assert sent(uri) == {"default-0000": 3.0, "search-0001": 1.0}
    assert said.messages == [
        "results of search-0001 were damaged: they are set aside, and measured again"
    ]
    kept.parents[1].joinpath("default-0000", "result.json").write_text("{}")
    with contextlib.ExitStack() as stack:
        Record(request, said, stack).begin()
    assert "default-0000" in sent(uri), "a lost first run is not measured again"
    assert len(said.messages) == 1
