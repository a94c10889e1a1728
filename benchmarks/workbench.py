"""What the benchmarks share: a framework made ready to train Caffe's LeNet outside a study."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.config import MeasureConfig
from tuner.datasets import load_dataset
from tuner.measure import cpu_flags, parse_cores, total_memory_bytes
from tuner.registry import (
    find_setting_file,
    load_dataset_config,
    load_framework,
    tuner_home,
    worker_script,
)
from tuner.runner import TrialSetup
from tuner.runtimes import ensure_installed, find_runtime
from tuner.space import SearchSpace
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
    config = load_framework(framework)
    runtime = find_runtime(config)
    ensure_installed(runtime)
    cores = parse_cores("")
    space = SearchSpace.load(
        find_setting_file("search_spaces", framework),
        cores=len(cores),
        cpu_flags=cpu_flags(),
        dataset=dataset,
        model=MODEL,
    )
    home = tuner_home()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="benchmark-") as folder:
        setup = TrialSetup(
            framework=config,
            runtime=runtime,
            dataset=load_dataset(load_dataset_config(dataset)),
            model=MODEL,
            worker=worker_script(config, None),
            folder=Path(folder),
            marker=f"benchmark-{framework}",
            cores=cores,
            memory_limit_bytes=int(0.8 * total_memory_bytes()),
            measure=MeasureConfig(),
        )
        yield Workbench(space, space.default(dataset, MODEL).params, setup)
