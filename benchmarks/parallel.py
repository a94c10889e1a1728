"""How fast groups of processes train, and how soon the race finds the fastest.

Caffe's LeNet (``model=lenet``) on the 5,000 MNIST images at the default's batch size, for every
framework whose search space has ``workers``. First a race looks for the fastest runtime setting,
knowing nothing. Then all settings are measured, those included that have more threads than there
are cores, and the fastest of each layout (workers, threads, exchange) again, in turns. The race's
choice is held against them. A group's figures are those of its fastest setting. Throughput is in
images consumed a second by all processes together.
Equation 1 of Jäger et al. (doi:10.1145/3286490.3286561), examples * epochs * workers / time, is
for workers that each train on all of the data; where they share it, it counts images too often.

    python benchmarks/parallel.py [framework ...] [--rounds 5] [--seconds 3] [--json]

Targets: the race's choice within 5 % of the fastest, in a tenth of the time that training the
default once with each setting takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench import Workbench, each_framework, workbench

from tuner.race.race import Race
from tuner.trials.session import WorkerSession
from tuner.values.errors import NoTrialSucceeded
from tuner.values.groups import groups
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.trial import Params, ParamValue, Trial, TrialKind, TrialStatus

DATASET = "mnist_5k"
RACE_S = 600.0  # so long that the race ends by itself
TIME_LIMIT_S = 300.0
WARM_UP = 5  # iterations that do not count
FINALISTS = 2  # of each layout; workers for all settings would fill the memory


def batch_of(bench: Workbench) -> int:
    """Return the batch size of the default, at which everything is measured."""
    return int(bench.default["batch_size"] or 1)


@contextlib.contextmanager
def open_session(bench: Workbench, params: Params) -> Iterator[WorkerSession]:
    """Start a warm worker with these params, in a folder of its own."""
    with tempfile.TemporaryDirectory(dir=bench.setup.folder.parent) as folder:
        setup = dataclasses.replace(bench.setup, folder=Path(folder))
        with WorkerSession(setup, params) as session:
            yield session


def settings_of(bench: Workbench) -> list[dict[str, ParamValue]]:
    """List every runtime setting, and groups of as many workers and threads as cores."""
    space, cores = bench.space, len(bench.setup.cores)
    found: list[dict[str, ParamValue]] = [dict(bench.default)]
    for name, param in space.runtime.items():
        found = [{**each, name: value} for each in found for value in param.values(each)]
    over = {"workers": cores, "threads": cores}
    beyond = [{**each, **over} for each in found if each["workers"] == 1 == each["threads"]]
    return [{name: each[name] for name in space.runtime} for each in [*found, *beyond]]


def race(bench: Workbench) -> tuple[dict[str, ParamValue], float]:
    """Return what a race that knows nothing finds fastest, and the seconds that it took."""
    began_s = time.monotonic()
    contest = Race(bench.space, bench.default, lambda each: open_session(bench, each), RACE_S)
    known = contest.run()
    if not known.settings:
        raise NoTrialSucceeded(f"nothing could be raced: {known.faults}")
    return known.fastest(batch_of(bench)), time.monotonic() - began_s


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


def measure(bench: Workbench, rounds: int, seconds: float) -> Measurements:
    """Measure all settings of a framework, and the fastest of each layout in turns."""
    found = Measurements(bench, seconds)
    layouts: dict[tuple[ParamValue, ...], list[dict[str, ParamValue]]] = {}
    for setting in settings_of(bench):
        with open_session(bench, {**bench.default, **setting}) as session:
            if first := found.train(session, setting, WARM_UP):
                found.add(session, setting, first.iteration_s)
    for setting in found.map.ranked(batch_of(bench)):
        layout = setting["workers"], setting["threads"], setting.get("exchange")
        layouts.setdefault(layout, []).append(setting)
    finalists = [each for ranked in layouts.values() for each in ranked[:FINALISTS]]
    with contextlib.ExitStack() as stack:
        sessions = []
        for setting in finalists:
            sessions.append(stack.enter_context(open_session(bench, {**bench.default, **setting})))
            found.train(sessions[-1], setting, WARM_UP)
        for turn in range(rounds):
            order = [*range(len(finalists))]
            for index in order[turn % len(order) :] + order[: turn % len(order)]:
                setting = finalists[index]
                found.add(sessions[index], setting, found.map.pace_s(setting, batch_of(bench)))
    return found


def compare(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Race, then measure all settings of one framework."""
    with workbench(name, DATASET) as bench:
        chosen, race_s = race(bench)
        began_s = time.monotonic()
        measured = measure(bench, rounds, seconds)
        all_s, known = time.monotonic() - began_s, measured.map
        batch, cores = batch_of(bench), len(bench.setup.cores)
        whole = int(bench.default["iterations"] or 1)
    paces = [known.pace_s(each, batch) for each in known.settings_of(None)]
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
        "all_measured_s": all_s,
        "all_trained_s": whole * sum(paces),
        "settings": len(paces),
        "faults": measured.faults,
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the figures of a framework for readers."""
    for each in found["groups"]:
        speed = each["samples_s"]
        yield (
            f"{found['framework']:11} {each['workers']} × {each['threads']!s:6}"
            f" {each['exchange']:8}"
            f"{speed['value']:8,.0f} images/s ({speed['low']:,.0f}–{speed['high']:,.0f})"
            + (f"  speed-up {each['speedup']:.2f}" if each["speedup"] else "")
            + (f", efficiency {each['efficiency']:.2f}" if each["efficiency"] else "")
            + f", over the fastest process {each['against_one']:.2f}"
            f", {each['cores_used']:.2f} cores, {each['peak_memory_bytes'] / 2**20:,.0f} MiB"
            + (f", {each['sent_bytes'] / 1e6:.2f} MB an iteration" if each["sent_bytes"] else "")
            + (", oversubscribed" if each["oversubscribed"] else "")
        )
    chosen = " ".join(map(str, found["chosen"].values()))
    yield (
        f"{found['framework']:11} the race chose {chosen} after {found['race_s']:.0f} s: "
        f"{found['chosen_of_fastest']:.0%} of the fastest. Measuring all {found['settings']} took "
        f"{found['all_measured_s']:.0f} s; training with each would take "
        f"{found['all_trained_s']:,.0f} s."
    )
    yield from (f"{found['framework']:11} {each}: {why}" for each, why in found["faults"].items())


def main() -> None:
    """Measure and print; see the module's docstring."""
    each_framework(__doc__ or "", "training a setting and round", compare, lines)


if __name__ == "__main__":
    main()
