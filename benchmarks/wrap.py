"""What ``tuner wrap`` costs a program, and how soon it finds a good setting.

    python benchmarks/wrap.py --overhead [--rounds 9] [--json]
    python benchmarks/wrap.py [--budget 300] [--seed 1] [--json]

With ``--overhead`` a training of scikit-learn, whose steps take less than a millisecond, runs in
turn as it is, with the hook that counts its steps, and with the hook told to be silent. Its own
clock times the training; ``hooked`` and ``silent`` have 95 % intervals of the mean logarithm of
the ratios, which say little on a noisy machine. So the hook is timed by itself as well: the CPU
time of a counted step, of one once it is silent, and of the report that it writes 20 times a
second. ``hooked_share`` and ``silent_share`` are these by the training's time. Targets: at most
1 % with the hook, and a tenth of that once it is silent, and no interval that contradicts them.

Without it, three ways search the runtime setting of the same training for the same time: ``tuner
wrap``, and Optuna and Ray Tune with an objective as their users write it, which runs the whole
program with threads and the allocator as parameters. Afterwards the settings that any of them
tried run in turn, shorter. ``found_s`` is when each way first had measured one that takes at most
5 % longer than the fastest of these. Target: 5 times sooner than the peers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from scipy import stats

from tuner.wrap.knobs import thread_counts
from tuner.wrap.program import INJECTED, REPORT_VARIABLE, REPORTS

_OVERHEAD = 0.01  # target, of the training's time, with the hook
_SILENT = 0.001  # target, of the training's time, once the hook is silent
_TOLD = 20  # reports a second, at most
_STEPS_AN_EPOCH = 100  # of the program below
_SOONER = 5.0  # target, times
_NEAR = 1.05  # times the time of the fastest setting
_EPOCHS = 60  # about 20 s
_SHORT = 10  # epochs of a run that only compares settings
_ROUNDS = 3  # of these
PROGRAM = """
import sys, time, warnings
import numpy as np
from sklearn.neural_network import MLPClassifier
warnings.simplefilter("ignore")
random = np.random.default_rng(0)
x, y = random.random((20000, 64)), random.integers(0, 10, 20000)
model = MLPClassifier((100,), max_iter=int(sys.argv[1]), tol=0, n_iter_no_change=10**6)
began = time.perf_counter()
model.fit(x, y)
print(time.perf_counter() - began)
"""
COST = """
import importlib.util, json, sys, time
spec = importlib.util.spec_from_file_location("counting", sys.argv[1])
counting = importlib.util.module_from_spec(spec)
spec.loader.exec_module(counting)

def made():
    class Optimizer:
        def update(self):
            pass
    return Optimizer

def cost(calls, call):
    began = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - began) / calls

class Silent(counting._Counter):
    def _begin(self):
        super()._begin()
        self._seen_enough = True

def hooked():
    class Place:
        Optimizer = made()
    counting._hook(Place, "Optimizer", "update", "no library")
    return Place.Optimizer().update

counter = counting._Counter("no library")
tell = cost(2000, lambda: counter._tell(1, time.monotonic()))
plain = cost(1000000, made()().update)
counting._EVERY_S = float("inf")  # nothing is reported any more
step = cost(1000000, hooked()) - plain
counting._Counter = Silent
silent = cost(1000000, hooked()) - plain
print(json.dumps({"step_s": step, "silent_step_s": silent, "tell_s": tell}))
"""
Setting = Mapping[str, str]


def train(folder: Path, epochs: int, setting: Setting) -> float:
    """Run the program; return the seconds of its training by its own clock."""
    done = subprocess.run(
        [sys.executable, "train.py", str(epochs)],
        cwd=folder,
        env={**os.environ, **setting},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def in_turn(rounds: int, arms: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run all arms in each round, beginning with another one each time; return their seconds."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for turn in range(rounds):
        shift = turn % len(names)
        for name in (*names[shift:], *names[:shift]):
            found[name].append(arms[name]())
    return found


# -- overhead -------------------------------------------------------------------------------------


def overhead(rounds: int) -> dict[str, Any]:
    """Return the ratios of the training's time with the hook to that without."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)

        def arm(kind: str) -> Callable[[], float]:
            own = folder / kind
            own.mkdir()
            hooked = {"PYTHONPATH": str(INJECTED), REPORT_VARIABLE: str(own / REPORTS)}
            if kind == "silent":
                (own / "unhook").touch()
            return lambda: train(folder, _SHORT, {} if kind == "plain" else hooked)

        times = in_turn(rounds, {kind: arm(kind) for kind in ("plain", "hooked", "silent")})
        report = {"TUNER_REPORT": str(folder / REPORTS)}
        done = subprocess.run(
            [sys.executable, "-c", COST, str(INJECTED / "sitecustomize.py")],
            env={**os.environ, **report}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        costs = json.loads(done.stdout)
    steps = _SHORT * _STEPS_AN_EPOCH
    pace = steps / statistics.median(times["plain"])
    found: dict[str, Any] = {
        "rounds": rounds,
        **costs,
        "hooked_share": costs["step_s"] * pace + _TOLD * costs["tell_s"],
        "silent_share": costs["silent_step_s"] * pace,
    }
    for kind in ("hooked", "silent"):
        logs = [
            math.log(mine / own) for mine, own in zip(times[kind], times["plain"], strict=True)
        ]
        mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(rounds)
        half = float(stats.t.isf(0.025, rounds - 1)) * error
        found[kind] = {"mean": mean, "low": mean - half, "high": mean + half}
    found["met"] = (
        found["hooked_share"] <= _OVERHEAD
        and found["silent_share"] <= _SILENT
        and found["hooked"]["low"] <= _OVERHEAD
        and found["silent"]["low"] <= _SILENT
    )
    return found


# -- peers ----------------------------------------------------------------------------------------


def variables(threads: int, hugetlb: int) -> dict[str, str]:
    """Return what a user's objective sets."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    huge = {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb={hugetlb}"} if hugetlb else {}
    return {**dict.fromkeys(names, str(threads)), **huge}


Tried = list[tuple[float, Setting]]
"""Seconds since the beginning at which a setting was measured, and the setting."""


def search_optuna(folder: Path, budget_s: float, seed: int) -> Tried:
    """Return what Optuna's default sampler tries in this time."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    tried: Tried = []
    began = time.monotonic()

    def objective(trial: optuna.Trial) -> float:
        setting = variables(
            trial.suggest_categorical("threads", thread_counts(os.cpu_count() or 1)),
            trial.suggest_categorical("hugetlb", [0, 1]),
        )
        seconds = train(folder, _EPOCHS, setting)
        tried.append((time.monotonic() - began, setting))
        return seconds

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, timeout=budget_s)
    return tried


def search_ray(folder: Path, budget_s: float, seed: int) -> Tried:
    """Return what Ray Tune's default search tries in this time, one trial after the other."""
    import ray
    from ray import tune
    from ray.tune.search import BasicVariantGenerator

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    began = time.time()

    def objective(config: dict[str, Any]) -> dict[str, Any]:
        train(folder, _EPOCHS, variables(config["threads"], config["hugetlb"]))
        return {"seconds": time.time() - began, "ended": time.time()}

    space = {
        "threads": tune.choice(thread_counts(os.cpu_count() or 1)),
        "hugetlb": tune.choice([0, 1]),
    }
    tuner = tune.Tuner(
        objective,
        param_space=space,
        tune_config=tune.TuneConfig(
            num_samples=-1,
            time_budget_s=budget_s,
            search_alg=BasicVariantGenerator(max_concurrent=1, random_state=seed),
        ),
        run_config=tune.RunConfig(storage_path=str(folder / "ray"), verbose=0),
    )
    grid = tuner.fit()
    ray.shutdown()
    found: Tried = []
    for each in (grid[index] for index in range(len(grid))):
        if each.metrics and each.config and "ended" in each.metrics:
            setting = variables(each.config["threads"], each.config["hugetlb"])
            found.append((each.metrics["ended"] - began, setting))
    return sorted(found, key=lambda each: each[0])


def search_wrap(folder: Path, budget_s: float, seed: int) -> Tried:  # noqa: ARG001 - draws nothing
    """Return what ``tuner wrap`` tries in this time."""
    began = time.time()
    home = folder / "home"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tuner", "wrap", "--json", "--progress", "none"),
            *("--budget", str(budget_s), "--output", str(folder / "mlflow")),
            *("--", sys.executable, "train.py", str(_EPOCHS)),
        ],
        cwd=folder,
        env={**os.environ, "TUNER_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    ended = {
        path.parent.name: path.stat().st_mtime - began
        for path in home.glob("studies/*/trials/*/result.json")
    }
    return [
        (ended[each["name"]], each["environment"])
        for each in found["runs"]
        if each["status"] == "COMPLETE" and not each["name"].startswith("verify")
    ]


def compare(budget_s: float, seed: int) -> dict[str, Any]:
    """Return when each way had measured a setting that is near the fastest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        ways = {"wrap": search_wrap, "optuna": search_optuna, "raytune": search_ray}
        tried = {way: search(folder, budget_s, seed) for way, search in ways.items()}
        settings = {json.dumps(each): each for way in tried.values() for _, each in way}
        arms = {
            key: partial(train, folder, _SHORT, setting)
            for key, setting in {"{}": {}, **settings}.items()
        }
        times = in_turn(_ROUNDS, arms)
    seconds = {key: statistics.median(each) for key, each in times.items()}
    best_s = min(seconds.values())
    found = {
        way: next(
            (at for at, setting in each if seconds[json.dumps(setting)] <= _NEAR * best_s), None
        )
        for way, each in tried.items()
    }
    peers = [found[way] or budget_s for way in ("optuna", "raytune")]
    sooner = min(peers) / (found["wrap"] or budget_s)
    return {
        "found_s": found,
        "runs": {way: len(each) for way, each in tried.items()},
        "gain": seconds["{}"] / best_s,
        "sooner": sooner,
        "met": sooner >= _SOONER,
    }


def main() -> int:
    """Print the figures; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    measure = partial(overhead, options.rounds)
    search = partial(compare, options.budget, options.seed)
    found = measure() if options.overhead else search()
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name}: {value}")
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
