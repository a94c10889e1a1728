"""How long an iteration takes, by runtime settings and batch size: probed here and there.

Training time is ``iterations * t(batch_size, runtime)``: what a setting costs is known from a few
short probes at a few batch sizes, and interpolated between them on logarithmic axes, on which
times are nearly straight lines.
"""

from __future__ import annotations

import bisect
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from tuner.trial import Interval, Params, ParamValue

_LEAST_SPREAD = 0.01  # relative; two probes that happen to agree prove no better precision
_INTERPOLATION = 0.05  # relative error that a straight line between two batch sizes may have
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Probe:
    """A short training in a warm worker.

    Attributes:
        setting: The runtime params, all of them.
        batch_size: Images an iteration.
        iteration_s: Seconds an iteration took.
        peak_memory_bytes: Of the worker's process tree.
        cores_used: CPU time a second of training.
    """

    setting: Params
    batch_size: int
    iteration_s: float
    peak_memory_bytes: int = 0
    cores_used: float = 0.0


class RuntimeMap:
    """The seconds an iteration takes for every runtime setting that was probed.

    Args:
        probes: What is known from the beginning.

    Attributes:
        probes: All measurements.
        faults: Settings that could not be measured, each with the reason.
        disturbed: Probes that were thrown away because others used the machine meanwhile.
    """

    def __init__(self, probes: Iterable[Probe] = ()) -> None:
        self.probes: list[Probe] = []
        self.faults: list[tuple[Params, str]] = []
        self.disturbed = 0
        self._logs: dict[str, dict[int, list[float]]] = {}
        self._settings: dict[str, dict[str, ParamValue]] = {}
        for each in probes:
            self.add(each)

    def add(self, probe: Probe) -> None:
        """Learn one more measurement."""
        self.probes.append(probe)
        key = _key(probe.setting)
        self._settings.setdefault(key, dict(probe.setting))
        logs = self._logs.setdefault(key, {}).setdefault(probe.batch_size, [])
        logs.append(math.log(probe.iteration_s))

    def take(self, other: RuntimeMap) -> None:
        """Learn all that another map knows."""
        for each in other.probes:
            self.add(each)
        self.faults += other.faults
        self.disturbed += other.disturbed

    @property
    def settings(self) -> list[dict[str, ParamValue]]:
        """The settings that were probed, in the order in which they first were."""
        return list(self._settings.values())

    @property
    def batch_sizes(self) -> list[int]:
        """The batch sizes that were probed, ascending."""
        return sorted({each.batch_size for each in self.probes})

    def iteration_s(self, setting: Params, batch_size: int) -> Interval:
        """Seconds an iteration takes, with the interval (95 %) of the estimate.

        Raises:
            KeyError: If the setting was never probed.
        """
        points = self._logs[_key(setting)]
        known = sorted(points)
        at = math.log(batch_size)
        logs = [math.log(each) for each in known]
        medians = [statistics.median(points[each]) for each in known]
        value = _interpolate(at, logs, medians)
        nearest = min(known, key=lambda each: abs(math.log(each) - at))
        error = max(self._spread(), _LEAST_SPREAD) * 1.25 / math.sqrt(len(points[nearest]))
        if batch_size not in points:
            error = math.hypot(error, _INTERPOLATION)
        return Interval(
            math.exp(value), math.exp(value - _Z * error), math.exp(value + _Z * error)
        )

    def _spread(self) -> float:
        """Standard deviation of a probe's logarithm, pooled over all that were repeated."""
        sets = [logs for points in self._logs.values() for logs in points.values()]
        squares = [(x - statistics.fmean(logs)) ** 2 for logs in sets for x in logs]
        freedom = sum(len(logs) - 1 for logs in sets)
        return math.sqrt(sum(squares) / freedom) if freedom else 0.1

    def promised_s(self, params: Params) -> float:
        """Seconds an iteration of a trial with ``params`` should take; 0 if nobody knows."""
        for setting in self.settings:
            if all(params.get(name) == value for name, value in setting.items()):
                return self.iteration_s(setting, int(params["batch_size"] or 1)).value
        return 0.0

    def was_probed(self, setting: Params, batch_size: int) -> bool:
        """Whether this setting was measured at this very batch size."""
        return batch_size in self._logs.get(_key(setting), {})

    def fastest(self, batch_size: int) -> dict[str, ParamValue]:
        """The setting that trains this batch size fastest. Raises ``ValueError`` without any."""
        return min(self.settings, key=lambda each: self.iteration_s(each, batch_size).value)

    def contenders(self, slack: float) -> list[dict[str, ParamValue]]:
        """Settings within ``slack`` (a factor) of the fastest at some batch size of their own.

        Fastest first, by their smallest factor.
        """
        factors = {}
        for key, points in self._logs.items():
            factors[key] = min(
                math.exp(statistics.median(logs) - self._best(batch))
                for batch, logs in points.items()
            )
        ranked = sorted(factors, key=factors.__getitem__)
        return [self._settings[key] for key in ranked if factors[key] <= slack]

    def _best(self, batch_size: int) -> float:
        """Logarithm of the least time that was measured at a batch size."""
        return min(
            statistics.median(points[batch_size])
            for points in self._logs.values()
            if batch_size in points
        )

    def to_json(self) -> str:
        """Serialise; ``from_json`` reads it back."""
        return json.dumps(
            {
                "probes": [asdict(each) for each in self.probes],
                "faults": self.faults,
                "disturbed": self.disturbed,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> RuntimeMap:
        """Read what ``to_json`` wrote; ``ValueError`` or ``LookupError`` for other texts."""
        raw = json.loads(text)
        found = cls(Probe(**each) for each in raw["probes"])
        found.faults = [(setting, reason) for setting, reason in raw["faults"]]
        found.disturbed = raw["disturbed"]
        return found


def _key(setting: Params) -> str:
    return json.dumps(dict(setting), sort_keys=True)


def _interpolate(at: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """A line through the two neighbours; beyond the ends the last line goes on.

    More images never take less time, and never more than in proportion: slopes outside 0 to 1
    beyond the ends are noise.
    """
    if len(xs) == 1:
        return ys[0] + (at - xs[0])
    right = min(max(bisect.bisect_left(xs, at), 1), len(xs) - 1)
    left = right - 1
    slope = (ys[right] - ys[left]) / (xs[right] - xs[left])
    if not xs[0] <= at <= xs[-1]:
        slope = min(max(slope, 0.0), 1.0)
    near = left if at < xs[right] else right
    return ys[near] + slope * (at - xs[near])
