"""The paces of a study's layouts (workers x threads), and what they say of groups over a link."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tuner.values.exchange import EXACT, changes, lossy
from tuner.values.params import Params, ParamValue, nodes_of
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.scaling import Link, Pace, Scaling, TooFewLayouts, Topology, fastest
from tuner.values.trial import Interval

Basis = Literal["measured", "modelled"]
WORKERS = (4, 8, 16, 32, 64)
"""Sizes of the groups whose time over a link is predicted."""
LATENCY_MS = 0.25
"""One way in a data centre, half of the round trip that Dean gives (LADIS 2009, keynote)."""
_MIN_S, _MAX_S, _MAX_COUNT = 1e-15, 1e6, 1e7  # beyond which a record is no measurement


@dataclass(frozen=True, slots=True)
class Layouts:
    """What the race of a study measured on one host, of settings that learn the same.

    Attributes:
        paces: The time of an iteration by runtime setting and batch size.
        sent: Numbers of workers, each with the bytes that all of them together sent an iteration.
    """

    paces: tuple[Pace, ...] = ()
    sent: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, front: Mapping[str, Any]) -> Layouts:
        """Read them from a ``front.json``; raise an error, of any kind, if it garbles them."""
        paces = [
            Pace(dict(each["setting"]), _count(size), _seconds(took))
            for each in front.get("runtimes") or ()
            for size, took in each["iteration_s"].items()
            if lossy(each["setting"]) is None and nodes_of(each["setting"]) == 1
        ]
        for each in paces:
            _count(each.workers)
            hash(tuple(each.setting.values()))  # settings are told apart by their values
        sent = [
            (_count(each["workers"]), float(each["sent_bytes"]))
            for each in front.get("groups") or ()
            if each["workers"] > 1
            and each.get("exchange", EXACT) == EXACT
            and nodes_of(each) == 1
            and 0 < float(each.get("sent_bytes") or 0) < math.inf
        ]
        return cls(tuple(paces), tuple(sent))

    def gradient_bytes(self, topology: Topology) -> float:
        """Return the bytes of all gradients; 0 if nothing that was sent was measured."""
        found = [sent / topology.sent(workers) for workers, sent in self.sent]
        return statistics.median(found) if found else 0.0

    def at(self, batch_size: int) -> dict[int, Pace]:
        """Return the fastest pace by number of workers at exactly this batch size."""
        found = dict[int, Pace]()
        for each in fastest(self.paces):
            if each.batch_size == batch_size:
                found.setdefault(each.workers, each)
        return found

    def known(self) -> RuntimeMap:
        """Return the paces as a map, which interpolates between batch sizes."""
        return RuntimeMap(
            PaceProbe(each.setting, each.batch_size, each.iteration_s.value) for each in self.paces
        )


def _count(value: Any) -> int:
    found = int(value)
    if not 1 <= found <= _MAX_COUNT:
        raise ValueError(f"a count of {value}")
    return found


def _seconds(entry: Mapping[str, Any]) -> Interval:
    found = Interval(*(float(entry[name]) for name in ("value", "low", "high")))
    if not _MIN_S <= found.low <= found.value <= found.high < _MAX_S:
        raise ValueError(f"iteration_s of {found.value}")
    return found


@dataclass(frozen=True, slots=True)
class LinkedGroup:
    """The pace of a group of workers.

    Attributes:
        workers: Processes that train together.
        threads: Threads of each.
        samples_s: Samples a second, by all of them together.
        train_time_s: Seconds of training.
        basis: Whether it was measured, on one host, or modelled.
    """

    workers: int
    threads: ParamValue
    samples_s: Interval
    train_time_s: Interval
    basis: Basis


@dataclass(frozen=True, slots=True)
class OverLink:
    """How fast groups would train with a worker on each host.

    Attributes:
        bandwidth_mbit: Of the link of each host, Mbit/s.
        latency_ms: Of that link, one way.
        batch_size: Samples an iteration, of all workers together.
        groups: By number of workers.
        note: What the model assumes, or why there is none, and what is not proven.
    """

    bandwidth_mbit: float
    latency_ms: float
    batch_size: int
    groups: tuple[LinkedGroup, ...]
    note: str


def over_link(params: Params, layouts: Layouts, topology: Topology, link: Link) -> OverLink:
    """Return how fast groups would train over a link; those that were measured stay as they are.

    Args:
        params: Params of the configuration; the runtime setting of a group may differ.
        layouts: What the race of its study measured.
        topology: How the framework's processes exchange gradients.
        link: The link of each host.
    """
    batch, iterations = (whole(params.get(name)) for name in ("batch_size", "iterations"))
    groups = {
        workers: _group(each.setting, each.iteration_s, batch, iterations, "measured")
        for workers, each in layouts.at(batch).items()
    }
    note = _ASSUMED
    scaling = Scaling(layouts.paces, topology, layouts.gradient_bytes(topology))
    try:
        for workers in WORKERS:
            if workers not in groups and workers <= batch and iterations:
                threads, took = _soonest(scaling, workers, batch, link)
                setting = {"workers": workers, "threads": threads}
                groups[workers] = _group(setting, took, batch, iterations, "modelled")
    except TooFewLayouts as error:
        note = f"nothing is modelled: {error}"
    if changed := changes(params):
        note += f"; {changed}, and none of these groups has it: their accuracy is not proven"
    return OverLink(
        bandwidth_mbit=link.bandwidth / 1e6,
        latency_ms=1e3 * link.latency_s,
        batch_size=batch,
        groups=tuple(groups[workers] for workers in sorted(groups)),
        note=note,
    )


_ASSUMED = (
    "measured: on one host; modelled: a worker on each host like it, which computes nothing while "
    "gradients are exchanged"
)


def whole(value: ParamValue) -> int:
    """Return a param that counts something; 0 if it is no such count."""
    return value if isinstance(value, int) and 1 <= value <= _MAX_COUNT else 0


def _soonest(
    scaling: Scaling, workers: int, batch: int, link: Link
) -> tuple[ParamValue, Interval]:
    """Return the number of threads with which a group is fastest, and the time of an iteration.

    Raises:
        TooFewLayouts: If the time is not determined for any.
    """
    found, why = dict[ParamValue, Interval](), TooFewLayouts("no race is on record")
    for threads in scaling.threads:
        try:
            found[threads] = scaling.iteration_s(workers, threads, batch, link)
        except TooFewLayouts as error:
            why = error
    if not found:
        raise why
    return min(found.items(), key=lambda each: each[1].value)


def _group(
    setting: Params, took: Interval, batch: int, iterations: int, basis: Basis
) -> LinkedGroup:
    return LinkedGroup(
        workers=int(setting.get("workers") or 1),
        threads=setting.get("threads"),
        samples_s=Interval(batch / took.value, batch / took.high, batch / took.low),
        train_time_s=Interval(*(iterations * each for each in (took.value, took.low, took.high))),
        basis=basis,
    )
