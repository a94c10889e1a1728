"""How fast groups of processes train, and how soon the race finds the fastest.

Caffe's LeNet (``model=lenet``) on the 5,000 MNIST images at the default's batch size, for every
framework whose search space has ``workers``. First a race looks for the fastest runtime setting,
knowing nothing. Then all settings are measured in turns, those included that have more threads
than there are cores, and the race's choice is held against them. A group's figures are those of
its fastest setting. Throughput is in images consumed a second by all processes together.
Equation 1 of Jäger et al. (doi:10.1145/3286490.3286561), examples * epochs * workers / time, is
for workers that each train on all of the data; where they share it, it counts images too often.

    python benchmarks/parallel.py [framework ...] [--rounds 5] [--seconds 3] [--json]

Targets: the race's choice within 5 % of the fastest, in a tenth of the time that training the
default once with each setting takes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench import Workbench, workbench

from tuner.config.catalogue import list_frameworks
from tuner.race.race import Race
from tuner.trials.session import WorkerSession
from tuner.values.errors import TunerError
from tuner.values.groups import groups
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.trial import Params, ParamValue, Trial, TrialKind, TrialStatus

DATASET = "mnist_5k"
RACE_S = 600.0  # so long that the race ends by itself
TIME_LIMIT_S = 300.0


@contextlib.contextmanager
def _session(bench: Workbench, params: Params) -> Iterator[WorkerSession]:
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
    contest = Race(bench.space, bench.default, lambda each: _session(bench, each), RACE_S)
    known = contest.run()
    return known.fastest(int(bench.default["batch_size"] or 1)), time.monotonic() - began_s


def measure(
    bench: Workbench, rounds: int, seconds: float
) -> tuple[RuntimeMap, dict[str, str], float]:
    """Measure all settings in turns; return the map, faults by setting, and the seconds taken."""
    began_s, batch = time.monotonic(), int(bench.default["batch_size"] or 1)
    settings, found, faults = settings_of(bench), RuntimeMap(), {}
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:
        sessions, iterations = {}, {}
        for index, setting in enumerate(settings):
            sessions[index] = stack.enter_context(_session(bench, {**bench.default, **setting}))
            iterations[index] = 5
        for turn in range(rounds + 1):  # the first tells how many iterations fill the seconds
            order = list(sessions)
            for index in order[turn % len(order) :] + order[: turn % len(order)]:
                setting = settings[index]
                params = {**bench.default, **setting, "iterations": iterations[index]}
                trial = Trial(
                    next(numbers), params, kind=TrialKind.PROBE, time_limit_s=TIME_LIMIT_S
                )
                result = sessions[index].run(trial)
                if result.status is not TrialStatus.COMPLETE or result.measurement is None:
                    faults[str(setting)] = f"{result.status.value}: {result.reason}"
                    del sessions[index]
                    continue
                pace_s = result.measurement.train_time_s / result.iterations
                iterations[index] = max(3, int(seconds / max(pace_s, 1e-9)))
                sent = result.measurement.sent_bytes / result.iterations
                probe = PaceProbe(
                    setting, batch, pace_s, result.measurement.peak_memory_bytes,
                    result.measurement.cores_used, sent,
                )  # fmt: skip
                if turn:
                    found.add(probe)
    return found, faults, time.monotonic() - began_s


def compare(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Race, then measure all settings of one framework."""
    with workbench(name, DATASET) as bench:
        chosen, race_s = race(bench)
        known, faults, all_s = measure(bench, rounds, seconds)
        batch, cores = int(bench.default["batch_size"] or 1), len(bench.setup.cores)
        whole = int(bench.default["iterations"] or 1)
    paces = [known.pace_s(each, batch) for each in known.settings]
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
        "faults": faults,
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the figures of a framework for readers."""
    for each in found["groups"]:
        speed = each["samples_s"]
        yield (
            f"{found['framework']:11} {each['workers']} × {each['threads']!s:6}"
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("frameworks", nargs="*", default=list_frameworks())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="training a setting and round")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    everything = []
    for name in given.frameworks:
        try:
            found = compare(name, given.rounds, given.seconds)
        except (TunerError, KeyError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        everything.append(found)
        if not given.json:
            print(*lines(found), sep="\n", flush=True)
    if given.json:
        print(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
