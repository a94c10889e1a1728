"""The same seed gives the same trials with every version; recorded before the code had rooms."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tuner.config.schema import BudgetConfig, ExecutorConfig, SamplerConfig, VerifyConfig
from tuner.executors.connection import connect
from tuner.study.study import tune

RECORDED = json.loads(Path(__file__).with_name("same_trials.json").read_text(encoding="utf-8"))
"""By seed: number, status, params, accuracy and checkpoints of each trial."""


@pytest.fixture(scope="module")
def executor(request, tmp_path_factory) -> Iterator[ExecutorConfig]:
    """This machine, or a Ray cluster that all studies find there."""
    config = ExecutorConfig(request.param)
    if request.param == "local":
        yield config
        return
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_HOME", str(tmp_path_factory.mktemp("node")))
        connect(config)
    yield config
    ray.shutdown()


without_ray = pytest.mark.skipif(not find_spec("ray"), reason="pip install 'tuner[ray]'")


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", sorted(RECORDED))
@pytest.mark.parametrize(
    "executor", ["local", pytest.param("ray", marks=without_ray)], indirect=True
)
def test_the_same_seed_gives_the_same_trials(config, executor, seed):
    again = dataclasses.replace(
        config,
        seed=int(seed),
        sampler=SamplerConfig("random"),  # the others learn from times, which differ
        budget=BudgetConfig(time_s=60, trials=len(RECORDED[seed])),
        verify=VerifyConfig(finalists=0),
        executor=executor,
    )
    found = [
        [
            each.trial.number,
            each.status.value,
            dict(each.params),
            each.val_accuracy,
            [[point.iteration, point.val_accuracy] for point in each.checkpoints],
        ]
        for each in tune(again).trials
    ]
    assert found == RECORDED[seed]
