"""Wherever a study is killed or the disk is full: nothing measured is lost, nothing is doubled."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.faulty import FULL, KILL, TRIALS, run_study
from tuner.datasets import load_dataset
from tuner.registry import load_dataset_config
from tuner.tracking import connect
from tuner.trial import TrialResult

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
POINTS = int(os.environ.get("TUNER_FAULT_POINTS", "4"))
"""Writes of a study at which each fault is tried, evenly spread; 0 for all of them."""
PROCESSES = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """A home with the data set, and MLflow's empty database, which takes seconds to make."""
    PROCESSES.set_forkserver_preload(["tests.faults.faulty", "mlflow"])
    folder = tmp_path_factory.mktemp("template")
    load_dataset(load_dataset_config("digits"), folder / "home")
    connect(f"sqlite:///{folder}/mlflow.db")
    return folder


def study(folder: Path, kind: str = KILL, at: int = 0) -> tuple[int, str, str]:
    """Run it. Returns the writes that there were (0 if it was killed), and what it said."""
    here, there = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=run_study, args=(folder, kind, at, there))
    process.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        answer = (0, "", "")
    process.join()
    assert process.exitcode == (-9 if kind == KILL and at else 0)
    return answer


def finished(folder: Path) -> dict[str, bytes]:
    """The results that are kept, by trial."""
    found = (folder / "home" / "studies").glob("*/trials/*/result.json")
    return {path.parent.name: path.read_bytes() for path in found}


def tracked(folder: Path) -> tuple[list[str], Counter[str]]:
    """How the study's run ended in MLflow, and how often each trial is there."""
    client = connect(f"sqlite:///{folder}/mlflow.db")
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    ends = [each.info.status for each in runs if each.data.tags.get("kind") == "study"]
    return ends, Counter(each.data.tags["trial"] for each in runs if "trial" in each.data.tags)


@pytest.fixture(scope="session")
def writes(template, tmp_path_factory) -> int:
    """How many writes a study has that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole") / "study"
    shutil.copytree(template, folder)
    count, *error = study(folder)
    assert error == ["", ""]
    print(f"{count} writes at which a fault can happen")
    assert count > 50
    return count


@pytest.mark.parametrize("kind", [KILL, FULL])
@pytest.mark.parametrize("place", range(POINTS or 1000))
def test_nothing_is_lost_or_doubled(template, writes, tmp_path, kind, place):
    at = 1 + place if not POINTS else 1 + round((writes - 1) * (place + 0.5) / POINTS)
    if at > writes:
        pytest.skip("there are no more writes")
    folder = tmp_path / "study"
    shutil.copytree(template, folder)
    _, error, line = study(folder, kind, at)
    assert error in ("", "StorageError", "OSError"), line
    assert not line or "No space left" in line or "disk is full" in line
    before = finished(folder)
    assert study(folder)[1:] == ("", ""), "the same command goes on"
    after = finished(folder)
    assert {name: after.get(name) for name in before} == before, "nothing measured is lost"
    ends, trials = tracked(folder)
    assert ends == ["FINISHED"]
    assert trials == Counter(dict.fromkeys(after, 1)), "each is there once"
    searched = [
        TrialResult.from_json(text.decode()).trial.number
        for name, text in after.items()
        if not name.startswith("verify")
    ]
    assert sorted(searched) == list(range(TRIALS))
    assert list((folder / "home" / "studies").glob("*/report/front.json"))
