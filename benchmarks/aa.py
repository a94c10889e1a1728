"""A/A: the default verified against itself. Whatever is called significant is a false alarm.

Live, a verification as in a study, of the default against the default, is run again and again.
In replay the same runs are dealt out anew: of every two runs of one round either may be the
default's.

    python benchmarks/aa.py caffe [--dataset mnist] [--live 10] [--replay 100] [--json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from workbench import Workbench, side_by_side, workbench

from tuner.config.schema import VerifyConfig
from tuner.trials.session import run_trial
from tuner.values.trial import Trial, TrialKind, TrialResult
from tuner.values.verified import Comparison, Role
from tuner.verification.entrant import Entrant
from tuner.verification.plan import Plan
from tuner.verification.proof import summarize

ITERATIONS = 300


@dataclass(frozen=True)
class Verification:
    """A plan and its runs."""

    plan: Plan
    runs: tuple[TrialResult, ...]

    @property
    def comparison(self) -> Comparison:
        """Return what it claims."""
        _, finalist = summarize(self.plan, self.runs)
        assert finalist.against_default is not None
        return finalist.against_default

    def dealt_anew(self, random_: random.Random) -> Verification:
        """Exchange the two runs of each round, or not, at random."""
        changed = random_.choices([False, True], k=len(self.plan.rounds))
        trials = {self.plan.places[each.number]: each for each in self.plan.trials()}
        runs = []
        for run in self.runs:
            turn, index = self.plan.places[run.trial.number]
            trial = trials[turn, index ^ changed[turn]]
            runs.append(dataclasses.replace(run, trial=trial))
        return Verification(self.plan, tuple(runs))


def verify(bench: Workbench, seed: int) -> Verification:
    """One verification of the default against itself."""
    params = {**bench.default, "iterations": ITERATIONS}
    trial = Trial(0, params, kind=TrialKind.DEFAULT, seed=seed, test=True)
    default = run_trial(bench.setup, trial)
    twin = dataclasses.replace(trial, number=1, kind=TrialKind.SEARCH)
    again = dataclasses.replace(default, trial=twin)
    both = Entrant(default, Role.DEFAULT), Entrant(again, Role.NO_LOSS)
    config, images = VerifyConfig(), bench.setup.dataset.sizes["test"]
    plan = side_by_side(both, config.repeats, config, seed, images)
    return Verification(plan, tuple(run_trial(bench.setup, each) for each in plan.trials()))


def false_alarms(found: Sequence[Verification]) -> dict[str, int]:
    """Count those that call a difference significant."""
    versus = [each.comparison for each in found]
    level = 1 - VerifyConfig().confidence
    return {
        "verifications": len(versus),
        "time": sum(each.speedup_p < level for each in versus),
        "accuracy": sum(each.accuracy_p < level for each in versus),
    }


def main() -> None:
    """Verify and print; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("framework")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--live", type=int, default=10, help="verifications by real training")
    parser.add_argument("--replay", type=int, default=100, help="and by dealing their runs anew")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with workbench(given.framework, given.dataset) as bench:
        live = []
        for seed in range(1, given.live + 1):
            live.append(verify(bench, seed))
            if not given.json:
                versus = live[-1].comparison
                ratio = versus.speedup
                print(
                    f"{seed}: speed-up {ratio.value:.3f} ({ratio.low:.3f}-{ratio.high:.3f}), "
                    f"p {versus.speedup_p:.2f}; accuracy p {versus.accuracy_p:.2f}",
                    flush=True,
                )
    dealer = random.Random(1)
    replayed = [dealer.choice(live).dealt_anew(dealer) for _ in range(given.replay)]
    figures = {"live": false_alarms(live), "replay": false_alarms(replayed)}
    if given.json:
        print(json.dumps(figures))
        return
    for name, each in figures.items():
        print(f"{name}: {each}")


if __name__ == "__main__":
    main()
