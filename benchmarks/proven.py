"""What a study proves within its budget: the speed-up at no loss, over many seeds, in replay.

Whole studies run on what was recorded (``replay.py``), by the tuner's own loop: the default's own
cost, the race, the search and the proof are in their time. What counts is the true speed-up over
the default of the fastest configuration that was proven to lose nothing, the runtime setting alone
included; 1 where nothing was proven. A proof that is wrong (``claims.py`` counts these) counts for
nothing. Beside it stands the best of what was recorded: all that truly reaches the default's
accuracy, or loses no more than the margin.

    python benchmarks/proven.py [framework-dataset ...] [--seeds 20] [--budget 690] [--json]
    python benchmarks/proven.py caffe-mnist --strategies factored tpe

Studies run side by side, one a core, as no time but the machine's own of each counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from recorded import Recorded, recorded_names
from replay import Replay
from replayed_study import ReplayedStudy, make_config
from search import JOINT, fast_tpe

from tuner.config.schema import BudgetConfig, VerifyConfig

STRATEGIES = ("factored", *JOINT)


@fast_tpe
def proven(name: str, strategy: str, budget_s: float, seed: int) -> tuple[float, float]:
    """Run a study.

    Returns:
        The true speed-up of the fastest that was proven to lose nothing, and the seconds of the
        study.
    """
    recorded = Recorded(name)
    machine = Replay(recorded, seed)
    config = make_config(recorded, strategy, seed, BudgetConfig(time_s=budget_s))
    study = ReplayedStudy(machine, config)
    study.loop.run()
    default_s, _ = recorded.truth(recorded.default)
    return default_s / min(default_s, study.proven_s), machine.now


def best(name: str, margin: float) -> float:
    """Speed-up of the fastest that was recorded and truly loses no more than a margin."""
    recorded = Recorded(name)
    return recorded.truth(recorded.default)[0] / recorded.fastest_s(recorded.default, margin)


def figures(found: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Of the studies of one table by one strategy."""
    speedups = [speedup for speedup, _ in found]
    return {
        "speedup": statistics.geometric_mean(speedups),
        "quartiles": statistics.quantiles(speedups, n=4) if speedups[1:] else speedups * 3,
        "four_times": sum(each >= 4 for each in speedups),
        "studies": len(speedups),
        "longest_s": max(ended for _, ended in found),
    }


def main() -> None:
    """Run the studies and say what they proved."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=recorded_names(), metavar="framework-dataset")
    parser.add_argument("--strategies", nargs="+", default=["factored"], choices=STRATEGIES)
    parser.add_argument("--seeds", type=int, default=20, help="studies of each")
    parser.add_argument("--budget", type=float, default=690.0, help="of a study, s")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    by_name: dict[str, Any] = {}
    with ProcessPoolExecutor() as pool:
        for name in given.names:
            by_name[name] = {
                "lossless": best(name, 0.0),
                "within_margin": best(name, VerifyConfig.accuracy_margin),
            }
            for strategy in given.strategies:
                once = partial(proven, name, strategy, given.budget)
                by_name[name][strategy] = figures([*pool.map(once, range(1, given.seeds + 1))])
    if given.json:
        print(json.dumps(by_name))
        return
    for name, each in by_name.items():
        recorded = f"{each['lossless']:.1f}, {each['within_margin']:.1f} within the margin"
        print(f"{name}: best recorded {recorded}")
        for strategy in given.strategies:
            found = each[strategy]
            low, median, high = found["quartiles"]
            print(
                f"  {strategy:9} {found['speedup']:.2f} times (median {median:.2f}, quartiles "
                f"{low:.2f} to {high:.2f}), 4 times or more in {found['four_times']} of "
                f"{found['studies']}, longest {found['longest_s']:.0f} s"
            )


if __name__ == "__main__":
    main()
