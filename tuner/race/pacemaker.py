"""The tracking of the machine's speed while settings are raced.

One setting is measured again along with every other, so that a slower machine is not mistaken for
a slow setting. It has one thread, because other processes that take a core slow only settings with
more threads. It is never chosen for being fastest: the fastest of many noisy probes seems slower
whenever it is measured again, and everything measured at that time would be credited for it.
"""

from __future__ import annotations

import contextlib
import math

from tuner.race.probing import Prober, Session
from tuner.values.params import Params, ParamValue, group_size

_DRIFT = 0.1  # change of pace (logarithm) that may matter
_SURELY = 2.0  # standard errors by which it must exceed the noise of probes
_PLAINLY = 1.5  # a setting slower than the fastest by this factor is not measured again


class Pacemaker:
    """A warm worker that tells how fast the machine is now.

    Args:
        prober: Measures it; its map has the paces so far.
        batch: Batch size at which it is measured.
    """

    def __init__(self, prober: Prober, batch: int) -> None:
        self._prober, self._known, self._batch = prober, prober.known, batch
        self._setting: dict[str, ParamValue] | None = None
        self._session: Session | None = None
        self._worker = contextlib.ExitStack()

    def drift(self) -> float:
        """Return how many times as long training takes now as before.

        Return 1 where noise may explain the change, and before a setting of one thread is known.
        """
        self._choose()
        if self._session is None or self._setting is None:
            return 1.0
        now = self._prober.pace(self._session, self._setting, self._batch)
        if now is None:
            return 1.0
        usual_s = self._known.probed_s(self._setting, self._batch)
        change = math.log(now.iteration_s / usual_s)
        if abs(change) > max(_DRIFT, _SURELY * self._known.probe_error):
            return math.exp(change)
        self._known.add(now)
        return 1.0

    def adopt(self, setting: Params, session: Session, worker: contextlib.ExitStack) -> None:
        """Take over a worker that was just measured, if its setting is the one to repeat."""
        if self._session is None and self._best() == setting:
            self._setting, self._session, self._worker = dict(setting), session, worker.pop_all()

    def release(self) -> None:
        """End the worker."""
        self._session = None
        self._worker.close()

    def _choose(self) -> None:
        best = self._best()
        if self._session is not None and self._setting != best:
            self.release()
        if self._session is None and best is not None:
            self._setting = best
            self._session = self._worker.enter_context(self._prober.open(best))
            # a worker's first probe allocates memory
            self._prober.pace(self._session, best, self._batch)

    def _best(self) -> dict[str, ParamValue] | None:
        """Return the first setting of one thread that is not plainly slow, if any."""
        known, batch = self._known, self._batch
        if not known.probes:
            return None
        max_s = _PLAINLY * known.probed_s(known.fastest(batch), batch)
        single = [
            each for each in known.settings if each.get("threads", 1) == group_size(each) == 1
        ]
        return next((each for each in single if known.probed_s(each, batch) <= max_s), None)
