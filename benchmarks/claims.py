"""Whether what studies claim is true: each claim of a verification held against what is known.

A claim is a finalist that its study calls better than the default (significantly faster or more
accurate) and sure to be on the front. It holds if what it is said to be better in, it is, and if
none of the other finalists is both faster and more accurate.

In replay (``replay.py``) the truth is the recorded table: factored search and verification run on
it under fresh noise for every seed. Live, studies of a budget train for real, and the truth is an
independent verification of their finalists with more rounds and other seeds.

    python benchmarks/claims.py caffe-mnist torch-mnist [--seeds 20] [--budget 600] [--json]
    python benchmarks/claims.py caffe-mnist_5k --live --seeds 3
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replay import GOALS, TEST, Recorded, Replay, recorded_names
from search import replayed
from workbench import fresh_study, workbench

from tuner.config import VerifyConfig
from tuner.plan import Plan, pick_finalists
from tuner.results import Verified
from tuner.runner import run_trial
from tuner.trial import Trial, TrialKind
from tuner.verify import summarize

VERIFY_SHARE = 0.35
LIVE_ROUNDS = 4
SEED_APART = 1000  # seeds of an independent verification are other ones

Truth = Callable[[Verified], tuple[float, float]]
"""Training time, seconds, and accuracy, fraction."""


@dataclass(frozen=True)
class Claim:
    """What is said of a finalist, and whether it holds."""

    said: str
    holds: bool


def claims(verified: Sequence[Verified], truth: Truth) -> list[Claim]:
    """All that is claimed of a study's finalists."""
    if not verified:
        return []
    level = 1 - verified[0].confidence
    known = {each.trial_number: truth(each) for each in verified}
    default_s, default_accuracy = known[verified[0].trial_number]
    found = []
    for each in verified[1:]:
        versus = each.against_default
        assert versus is not None
        faster = versus.speedup_p < level and versus.speedup.value > 1
        better = versus.accuracy_p < level and versus.accuracy_gain.value > 0
        if not (faster or better) or each.on_front < 1 - level:
            continue
        time_s, accuracy = known[each.trial_number]
        beaten = any(
            other_s < time_s and other_accuracy > accuracy
            for other_s, other_accuracy in known.values()
        )
        right = (not faster or time_s < default_s) and (not better or accuracy > default_accuracy)
        found.append(Claim(each.verdict, right and not beaten))
    return found


def replay(name: str, seed: int, budget_s: float) -> list[Claim]:
    """Search and verify what was recorded, and compare with the table."""
    recorded = Recorded(name)
    machine = Replay(recorded, seed)
    *_, search = replayed(machine, "factored", seed, budget_s=(1 - VERIFY_SHARE) * budget_s)
    config = VerifyConfig()
    default = machine.verify(Trial(0, recorded.default, TrialKind.DEFAULT, test=True))
    found = [each for each in search.front if each.trial.number]
    finalists = pick_finalists(found, default, GOALS, [], config)
    plan = Plan(default, tuple(finalists), config.repeats, config, seed, TEST)
    verified = summarize(plan, [machine.verify(each) for each in plan.trials()])

    def truth(point: Verified) -> tuple[float, float]:
        iterations = int(point.params["iterations"] or 1)
        return (
            iterations * recorded.pace(point.params),
            recorded.accuracy(point.params, iterations),
        )

    return claims(verified, truth)


def live(name: str, seed: int, budget_s: float) -> list[Claim]:
    """Run a study, and verify its finalists once more by itself."""
    result = fresh_study(name, budget_s, seed=seed)
    if not result.verified or result.default is None:
        return []
    points = {each.trial.number: each for each in (*result.trials, *result.derived)}
    finalists = [points[each.trial_number] for each in result.verified[1:]]
    framework, _, dataset = name.partition("-")
    with workbench(framework, dataset) as bench:
        images = bench.setup.dataset.sizes["test"]
        plan = Plan(
            result.default,
            tuple(finalists),
            LIVE_ROUNDS,
            VerifyConfig(),
            SEED_APART + seed,
            images,
        )
        again = summarize(plan, [run_trial(bench.setup, each) for each in plan.trials()])
    known = {
        each.trial_number: (each.train_time_s.value, each.test_accuracy.value) for each in again
    }
    return claims(result.verified, lambda each: known[each.trial_number])


def main() -> None:
    """Claim and check; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=recorded_names(), metavar="framework-dataset")
    parser.add_argument("--seeds", type=int, default=20, help="studies of each")
    parser.add_argument("--budget", type=float, default=600.0, help="of a study, s")
    parser.add_argument("--live", action="store_true", help="train instead of replaying")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    once = live if given.live else replay
    figures = {}
    for name in given.names:
        found: list[Claim] = []
        for seed in range(1, given.seeds + 1):
            found += once(name, seed, given.budget)
            print(f"{name} {seed}: {len(found)} claims so far", file=sys.stderr, flush=True)
        figures[name] = {
            "claims": len(found),
            "hold": sum(each.holds for each in found),
            "refuted": [each.said for each in found if not each.holds],
        }
    if given.json:
        print(json.dumps(figures))
        return
    for name, each in figures.items():
        print(
            f"{name}: {each['hold']} of {each['claims']} claims hold; refuted: {each['refuted']}"
        )


if __name__ == "__main__":
    main()
