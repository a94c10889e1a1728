"""Points of the front that were never run: a checkpoint of one run at the pace of another setting.

Accuracy after some iterations depends on the params that are learnt with, time an iteration on the
runtime setting and the batch size. So every checkpoint of a run is a result of its own, and with
it goes the time that the fastest setting takes. Such points are marked ``DERIVED`` until they are
verified.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from tuner.runtime_map import RuntimeMap
from tuner.space import SearchSpace
from tuner.trial import Checkpoint, ParamValue, TrialResult, TrialStatus


def compose(
    results: Iterable[TrialResult], space: SearchSpace, runtimes: RuntimeMap
) -> list[TrialResult]:
    """What the checkpoints of ``results`` stand for at the fastest runtime setting.

    A run's last checkpoint at the setting it was run with is the run itself, and left out; so is
    what is no member of ``space``. Without any setting known there is nothing to compose.
    """
    if not runtimes.probes:
        return []
    return [
        point
        for result in results
        if result.usable
        for point in _points(result, space, runtimes)
        if not space.contains(point.params)
    ]


def _points(
    result: TrialResult, space: SearchSpace, runtimes: RuntimeMap
) -> Iterator[TrialResult]:
    batch = int(result.params["batch_size"] or 1)
    own = {name: result.params[name] for name in space.runtime}
    fastest = runtimes.fastest(batch)
    for index, point in enumerate(result.checkpoints):
        if own == fastest:
            if point.iteration < result.iterations:
                yield _derived(result, index, point, own, point.train_time_s)
        else:
            time_s = point.iteration * runtimes.iteration_s(fastest, batch).value
            yield _derived(result, index, point, fastest, time_s)


def _derived(
    result: TrialResult,
    index: int,
    point: Checkpoint,
    setting: dict[str, ParamValue],
    time_s: float,
) -> TrialResult:
    measured = result.measurement
    assert measured is not None
    part = time_s / max(measured.train_time_s, 1e-9)
    params = {**result.params, **setting, "iterations": point.iteration}
    return dataclasses.replace(
        result,
        trial=result.trial.derive(index, params),
        status=TrialStatus.COMPLETE,
        reason=f"derived from {result.trial.name} after {point.iteration} iterations",
        iterations=point.iteration,
        val_accuracy=point.val_accuracy,
        test_accuracy=None,
        checkpoints=result.checkpoints[: index + 1],
        measurement=dataclasses.replace(
            measured,
            train_time_s=time_s,
            cpu_user_s=measured.cpu_user_s * part,
            cpu_system_s=measured.cpu_system_s * part,
        ),
        discarded=(),
    )
