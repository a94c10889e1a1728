"""How much machine time a search needs for the front: all strategies, side by side.

In replay each strategy searches what was recorded of real training (``replay.py``): same space,
same times, same noise. What counts is the machine time, workers' starts and the race included,
until the true hypervolume of what was found is 90, 95 and 99 % of that of the reference front,
over many seeds. With ``--live`` the same strategies train for real, judged by the same table, in
which settings within a factor of ``ALIKE`` of the fastest count as the fastest: so far apart was
the same thing recorded twice.

Hypervolume is taken over the logarithms of the error and of training time (on the plain scale of
accuracy a first quick point would be nearly all), above an accuracy of ``FLOOR`` and below the
time of the longest recorded curve. Measured values carry noise, judged is
the truth behind them. The framework's default is known to all at no cost.

    python benchmarks/search.py [framework-dataset ...] [--seeds 20] [--budget 3600] [--json]
    python benchmarks/search.py caffe-mnist --live --budget 600 --strategies factored tpe

With ``--keep FOLDER`` every search is kept there, and none that is there is run again: an
interrupted benchmark goes on, and one strategy can be run anew (delete its files) or added.

``speedup_95`` is the machine time of the best other strategy by that of factored, to 95 %.
``raytune`` and ``asha`` (Ray Tune's OptunaSearch over both goals, and for accuracy alone under
ASHA) need the packages of ``requirements-ray.txt``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from replay import GOALS, Recorded, Replay, recorded_names
from scipy.special import log_ndtr
from workbench import empty_home

from tuner.config import (
    BudgetConfig,
    SamplerConfig,
    SearchConfig,
    TuneConfig,
    VerifyConfig,
)
from tuner.progress import StudyProgress
from tuner.race import Race
from tuner.registry import load_dataset_config, load_framework
from tuner.search import FactoredSearch, JointSearch
from tuner.study import tune
from tuner.study_folder import write_atomically
from tuner.trial import Trial, TrialKind, TrialResult

RACE_SHARE = 0.15
ALIKE = (
    1.4  # the same threads, as a number and as the library's own choice, were recorded so apart
)
SHARES = (0.90, 0.95, 0.99)
SAMPLERS = ("tpe", "nsga2", "random")
RAY = ("raytune", "asha") if find_spec("ray") else ()
STRATEGIES = ("factored", *SAMPLERS, *RAY)

Anytime = list[tuple[float, float]]
"""Machine time and true hypervolume after each trial."""
Search = Callable[[str, str, int], Anytime]
"""One search of a table (framework-dataset) by a strategy under a seed."""


# Optuna's TPE spends most of a replay in a loop over this function, which SciPy has for arrays
@mock.patch("optuna.samplers._tpe._truncnorm._log_ndtr", log_ndtr)
def search(name: str, strategy: str, seed: int, *, budget_s: float) -> Anytime:
    """Run one strategy in replay, until it has found all but a hundredth."""
    recorded = Recorded(name)
    enough = SHARES[-1] * recorded.reference()
    machine = Replay(recorded, seed)
    if strategy in RAY:
        from raytune import RayTuneSearch

        ray_search = RayTuneSearch(recorded, seed, asha=strategy == "asha")
        return ray_search.run(machine, budget_s, enough)
    anytime: Anytime = []
    for chosen in replayed(machine, strategy, seed, budget_s=budget_s):
        volume = recorded.volume([each.params for each in chosen.front])
        anytime.append((machine.now, volume))
        if volume >= enough:
            break
    return anytime


def replayed(
    machine: Replay, strategy: str, seed: int, *, budget_s: float
) -> Iterator[JointSearch]:
    """The tuner's own search on a replaying machine, as it is after each trial."""
    recorded = machine.recorded
    limit_s = recorded.longest_s
    factored = strategy == "factored"
    make = FactoredSearch if factored else JointSearch
    chosen = make(
        recorded.space, GOALS, [], default=recorded.default, seed=seed,
        sampler=SamplerConfig("random" if factored else strategy),
        storage=None, name="replay",
    )  # fmt: skip
    race = Race(
        recorded.space, recorded.default, machine.session, RACE_SHARE * budget_s,
        clock=lambda: machine.now,
    )  # fmt: skip
    number = -1
    while machine.now < budget_s:
        if isinstance(chosen, FactoredSearch) and number >= 0:
            if not race.known.probes:
                chosen.learn_runtimes(race.run(math.inf))
            least_hope = chosen.least_hope(limit_s)
            if not race.over and race.hope > least_hope:
                most_s = (budget_s - machine.now) / 3
                chosen.learn_runtimes(race.run(least_hope, most_s))
        number, params = chosen.ask(limit_s)
        rivals = tuple(
            (point.train_time_s, point.val_accuracy)
            for each in chosen.front
            for point in each.checkpoints
        )
        limit = None if number == 0 else limit_s
        trial = Trial(
            number, params, train_time_limit_s=limit, rivals=rivals, warm=factored,
            curve=recorded.shortest if factored else 0,
        )  # fmt: skip
        result = machine.run(trial)
        if number == 0:
            machine.now = 0.0
        chosen.tell(result)
        yield chosen


class _Judge(StudyProgress):
    """Notes how good the front is after every trial of a real study."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._start = time.monotonic()
        self.anytime: Anytime = []

    def trial_finished(self, result: TrialResult, front: Sequence[TrialResult]) -> None:
        """Judge the front by what was recorded."""
        if result.trial.kind is TrialKind.DEFAULT:  # known to all at no cost
            self._start = time.monotonic()
        volume = self._recorded.volume([each.params for each in front], alike=ALIKE)
        self.anytime.append((time.monotonic() - self._start, volume))


def search_live(name: str, strategy: str, seed: int, *, budget_s: float) -> Anytime:
    """Run one strategy by real training, in a TUNER_HOME with nothing but what is installed."""
    recorded = Recorded(name)
    framework, _, dataset = name.partition("-")
    judge = _Judge(recorded)
    factored = strategy == "factored"
    with tempfile.TemporaryDirectory() as folder, empty_home(Path(folder)):
        tune(
            TuneConfig(
                framework=load_framework(framework),
                dataset=load_dataset_config(dataset),
                model="lenet",
                search=SearchConfig("factored" if factored else "joint"),
                sampler=SamplerConfig("tpe" if factored else strategy),
                budget=BudgetConfig(
                    time_s=budget_s, verify_share=0.0, trial_share=recorded.longest_s / budget_s
                ),
                baseline="projected",
                verify=VerifyConfig(finalists=0),
                search_space={"iterations": {"high": recorded.most_iterations}},
                tracking_uri=f"sqlite:///{folder}/mlflow.db",
                output=folder,
                seed=seed,
                resume="never",
            ),
            judge,
        )
    return judge.anytime


def time_to(anytime: Sequence[tuple[float, float]], volume: float) -> float:
    """Machine time at which a volume was first reached, seconds; infinite if it never was."""
    return next((now for now, reached in anytime if reached >= volume), math.inf)


def kept(once: Search, keep: Path | None, name: str, strategy: str, seed: int) -> Anytime:
    """What a search found: as it is kept, or by searching now."""
    if keep is None:
        return once(name, strategy, seed)
    path = keep / f"{name}-{strategy}-{seed}.json"
    if not path.exists():
        keep.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(once(name, strategy, seed)))
    return [(now, volume) for now, volume in json.loads(path.read_text(encoding="utf-8"))]


def compare(
    name: str, strategies: Sequence[str], seeds: int, once: Search, pool: Executor | None
) -> dict[str, Any]:
    """All strategies on one table, by ``once`` a seed: in a pool, or one after the other."""
    reference = Recorded(name).reference()
    found: dict[str, Any] = {"name": name, "strategies": {}, "anytime": {}}
    for strategy in strategies:
        for_all = pool.map if pool else map
        runs = list(for_all(partial(once, name, strategy), range(1, seeds + 1)))
        found["anytime"][strategy] = [
            [[round(now, 2), round(volume / reference, 4)] for now, volume in run] for run in runs
        ]
        figures: dict[str, Any] = {
            f"{share:.0%}": _quartiles([time_to(run, share * reference) for run in runs])
            for share in SHARES
        }
        figures["final_share"] = statistics.median(run[-1][1] / reference for run in runs)
        found["strategies"][strategy] = figures
        print(f"{name:24} {strategy:9} {_words(figures)}", file=sys.stderr, flush=True)
    others = [each for each in strategies if each != "factored"]
    if others and len(others) < len(strategies):
        for share in SHARES:
            times = {each: found["strategies"][each][f"{share:.0%}"][1] for each in strategies}
            best = min(times[each] for each in others)
            found[f"speedup_{100 * share:.0f}"] = best / times["factored"]
    return found


def _quartiles(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.25, 0.5, 0.75)]


def _words(figures: dict[str, Any]) -> str:
    words = []
    for share in SHARES:
        low, median, high = figures[f"{share:.0%}"]
        words.append(f"to {share:.0%}: {median:5.0f} s ({low:.0f}-{high:.0f})")
    return "  ".join([*words, f"at the end {figures['final_share']:.1%}"])


def draw(frameworks: Sequence[dict[str, Any]], path: Path) -> None:
    """The anytime curves: median and quartiles of the share of the hypervolume over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(
        1, len(frameworks), figsize=(5 * len(frameworks), 4), squeeze=False, sharey=True
    )
    for axis, each in zip(axes[0], frameworks, strict=True):
        for strategy, runs in each["anytime"].items():
            latest = max(run[-1][0] for run in runs)
            times = np.geomspace(10.0, latest, 200)
            reached = np.array(
                [
                    [max((v for now, v in run if now <= at), default=0.0) for at in times]
                    for run in runs
                ]
            )
            low, middle, high = np.quantile(reached, (0.25, 0.5, 0.75), axis=0)
            (line,) = axis.plot(times, middle, label=strategy)
            axis.fill_between(times, low, high, alpha=0.2, color=line.get_color())
        axis.set(title=each["name"], xlabel="machine time, s", xscale="log", ylim=(0.5, 1.01))
        axis.axhline(0.95, color="gray", linewidth=0.6)
    axes[0][0].set_ylabel("share of the reference hypervolume")
    axes[0][0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Compare; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    recorded = recorded_names()
    parser.add_argument("tables", nargs="*", default=recorded, metavar="framework-dataset")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=float, default=3600.0, help="machine time a search, s")
    parser.add_argument("--live", action="store_true", help="train instead of replaying")
    parser.add_argument("--keep", type=Path, help="folder of searches that are not run again")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, help="file for the anytime curves")
    given = parser.parse_args()
    unknown = sorted(set(given.tables) - set(recorded))
    if unknown or not given.tables:
        parser.error(f"{unknown or 'nothing'} is not recorded, but {recorded}; see record.py")
    if given.live and set(given.strategies) & set(RAY):
        parser.error(f"live there are {', '.join(('factored', *SAMPLERS))}")
    once = partial(search_live if given.live else search, budget_s=given.budget)
    with ProcessPoolExecutor() as pool:
        frameworks = [
            compare(
                each,
                given.strategies,
                given.seeds,
                partial(kept, once, given.keep),
                None if given.live else pool,
            )
            for each in given.tables
        ]
    if given.plot:
        draw(frameworks, given.plot)
    if given.json:
        print(json.dumps({"frameworks": frameworks}))
        return
    for each in frameworks:
        if "speedup_95" in each:
            print(f"{each['name']}: to 95 % {each['speedup_95']:.1f} times as fast as the others")


if __name__ == "__main__":
    main()
