"""What the network between two nodes makes of training on both, and whether the race notices.

Caffe's LeNet (``model=lenet``) on the 5,000 MNIST images, on two nodes of Ray with half of this
machine's CPUs each, in two networks that are joined by a cable (``two_networks``; root only). At
each bandwidth a race that knows nothing looks for the fastest runtime setting, on one node or on
both. Then each layout (nodes, and how gradients are exchanged where that is a param) is measured
at several batch sizes, all in turns, each with the other settings that the race found fastest.
The race's choice is held against those that exchange gradients exactly; the others change what
is learned, so that speed alone does not speak for them.

    python benchmarks/network.py [framework ...] [--rates 1gbit 100mbit] [--rounds 3] [--seconds 2]

Target: the fastest exact layout changes with the bandwidth, and the race's choice with it, within
5 %.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import statistics
import sys
from collections.abc import Iterator
from typing import Any

from two_networks import Networks, NoNetworks, both_nodes, two_networks, two_nodes
from workbench import MODEL, print_each

from tuner import measure
from tuner.config.catalogue import (
    list_frameworks,
    load_dataset_config,
    load_framework,
    tuner_home,
)
from tuner.config.schema import ExecutorConfig, MeasureConfig, TuneConfig
from tuner.executors import RayExecutor
from tuner.race.race import Race
from tuner.values.exchange import lossy
from tuner.values.params import Params, ParamValue
from tuner.values.runtime_map import RuntimeMap
from tuner.values.space import SearchSpace
from tuner.values.trial import Trial, TrialKind

DATASET = "mnist_5k"
RACE_S = 900.0  # so long that the race ends by itself
TIME_LIMIT_S = 300.0
LAYOUT = ("nodes", "exchange")
"""Params that say how a training is spread; those that the framework has are varied."""


def asked(name: str, address: str) -> TuneConfig:
    """Return the configuration of a framework whose trials may have both nodes."""
    return TuneConfig(
        framework=load_framework(name),
        dataset=load_dataset_config(DATASET),
        model=MODEL,
        executor=ExecutorConfig(
            "ray",
            address=address,
            cores_per_trial=len(measure.parse_cores("")) // 2,
            nodes_per_trial=2,
        ),
        measure=MeasureConfig(max_foreign_pct=100),  # Ray's own processes share the CPUs
    )


def layouts(space: SearchSpace, known: RuntimeMap, batch: int) -> dict[str, dict[str, ParamValue]]:
    """Return the fastest setting that was raced of each layout, by the layout's name."""
    names = [name for name in LAYOUT if name in space.runtime]
    found: dict[str, dict[str, ParamValue]] = {}
    for setting in known.ranked(batch):
        spread = [f"{name} {setting[name]}" for name in names]
        found.setdefault(", ".join(spread[: None if setting["nodes"] != 1 else 1]), setting)
    return found


def measure_all(
    executor: RayExecutor,
    default: Params,
    settings: dict[int, dict[str, dict[str, ParamValue]]],
    rounds: int,
    seconds: float,
) -> dict[int, dict[str, dict[str, Any]]]:
    """Measure each layout at each batch size, in turns.

    Returns, by batch size and layout: seconds and bytes an iteration of all rounds, or a fault.
    """
    numbers, cells = itertools.count(), []
    with contextlib.ExitStack() as stack:
        sessions: dict[str, Any] = {}
        for batch, layouts_there in settings.items():
            for layout, setting in layouts_there.items():
                if str(setting) not in sessions:
                    params = {**default, **setting}
                    sessions[str(setting)] = stack.enter_context(executor.session(params))
                cell: dict[str, Any] = {"setting": setting, "iteration_s": [], "sent_bytes": []}
                cells.append((batch, layout, cell, [5]))
        for turn in range(rounds + 1):  # the first tells how many iterations fill the seconds
            start = turn % len(cells)
            for batch, _, cell, iterations in cells[start:] + cells[:start]:
                if "fault" in cell:
                    continue
                params = {
                    **default, **cell["setting"], "batch_size": batch, "iterations": iterations[0],
                }  # fmt: skip
                trial = Trial(
                    next(numbers), params, kind=TrialKind.PROBE, time_limit_s=TIME_LIMIT_S
                )
                result = sessions[str(cell["setting"])].run(trial)
                if not result.usable or result.measurement is None:
                    cell["fault"] = f"{result.status.value}: {result.reason}"
                    continue
                took_s = result.measurement.train_time_s / result.iterations
                iterations[0] = max(3, int(seconds / took_s))
                if turn:
                    cell["iteration_s"].append(took_s)
                    cell["sent_bytes"].append(result.measurement.sent_bytes / result.iterations)
    found: dict[int, dict[str, dict[str, Any]]] = {batch: {} for batch in settings}
    for batch, layout, cell, _ in cells:
        found[batch][layout] = cell
    return found


def compare(
    name: str, rate: str, networks: Networks, address: str, rounds: int, seconds: float
) -> dict[str, Any]:
    """Race, then measure every layout, of one framework at one bandwidth."""
    networks.shape(rate)
    with both_nodes(asked(name, address)) as (space, executor):
        default = space.default(DATASET, MODEL).params
        contest = Race(space, default, executor.session, RACE_S)
        known = contest.run()
        settings = {batch: layouts(space, known, batch) for batch in contest.batch_sizes}
        measured = measure_all(executor, default, settings, rounds, seconds)
    found = []
    for batch, cells in sorted(measured.items()):
        took = {
            layout: statistics.median(cell["iteration_s"])
            for layout, cell in cells.items()
            if cell["iteration_s"] and "fault" not in cell
        }
        exact = [layout for layout, cell in cells.items() if lossy(cell["setting"]) is None]
        chosen = exact[0]  # ranked: the race's fastest is the first
        if not any(layout in took for layout in exact):
            found.append({"batch": batch, "layouts": cells, "fastest": ""})
            continue
        fastest = min(took, key=lambda each: took[each])
        exact_s = min(took[layout] for layout in exact if layout in took)
        found.append(
            {
                "batch": batch,
                "layouts": cells,
                "fastest": fastest,
                "fastest_by": exact_s / took[fastest],
                "chosen": chosen,
                "chosen_of_fastest": exact_s / took[chosen] if chosen in took else 0.0,
            }
        )
    return {"framework": name, "rate": rate, "batches": found, "faults": known.faults}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the figures of a framework at a bandwidth for readers."""
    title = f"{found['framework']:11} {found['rate']:8}"
    for each in found["batches"]:
        for layout, cell in each["layouts"].items():
            if "fault" in cell:
                yield f"{title} batch {each['batch']:4} {layout}: {cell['fault']}"
                continue
            times = [1000 * took for took in cell["iteration_s"]]
            yield (
                f"{title} batch {each['batch']:4} {layout:24} {statistics.median(times):7.1f} ms "
                f"({min(times):.1f}-{max(times):.1f}), "
                f"{statistics.median(cell['sent_bytes']) / 1e6:.2f} MB an iteration"
            )
        if not each["fastest"]:
            yield f"{title} batch {each['batch']:4} no exact layout could be measured"
            continue
        yield (
            f"{title} batch {each['batch']:4} the race chose {each['chosen']}, "
            f"{each['chosen_of_fastest']:.0%} of the speed of the fastest exact layout; "
            f"fastest of all: {each['fastest']}, {each['fastest_by']:.2f} times as fast as that"
        )


def main() -> None:
    """Measure and print; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    able = [name for name in list_frameworks() if load_framework(name).spans_nodes]
    parser.add_argument("frameworks", nargs="*", default=able)
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="training a layout and round")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    remarks = sys.stderr if given.json else sys.stdout
    cpus = len(measure.parse_cores("")) // 2
    try:
        with (
            two_networks() as networks,
            two_nodes(networks, tuner_home(), cpus, lost_soon=False) as address,
        ):
            for rate in given.rates:
                networks.shape(rate)
                found = f"{rate}: {networks.megabits_s():.0f} Mbit/s by one connection"
                print(found, file=remarks, flush=True)
            check = functools.partial(
                compare,
                networks=networks,
                address=address,
                rounds=given.rounds,
                seconds=given.seconds,
            )
            cases = itertools.product(given.frameworks, given.rates)
            print_each(cases, check, lines, as_json=given.json)
    except NoNetworks as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
