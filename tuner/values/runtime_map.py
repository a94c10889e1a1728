"""How long an iteration takes, by runtime settings and batch size: probed here and there.

Training time is ``iterations * t(batch_size, runtime)``: what a setting costs is known from a few
short probes at a few batch sizes, and interpolated between them on logarithmic axes, on which
times are nearly straight lines. Whole trainings tell how far probes can be trusted, and which
settings fail.
"""

from __future__ import annotations

import bisect
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from tuner.values.trial import Interval, Params, ParamValue

_LEAST_SPREAD = 0.01  # relative; two probes that happen to agree prove no better precision
_INTERPOLATION = 0.05  # relative error that a straight line between two batch sizes may have
_UNKNOWN_SPREAD = 0.1  # of the logarithm of a probe, where none was repeated
_OTHERS = 4  # own probes that the noise of all others counts for in that of one
_Z = 2.2  # Student's, two-sided 95 %, for the some ten probes that an error is known by
_MOST_FAILURES = 2
_Key = tuple[tuple[str, ParamValue], ...]


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

    A study has one map: the race adds probes to it, the search what trials told.

    Args:
        probes: What is known from the beginning.

    Attributes:
        probes: All measurements, those of settings included that were given up since.
        faults: Settings that could not be measured, each with the reason.
        disturbed: Probes that were thrown away because others used the machine meanwhile.
        settled: Whether all that was worth trying was tried.
    """

    def __init__(self, probes: Iterable[Probe] = ()) -> None:
        self.forget()
        for each in probes:
            self.add(each)

    def forget(self) -> None:
        """Know nothing any more."""
        self.probes: list[Probe] = []
        self.faults: list[tuple[Params, str]] = []
        self.disturbed = 0
        self.settled = False
        self._probes: dict[_Key, dict[int, list[Probe]]] = {}
        self._lines: dict[tuple[str, _Key], tuple[list[float], list[float]]] = {}
        self._spread = 0.0
        self._settings: dict[_Key, dict[str, ParamValue]] = {}
        self._runs: dict[_Key, list[Probe]] = {}
        self._excess: dict[_Key, list[float]] | None = None
        self._failures: dict[_Key, int] = {}
        self._given_up: list[_Key] = []

    def rescale(self, factor: float) -> None:
        """Learn that the machine takes so many times as long now, with every setting."""
        probes, faults, settled = self.probes, self.faults, self.settled
        self.forget()
        self.faults, self.settled = faults, settled
        for each in probes:
            self.add(replace(each, iteration_s=factor * each.iteration_s))

    def add(self, probe: Probe) -> None:
        """Learn one more measurement."""
        self.probes.append(probe)
        key = _key(probe.setting)
        self._settings.setdefault(key, dict(probe.setting))
        self._probes.setdefault(key, {}).setdefault(probe.batch_size, []).append(probe)
        self._lines.clear()
        self._spread, self._excess = 0.0, None

    def add_run(self, run: Probe) -> None:
        """Learn how long a whole training took beside what probes of its setting promise.

        What one run takes longer may be its setting's fault, or the machine was slow then and
        would have been so with any other. So settings that no run was on are expected to exceed
        their probes by what is usual among those with runs, and one with few runs by something
        between that and its own: otherwise the next best setting, with its probes from a better
        time, would seem faster than it is. Runs of a setting tell nothing before it was probed.
        """
        self._runs.setdefault(_key(run.setting), []).append(run)
        self._excess = None

    def note_failure(self, setting: Params) -> None:
        """A run with this setting did not run as requested: after the second it is given up.

        Its probes stay, as those of a setting that may work in another study. Of settings that
        all fail the last one stays in use.
        """
        key = _key(setting)
        self._failures[key] = self._failures.get(key, 0) + 1
        if self._failures[key] == _MOST_FAILURES:
            self._given_up.append(key)

    def _in_use(self) -> list[_Key]:
        """Keys of the settings that were probed and not given up."""
        kept = [each for each in self._settings if each not in self._given_up]
        return kept or [each for each in self._given_up if each in self._settings][-1:]

    def _excesses(self) -> dict[_Key, list[float]]:
        """Logarithms of the times of runs by what is promised now, by setting."""
        if self._excess is None:
            self._excess = {
                key: [
                    math.log(run.iteration_s / self.probed_s(run.setting, run.batch_size))
                    for run in runs
                ]
                for key, runs in self._runs.items()
                if key in self._probes
            }
        return self._excess

    def _expected_excess(self, setting: Params) -> float:
        """Logarithm of the time of a whole training by that which probes promise."""
        known = self._excesses()
        if not known:
            return 0.0
        usual = statistics.median(map(statistics.median, known.values()))
        own = known.get(_key(setting), [])
        if not own:
            return usual
        return usual + len(own) / (len(own) + 1) * (statistics.median(own) - usual)

    @property
    def settings(self) -> list[dict[str, ParamValue]]:
        """The settings in use: probed and not given up, in the order in which they first were."""
        return [self._settings[key] for key in self._in_use()]

    @property
    def probed(self) -> list[dict[str, ParamValue]]:
        """All settings that were probed, those that were given up included."""
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
        value = self.pace_s(setting, batch_size)
        error = self._error(setting, batch_size)
        return Interval(value, value * math.exp(-_Z * error), value * math.exp(_Z * error))

    def _error(self, setting: Params, batch_size: int) -> float:
        """Standard error of the logarithm of the seconds an iteration takes."""
        points = self._probes[_key(setting)]
        nearest = min(points, key=lambda each: abs(math.log(each / batch_size)))
        own = [math.log(probe.iteration_s) for probe in points[nearest]]
        # a setting of several threads may be slow now and then where others are steady
        squares = _squares(own) + _OTHERS * self.probe_error**2
        error = math.sqrt(squares / (len(own) - 1 + _OTHERS) / len(own))
        return error if batch_size in points else math.hypot(error, _INTERPOLATION)

    def undecided(self, setting: Params, batch_size: int) -> bool:
        """Whether it may or may not be faster than the best other one, as far as is known (95 %).

        Raises:
            KeyError: If the setting was never probed.
        """
        others = [each for each in self.settings if each != dict(setting)]
        if not others:
            return False
        best = min(others, key=lambda each: self.pace_s(each, batch_size))
        lead = math.log(self.pace_s(setting, batch_size) / self.pace_s(best, batch_size))
        error = math.hypot(self._error(setting, batch_size), self._error(best, batch_size))
        return abs(lead) < _Z * error

    def pace_s(self, setting: Params, batch_size: int) -> float:
        """Seconds an iteration takes. Raises ``KeyError`` if the setting was never probed."""
        return self.probed_s(setting, batch_size) * math.exp(self._expected_excess(setting))

    def surely_s(self, setting: Params, batch_size: int) -> float:
        """Seconds an iteration hardly exceeds: its estimate and one standard error of it.

        By this settings are compared: of many that were probed once, the one that seems fastest
        is mostly the luckiest. Raises ``KeyError`` if the setting was never probed.
        """
        error = self._error(setting, batch_size)
        return self.pace_s(setting, batch_size) * math.exp(error)

    def probed_s(self, setting: Params, batch_size: int) -> float:
        """Seconds an iteration takes in a probe, whatever runs took. Raises as ``pace_s``."""
        return self._interpolated("iteration_s", setting, batch_size)

    def peak_memory(self, setting: Params, batch_size: int) -> float:
        """Bytes at most. Raises ``KeyError`` if the setting was never probed."""
        return self._interpolated("peak_memory_bytes", setting, batch_size)

    def cores_used(self, setting: Params, batch_size: int) -> float:
        """CPU time a second. Raises ``KeyError`` if the setting was never probed."""
        return self._interpolated("cores_used", setting, batch_size)

    def _interpolated(self, figure: str, setting: Params, batch_size: int) -> float:
        key = _key(setting)
        line = self._lines.get((figure, key))
        if line is None:
            points = self._probes[key]
            sizes = sorted(points)
            # means, as a whole training has all the slow moments too
            means = [
                statistics.fmean(getattr(probe, figure) for probe in points[each])
                for each in sizes
            ]
            known = min(means) > 0
            line = list(map(math.log, sizes)), list(map(math.log, means)) if known else []
            self._lines[figure, key] = line
        return math.exp(_interpolate(math.log(batch_size), *line)) if line[1] else 0.0

    @property
    def probe_error(self) -> float:
        """Standard deviation of a probe's logarithm, pooled over all that were repeated."""
        if not self._spread:
            sets = [
                [math.log(probe.iteration_s) for probe in probes]
                for points in self._probes.values()
                for probes in points.values()
            ]
            squares = sum(map(_squares, sets))
            freedom = sum(len(logs) - 1 for logs in sets)
            found = math.sqrt(squares / freedom) if freedom else _UNKNOWN_SPREAD
            self._spread = max(found, _LEAST_SPREAD)
        return self._spread

    def promised_s(self, params: Params) -> float:
        """Seconds an iteration of a trial with ``params`` should take by the probes alone.

        0 if nobody knows.
        """
        for setting in self.probed:
            if all(params.get(name) == value for name, value in setting.items()):
                return self.probed_s(setting, int(params["batch_size"] or 1))
        return 0.0

    def was_probed(self, setting: Params, batch_size: int) -> bool:
        """Whether this setting was measured at this very batch size."""
        return batch_size in self._probes.get(_key(setting), {})

    def fastest(self, batch_size: int) -> dict[str, ParamValue]:
        """The setting that trains this batch size fastest. Raises ``ValueError`` without any."""
        return min(self.settings, key=lambda each: self.surely_s(each, batch_size))

    def ranked(self, batch_size: int) -> list[dict[str, ParamValue]]:
        """The settings in use, that which trains this batch size fastest first."""
        return sorted(self.settings, key=lambda each: self.surely_s(each, batch_size))

    def contenders(self, slack: float) -> list[dict[str, ParamValue]]:
        """Settings within ``slack`` (a factor) of the fastest at some batch size of their own.

        Fastest first, by their smallest factor.
        """
        best: dict[int, float] = {}
        for setting in self.settings:
            for batch in self._probes[_key(setting)]:
                best[batch] = min(best.get(batch, math.inf), self.pace_s(setting, batch))
        factors = {
            key: min(self.pace_s(self._settings[key], batch) / best[batch] for batch in points)
            for key, points in ((key, self._probes[key]) for key in self._in_use())
        }
        ranked = sorted(factors, key=factors.__getitem__)
        return [self._settings[key] for key in ranked if factors[key] <= slack]

    def to_json(self) -> str:
        """Serialise what the race found; ``from_json`` reads it back. Runs belong to a study."""
        return json.dumps(
            {
                "probes": [asdict(each) for each in self.probes],
                "faults": self.faults,
                "disturbed": self.disturbed,
                "settled": self.settled,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> RuntimeMap:
        """Read what ``to_json`` wrote; ``ValueError`` or ``LookupError`` for other texts."""
        raw = json.loads(text)
        found = cls(Probe(**each) for each in raw["probes"])
        found.faults = [(setting, reason) for setting, reason in raw["faults"]]
        found.disturbed, found.settled = raw["disturbed"], raw["settled"]
        return found


def _squares(values: Sequence[float]) -> float:
    """Sum of the squared deviations from the mean."""
    mean = statistics.fmean(values)
    return sum((each - mean) ** 2 for each in values)


def _key(setting: Params) -> _Key:
    return tuple(sorted(setting.items()))


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
