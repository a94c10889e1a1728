"""Whether what a study recommends changes with the network between two nodes, and rightly so.

Two nodes of Ray with half of this machine's CPUs each are joined by a cable (``two_networks``;
root only). Over each bandwidth a whole study runs from nothing to its proof, with an output folder
and a ``TUNER_HOME`` of its own, and ``recommend`` answers from it. Then over each bandwidth all
answers are trained in full, and its own one at the runtime settings of the others too, in turns,
with fresh seeds. The last shows what the setting alone is worth, as answers differ in what they
train as well.

What is trained is Caffe's LeNet on MNIST in large batches, where a second node may pay; in small
ones it does not over either (``network.py``). So the default that studies are held against is not
Caffe's: it has Caffe's rate, and batches and iterations of this benchmark's own.

    python benchmarks/network_studies.py FOLDER [setting=value ...] [--framework torch]
        [--rates 1gbit 100mbit] [--budget-s 340] [--iterations 200] [--rounds 3] [--json]

Each study trains its default whole, takes its budget, and may take a quarter more for a proof. Up
to 18 whole trainings of half a minute or less follow. All is kept in FOLDER: the same command goes
on where an earlier one was interrupted. Settings such as ``search_space.exchange.choices=[exact]``
are those of ``python -m tuner``, for all studies.

Target: the runtime settings of the answers differ, and over each bandwidth its own answer is
surely (95 %) faster than the others, and than itself at their settings.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from two_networks import Networks, NoNetworks, both_nodes, two_networks, two_nodes
from workbench import MODEL, empty_home

from tuner import measure, recommend, tune
from tuner.config.catalogue import find_setting_file, tuner_home
from tuner.config.composing import compose
from tuner.config.schema import TuneConfig
from tuner.storage.study_folder import write_atomically
from tuner.study.preparation import load_space
from tuner.values.distributions import upper_quantile
from tuner.values.errors import TunerError
from tuner.values.params import Params
from tuner.values.trial import Interval, Trial, TrialKind

DATASET = "mnist"
BATCH_SIZES = 640, 1280
"""The default's, and the largest."""
SHORTEST = 8  # times shorter than the default's are the shortest trainings
RACE_SHARE = 0.3  # workers on two nodes take longer to start
SEEDS = 10**9  # the first of those that no study uses
TIME_LIMIT_S = 900.0
CONFIDENCE = 0.95


def large_batches(framework: str, iterations: int, folder: Path) -> Path:
    """Write a framework's search space with a default of large batches, for ``framework_path``."""
    source = find_setting_file("search_spaces", framework)
    space = yaml.safe_load(source.read_text(encoding="utf-8"))
    own, largest = BATCH_SIZES
    for each in space["defaults"]:
        if each["model"] != MODEL:
            continue
        each["params"] |= {"batch_size": own, "iterations": iterations}
        each["source"] += f"; {iterations} iterations of {own} images are this benchmark's own"
        each["ranges"] = {
            **each.get("ranges", {}),
            "batch_size": {"low": own, "high": largest},
            "iterations": {"low": iterations // SHORTEST, "high": iterations},
        }
    (folder / "conf").mkdir(parents=True, exist_ok=True)  # the configurations are the project's
    (folder / "search_spaces").mkdir(exist_ok=True)
    text = yaml.safe_dump(space, sort_keys=False)
    (folder / "search_spaces" / source.name).write_text(text, encoding="utf-8")
    return folder


def settings(given: argparse.Namespace, tree: Path, place: Path) -> list[str]:
    """Return the words of a study.

    They do not name the cluster, to which this process is connected: it has another address when
    the study goes on.
    """
    return [
        *(f"framework={given.framework}", f"framework_path={tree}"),
        *(f"dataset={DATASET}", f"model={MODEL}"),
        *("executor=ray", f"executor.cores_per_trial={len(measure.parse_cores('')) // 2}"),
        *("executor.nodes_per_trial=2", "measure.max_foreign_pct=100"),  # Ray's own processes
        *(f"budget.time_s={given.budget_s:g}", f"search.race_share={RACE_SHARE}"),
        "baseline=full",  # nothing is proven against a part of the default
        *(f"output={place}", f"tracking_uri=sqlite:///{place}/mlflow.db"),
        *given.settings,
    ]


def study(rate: str, networks: Networks, given: argparse.Namespace, tree: Path) -> dict[str, Any]:
    """Run the study of one bandwidth, or the rest of it, and ask for its answer."""
    networks.shape(rate)
    place = given.folder / rate
    home = place / "home"
    home.mkdir(parents=True, exist_ok=True)
    words = settings(given, tree, place)
    megabits_s = networks.megabits_s()
    with empty_home(home):
        result = tune(*words)
        answer = recommend(
            framework=given.framework,
            dataset=DATASET,
            output=str(place),
            tracking_uri=f"sqlite:///{place}/mlflow.db",
            framework_path=str(tree),
        )
    return {
        "rate": rate,
        "megabits_s": megabits_s,
        "answer": answer,
        "raced": len(result.runtimes.settings) if result.runtimes else 0,
        "lossy": [f"{exchange} of {workers}" for exchange, workers in result.lossy_kinds],
        "trials": len(result.trials),
        "elapsed_s": result.elapsed_s,
    }


def train_all(
    entrants: Mapping[str, Sequence[Params]],
    networks: Networks,
    config: TuneConfig,
    rounds: int,
    kept: Path,
) -> list[dict[str, Any]]:
    """Train the entrants of each bandwidth in full, in turns, unless that was done before.

    Returns the runs. One that fails is told of and left out; the same command tries it again.
    """
    runs = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else []
    known = {(run["over"], run["turn"], _key(run["params"])) for run in runs}
    due = [
        (number, turn, over, params)
        for number, (turn, over, params) in enumerate(_in_turns(entrants, rounds))
        if (over, turn, _key(params)) not in known
    ]
    if not due:
        return runs
    with both_nodes(config) as (_, executor):
        for number, turn, over, params in due:
            networks.shape(over)
            trial = Trial(
                number, params, TrialKind.VERIFY, SEEDS + number, time_limit_s=TIME_LIMIT_S,
                test=True,
            )  # fmt: skip
            result = executor.submit(trial).result()
            said = f"round {turn + 1} over {over}: {described(params)}"
            if not result.usable or result.test_accuracy is None:
                print(f"{said}: {result.status.value}: {result.reason}", file=sys.stderr)
                continue
            time_s, accuracy = result.metrics["train_time_s"], result.test_accuracy
            print(f"{said}: {time_s:.1f} s, {accuracy:.2%}", file=sys.stderr, flush=True)
            found = {"over": over, "turn": turn, "params": params, "seed": trial.seed}
            runs.append({**found, "train_time_s": time_s, "test_accuracy": accuracy})
            write_atomically(kept, json.dumps(runs, indent=1))
    return runs


def entrants_of(
    studies: Sequence[Mapping[str, Any]], runtime: Collection[str]
) -> dict[str, list[Params]]:
    """Return what is trained over each bandwidth: all answers, its own at all their settings.

    Args:
        studies: The studies.
        runtime: Names of the params that are the runtime setting.
    """
    answers = [each["answer"]["params"] for each in studies]
    found: dict[str, list[Params]] = {}
    for each in studies:
        own = each["answer"]["params"]
        wanted = [own, *answers, *(at_setting(own, other, runtime) for other in answers)]
        found[each["rate"]] = list({_key(params): params for params in wanted}.values())
    return found


def at_setting(params: Params, other: Params, runtime: Collection[str]) -> Params:
    """Return ``params`` at the runtime setting of another answer."""
    return {**params, **{name: other[name] for name in runtime}}


def _in_turns(
    entrants: Mapping[str, Sequence[Params]], rounds: int
) -> Iterator[tuple[int, str, Params]]:
    """Yield round, bandwidth and params of all runs; who begins changes from round to round."""
    for turn in range(rounds):
        for over in _rotated(list(entrants), turn):
            for params in _rotated(entrants[over], turn):
                yield turn, over, params


def _rotated(items: Sequence[Any], turn: int) -> list[Any]:
    start = turn % len(items)
    return [*items[start:], *items[:start]]


def _key(params: Params) -> str:
    return json.dumps(dict(params), sort_keys=True)


def described(params: Params) -> str:
    """Describe an answer: its nodes, workers and threads of each, exchange, and what it trains."""
    layout = f"nodes {params['nodes']}, workers {params['workers']}, threads {params['threads']}"
    trained = f"batch {params['batch_size']}, iterations {params['iterations']}"
    rate = f"rate {params['learning_rate']:.3g}"
    return f"{layout}, {params.get('exchange', 'exact')}; {trained}, {rate}"


def runs_of(
    runs: Sequence[Mapping[str, Any]], over: str, params: Params
) -> dict[int, Mapping[str, Any]]:
    """Return the runs of an answer over a bandwidth, by round."""
    return {
        run["turn"]: run
        for run in runs
        if run["over"] == over and _key(run["params"]) == _key(params)
    }


def compared(
    own: Mapping[int, Mapping[str, Any]], other: Mapping[int, Mapping[str, Any]]
) -> tuple[Interval, Interval] | None:
    """Compare the runs of two answers over one bandwidth, round by round.

    Returns how many times as fast the first is, and how much more accurate (points), with their
    intervals; ``None`` of fewer than two rounds.
    """
    turns = sorted({*own} & {*other})
    if len(turns) < 2:
        return None
    logs = [math.log(other[turn]["train_time_s"] / own[turn]["train_time_s"]) for turn in turns]
    faster = _interval(logs)
    gain = _interval(
        [100 * (own[turn]["test_accuracy"] - other[turn]["test_accuracy"]) for turn in turns]
    )
    return Interval(*(math.exp(each) for each in (faster.value, faster.low, faster.high))), gain


def _interval(values: Sequence[float]) -> Interval:
    """Return the mean with its Student interval."""
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = upper_quantile((1 - CONFIDENCE) / 2, len(values) - 1) * error
    return Interval(mean, mean - half, mean + half)


def lines(
    studies: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    runtime: Collection[str],
) -> Iterator[str]:
    """Yield the answers, and what they are worth over each bandwidth, for readers."""
    for each in studies:
        answer, speedup = each["answer"], each["answer"]["speedup"]
        gain = "as it is"
        if speedup:
            ends = f"{speedup['low']:.2f}-{speedup['high']:.2f}"
            gain = f"{speedup['value']:.2f} ({ends}) times as fast as the default"
        yield f"{each['rate']:8} {each['megabits_s']:.0f} Mbit/s: {described(answer['params'])}"
        yield f"{'':8} {answer['role']}, {gain}; {answer['assurance']}"
        yield (
            f"{'':8} {each['raced']} settings raced, {each['trials']} trials in "
            f"{each['elapsed_s']:.0f} s; worth searching with a loss: "
            f"{', '.join(each['lossy']) or 'none'}"
        )
    for each in studies:
        rate, own = each["rate"], each["answer"]["params"]
        mine = runs_of(runs, rate, own)
        yield f"over {rate:8} its own answer {_figures(mine)}"
        for other in [other for other in studies if other is not each]:
            theirs = other["answer"]["params"]
            for name, params in (
                (f"the answer of {other['rate']}", theirs),
                (f"its own at the setting of {other['rate']}", at_setting(own, theirs, runtime)),
            ):
                found = runs_of(runs, rate, params)
                said = "the same" if params == own else _figures(found) + _verdict(mine, found)
                yield f"over {rate:8} {name} {said}"


def _figures(runs: Mapping[int, Mapping[str, Any]]) -> str:
    """Return medians and ranges of times and accuracies."""
    if not runs:
        return "was not trained"
    times = [run["train_time_s"] for run in runs.values()]
    reached = [100 * run["test_accuracy"] for run in runs.values()]
    return (
        f"{statistics.median(times):.1f} s ({min(times):.1f}-{max(times):.1f}), "
        f"{statistics.median(reached):.2f} % ({min(reached):.2f}-{max(reached):.2f})"
    )


def _verdict(own: Mapping[int, Mapping[str, Any]], other: Mapping[int, Mapping[str, Any]]) -> str:
    """Say how much faster and more accurate a bandwidth's own answer is, and if it is right."""
    found = compared(own, other)
    if found is None:
        return "; too few rounds compare them"
    faster, gain = found
    verdict = "right" if faster.low > 1 else "wrong" if faster.high < 1 else "open"
    return (
        f"; its own is {faster.value:.2f} ({faster.low:.2f}-{faster.high:.2f}) times as fast, "
        f"{gain.value:+.2f} ({gain.low:+.2f} to {gain.high:+.2f}) points: {verdict}"
    )


def main() -> None:
    """Run the studies, compare their answers and print; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="keeps everything")
    parser.add_argument("settings", nargs="*", metavar="setting=value")
    parser.add_argument("--framework", default="torch")
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"])
    parser.add_argument("--budget-s", type=float, default=340.0, help="of a study")
    parser.add_argument("--iterations", type=int, default=200, help="of the default")
    parser.add_argument("--rounds", type=int, default=3, help="whole trainings of each answer")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.folder = given.folder.absolute()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the networks are undone
    tree = large_batches(given.framework, given.iterations, given.folder / "frameworks")
    cpus = len(measure.parse_cores("")) // 2
    try:
        config = compose(settings(given, tree, given.folder))
        runtime = load_space(config).runtime
        with two_networks() as networks, two_nodes(networks, tuner_home(), cpus, lost_soon=False):
            studies = [study(rate, networks, given, tree) for rate in given.rates]
            entrants = entrants_of(studies, runtime)
            kept = given.folder / "runs.json"
            runs = train_all(entrants, networks, config, given.rounds, kept)
    except (NoNetworks, TunerError) as error:
        sys.exit(str(error))
    if given.json:
        print(json.dumps({"studies": studies, "runs": runs}, indent=1))
    else:
        print(*lines(studies, runs, runtime), sep="\n")


if __name__ == "__main__":
    main()
