"""What the benchmarks share: a framework made ready to train Caffe's LeNet outside a study."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tuner.config import TuneConfig
from tuner.preparation import single
from tuner.progress import StudyProgress
from tuner.registry import load_dataset_config, load_framework, tuner_home
from tuner.results import StudyResult
from tuner.runner import TrialSetup
from tuner.space import SearchSpace
from tuner.study import tune
from tuner.trial import Params

MODEL = "lenet"


@dataclass(frozen=True)
class Workbench:
    """What trials of one framework on one data set need."""

    space: SearchSpace
    default: Params
    setup: TrialSetup


@contextlib.contextmanager
def workbench(framework: str, dataset: str) -> Iterator[Workbench]:
    """Install what is missing; what the trials leave is deleted at the end.

    Raises:
        TunerError: If framework or data set cannot be had.
    """
    config = TuneConfig(
        framework=load_framework(framework), dataset=load_dataset_config(dataset), model=MODEL
    )
    with single(config, StudyProgress()) as (space, setup):
        yield Workbench(space, space.default(dataset, MODEL).params, setup)


@contextlib.contextmanager
def empty_home(folder: Path) -> Iterator[None]:
    """A TUNER_HOME with nothing but what is installed: no study, no map of an earlier race."""
    installed = tuner_home()
    for each in ("runtimes", "caches", "datasets"):
        (folder / each).symlink_to(installed / each)
    with mock.patch.dict(os.environ, TUNER_HOME=str(folder)):
        yield


def fresh_study(
    name: str, budget_s: float, *, seed: int = 1, progress: StudyProgress | None = None
) -> StudyResult:
    """A factored study of framework-dataset that knows nothing of earlier ones.

    The default's time is projected from a tenth of it, so that the budget is the search's.
    """
    framework, _, dataset = name.partition("-")
    with tempfile.TemporaryDirectory() as folder, empty_home(Path(folder)):
        config = TuneConfig(
            framework=load_framework(framework), dataset=load_dataset_config(dataset),
            model=MODEL, tracking_uri=f"sqlite:///{folder}/mlflow.db", output=folder,
            baseline="projected", seed=seed, resume="never",
        )  # fmt: skip
        config.search.name = "factored"
        config.budget.time_s, config.budget.default_share = budget_s, 0.1
        return tune(config, progress or StudyProgress())
