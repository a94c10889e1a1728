"""How the machine's speed changes while settings are raced.

One setting of one thread is measured again beside every other, so that a machine that has become
slower is not taken for a slow setting. Neighbours of this machine that take a core slow a setting
of more threads alone. It is never chosen for its figures: the fastest of many noisy probes seems
slower whenever it is measured again, and all that is measured then would be praised for it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Protocol

from tuner.values.runtime_map import Probe, RuntimeMap
from tuner.values.trial import Params, ParamValue, Trial, TrialResult

_DRIFT = 0.1  # a change of pace (its logarithm) that may matter
_SURELY = 2.0  # standard errors by which it must exceed the noise of probes
_PLAINLY = 1.5  # a setting slower than the fastest by this factor keeps the time no longer


class Session(Protocol):
    """A warm worker with one runtime setting."""

    def run(self, trial: Trial) -> TrialResult:
        """Train once more in the same worker."""


OpenSession = Callable[[Params], contextlib.AbstractContextManager[Session]]
Measure = Callable[[Session, dict[str, ParamValue]], Probe | None]
"""One probe of a setting in its worker; ``None`` if it failed or was disturbed."""


class Pacemaker:
    """A warm worker that tells how fast the machine is now.

    Args:
        known: What was measured so far, and is added to.
        open_session: Starts a worker for a setting.
        measure: Measures a setting in its worker, once.
        batch: At which batch size that is done.
    """

    def __init__(
        self, known: RuntimeMap, open_session: OpenSession, measure: Measure, batch: int
    ) -> None:
        self._known, self._open, self._measure, self._batch = known, open_session, measure, batch
        self._setting: dict[str, ParamValue] | None = None
        self._session: Session | None = None
        self._worker = contextlib.ExitStack()

    def drift(self) -> float:
        """How many times as long training takes now as before; 1 where noise may explain it.

        And before a setting of one thread is known.
        """
        self._choose()
        if self._session is None or self._setting is None:
            return 1.0
        now = self._measure(self._session, self._setting)
        if now is None:
            return 1.0
        usual_s = self._known.probed_s(self._setting, self._batch)
        change = math.log(now.iteration_s / usual_s)
        if abs(change) > max(_DRIFT, _SURELY * self._known.probe_error):
            return math.exp(change)
        self._known.add(now)
        return 1.0

    def adopt(self, setting: Params, session: Session, worker: contextlib.ExitStack) -> None:
        """Take over a worker that was just measured, if its setting is to keep the time."""
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
            self._session = self._worker.enter_context(self._open(best))
            self._measure(self._session, best)  # the first one of a worker allocates

    def _best(self) -> dict[str, ParamValue] | None:
        """The first setting of one thread that is not plainly slow."""
        known, batch = self._known, self._batch
        if not known.probes:
            return None
        most_s = _PLAINLY * known.probed_s(known.fastest(batch), batch)
        single = [each for each in known.settings if each.get("threads", 1) == 1]
        return next((each for each in single if known.probed_s(each, batch) <= most_s), None)
