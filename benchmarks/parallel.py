"""How fast groups of processes train, and how soon the race finds the fastest.

Caffe's LeNet (``model=lenet``) on the 5,000 MNIST images at the default's batch size, for every
framework whose search space has ``workers``. First a race looks for the fastest runtime setting,
knowing nothing. Then each layout (workers, threads, exchange) is measured, all in turns, each in a
session of its own, with the other settings that the race found fastest for it. Layouts that the
race did not try, those included that have more threads than there are cores, get those of the
fastest setting with as many workers. The race's choice is held against all of them.

With ``--every``, all settings are measured before, in a session each, and of each layout the
fastest ones of these in turns. That tells too whether the race missed a setting; it takes minutes
where a session takes seconds to start, as TensorFlow's do.

Throughput is in images consumed a second by all processes together.
Equation 1 of Jäger et al. (doi:10.1145/3286490.3286561), examples * epochs * workers / time, is
for workers that each train on all of the data; where they share it, it counts images too often.

    python benchmarks/parallel.py [framework ...] [--every] [--rounds 3] [--seconds 2] [--json]

Targets: the race's choice within 5 % of the fastest, in a tenth of the time that training the
default once with each setting takes. Without ``--every``, that is each setting that was raced or
measured; all settings would take longer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench import Workbench, each_framework, workbench

from tuner.race.race import Race
from tuner.trials.session import WorkerSession
from tuner.values.errors import NoTrialSucceeded, TunerError
from tuner.values.groups import groups
from tuner.values.params import Params, ParamValue, batch_size_of, iterations_of
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.trial import Trial, TrialKind, TrialStatus

DATASET = "mnist_5k"
RACE_S = 600.0  # so long that the race ends by itself
TIME_LIMIT_S = 300.0
WARM_UP = 5  # iterations that do not count
FINALISTS = 2  # of each layout, where all were measured before; more would fill the memory

Setting = dict[str, ParamValue]
"""The runtime params."""


def batch_of(bench: Workbench) -> int:
    """Return the batch size of the default, at which everything is measured."""
    return batch_size_of(bench.default)


@contextlib.contextmanager
def open_session(bench: Workbench, params: Params) -> Iterator[WorkerSession]:
    """Start a warm worker with these params, in a folder of its own."""
    with tempfile.TemporaryDirectory(dir=bench.setup.folder.parent) as folder:
        setup = dataclasses.replace(bench.setup, folder=Path(folder))
        with WorkerSession(setup, params) as session:
            yield session


def settings_of(bench: Workbench) -> list[Setting]:
    """List every runtime setting, and groups of as many workers and threads as cores.

    Those beyond the cores are there with each exchange of gradients.
    """
    space, cores = bench.space, len(bench.setup.cores)
    found: list[Setting] = [dict(bench.default)]
    for name, param in space.runtime.items():
        found = [{**each, name: value} for each in found for value in param.values(each)]
    over: list[Setting] = [{"workers": cores, "threads": cores}]
    if exchange := space.runtime.get("exchange"):
        over = [{**each, "exchange": value} for each in over for value in exchange.values(each)]
    alone = [each for each in found if each["workers"] == 1 == each["threads"]]
    beyond = [{**each, **group} for each in alone for group in over]
    return [{name: each[name] for name in space.runtime} for each in [*found, *beyond]]


def race(bench: Workbench) -> tuple[RuntimeMap, float]:
    """Return what a race that knows nothing measures, and the seconds that it took."""
    began_s = time.monotonic()
    contest = Race(bench.space, bench.default, lambda each: open_session(bench, each), RACE_S)
    known = contest.run()
    if not known.settings:
        raise NoTrialSucceeded(f"nothing could be raced: {known.faults}")
    return known, time.monotonic() - began_s


def fastest_of_each_layout(
    settings: Iterable[Setting], ranked: Sequence[Setting], count: int
) -> list[Setting]:
    """Return the fastest settings of each layout (workers, threads, exchange).

    Args:
        settings: Settings of the layouts that are asked for.
        ranked: Settings that were measured, the fastest first.
        count: How many of each layout, where so many were measured. Of a layout without any, the
            setting is chosen that is most like the fastest one with as many workers.
    """
    found: dict[tuple[ParamValue, ...], list[Setting]] = {}
    for each in ranked:
        found.setdefault(_layout(each), []).append(each)
    others: dict[tuple[ParamValue, ...], list[Setting]] = {}
    for each in settings:
        if _layout(each) not in found:
            others.setdefault(_layout(each), []).append(each)
    for (workers, *_), those in others.items():
        model = next((each for each in ranked if each["workers"] == workers), ranked[0])
        alike = [sum(each[name] == model[name] for name in each) for each in those]
        found[_layout(those[0])] = [those[alike.index(max(alike))]]
    return [each for fastest in found.values() for each in fastest[:count]]


def _layout(setting: Setting) -> tuple[ParamValue, ...]:
    return setting["workers"], setting["threads"], setting.get("exchange")


@dataclasses.dataclass
class Measurements:
    """What was measured of a framework's settings, and what failed."""

    bench: Workbench
    seconds: float
    map: RuntimeMap = dataclasses.field(default_factory=RuntimeMap)
    faults: dict[str, str] = dataclasses.field(default_factory=dict)
    _numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def add(self, session: WorkerSession, setting: dict[str, ParamValue], pace_s: float) -> None:
        """Train for so many seconds at about that pace, and keep the result."""
        if probe := self.train(session, setting, max(3, int(self.seconds / max(pace_s, 1e-9)))):
            self.map.add(probe)

    def train(
        self, session: WorkerSession, setting: dict[str, ParamValue], iterations: int
    ) -> PaceProbe | None:
        """Return the result, which is not kept; ``None`` if it failed."""
        params = {**self.bench.default, **setting, "iterations": iterations}
        trial = Trial(next(self._numbers), params, kind=TrialKind.PROBE, time_limit_s=TIME_LIMIT_S)
        result = session.run(trial)
        measured = result.measurement
        if result.status is not TrialStatus.COMPLETE or measured is None:
            self.faults[str(setting)] = f"{result.status.value}: {result.reason}"
            return None
        return PaceProbe(
            setting, batch_of(self.bench), measured.train_time_s / result.iterations,
            measured.peak_memory_bytes, measured.cores_used,
            measured.sent_bytes / result.iterations,
        )  # fmt: skip


def measure_every(found: Measurements) -> list[Setting]:
    """Measure all settings once, each in a session of its own; return them ranked."""
    for setting in settings_of(found.bench):
        with open_session(found.bench, {**found.bench.default, **setting}) as session:
            if first := found.train(session, setting, WARM_UP):
                found.add(session, setting, first.iteration_s)
    return found.map.ranked(batch_of(found.bench))


def measure_in_turns(found: Measurements, finalists: Sequence[Setting], rounds: int) -> None:
    """Measure settings in so many rounds, each in a session of its own that stays open."""
    with contextlib.ExitStack() as stack:
        places: list[tuple[WorkerSession, Setting, float]] = []
        for setting in finalists:
            params = {**found.bench.default, **setting}
            session = stack.enter_context(open_session(found.bench, params))
            if first := found.train(session, setting, WARM_UP):
                places.append((session, setting, first.iteration_s))
        for turn in range(rounds):
            start = turn % max(len(places), 1)
            for session, setting, first_s in places[start:] + places[:start]:
                known = setting in found.map.probed
                pace_s = found.map.pace_s(setting, batch_of(found.bench)) if known else first_s
                found.add(session, setting, pace_s)


def compare(name: str, rounds: int, seconds: float, *, every: bool) -> dict[str, Any]:
    """Race, then measure each layout of one framework, or every setting before."""
    with workbench(name, DATASET) as bench:
        if "workers" not in bench.space.runtime:
            raise TunerError("it trains in one process")
        raced, race_s = race(bench)
        began_s = time.monotonic()
        measured, batch = Measurements(bench, seconds), batch_of(bench)
        if every:
            finalists = fastest_of_each_layout([], measure_every(measured), FINALISTS)
        else:
            finalists = fastest_of_each_layout(settings_of(bench), raced.ranked(batch), 1)
        measure_in_turns(measured, finalists, rounds)
        measured_s, known = time.monotonic() - began_s, measured.map
        cores, whole = len(bench.setup.cores), iterations_of(bench.default)
    chosen = raced.fastest(batch)
    paces = [known.pace_s(each, batch) for each in known.settings_of(None)]
    others = [each for each in raced.settings_of(None) if each not in known.probed]
    trained_s = whole * sum([*paces, *(raced.pace_s(each, batch) for each in others)])
    return {
        "framework": name,
        "cores": cores,
        "groups": [
            dataclasses.asdict(each)
            | {
                "efficiency": each.efficiency,
                "cores_used": known.cores_used(each.setting, batch),
                "peak_memory_bytes": known.peak_memory(each.setting, batch),
                "oversubscribed": isinstance(each.threads, int)
                and each.workers * each.threads > cores,
            }
            for each in groups(known, batch)
        ],
        "chosen": chosen,
        "chosen_of_fastest": min(paces) / known.pace_s(chosen, batch),
        "race_s": race_s,
        "measured_s": measured_s,
        "every": every,
        "settings": len(paces) + len(others),
        "trained_s": trained_s,
        "race_of_trained": race_s / trained_s,
        "faults": measured.faults,
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the figures of a framework for readers."""
    for each in found["groups"]:
        speed, against = each["samples_s"], each["against_one"]
        yield (
            f"{found['framework']:11} {each['workers']} × {each['threads']!s:6}"
            f" {each['exchange']:8}"
            f"{speed['value']:8,.0f} images/s ({speed['low']:,.0f}–{speed['high']:,.0f})"
            + (f"  speed-up {each['speedup']:.2f}" if each["speedup"] else "")
            + (f", efficiency {each['efficiency']:.2f}" if each["efficiency"] else "")
            + (f", over the fastest process {against:.2f}" if against else "")
            + f", {each['cores_used']:.2f} cores, {each['peak_memory_bytes'] / 2**20:,.0f} MiB"
            + (f", {each['sent_bytes'] / 1e6:.2f} MB an iteration" if each["sent_bytes"] else "")
            + (", oversubscribed" if each["oversubscribed"] else "")
        )
    chosen = " ".join(map(str, found["chosen"].values()))
    yield (
        f"{found['framework']:11} the race chose {chosen} after {found['race_s']:.0f} s: "
        f"{found['chosen_of_fastest']:.0%} of the fastest exact one that was measured, in "
        f"{found['measured_s']:.0f} s. Training once with each of {found['settings']} settings"
        f"{'' if found['every'] else ', those that were raced or measured,'} would take "
        f"{found['trained_s']:,.0f} s; the race took {found['race_of_trained']:.1%} of that."
    )
    yield from (f"{found['framework']:11} {each}: {why}" for each, why in found["faults"].items())


def main() -> None:
    """Measure and print; see the module's docstring."""
    flags = {"every": "measure all settings, and not only the fastest of each layout"}
    each_framework(__doc__ or "", "training a setting and round", compare, lines, flags)


if __name__ == "__main__":
    main()
