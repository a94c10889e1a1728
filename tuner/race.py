"""The race of the runtime settings: which of them train fastest, at every batch size.

Sub-second probes in warm workers, one worker a setting. Params are decided in their order: all
values of one are tried under the best settings so far, and those plainly beaten are dropped before
the next param. The last few run in turns, so that a machine that changes its speed does so for all
of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tuner.runner import TrialSetup, WorkerSession
from tuner.runtime_map import Probe, RuntimeMap
from tuner.space import Range, SearchSpace
from tuner.study_folder import write_atomically
from tuner.trial import Params, ParamValue, Trial, TrialKind, TrialResult

_LEAST_ITERATIONS = 3
_LIMIT = 3.0  # a probe may take this many times as long as planned: a slow setting costs little
_SLACK = 1.3  # settings slower than the best by this factor at every batch size are dropped
_PLAINLY = 1.5  # by this factor at the first batch size: then the others are not even tried
_FINALISTS = 6
_ROUNDS = 3
_FAR = 2.0  # a factor between batch sizes that a straight line should not bridge
_DRIFT = 0.1  # a change of the default's pace (its logarithm) that is more than noise
_KILL_S = 120.0
_LEAST_S = 1e-9  # a clock may stand still


def race_runtimes(
    setup: TrialSetup,
    space: SearchSpace,
    default: Params,
    fingerprint: str,
    folder: Path,
    *,
    budget_s: float,
    probe_s: float,
    check: Callable[[], None],
    tell: Callable[[str, float], None],
) -> RuntimeMap:
    """The runtime map of this machine: the one that was raced for before, or raced for now.

    Args:
        setup: Whose workers run.
        space: Whose runtime params are raced.
        default: The framework's own default.
        fingerprint: Of machine and packages: another one makes another map.
        folder: Where maps are kept.
        budget_s: Seconds after which nothing new is begun.
        probe_s: Training time of a probe, seconds.
        check: Called between probes; what it raises ends the race, and nothing is kept.
        tell: Called with what is being done and the fraction (0–1) of the budget used.
    """
    data = setup.dataset
    identity = {
        **setup.identity(fingerprint),
        "data": [data.channels, data.height, data.width, data.classes, setup.model],
        "params": [sorted(space.runtime.items()), space.params["batch_size"], dict(default)],
    }
    text = json.dumps(identity, sort_keys=True, default=str)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        return RuntimeMap.from_json(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(dir=setup.folder.parent, prefix="race-") as scratch:
        place = dataclasses.replace(setup, folder=Path(scratch))
        start = time.monotonic()
        found = Race(
            space=space,
            default=default,
            open_session=lambda params: WorkerSession(place, params),
            budget_s=budget_s,
            clock=lambda: time.monotonic() - start,
            check=check,
            tell=tell,
            repeats=setup.measure.repeats,
            probe_s=probe_s,
        ).run()
    if found.probes:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, found.to_json())
    return found


class Session(Protocol):
    """A warm worker with one runtime setting."""

    def run(self, trial: Trial) -> TrialResult:
        """Train once more in the same worker."""


OpenSession = Callable[[Params], contextlib.AbstractContextManager[Session]]


@dataclass
class Race:
    """Finds the fast settings of a framework on this machine.

    Args:
        space: Whose runtime params are raced.
        default: The framework's own default: its setting is measured first, and like the others.
        open_session: Starts a warm worker for the runtime setting of some params.
        budget_s: Seconds after which nothing new is begun.
        clock: Seconds since the race began.
        check: Called between probes; may raise to end the race.
        tell: Called with what is being done and the fraction (0–1) of the budget used.
        repeats: Most repeats of a disturbed probe.
        probe_s: Training time of a probe, seconds.
        known: What the race adds to.
    """

    space: SearchSpace
    default: Params
    open_session: OpenSession
    budget_s: float
    clock: Callable[[], float]
    check: Callable[[], None] = lambda: None
    tell: Callable[[str, float], None] = lambda _text, _fraction: None
    repeats: int = 1
    probe_s: float = 0.25
    known: RuntimeMap = field(default_factory=RuntimeMap)

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._seen: set[str] = set()
        self._last_disturbed, self._last_s = False, self.probe_s
        self._reference_s, self._drift = 0.0, 1.0

    def run(self) -> RuntimeMap:
        """Race, and return what is known then."""
        default = self._setting(self.default)
        with self.open_session(self.default) as reference:
            self._scout(default, reference)
            for name in self.space.runtime:
                for setting in self._variants(name):
                    self._scout(setting, reference)
            self._finish(self.known.contenders(_SLACK)[:_FINALISTS], reference)
        return self.known

    def _setting(self, params: Params) -> dict[str, ParamValue]:
        return {name: params[name] for name in self.space.runtime}

    def _variants(self, name: str) -> list[dict[str, ParamValue]]:
        """The best settings so far with every value of one param.

        The best is that of each batch size; where the values depend on another param (the kernels
        on the library), that of each of its values that is not plainly beaten.
        """
        param = self.space.runtime[name]
        groups: dict[ParamValue, list[dict[str, ParamValue]]] = {}
        for setting in self.known.contenders(_SLACK):
            groups.setdefault(setting.get(param.given), []).append(setting)
        bases = [
            min(group, key=lambda each: self.known.iteration_s(each, batch).value)
            for group in groups.values()
            for batch in self.known.batch_sizes
        ]
        return [
            self._setting(self.space.completed({**self.default, **base, name: value}))
            for base in bases
            for value in param.values(base)
        ]

    def _scout(self, setting: dict[str, ParamValue], reference: Session) -> None:
        """Probe a new setting at one batch size, and at the others unless it is plainly slow.

        The default's worker is probed beside it: where the machine has become slower since, so
        that the default has, what was measured is put to the pace of the beginning.
        """
        key = str(setting)
        if key in self._seen or self.clock() > self.budget_s:
            return
        self._seen.add(key)
        self.tell(" ".join(map(str, setting.values())), min(1.0, self.clock() / self.budget_s))
        if not self._reference_s:
            self._probe_all(setting, reference)
            return
        with self.open_session({**self.default, **setting}) as session:
            self._note_drift(reference)
            self._probe_all(setting, session)

    def _note_drift(self, reference: Session) -> None:
        """How much slower the default is than at the beginning, where that is more than noise."""
        now = self._measure(reference, self._setting(self.default), self.batch_sizes[0])
        drift = now.iteration_s / self._reference_s if now else 1.0
        self._drift = drift if abs(math.log(drift)) > _DRIFT else 1.0

    def _probe_all(self, setting: dict[str, ParamValue], session: Session) -> None:
        for place, batch in enumerate(self.batch_sizes):
            if not self._probe(session, setting, batch, first=not place):
                return
            if not self._reference_s:
                self._reference_s = self.known.iteration_s(setting, batch).value
            if not place and not self._near(setting, batch):
                return

    def _near(self, setting: Params, batch: int) -> bool:
        best = self.known.iteration_s(self.known.fastest(batch), batch).value
        return self.known.iteration_s(setting, batch).value <= _PLAINLY * best

    @property
    def batch_sizes(self) -> list[int]:
        """The default's own first, then the ends of what may be searched, and between if far."""
        own = int(self.default["batch_size"] or 1)
        sizes = self.space.params["batch_size"]
        assert isinstance(sizes, Range)
        between = round((sizes.low * sizes.high) ** 0.5)
        rest = {int(sizes.low), int(sizes.high)} - {own}
        if abs(math.log(between / own)) > math.log(_FAR):
            rest.add(between)
        return [own, *sorted(rest)]

    def _finish(self, finalists: Sequence[dict[str, ParamValue]], reference: Session) -> None:
        """Run the last few in turns."""
        with contextlib.ExitStack() as stack:
            sessions = [
                stack.enter_context(self.open_session({**self.default, **setting}))
                for setting in finalists
            ]
            for turn in range(_ROUNDS):
                self._note_drift(reference)
                for place in range(len(finalists)):
                    index = (place + turn) % len(finalists)
                    for batch in self.batch_sizes:
                        if self.clock() > self.budget_s:
                            return
                        self._probe(sessions[index], finalists[index], batch, first=not turn)

    def _probe(
        self, session: Session, setting: dict[str, ParamValue], batch: int, *, first: bool
    ) -> bool:
        """Add one measurement to the map. The first of a worker is preceded by a short one."""
        if first and self._measure(session, setting, batch, _LEAST_ITERATIONS) is None:
            return False
        for attempt in range(self.repeats + 1):
            probe = self._measure(session, setting, batch)
            if probe is None:
                return False
            if attempt < self.repeats and self._last_disturbed:
                self.known.disturbed += 1
                continue
            pace = probe.iteration_s / self._drift
            self.known.add(dataclasses.replace(probe, iteration_s=pace))
            break
        return True

    def _measure(
        self,
        session: Session,
        setting: dict[str, ParamValue],
        batch: int,
        iterations: int | None = None,
    ) -> Probe | None:
        """One probe, as long as the fastest needs for ``probe_s`` unless told otherwise."""
        self.check()
        if iterations is None:
            iterations = max(_LEAST_ITERATIONS, round(self.probe_s / self._quickest_s(batch)))
        trial = Trial(
            number=next(self._numbers),
            params={**self.default, **setting, "batch_size": batch, "iterations": iterations},
            kind=TrialKind.PROBE,
            train_time_limit_s=_LIMIT * self.probe_s,
            time_limit_s=_KILL_S,
        )
        result = session.run(trial)
        measured = result.measurement
        if not result.usable or measured is None:
            self.known.faults.append((setting, f"{result.status.value}: {result.reason}"))
            return None
        self._last_disturbed = bool(measured.disturbed)
        self._last_s = max(measured.train_time_s, _LEAST_S) / max(result.iterations, 1)
        return Probe(
            setting=setting,
            batch_size=batch,
            iteration_s=self._last_s,
            peak_memory_bytes=measured.peak_memory_bytes,
            cores_used=measured.cores_used,
        )

    def _quickest_s(self, batch: int) -> float:
        """Seconds an iteration takes at best, as far as is known."""
        if not self.known.probes:
            return self._last_s
        return self.known.iteration_s(self.known.fastest(batch), batch).value
