"""How much machine time a search needs for the front, and for a proof: all strategies in turn.

In replay each strategy searches what was recorded of real training (``replay.py``): same space,
same times, same noise, driven by the tuner's own loop. What counts is the machine time, workers'
starts and the race included, until the true hypervolume of what was found is 90, 95 and 99 % of
that of the reference front, over many seeds; these searches verify nothing. With ``--live`` the
same strategies train for real, judged by the same table, in which settings within a factor of
``ALIKE`` of the fastest count as the fastest: so far apart was the same thing recorded twice.

Hypervolume is taken over the logarithms of the error and of training time (on the plain scale of
accuracy a first quick point would be nearly all), above an accuracy of ``FLOOR`` and below the
time of the longest recorded curve. Measured values carry noise, judged is the truth behind them.
These studies know nothing but the first part of the framework's default, so that they have no aim
beside the front; all know it at no cost: time counts from its end.

In replay there is a second question: how long until a configuration is *proven* to lose nothing
that trains nearly as fast as the fastest that was recorded and does so? A study verifies when its
search must end, so studies of growing budgets run until one has such a proof; what counts is the
time of the proof in that study, default and all. ``no_loss_share`` is the speed of what was proven
at best, by that of the fastest recorded.

    python benchmarks/search.py [framework-dataset ...] [--seeds 20] [--budget 3600] [--json]
    python benchmarks/search.py theano-mnist --only proof
    python benchmarks/search.py caffe-mnist --live --budget 600 --strategies factored tpe

With ``--keep FOLDER`` every search is kept there, and none that is there is run again: an
interrupted benchmark goes on, and one strategy can be run anew (delete its files) or added.

``speedup_95`` is the machine time of the best other strategy by that of factored, to 95 %;
``speedup_no_loss`` the same to the proof. ``raytune`` and ``asha`` (Ray Tune's OptunaSearch over
both goals, and for accuracy alone under ASHA, which proves nothing) need the packages of
``requirements-ray.txt``. ``constrained`` is TPE with a constraint on accuracy that it is told: the
default's less the margin.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from recorded import Recorded, recorded_names
from replay import Replay
from replayed_study import ReplayedStudy, make_config
from scipy.special import log_ndtr
from workbench import MODEL, empty_home

from tuner.config.catalogue import load_dataset_config, load_framework
from tuner.config.schema import BudgetConfig, SamplerConfig, TuneConfig, VerifyConfig
from tuner.progress import StudyProgress
from tuner.storage.study_folder import write_atomically
from tuner.study.study import tune
from tuner.values.trial import TrialKind, TrialResult

ALIKE = (
    1.4  # the same threads, as a number and as the library's own choice, were recorded so apart
)
SHARES = (0.90, 0.95, 0.99)
NEARLY = 1 / 1.25  # of the speed of the fastest that truly loses nothing
MIN_BUDGET_S, LARGER = 150.0, math.sqrt(2)  # of the studies that are to prove something
JOINT = ("tpe", "constrained", "nsga2", "random")
RAY = ("raytune", "asha") if find_spec("ray") else ()
STRATEGIES = ("factored", *JOINT, *RAY)

Anytime = list[tuple[float, float]]
"""Machine time, and how good the best is by then: true hypervolume, or share of a speed."""
Search = Callable[[str, str, int], Anytime]
"""One search of a table (framework-dataset) by a strategy under a seed."""


class _Enough(Exception):
    """What was searched for is found."""


class _Judge(StudyProgress):
    """Notes how good the front is after every trial of a study, from the default's end.

    Args:
        recorded: What is true.
        clock: Of the study, seconds.
        enough: Hypervolume at which the study is ended.
        alike: See ``Recorded.volume``.
    """

    def __init__(
        self,
        recorded: Recorded,
        clock: Callable[[], float],
        enough: float = math.inf,
        alike: float = 1.0,
    ) -> None:
        self._recorded, self._clock, self._alike = recorded, clock, alike
        self._enough, self._start = enough, clock()
        self.anytime: Anytime = []

    def trial_finished(self, result: TrialResult, front: Sequence[TrialResult]) -> None:
        """Judge the front by what was recorded."""
        if result.trial.is_default:  # known to all at no cost
            self._start = self._clock()
        volume = self._recorded.volume([each.params for each in front], alike=self._alike)
        self.anytime.append((self._clock() - self._start, volume))
        if volume >= self._enough:
            raise _Enough


class _Proofs(StudyProgress):
    """Notes after every verification run how fast the fastest is that is proven and true.

    Attributes:
        study: Whose verification it is.
        anytime: Share of the speed of the fastest recorded one.
    """

    study: ReplayedStudy

    def __init__(self, machine: Replay) -> None:
        self._machine = machine
        self._best_s = machine.recorded.fastest_s(machine.recorded.default)
        self.anytime: Anytime = []

    def trial_finished(self, result: TrialResult, front: Sequence[TrialResult]) -> None:  # noqa: ARG002 - what is proven counts
        """Look at what is proven by now."""
        if result.trial.kind is not TrialKind.VERIFY:
            return
        share = self._best_s / self.study.proven_s
        self.anytime.append((self._machine.now, share))
        if share >= NEARLY:
            raise _Enough


# Optuna's TPE spends most of a replay in a loop over this function, which SciPy has for arrays
fast_tpe = mock.patch("optuna.samplers._tpe._truncnorm._log_ndtr", log_ndtr)


def search_only(recorded: Recorded, strategy: str, seed: int, budget_s: float) -> TuneConfig:
    """Configure a study that only searches, in trainings as long as the recorded ones."""
    budget = BudgetConfig(
        time_s=budget_s, verify_share=0.0, trial_share=min(1.0, recorded.longest_s / budget_s)
    )
    config = make_config(recorded, strategy, seed, budget, VerifyConfig(finalists=0))
    return dataclasses.replace(config, baseline="projected")


@fast_tpe
def search(name: str, strategy: str, seed: int, *, budget_s: float) -> Anytime:
    """Run one strategy in replay, until it has found all but a hundredth."""
    recorded = Recorded(name)
    enough = SHARES[-1] * recorded.reference()
    machine = Replay(recorded, seed)
    if strategy == "asha":
        from raytune import AshaSearch

        return AshaSearch(recorded, seed).run(machine, budget_s, enough)
    judge = _Judge(recorded, lambda: machine.now, enough)
    config = search_only(recorded, strategy, seed, budget_s)
    with contextlib.suppress(_Enough):
        ReplayedStudy(machine, config, reference=False, progress=judge).loop.run()
    return judge.anytime


@fast_tpe
def prove(name: str, strategy: str, seed: int, *, budget_s: float) -> Anytime:
    """Run studies of one strategy with growing budgets, until one has its proof in time."""
    found: Anytime = []
    recorded, each_s = Recorded(name), MIN_BUDGET_S
    while each_s <= budget_s and time_to(found, NEARLY) == math.inf:
        machine = Replay(recorded, seed)
        proofs = _Proofs(machine)
        budget = BudgetConfig(time_s=each_s)
        config = make_config(recorded, strategy, seed, budget)
        proofs.study = ReplayedStudy(machine, config, progress=proofs)
        with contextlib.suppress(_Enough):
            proofs.study.loop.run()
        found += proofs.anytime
        each_s *= LARGER
    return found


def search_live(name: str, strategy: str, seed: int, *, budget_s: float) -> Anytime:
    """Run one strategy by real training, in a TUNER_HOME with nothing but what is installed."""
    recorded = Recorded(name)
    framework, _, dataset = name.partition("-")
    judge = _Judge(recorded, time.monotonic, alike=ALIKE)
    config = search_only(recorded, strategy, seed, budget_s)
    with tempfile.TemporaryDirectory() as folder, empty_home(Path(folder)):
        tune(
            dataclasses.replace(
                config,
                framework=load_framework(framework),
                dataset=load_dataset_config(dataset),
                model=MODEL,
                sampler=SamplerConfig() if strategy == "factored" else config.sampler,
                search_space={"iterations": {"high": recorded.max_iterations}},
                tracking_uri=f"sqlite:///{folder}/mlflow.db",
                output=folder,
            ),
            judge,
        )
    return judge.anytime


def time_to(anytime: Sequence[tuple[float, float]], volume: float) -> float:
    """Machine time at which so much was first reached, seconds; infinite if it never was."""
    return next((now for now, reached in anytime if reached >= volume), math.inf)


def kept(
    once: Search, keep: Path | None, ending: str, name: str, strategy: str, seed: int
) -> Anytime:
    """Return what a search found, from its file of this ending or by searching now."""
    if keep is None:
        return once(name, strategy, seed)
    path = keep / f"{name}-{strategy}-{seed}{ending}.json"
    if not path.exists():
        keep.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(once(name, strategy, seed)))
    return [(now, volume) for now, volume in json.loads(path.read_text(encoding="utf-8"))]


def compare(
    name: str,
    strategies: Sequence[str],
    seeds: int,
    once: Search | None,
    proof: Search | None,
    pool: Executor | None,
) -> dict[str, Any]:
    """All strategies on one table.

    Args:
        name: Of the table.
        strategies: Which.
        seeds: How many.
        once: One search for the front; ``None`` to ask for none.
        proof: One search for a proof; ``None`` to ask for none.
        pool: Where searches run; without one they run one after the other.
    """
    reference = Recorded(name).reference()
    found: dict[str, Any] = {"name": name, "strategies": {}, "anytime": {}}
    for_all = pool.map if pool else map
    for strategy in strategies:
        figures: dict[str, Any] = {}
        if once:
            runs = list(for_all(partial(once, name, strategy), range(1, seeds + 1)))
            found["anytime"][strategy] = [
                [[round(now, 2), round(volume / reference, 4)] for now, volume in run]
                for run in runs
            ]
            for share in SHARES:
                times = [time_to(run, share * reference) for run in runs]
                figures[f"{share:.0%}"] = _quartiles(times)
            figures["final_share"] = statistics.median(run[-1][1] / reference for run in runs)
        if proof and strategy != "asha":
            proofs = list(for_all(partial(proof, name, strategy), range(1, seeds + 1)))
            figures["no_loss"] = _quartiles([time_to(run, NEARLY) for run in proofs])
            shares = [max((share for _, share in run), default=0.0) for run in proofs]
            figures["no_loss_share"] = statistics.median(shares)
        found["strategies"][strategy] = figures
        print(f"{name:24} {strategy:9} {_words(figures)}", file=sys.stderr, flush=True)
    speedups = {f"speedup_{100 * share:.0f}": f"{share:.0%}" for share in SHARES}
    for said, figure in {**speedups, "speedup_no_loss": "no_loss"}.items():
        speedup = _speedup(found["strategies"], figure)
        if speedup is not None:
            found[said] = speedup
    return found


def _speedup(figures: dict[str, dict[str, Any]], name: str) -> float | None:
    """Median time of the best other strategy by that of factored; ``None`` without either."""
    times = {strategy: each[name][1] for strategy, each in figures.items() if name in each}
    own = times.pop("factored", math.inf)
    return min(times.values()) / own if times and own < math.inf else None


def _quartiles(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.25, 0.5, 0.75)]


def _words(figures: dict[str, Any]) -> str:
    words = []
    if "final_share" in figures:
        for share in SHARES:
            low, median, high = figures[f"{share:.0%}"]
            words.append(f"to {share:.0%}: {median:5.0f} s ({low:.0f}-{high:.0f})")
        words.append(f"at the end {figures['final_share']:.1%}")
    if "no_loss" in figures:
        low, median, high = figures["no_loss"]
        best = f"proven at best {figures['no_loss_share']:.0%} of the speed"
        words.append(f"to a proof: {median:5.0f} s ({low:.0f}-{high:.0f}), {best}")
    return "  ".join(words)


def draw(frameworks: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the anytime curves: median and quartiles of the hypervolume's share over time."""
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
    parser.add_argument("--only", choices=("front", "proof"), help="ask one of the two questions")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, help="file for the anytime curves")
    given = parser.parse_args()
    unknown = sorted(set(given.tables) - set(recorded))
    if unknown or not given.tables:
        parser.error(f"{unknown or 'nothing'} is not recorded, but {recorded}; see record.py")
    if given.live and set(given.strategies) & set(RAY):
        parser.error(f"live there are {', '.join(('factored', *JOINT))}")
    if given.only == "proof" and (given.live or given.plot):
        parser.error("--live and --plot are of the front; leave out --only proof")
    search_once = partial(search_live if given.live else search, budget_s=given.budget)
    front = partial(kept, search_once, given.keep, "")
    proof = partial(kept, partial(prove, budget_s=given.budget), given.keep, "-no_loss")
    with ProcessPoolExecutor() as pool:
        frameworks = [
            compare(
                each,
                given.strategies,
                given.seeds,
                None if given.only == "proof" else front,
                None if given.live or given.only == "front" else proof,
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
        if "speedup_no_loss" in each:
            print(f"{each['name']}: to a proof {each['speedup_no_loss']:.1f} times as fast")


if __name__ == "__main__":
    main()
