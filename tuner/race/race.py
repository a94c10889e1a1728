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
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tuner.race.pacemaker import Pacemaker
from tuner.race.probing import OpenSession, Prober, Session
from tuner.values.exchange import exact_only
from tuner.values.params import Params, ParamValue, batch_size_of, group_size, nodes_of
from tuner.values.ranges import Range
from tuner.values.runtime_map import RuntimeMap
from tuner.values.space import SearchSpace

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
        self._spent_s = 0.0
        self._began_s: float | None = None  # of this call of ``run``
        self._confirmed: list[dict[str, ParamValue]] = []
        self._prober = Prober(
            self.open_session,
            self.default,
            self.known,
            self.clock,
            self.check,
            self.repeats,
            self.probe_s,
        )
        self._pacemaker = Pacemaker(self._prober, self.batch_sizes[0])
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
        return self._spent_s + (0.0 if self._began_s is None else self.clock() - self._began_s)

    def run(self, max_s: float = math.inf) -> RuntimeMap:
        """Race on, and return the map.

        Args:
            max_s: Seconds after which this call begins nothing new.
        """
        until_s = self._used_s() + max_s
        self._began_s = self.clock()
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
            self._spent_s, self._began_s = self._used_s(), None
            if self._late and self._next is not None and not self._is_due:
                self._advance()
        return self.known

    def _check_recorded(self) -> None:
        """Rescale the recorded map to the current pace; forget it if two settings disagree."""
        self.recorded = False
        batch, changes = self.batch_sizes[0], list[float]()
        ranked = exact_only(self.known.ranked(batch))
        # the fastest of each number of nodes: the network between them may be another one now
        fastest = {nodes_of(each): each for each in reversed(ranked)}
        for setting in (self._setting(self.default), *fastest.values()):
            if setting in self.known.probed:
                self.tell("whether the recorded paces still hold", 0.0)
                change = self._prober.change(setting, batch)
                changes += [] if change is None else [change]
        if max(changes, default=0.0) - min(changes, default=0.0) > _UNLIKE:
            self.known.forget()
            self._begin()
        elif abs(sum(changes)) > _DRIFT * len(changes):
            self.known.rescale(math.exp(sum(changes) / len(changes)))

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
            session = worker.enter_context(self._prober.open(setting))
            self._prober.drift = self._pacemaker.drift()
            self._probe_all(setting, session)
            if self.known.probes:
                self._pacemaker.adopt(setting, session, worker)

    def _probe_all(self, setting: dict[str, ParamValue], session: Session) -> None:
        for place, batch in enumerate(self.batch_sizes):
            if place and self._prober.is_long(self.known.probed_s(setting, batch)):
                continue  # so long that time is proportional to the batch: no need to measure it
            if not self._prober.probe(session, setting, batch, first=not place):
                return
            for _ in range(0 if place else _PROBES - 1):
                if not self.known.undecided(setting, batch):
                    break
                self._prober.drift = self._pacemaker.drift()
                if not self._prober.probe(session, setting, batch, first=False):
                    return
            # what a group exchanges takes as long for any batch: it may be fast for a large one
            alone = group_size(setting) == 1
            if not place and alone and not self._near(setting, batch, _PLAINLY):
                return
            if self._late:
                return

    def _near(self, setting: Params, batch: int, slack: float) -> bool:
        best = self.known.pace_s(self.known.fastest(batch), batch)
        return self.known.pace_s(setting, batch) <= slack * best

    @property
    def batch_sizes(self) -> list[int]:
        """The default's own first, then the range's ends, and its middle if far from the first."""
        own = batch_size_of(self.default)
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
            sessions = [stack.enter_context(self._prober.open(setting)) for setting in finalists]
            for turn in range(_ROUNDS):
                self._prober.drift = self._pacemaker.drift()
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
            times = 1 if place else _LONGER
            self._prober.probe(session, setting, batch, first=first, times=times)
