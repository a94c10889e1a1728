"""Whether what studies claim is true: each claim of a verification held against what is known.

Claims are of three kinds. *No loss*: a candidate whose accuracy is proven not to be below the
default's by more than the margin. *Runtime only*: the same of the default's own params at another
runtime setting. *Better*: a configuration that is called significantly faster or more accurate
than the default, and is sure to be on the front; it holds if what it is said to be better in, it
is, and if none of the others is both faster and more accurate.

In replay (``replay.py``) the truth is the recorded table: whole studies run on it under fresh
noise for every seed. Live, studies of a budget train for real, and the truth is an independent
verification of what they verified by ten fresh seeds each, the default's own whole runs included:
hours where the default is slow.

    python benchmarks/claims.py caffe-mnist torch-mnist [--seeds 20] [--budget 600] [--json]
    python benchmarks/claims.py caffe-mnist_5k --live --seeds 3
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from replay import Recorded, Replay, recorded_names
from replayed_study import ReplayedStudy, make_config
from workbench import fresh_study, side_by_side, workbench

from tuner.config import BudgetConfig, VerifyConfig
from tuner.plan import Entrant
from tuner.runner import run_trial
from tuner.trial import TrialKind, TrialResult, TrialStatus
from tuner.verified import Role, Verified
from tuner.verify import summarize

LIVE_SEEDS = 10
SEED_APART = 1000  # seeds of an independent verification are other ones
BETTER = "better"

Truth = Callable[[Verified], tuple[float, float]]
"""Training time, seconds, and accuracy, fraction."""


@dataclass(frozen=True)
class Claim:
    """What is said of a configuration, and whether it holds.

    Attributes:
        kind: ``no loss``, ``runtime only``, ``most accurate`` (also without loss) or ``better``.
        said: In words.
        holds: Whether it is true.
    """

    kind: str
    said: str
    holds: bool


def claims(verified: Sequence[Verified], truth: Truth) -> list[Claim]:
    """All that a study claims of what it verified."""
    if not verified:
        return []
    known = {each.trial_number: truth(each) for each in verified}
    default = known[verified[0].trial_number]
    return [
        claim
        for each in verified[1:]
        for claim in (
            *_no_loss(each, known[each.trial_number][1], default[1]),
            *_better(each, known[each.trial_number], default, list(known.values())),
        )
    ]


def _no_loss(point: Verified, accuracy: float, default_accuracy: float) -> Iterator[Claim]:
    if point.loses_nothing:
        gain = accuracy - default_accuracy
        holds = gain >= -VerifyConfig.accuracy_margin
        said = f"{point.name}: {point.verdict}, truly {100 * gain:+.2f} points"
        yield Claim(point.role.value, said, holds)


def _better(
    point: Verified,
    own: tuple[float, float],
    default: tuple[float, float],
    known: Sequence[tuple[float, float]],
) -> Iterator[Claim]:
    if not (point.is_faster or point.is_better) or point.on_front < point.confidence:
        return
    time_s, accuracy = own
    beaten = any(other_s < time_s and other > accuracy for other_s, other in known)
    faster = not point.is_faster or time_s < default[0]
    better = not point.is_better or accuracy > default[1]
    yield Claim(BETTER, f"{point.name}: {point.verdict}", faster and better and not beaten)


def replay(name: str, seed: int, budget_s: float) -> list[Claim]:
    """Run a study of what was recorded, and compare with the table."""
    recorded = Recorded(name)
    config = make_config("factored", seed, BudgetConfig(time_s=budget_s))
    study = ReplayedStudy(Replay(recorded, seed), config)
    study.loop.run()
    return claims(study.verified, lambda point: recorded.truth(point.params))


def live(name: str, seed: int, budget_s: float) -> list[Claim]:
    """Run a study, and verify what it verified once more by itself."""
    result = fresh_study(name, budget_s, seed=seed)
    if not result.verified or result.default is None:
        return []
    entrants = [_entrant(each, result.default) for each in result.verified]
    framework, _, dataset = name.partition("-")
    with workbench(framework, dataset) as bench:
        images = bench.setup.dataset.sizes["test"]
        config = VerifyConfig(repeats=LIVE_SEEDS)
        plan = side_by_side(entrants, LIVE_SEEDS, config, SEED_APART + seed, images)
        again = summarize(plan, [run_trial(bench.setup, each) for each in plan.trials()])
    known = {
        each.trial_number: (each.train_time_s.value, each.test_accuracy.value) for each in again
    }
    return claims(
        [each for each in result.verified if each.trial_number in known],
        lambda each: known[each.trial_number],
    )


def _entrant(point: Verified, default: TrialResult) -> Entrant:
    """What was verified, to be verified again in whole runs."""
    assert default.measurement is not None
    kind = TrialKind.DEFAULT if point.is_default else TrialKind.SEARCH
    trial = dataclasses.replace(
        default.trial, number=point.trial_number, params=point.params, kind=kind, share=1.0
    )
    measured = dataclasses.replace(default.measurement, train_time_s=point.train_time_s.value)
    # whether accuracy depends on the runtime setting is to be seen here, not believed
    role = Role.NO_LOSS if point.role is Role.RUNTIME_ONLY else point.role
    result = dataclasses.replace(
        default, trial=trial, status=TrialStatus.COMPLETE, measurement=measured
    )
    return Entrant(result, role)


def figures(found: Sequence[Claim]) -> dict[str, dict[str, object]]:
    """How many claims of each kind there are, and how many hold."""
    return {
        kind: {
            "claims": sum(each.kind == kind for each in found),
            "hold": sum(each.kind == kind and each.holds for each in found),
            "refuted": [each.said for each in found if each.kind == kind and not each.holds],
        }
        for kind in sorted({each.kind for each in found})
    }


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
    by_name = {}
    for name in given.names:
        found: list[Claim] = []
        for seed in range(1, given.seeds + 1):
            found += once(name, seed, given.budget)
            print(f"{name} {seed}: {len(found)} claims so far", file=sys.stderr, flush=True)
        by_name[name] = figures(found)
    if given.json:
        print(json.dumps(by_name))
        return
    for name, kinds in by_name.items():
        for kind, each in kinds.items():
            held = f"{each['hold']} of {each['claims']} claims hold"
            print(f"{name}, {kind}: {held}; refuted: {each['refuted']}")


if __name__ == "__main__":
    main()
