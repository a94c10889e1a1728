"""The probes of the race: short trainings in warm workers, whose times make up the runtime map."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tuner.values.params import Params, ParamValue
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.trial import Trial, TrialKind, TrialResult

_MIN_ITERATIONS = 3
_WARM_UP = 1  # iterations that are not counted, as a new batch size allocates memory
_LIMIT = 3.0  # times the planned time that a probe may take, so that a slow setting costs little
_KILL_S, _MIN_KILL_S = 120.0, 15.0
_PATIENCE = 5.0  # times the longest probe so far that the next may take
_MIN_S = 1e-9  # a clock may stand still


class Session(Protocol):
    """A warm worker with one runtime setting."""

    def run(self, trial: Trial) -> TrialResult:
        """Train once more in the same worker."""


OpenSession = Callable[[Params], contextlib.AbstractContextManager[Session]]


@dataclass
class Prober:
    """Probes runtime settings.

    Args:
        open_session: Starts a warm worker for the runtime setting of some params.
        default: The framework's own default, from which all other params are.
        known: The map so far; measurements are added to it.
        clock: Clock in seconds.
        check: Called before each probe; may raise to end the race.
        repeats: Most repeats of a disturbed probe.
        probe_s: Training time of a probe, seconds.

    Attributes:
        drift: How many times as long training takes now as before. Measurements are converted to
            the earlier pace.
    """

    open_session: OpenSession
    default: Params
    known: RuntimeMap
    clock: Callable[[], float]
    check: Callable[[], None]
    repeats: int
    probe_s: float

    def __post_init__(self) -> None:
        self.drift = 1.0
        self._numbers = itertools.count(1)
        self._last_disturbed, self._last_s = False, self.probe_s
        self._longest_s = 0.0  # that a probe took, with its worker's start

    def open(self, setting: Params) -> contextlib.AbstractContextManager[Session]:
        """Start a worker for a setting."""
        return self.open_session({**self.default, **setting})

    def is_long(self, iteration_s: float) -> bool:
        """Return whether a single iteration takes longer than a probe may."""
        return iteration_s > _LIMIT * self.probe_s

    def probe(
        self,
        session: Session,
        setting: dict[str, ParamValue],
        batch: int,
        *,
        first: bool,
        times: int = 1,
    ) -> bool:
        """Add one measurement to the map. Return whether that succeeded.

        A short warm-up precedes the ``first`` one of a worker. It is itself the measurement if its
        single iteration takes longer than a probe may.

        Args:
            session: The worker.
            setting: Its runtime setting.
            batch: Batch size.
            first: Whether it is the worker's first at this batch size.
            times: How many times as long as usual it trains.
        """
        length_s = times * self.probe_s
        if first:
            warm_up = self._measure(session, setting, batch, length_s, _WARM_UP)
            if warm_up is None:
                return False
            if self.is_long(warm_up.iteration_s) and not self._last_disturbed:
                self._add(warm_up)
                return True
        for attempt in range(self.repeats + 1):
            probe = self._measure(session, setting, batch, length_s)
            if probe is None:
                return False
            if attempt < self.repeats and self._last_disturbed:
                self.known.disturbed += 1
                continue
            self._add(probe)
            break
        return True

    def pace(
        self, session: Session, setting: dict[str, ParamValue], batch: int
    ) -> PaceProbe | None:
        """Return one probe, not added to the map; ``None`` if it failed or was disturbed."""
        probe = self._measure(session, setting, batch, self.probe_s)
        return None if self._last_disturbed else probe

    def change(self, setting: dict[str, ParamValue], batch: int) -> float | None:
        """Return the logarithm of a setting's pace now over that of the map; ``None`` if it fails.

        Of two probes, the one that is nearer to the pace of the map counts.
        """
        recorded_s = self.known.probed_s(setting, batch)
        length = max(_MIN_ITERATIONS, round(self.probe_s / recorded_s))
        with self.open(setting) as session:
            lengths = (_WARM_UP, length, length)
            _, *probes = [
                self._measure(session, setting, batch, self.probe_s, each) for each in lengths
            ]
        found = (math.log(each.iteration_s / recorded_s) for each in probes if each)
        return min(found, key=abs, default=None)

    def _add(self, probe: PaceProbe) -> None:
        """Add a measurement to the map, converted to the machine's earlier pace."""
        pace = probe.iteration_s / self.drift
        self.known.add(dataclasses.replace(probe, iteration_s=pace))

    def _measure(
        self,
        session: Session,
        setting: dict[str, ParamValue],
        batch: int,
        length_s: float,
        iterations: int | None = None,
    ) -> PaceProbe | None:
        """Run one probe. Return ``None`` if it failed.

        By default it has as many iterations as the fastest setting trains in the planned time.
        """
        self.check()
        if iterations is None:
            quickest_s = self._quickest_s(batch)
            iterations = max(_MIN_ITERATIONS, round(length_s / quickest_s))
            iterations = max(1, min(iterations, int(_LIMIT * length_s / quickest_s)))
        trial = Trial(
            number=next(self._numbers),
            params={**self.default, **setting, "batch_size": batch, "iterations": iterations},
            kind=TrialKind.PROBE,
            train_time_limit_s=_LIMIT * length_s,
            time_limit_s=self._kill_s(length_s),
        )
        began_s = self.clock()
        result = session.run(trial)
        took_s = self.clock() - began_s
        measured = result.measurement
        if not result.usable or measured is None:
            self.known.faults.append((setting, f"{result.status.value}: {result.reason}"))
            return None
        self._longest_s = max(self._longest_s, took_s)
        self._last_disturbed = bool(measured.disturbed)
        self._last_s = max(measured.train_time_s, _MIN_S) / max(result.iterations, 1)
        return PaceProbe(
            setting=setting,
            batch_size=batch,
            iteration_s=self._last_s,
            peak_memory_bytes=measured.peak_memory_bytes,
            cores_used=measured.cores_used,
            sent_bytes=measured.sent_bytes / result.iterations,
        )

    def _kill_s(self, length_s: float) -> float:
        """Return the seconds after which a probe is killed: many times the longest so far."""
        if not self._longest_s:
            return _KILL_S
        return min(_KILL_S, max(_MIN_KILL_S, _PATIENCE * (self._longest_s + _LIMIT * length_s)))

    def _quickest_s(self, batch: int) -> float:
        """Return the least seconds that an iteration takes, as far as is known."""
        if not self.known.probes:
            return self._last_s
        return self.known.probed_s(self.known.fastest(batch), batch)
