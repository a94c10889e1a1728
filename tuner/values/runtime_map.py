"""The time of an iteration by runtime setting and batch size, interpolated between probes.

Training time is ``iterations * t(batch_size, runtime)``. A few short probes at a few batch sizes
measure a setting. Times in between are interpolated on logarithmic axes, on which they are nearly
straight lines. Whole trainings show how far probes can be trusted, and which settings fail.
"""

from __future__ import annotations

import bisect
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from tuner.values.exchange import Lossy, lossy
from tuner.values.params import Params, ParamValue, batch_size_of
from tuner.values.trial import Interval, TrialStatus

_MIN_SPREAD = 0.01  # relative; two probes that happen to agree do not prove a better precision
_INTERPOLATION = 0.05  # relative error that a straight line between two batch sizes may have
_UNKNOWN_SPREAD = 0.1  # of the logarithm of a probe, where none was repeated
_OTHERS = 4  # weight of all settings' noise in that of one setting, in probes
_Z = 2.2  # Student's t, two-sided 95 %, for about ten probes
_NEAREST = 3  # trainings beside others that tell how much slower they are
_MAX_FAILURES = 2
_WORTH_A_CHANGE = 1.1  # times as fast as all exact settings, for a lossy exchange to be worth it
# how reasons of faults begin that say nothing of the setting: it is tried again another time
_PASSING = (f"{TrialStatus.INTERRUPTED.value}:", f"{TrialStatus.DISK_FULL.value}:")
_Key = tuple[tuple[str, ParamValue], ...]


@dataclass(frozen=True, slots=True)
class PaceProbe:
    """A short training in a warm worker.

    Attributes:
        setting: The runtime params, all of them.
        batch_size: Images per iteration.
        iteration_s: Seconds per iteration.
        peak_memory_bytes: Of the worker's process tree.
        cores_used: CPU seconds per second of training.
        sent_bytes: Bytes an iteration that processes of a group sent to each other.
    """

    setting: Params
    batch_size: int
    iteration_s: float
    peak_memory_bytes: int = 0
    cores_used: float = 0.0
    sent_bytes: float = 0.0


class RuntimeMap:
    """The seconds per iteration of every runtime setting that was probed.

    A study has one map: the race adds probes to it, the search adds results of trials.

    Args:
        probes: Measurements known from the start.

    Attributes:
        probes: All measurements, including those of settings that were given up since.
        faults: Settings that could not be measured, each with the reason.
        disturbed: Number of probes thrown away because others used the machine meanwhile.
        settled: Whether everything worth trying was tried.
    """

    def __init__(self, probes: Iterable[PaceProbe] = ()) -> None:
        self.forget()
        for each in probes:
            self.add(each)

    def forget(self) -> None:
        """Forget everything."""
        self.probes: list[PaceProbe] = []
        self.faults: list[tuple[Params, str]] = []
        self.disturbed = 0
        self.settled = False
        self._probes: dict[_Key, dict[int, list[PaceProbe]]] = {}
        self._lines: dict[tuple[str, _Key], tuple[list[float], list[float]]] = {}
        self._spread = 0.0
        self._settings: dict[_Key, dict[str, ParamValue]] = {}
        self._runs: dict[_Key, list[PaceProbe]] = {}
        self._beside: list[PaceProbe] = []
        self._excess: dict[_Key, list[float]] | None = None
        self._failures: dict[_Key, int] = {}
        self._given_up: list[_Key] = []

    def rescale(self, factor: float) -> None:
        """Multiply all times by ``factor``, as the machine has become slower or faster."""
        probes, kept = self.probes, (self.faults, self.disturbed, self.settled)
        self.forget()
        self.faults, self.disturbed, self.settled = kept
        for each in probes:
            self.add(replace(each, iteration_s=factor * each.iteration_s))

    def add(self, probe: PaceProbe) -> None:
        """Add a measurement."""
        self.probes.append(probe)
        key = _key(probe.setting)
        self._settings.setdefault(key, dict(probe.setting))
        self._probes.setdefault(key, {}).setdefault(probe.batch_size, []).append(probe)
        self._lines.clear()
        self._spread, self._excess = 0.0, None

    def add_run(self, run: PaceProbe) -> None:
        """Add the time of a whole training, to be compared with the probes of its setting.

        A run may take longer than its probes predict because of its setting, or because the
        machine was slow at the time. So a setting without runs is expected to exceed its probes
        by the usual excess of settings with runs, and a setting with few runs by a value between
        that and its own. Otherwise the next best setting, probed at a better time, would seem
        faster than it is. Runs of a setting count once it has been probed.
        """
        self._runs.setdefault(_key(run.setting), []).append(run)
        self._excess = None

    def add_beside(self, run: PaceProbe) -> None:
        """Add the time of a training that ran beside others, each on a core of its own."""
        self._beside.append(run)

    def note_failure(self, setting: Params) -> None:
        """Count a run that failed with this setting; give the setting up after the second.

        Its probes stay, as the setting may work in another study. If all settings fail that learn
        the same, the last one stays in use.
        """
        key = _key(setting)
        self._failures[key] = self._failures.get(key, 0) + 1
        if self._failures[key] == _MAX_FAILURES:
            self._given_up.append(key)

    def _in_use(self) -> list[_Key]:
        """Return the keys of the settings to choose among, of each kind at least one."""
        kept = [each for each in self._settings if each not in self._given_up]
        kinds = {lossy(self._settings[each]) for each in kept}
        for each in reversed(self._given_up):
            if each in self._settings and lossy(self._settings[each]) not in kinds:
                kinds.add(lossy(self._settings[each]))
                kept.append(each)
        return kept

    def _excesses(self) -> dict[_Key, list[float]]:
        """Return the logarithms of measured over predicted times of runs, by setting."""
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
        """Return the expected logarithm of a whole training's time over that of the probes."""
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
        """The settings in use (probed and not given up), in the order they were first probed."""
        return [self._settings[key] for key in self._in_use()]

    def settings_of(self, kind: Lossy | None) -> list[dict[str, ParamValue]]:
        """Return the settings in use with an exact exchange, or with this lossy one."""
        return [each for each in self.settings if lossy(each) == kind]

    @property
    def probed(self) -> list[dict[str, ParamValue]]:
        """All settings that were probed, including those that were given up."""
        return list(self._settings.values())

    @property
    def batch_sizes(self) -> list[int]:
        """The batch sizes that were probed, ascending."""
        return sorted({each.batch_size for each in self.probes})

    def iteration_s(self, setting: Params, batch_size: int) -> Interval:
        """Return the seconds per iteration, with the interval (95 %) of the estimate.

        Raises:
            KeyError: If the setting was never probed.
        """
        value = self.pace_s(setting, batch_size)
        error = self._error(setting, batch_size)
        return Interval(value, value * math.exp(-_Z * error), value * math.exp(_Z * error))

    def _error(self, setting: Params, batch_size: int) -> float:
        """Return the standard error of the logarithm of the seconds per iteration."""
        points = self._probes[_key(setting)]
        nearest = min(points, key=lambda each: abs(math.log(each / batch_size)))
        own = [math.log(probe.iteration_s) for probe in points[nearest]]
        # settings of several threads may be slow now and then while others are steady
        squares = _squares(own) + _OTHERS * self.probe_error**2
        error = math.sqrt(squares / (len(own) - 1 + _OTHERS) / len(own))
        return error if batch_size in points else math.hypot(error, _INTERPOLATION)

    def undecided(self, setting: Params, batch_size: int) -> bool:
        """Return whether the setting and the best other exact one cannot be told apart (95 %).

        Raises:
            KeyError: If the setting was never probed.
        """
        others = [each for each in self.settings_of(None) if each != dict(setting)]
        if not others:
            return False
        best = min(others, key=lambda each: self.pace_s(each, batch_size))
        lead = math.log(self.pace_s(setting, batch_size) / self.pace_s(best, batch_size))
        error = math.hypot(self._error(setting, batch_size), self._error(best, batch_size))
        return abs(lead) < _Z * error

    def pace_s(self, setting: Params, batch_size: int) -> float:
        """Return the seconds per iteration. Raises ``KeyError`` if it was never probed."""
        return self.probed_s(setting, batch_size) * math.exp(self._expected_excess(setting))

    def beside_s(self, setting: Params, batch_size: int) -> float:
        """Return the seconds per iteration beside other trainings, each on a core of its own.

        They share caches and memory, so each may be slower than alone, and more so the more images
        an iteration has. Trainings of the nearest batch sizes tell by how much; before these, it
        is expected to be as fast as alone.

        Raises:
            KeyError: If the setting was never probed.
        """
        known = [each for each in self._beside if _key(each.setting) in self._probes]
        known.sort(key=lambda each: abs(math.log(each.batch_size / batch_size)))
        slower = (
            statistics.median(
                each.iteration_s / self.pace_s(each.setting, each.batch_size)
                for each in known[:_NEAREST]
            )
            if known
            else 1.0
        )
        return max(slower, 1.0) * self.pace_s(setting, batch_size)

    def surely_s(self, setting: Params, batch_size: int) -> float:
        """Return the estimated seconds per iteration plus one standard error.

        Settings are compared by this: of many that were probed once, the one that seems fastest
        is mostly the luckiest. Raises ``KeyError`` if the setting was never probed.
        """
        error = self._error(setting, batch_size)
        return self.pace_s(setting, batch_size) * math.exp(error)

    def probed_s(self, setting: Params, batch_size: int) -> float:
        """Return the seconds per iteration by the probes alone. Raises as ``pace_s`` does."""
        return self._interpolated("iteration_s", setting, batch_size)

    def peak_memory(self, setting: Params, batch_size: int) -> float:
        """Return the peak in bytes. Raises ``KeyError`` if the setting was never probed."""
        return self._interpolated("peak_memory_bytes", setting, batch_size)

    def cores_used(self, setting: Params, batch_size: int) -> float:
        """Return CPU seconds per second. Raises ``KeyError`` if the setting was never probed."""
        return self._interpolated("cores_used", setting, batch_size)

    def sent_bytes(self, setting: Params, batch_size: int) -> float:
        """Return bytes an iteration between processes; raises as ``pace_s`` does."""
        return self._interpolated("sent_bytes", setting, batch_size)

    def _interpolated(self, figure: str, setting: Params, batch_size: int) -> float:
        key = _key(setting)
        line = self._lines.get((figure, key))
        if line is None:
            points = self._probes[key]
            sizes = sorted(points)
            # means: a whole training includes the slow moments too
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
        """Standard deviation of a probe's logarithm, pooled over all repeated probes."""
        if not self._spread:
            sets = [
                [math.log(probe.iteration_s) for probe in probes]
                for points in self._probes.values()
                for probes in points.values()
            ]
            squares = sum(map(_squares, sets))
            freedom = sum(len(logs) - 1 for logs in sets)
            found = math.sqrt(squares / freedom) if freedom else _UNKNOWN_SPREAD
            self._spread = max(found, _MIN_SPREAD)
        return self._spread

    def promised_s(self, params: Params) -> float:
        """Return the seconds per iteration that the probes alone predict for ``params``.

        0 if their setting was not probed.
        """
        for setting in self.probed:
            if all(params.get(name) == value for name, value in setting.items()):
                return self.probed_s(setting, batch_size_of(params))
        return 0.0

    def was_probed(self, setting: Params, batch_size: int) -> bool:
        """Return whether this setting was measured at exactly this batch size."""
        return batch_size in self._probes.get(_key(setting), {})

    def fastest(self, batch_size: int, kind: Lossy | None = None) -> dict[str, ParamValue]:
        """Return the fastest setting at this batch size, an exact one unless a kind is given.

        Raises:
            ValueError: If there is none.
        """
        return min(self.settings_of(kind), key=lambda each: self.surely_s(each, batch_size))

    def lossy_kinds(self, batch_size: int) -> list[Lossy]:
        """Return the lossy exchanges that surely train so much faster that a change is worth it.

        The fastest setting of each is compared with the fastest exact one (95 %).
        """
        works = (each for key, each in self._settings.items() if key not in self._given_up)
        kinds = dict.fromkeys(filter(None, map(lossy, works)))
        if not kinds:
            return []
        exact = self.fastest(batch_size)
        return [
            kind
            for kind in kinds
            if self._lead(self.fastest(batch_size, kind), exact, batch_size) > _WORTH_A_CHANGE
        ]

    def _lead(self, setting: Params, other: Params, batch_size: int) -> float:
        """Return how many times as fast as another one a setting is at least (95 %)."""
        ratio = self.pace_s(other, batch_size) / self.pace_s(setting, batch_size)
        error = math.hypot(self._error(setting, batch_size), self._error(other, batch_size))
        return ratio * math.exp(-_Z * error)

    def ranked(self, batch_size: int) -> list[dict[str, ParamValue]]:
        """Return the settings in use, fastest at this batch size first."""
        return sorted(self.settings, key=lambda each: self.surely_s(each, batch_size))

    def contenders(self, slack: float) -> list[dict[str, ParamValue]]:
        """Return settings within a factor ``slack`` of the fastest at one of their batch sizes.

        Sorted by their smallest factor. The fastest is the fastest exact one.
        """
        best: dict[int, float] = {}
        for setting in self.settings_of(None):
            for batch in self._probes[_key(setting)]:
                best[batch] = min(best.get(batch, math.inf), self.pace_s(setting, batch))
        factors = {
            key: min(
                self.pace_s(self._settings[key], batch) / best[batch]
                for batch in self._probes[key]
                if batch in best
            )
            for key in self._in_use()
        }
        ranked = sorted(factors, key=factors.__getitem__)
        return [self._settings[key] for key in ranked if factors[key] <= slack]

    def to_json(self) -> str:
        """Serialise what the race found, for ``from_json``. Runs belong to a study: left out.

        So are settings that failed for want of a node or of disk space: they are to be tried yet.
        """
        lasting = [(each, why) for each, why in self.faults if not why.startswith(_PASSING)]
        return json.dumps(
            {
                "probes": [asdict(each) for each in self.probes],
                "faults": lasting,
                "disturbed": self.disturbed,
                "settled": self.settled and len(lasting) == len(self.faults),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> RuntimeMap:
        """Read what ``to_json`` wrote. Raises ``ValueError``, ``LookupError`` or ``TypeError``."""
        raw = json.loads(text)
        found = cls(PaceProbe(**each) for each in raw["probes"])
        found.faults = [(setting, reason) for setting, reason in raw["faults"]]
        found.disturbed, found.settled = raw["disturbed"], raw["settled"]
        return found


def _squares(values: Sequence[float]) -> float:
    """Return the sum of the squared deviations from the mean."""
    mean = statistics.fmean(values)
    return sum((each - mean) ** 2 for each in values)


def _key(setting: Params) -> _Key:
    return tuple(sorted(setting.items()))


def _interpolate(at: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Interpolate between the two neighbours; extend the last line beyond the ends.

    More images never take less time, and never more than in proportion. So slopes outside 0 to 1
    beyond the ends are noise, and are clipped.
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
