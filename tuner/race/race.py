"""The race of the runtime settings: which of them train fastest, at every batch size.

Each setting has a warm worker. Sub-second probes are repeated until they tell whether it is faster
than the best so far at the default's batch size. Params are decided in their order, again and
again until no neighbour of the best is left. All values of a param are tried with the best setting
so far of each library that is not plainly beaten by then; the best value is also tried with the
library's other settings. Settings that cannot be told apart from the fastest run in turns, so that
a change of the machine's speed affects all of them, until the fastest at each batch size was among
them.

The race runs step by step until its time is up, or nothing is left to try. A slow default may use
up the time before anything else was tried, so one start point and one value of each param may
always be tried.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tuner.race.pacemaker import OpenSession, Pacemaker, Session
from tuner.values.exchange import exact_only
from tuner.values.ranges import Range
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.space import SearchSpace
from tuner.values.trial import Params, ParamValue, Trial, TrialKind, group_size, nodes_of

_MIN_ITERATIONS = 3
_WARM_UP = 1  # iterations that are not counted, as a new batch size allocates memory
_LIMIT = 3.0  # times the planned time that a probe may take, so that a slow setting costs little
_SLACK = 1.3  # settings slower than the best by this factor at every batch size are dropped
_PLAINLY = 1.5  # slower by this factor at the first batch size: the others are not even tried
_ALIKE = 1.08  # within this factor a few probes each do not tell which is faster
_PROBES = 3  # at most, of a setting at a batch size, before similar settings run in turns
_FINALISTS = 4
_ROUNDS = 3
_LONGER = 3  # times as long are probes in turns at the first batch size: threads have slow spells
_FAR = 2.0  # a factor between batch sizes that a straight line should not bridge
_DRIFT = 0.1  # a change of recorded paces (its logarithm) that is more than noise
_UNLIKE = 0.2  # difference of two settings' changes (logarithms) that is more than noise
_KILL_S, _MIN_KILL_S = 120.0, 15.0
_PATIENCE = 5.0  # times the longest probe so far that the next may take
_MIN_S = 1e-9  # a clock may stand still


@dataclass
class Race:
    """Finds the fast settings of a framework on this machine.

    Args:
        space: Space whose runtime params are raced. The settings of its start points come first.
        default: The framework's own default; its setting is measured first, like any other.
        open_session: Starts a warm worker for the runtime setting of some params.
        budget_s: Seconds of racing after which only the first value of a param is tried.
        clock: Clock in seconds; time between two calls of ``run`` does not count.
        check: Called between probes; may raise to end the race.
        tell: Called with what is being done and the fraction (0–1) of the budget used.
        repeats: Most repeats of a disturbed probe.
        probe_s: Training time of a probe, seconds.
        known: The map so far; measurements are added to it.
        recorded: Whether that map is an earlier study's, so that it is checked first.
    """

    space: SearchSpace
    default: Params
    open_session: OpenSession
    budget_s: float
    clock: Callable[[], float] = time.monotonic
    check: Callable[[], None] = lambda: None
    tell: Callable[[str, float], None] = lambda _text, _fraction: None
    repeats: int = 1
    probe_s: float = 0.25
    known: RuntimeMap = field(default_factory=RuntimeMap)
    recorded: bool = False

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._last_disturbed, self._last_s = False, self.probe_s
        self._length_s = self.probe_s  # of the next probe
        self._longest_s = 0.0  # that a probe took, with its worker's start
        self._drift, self._spent_s, self._began_s = 1.0, 0.0, 0.0
        self._confirmed: list[dict[str, ParamValue]] = []
        self._pacemaker = Pacemaker(self.known, self._open, self._pace, self.batch_sizes[0])
        self._begin()

    def _begin(self) -> None:
        """Go to the first setting that was not tried."""
        self._stage = ""
        self._begun: set[str] = set()
        self._candidates = self._in_order()
        self._next: dict[str, ParamValue] | None = self._setting(self.default)
        if self.known.probes:
            self._advance()

    @property
    def _seen(self) -> set[str]:
        return {str(each) for each in (*self.known.probed, *(bad for bad, _ in self.known.faults))}

    @property
    def over(self) -> bool:
        """Whether nothing is left to try, or no time is left."""
        out_of_time = self._late and not self._is_due
        return not self.recorded and (self.known.settled or out_of_time)

    @property
    def _late(self) -> bool:
        return self._used_s() > self.budget_s

    @property
    def _is_due(self) -> bool:
        """Whether the next setting may be tried even late, as nothing of its stage was tried."""
        return self._next is not None and self._stage not in self._begun

    def _used_s(self) -> float:
        return self._spent_s + (self.clock() - self._began_s if self._began_s else 0.0)

    def run(self, max_s: float = math.inf) -> RuntimeMap:
        """Race on, and return the map.

        Args:
            max_s: Seconds after which this call begins nothing new.
        """
        until_s = self._used_s() + max_s
        self._began_s = self.clock() or _MIN_S
        try:
            if self.recorded:
                self._check_recorded()
            if not self.known.probes:
                self._scout(self._setting(self.default))
                self._advance()
            while self.known.probes and not self.over and self._used_s() < until_s:
                self._step()
            while self._used_s() < until_s and self._is_doubtful:
                self._finish()
        finally:
            self._pacemaker.release()
            self._spent_s, self._began_s = self._used_s(), 0.0
            if self._late and self._next is not None and not self._is_due:
                self._advance()
        return self.known

    def _check_recorded(self) -> None:
        """Rescale the recorded map to the current pace; forget it if two settings disagree."""
        self.recorded = False
        pair = self._setting(self.default), self.known.fastest(self.batch_sizes[0])
        changes = [each for setting in pair for each in self._change(setting)]
        if max(changes, default=0.0) - min(changes, default=0.0) > _UNLIKE:
            self.known.forget()
            self._begin()
        elif abs(sum(changes)) > _DRIFT * len(changes):
            self.known.rescale(math.exp(sum(changes) / len(changes)))

    def _change(self, setting: dict[str, ParamValue]) -> list[float]:
        """Return the logarithm of a setting's pace now over the recorded one, if there is one.

        Of two probes, the one that is nearer to the recorded pace counts.
        """
        if setting not in self.known.probed:
            return []
        self.tell("whether the recorded paces still hold", 0.0)
        batch = self.batch_sizes[0]
        recorded_s = self.known.probed_s(setting, batch)
        length = max(_MIN_ITERATIONS, round(self.probe_s / recorded_s))
        with self._open(setting) as session:
            lengths = (_WARM_UP, length, length)
            _, *probes = [self._measure(session, setting, batch, each) for each in lengths]
        found = (math.log(each.iteration_s / recorded_s) for each in probes if each)
        return sorted(found, key=abs)[:1]

    def _step(self) -> None:
        if self._next is None:
            self._finish()
            self.known.settled = not self._is_doubtful
            return
        self._scout(self._next)
        self._begun.add(self._stage)
        self._advance()

    def _advance(self) -> None:
        """Go to the next setting that was not tried; once the time is up, only to a due one."""
        for setting in self._candidates:
            self._next = None if str(setting) in self._seen else setting
            if self._is_due or (self._next is not None and not self._late):
                return
        self._next = None

    def _in_order(self) -> Iterator[dict[str, ParamValue]]:
        """Yield all settings worth trying, each by what is known when it is asked for."""
        for point in self.space.start_points(self.default):
            yield self._setting(point)
        libraries = {each.given for each in self.space.runtime.values()}
        names, tried = list(self.space.runtime), -1
        while tried < len(self._seen):
            tried = len(self._seen)
            for name in names:
                self._stage = name
                yield from self._variants(name, thorough=name not in libraries)
            # a later param's winner may let another value win here, but libraries are settled
            names = [each for each in names if each not in libraries]
        yield from self._lossy()

    def _setting(self, params: Params) -> dict[str, ParamValue]:
        return {name: params[name] for name in self.space.runtime}

    def _lossy(self) -> Iterator[dict[str, ParamValue]]:
        """Yield what exchanges gradients with a loss, at the fastest setting of each group.

        This comes after all exact settings, which are chosen without it. Where an exchange takes
        long, a group that is slow with the exact one may be the fastest.
        """
        self._begun.add(self._stage)  # none of them is due once the time is up
        tried: set[tuple[int, int]] = set()
        for base in exact_only(self.known.ranked(self.batch_sizes[0])):
            exchanges = self.space.runtime.get("exchange")
            group = group_size(base), nodes_of(base)
            if exchanges is None or group in tried:
                continue
            tried.add(group)
            yield from (self._with(base, "exchange", value) for value in exchanges.values(base))

    def _variants(self, name: str, *, thorough: bool) -> Iterator[dict[str, ParamValue]]:
        """Yield settings with other values of one param, each by what is known by then.

        Where the values depend on another param (the kernels on the library), vary the best
        setting of each value of that other param that is not plainly beaten, the fastest first.
        If ``thorough``, vary all settings that are the best at some batch size.
        """
        param = self.space.runtime[name]
        groups = [each.get(param.given) for each in exact_only(self.known.contenders(math.inf))]
        for group in dict.fromkeys(groups):
            near = self._near_best(param.given, group, _SLACK)
            leaders = self._near_best(param.given, group, 1.0) if thorough else []
            for base in leaders or near[:1]:
                yield from exact_only(
                    [self._with(base, name, value) for value in param.values(base)]
                )
            for base in near:
                # none is near any more if their trials failed meanwhile
                for best in self._near_best(param.given, group, _SLACK)[:1]:
                    yield self._with(base, name, best[name])

    def _near_best(
        self, name: str, value: ParamValue, slack: float
    ) -> list[dict[str, ParamValue]]:
        """Return settings with this value of a param within ``slack`` of the fastest of all."""
        near = exact_only(self.known.contenders(slack))
        return [each for each in near if each.get(name) == value]

    def _with(self, base: Params, name: str, value: ParamValue) -> dict[str, ParamValue]:
        return self._setting(self.space.completed({**self.default, **base, name: value}))

    def _scout(self, setting: dict[str, ParamValue]) -> None:
        """Probe a setting at one batch size, and at the others unless it is plainly slow.

        The pacemaker is probed along with it. Where that shows that the machine has become slower,
        the measurements are converted to the earlier pace.
        """
        self.tell(" ".join(map(str, setting.values())), min(1.0, self._used_s() / self.budget_s))
        with contextlib.ExitStack() as worker:
            session = worker.enter_context(self._open(setting))
            self._drift = self._pacemaker.drift()
            self._probe_all(setting, session)
            if self.known.probes:
                self._pacemaker.adopt(setting, session, worker)

    def _probe_all(self, setting: dict[str, ParamValue], session: Session) -> None:
        for place, batch in enumerate(self.batch_sizes):
            if place and self.known.probed_s(setting, batch) > _LIMIT * self.probe_s:
                continue  # so long that time is proportional to the batch: no need to measure it
            if not self._probe(session, setting, batch, first=not place):
                return
            for _ in range(0 if place else _PROBES - 1):
                if not self.known.undecided(setting, batch):
                    break
                self._drift = self._pacemaker.drift()
                if not self._probe(session, setting, batch, first=False):
                    return
            # what a group exchanges takes as long for any batch: it may be fast for a large one
            alone = group_size(setting) == 1
            if not place and alone and not self._near(setting, batch, _PLAINLY):
                return
            if self._late:
                return

    def _open(self, setting: Params) -> contextlib.AbstractContextManager[Session]:
        return self.open_session({**self.default, **setting})

    def _near(self, setting: Params, batch: int, slack: float) -> bool:
        best = self.known.pace_s(self.known.fastest(batch), batch)
        return self.known.pace_s(setting, batch) <= slack * best

    @property
    def batch_sizes(self) -> list[int]:
        """The default's own first, then the range's ends, and its middle if far from the first."""
        own = int(self.default["batch_size"] or 1)
        sizes = self.space.params["batch_size"]
        assert isinstance(sizes, Range)
        between = round((sizes.low * sizes.high) ** 0.5)
        rest = {int(sizes.low), int(sizes.high)} - {own}
        if abs(math.log(between / own)) > math.log(_FAR):
            rest.add(between)
        return [own, *sorted(rest)]

    @property
    def _is_doubtful(self) -> bool:
        """Whether a fastest setting has not run in turns with others that may be as fast."""
        if self.known.settled or not self.known.probes:
            return False
        fastest = [self.known.fastest(batch) for batch in self.batch_sizes]
        return len(self._alike()) > 1 and any(each not in self._confirmed for each in fastest)

    @property
    def _slack(self) -> float:
        """Factor within which probes cannot tell which of two settings is faster."""
        return max(_ALIKE, math.exp(self.known.probe_error))

    def _alike(self) -> list[dict[str, ParamValue]]:
        """Return settings that probes cannot tell apart from the fastest at some batch size."""
        ranked = [exact_only(self.known.ranked(batch)) for batch in self.batch_sizes]
        found: list[dict[str, ParamValue]] = []
        for places in zip(*ranked, strict=True):  # the fastest at each, then the next
            for setting, batch in zip(places, self.batch_sizes, strict=True):
                if setting not in found and self._near(setting, batch, self._slack):
                    found.append(setting)
        return found[:_FINALISTS]

    def _finish(self) -> None:
        """Run in turns the settings that the probes so far cannot tell apart."""
        finalists = self._alike()
        self._confirmed += finalists
        if len(finalists) < 2:
            return
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(self._open(setting)) for setting in finalists]
            for turn in range(_ROUNDS):
                self._drift = self._pacemaker.drift()
                for place in range(len(finalists)):
                    index = (place + turn) % len(finalists)
                    self._probe_near(sessions[index], finalists[index], first=not turn)

    def _probe_near(
        self, session: Session, setting: dict[str, ParamValue], *, first: bool
    ) -> None:
        """Probe a setting where it may be the fastest, for longer at the first batch size."""
        for place, batch in enumerate(self.batch_sizes):
            if self._late or not self._near(setting, batch, self._slack):
                continue
            self._length_s = self.probe_s * (1 if place else _LONGER)
            self._probe(session, setting, batch, first=first)
        self._length_s = self.probe_s

    def _probe(
        self, session: Session, setting: dict[str, ParamValue], batch: int, *, first: bool
    ) -> bool:
        """Add one measurement to the map. Return whether that succeeded.

        A short warm-up precedes the ``first`` one of a worker. It is itself the measurement if its
        single iteration takes longer than a probe may.
        """
        if first:
            warm_up = self._measure(session, setting, batch, _WARM_UP)
            if warm_up is None:
                return False
            if warm_up.iteration_s > _LIMIT * self.probe_s and not self._last_disturbed:
                self._add(warm_up)
                return True
        for attempt in range(self.repeats + 1):
            probe = self._measure(session, setting, batch)
            if probe is None:
                return False
            if attempt < self.repeats and self._last_disturbed:
                self.known.disturbed += 1
                continue
            self._add(probe)
            break
        return True

    def _add(self, probe: PaceProbe) -> None:
        """Add a measurement to the map, converted to the machine's earlier pace."""
        pace = probe.iteration_s / self._drift
        self.known.add(dataclasses.replace(probe, iteration_s=pace))

    def _pace(self, session: Session, setting: dict[str, ParamValue]) -> PaceProbe | None:
        """Return one probe at the first batch size; ``None`` if it failed or was disturbed."""
        probe = self._measure(session, setting, self.batch_sizes[0])
        return None if self._last_disturbed else probe

    def _measure(
        self,
        session: Session,
        setting: dict[str, ParamValue],
        batch: int,
        iterations: int | None = None,
    ) -> PaceProbe | None:
        """Run one probe. Return ``None`` if it failed.

        By default it has as many iterations as the fastest setting trains in the planned time.
        """
        self.check()
        if iterations is None:
            quickest_s = self._quickest_s(batch)
            iterations = max(_MIN_ITERATIONS, round(self._length_s / quickest_s))
            iterations = max(1, min(iterations, int(_LIMIT * self._length_s / quickest_s)))
        trial = Trial(
            number=next(self._numbers),
            params={**self.default, **setting, "batch_size": batch, "iterations": iterations},
            kind=TrialKind.PROBE,
            train_time_limit_s=_LIMIT * self._length_s,
            time_limit_s=self._kill_s,
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

    @property
    def _kill_s(self) -> float:
        """Seconds after which a probe is killed: many times what the longest so far took."""
        if not self._longest_s:
            return _KILL_S
        planned_s = _LIMIT * self._length_s
        return min(_KILL_S, max(_MIN_KILL_S, _PATIENCE * (self._longest_s + planned_s)))

    def _quickest_s(self, batch: int) -> float:
        """Return the least seconds that an iteration takes, as far as is known."""
        if not self.known.probes:
            return self._last_s
        return self.known.probed_s(self.known.fastest(batch), batch)
