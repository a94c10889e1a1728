"""How to split the cores of a host among the jobs of a framework."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.recommendation.choice import Limits, Recommendation, recommend
from tuner.recommendation.evidence import Evidence
from tuner.recommendation.layouts import Basis, whole
from tuner.values.errors import NothingRecommended
from tuner.values.exchange import lossy
from tuner.values.params import ParamValue, nodes_of

_MAX_S = 1e9  # beyond which what is on record was no measurement


@dataclass(frozen=True, slots=True)
class Split:
    """A way to split the cores of a host.

    Attributes:
        jobs: Jobs at once.
        cores: Cores of each.
        workers: Processes of each.
        threads: Threads of each process.
        train_time_s: Seconds that each job trains.
        jobs_per_hour: Trainings that the host completes in an hour.
        memory_mb: Peak memory of each job, MiB; if modelled, that of one job on all of the cores.
        basis: ``measured`` or ``modelled``.
        note: What was measured, and what is assumed.
    """

    jobs: int
    cores: int
    workers: int
    threads: ParamValue
    train_time_s: float
    jobs_per_hour: float
    memory_mb: float
    basis: Basis
    note: str


def split_host(found: Recommendation, limits: Limits) -> dict[str, Split] | None:
    """Return how to split a host for one job's soonest end, and for the most jobs an hour.

    One job has its workers and threads as verified on all of the cores. Several jobs are as they
    were measured side by side (experiment=tenancy). For other numbers of jobs, each is expected
    to train as the race measured one process alone, slowed down as those were that were measured
    side by side, if any were. One process learns something else than a group that exchanges
    gradients with a loss: of such a job no others are expected. Jobs on several nodes do not
    count.

    Args:
        found: What is recommended; the jobs have its framework, network and data set.
        limits: What each job must keep; ``cores`` are those of the host.

    Returns:
        The splits ``soonest`` and ``most_jobs``; ``None`` if the limits name no cores, or say
        already how many jobs share the host, or if no job on one node keeps them.
    """
    if limits.cores is None or limits.jobs_per_host > 1:
        return None
    alike = [
        each
        for each in found.evidence
        if _job(each) == _job(found.choice) and nodes_of(each.params) == 1
    ]
    try:
        soonest = recommend(alike, limits).choice
    except NothingRecommended:
        return None
    packed = [each for each in alike if each.jobs_per_host * each.cores == limits.cores]
    tried = {each.jobs_per_host for each in packed}
    one = _measured(soonest, "one job on all of the cores")
    ways = [one, *_side_by_side(packed, limits)]
    ways += (each for each in _alone(soonest, alike, limits) if each.jobs not in tried)
    return {"soonest": one, "most_jobs": max(ways, key=lambda each: each.jobs_per_hour)}


def _job(point: Evidence) -> tuple[str, str, str, str]:
    return point.framework, point.model, point.dataset, point.digest


def _measured(point: Evidence, note: str) -> Split:
    return Split(
        jobs=point.jobs_per_host,
        cores=point.cores,
        workers=point.workers,
        threads=point.params.get("threads"),
        train_time_s=point.train_time_s,
        jobs_per_hour=point.jobs_per_hour,
        memory_mb=point.memory_mb,
        basis="measured",
        note=note,
    )


def _side_by_side(packed: Sequence[Evidence], limits: Limits) -> Iterator[Split]:
    """Yield the fastest that keeps the limits, for each number of jobs that was measured."""
    for jobs in sorted({each.jobs_per_host for each in packed} - {1}):
        with contextlib.suppress(NothingRecommended):
            wanted = dataclasses.replace(limits, cores=None, jobs_per_host=jobs)
            yield _measured(recommend(packed, wanted).choice, f"{jobs} jobs side by side")


def _alone(soonest: Evidence, alike: Sequence[Evidence], limits: Limits) -> Iterator[Split]:
    """Yield jobs of one process each, by the pace of one such job with no other beside it."""
    if lossy(soonest.params):
        return
    known, cores = soonest.layouts.known(), limits.cores or 0
    batch, iterations = (whole(soonest.params.get(each)) for each in ("batch_size", "iterations"))
    slower = list(_slowdowns(soonest, alike))
    slowdown = max(1.0, statistics.median(slower)) if slower else 1.0
    note = "by the pace of one job alone; " + (
        f"taken to be {slowdown:.2f} times as slow side by side, as was measured of others"
        if slower
        else "side by side they may be slower, which experiment=tenancy measures"
    )
    seen = set[int]()
    longest_s = _MAX_S if limits.max_train_time_s is None else limits.max_train_time_s
    for setting in known.ranked(batch) if batch and iterations and known.probes else []:
        threads = whole(setting.get("threads"))
        jobs = cores // threads if threads and setting.get("workers", 1) == 1 else 0
        time_s = slowdown * iterations * known.pace_s(setting, batch)
        if jobs < 2 or threads in seen or not time_s <= longest_s:
            continue
        seen.add(threads)
        rate, memory_mb = 3600 * jobs / time_s, soonest.memory_mb
        yield Split(jobs, threads, 1, threads, time_s, rate, memory_mb, "modelled", note)


def _slowdowns(soonest: Evidence, alike: Sequence[Evidence]) -> Iterator[float]:
    """Yield how many times as long as alone jobs took side by side, where both were measured."""
    known = soonest.layouts.known()
    for each in alike:
        iterations, batch = (whole(each.params.get(name)) for name in ("iterations", "batch_size"))
        # how many threads a library chooses depends on the cores that it is given
        if each.jobs_per_host > 1 and whole(each.params.get("threads")) and batch and iterations:
            alone_s = known.promised_s(each.params)
            if alone_s:
                yield each.train_time_s / iterations / alone_s
