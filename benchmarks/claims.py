"""Whether what studies claim is true: each claim of a verification held against what is known.

Claims are of three kinds. *No loss*: a candidate whose accuracy is proven not to be below the
default's by more than the margin. *Runtime only*: the same of the default's own params at another
runtime setting. *Better*: a configuration that is called significantly faster or more accurate
than the default, and is sure to be on the front; it holds if what it is said to be better in, it
is, and if none of the others is both faster and more accurate.

In replay (``replay.py``) the truth is the recorded table: whole studies run on it under fresh
noise for every seed. Live, studies train for real (or have done so: ``--output`` is where their
``mlflow.db`` is), and the truth comes from runs of its own: the accuracy of ten fresh seeds, held
against the default's recorded reference, and ten interleaved pairs of rates. The accuracy of the
default's own params is not trained anew. Only the rates need a quiet machine, and they take most
of the time: ``--accuracies`` leaves them out.

    python benchmarks/claims.py caffe-mnist torch-mnist [--seeds 20] [--budget 600] [--json]
    python benchmarks/claims.py caffe-mnist --live --seeds 3
    python benchmarks/claims.py caffe-mnist --live --output . [--accuracies]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recorded import Recorded, recorded_names
from replay import Replay
from replayed_study import ReplayedStudy, make_config
from workbench import Workbench, empty_home, workbench

from tuner import load_results, tune
from tuner.config.schema import BudgetConfig, VerifyConfig
from tuner.convergence.references import find_reference
from tuner.executors.local import LocalExecutor
from tuner.recommendation.evidence import Evidence
from tuner.recommendation.reading import evidence_of
from tuner.trials.session import run_trial
from tuner.values.params import Params, iterations_of
from tuner.values.trial import Trial, TrialKind
from tuner.values.verified import Role, Verified

LIVE_SEEDS = 10
SEEDS_APART = 10**7  # seeds of an independent verification are other ones
RATE_ITERATIONS = 200  # of a run that tells a rate
BETTER, FASTER = "better", "faster"

Truth = Callable[[Verified], tuple[float, float]]
"""Training time, seconds, and accuracy, fraction."""


@dataclass(frozen=True)
class Claim:
    """What is said of a configuration, and whether it holds.

    Attributes:
        kind: ``no loss``, ``runtime only``, ``most accurate`` (also without loss), ``better``, or
            live ``faster``.
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
    known = {each.name: truth(each) for each in verified}
    default = known[verified[0].name]
    return [
        claim
        for each in verified[1:]
        for claim in (
            *_no_loss(each, known[each.name][1], default[1]),
            *_better(each, known[each.name], default, list(known.values())),
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
    config = make_config(recorded, "factored", seed, BudgetConfig(time_s=budget_s))
    study = ReplayedStudy(Replay(recorded, seed), config)
    study.loop.run()
    return claims(study.verified, lambda point: recorded.truth(point.params))


def studies(name: str, seeds: int, budget_s: float, output: str) -> list[Evidence]:
    """Return what a folder's studies verified; without a folder, run them first."""
    framework, _, dataset = name.partition("-")
    if output:
        records = load_results(framework, dataset, output=output)
        return [each for record in records for each in evidence_of(record)]
    with tempfile.TemporaryDirectory() as folder, empty_home(Path(folder)):
        for seed in range(1, seeds + 1):
            settings = {"framework": framework, "dataset": dataset, "seed": seed, "output": folder}
            tune(f"budget.time_s={budget_s}", "search.warm_start=false", **settings)
        return studies(name, seeds, budget_s, folder)


def live(found: Sequence[Evidence], *, rates: bool = True) -> list[Claim]:
    """Hold what was claimed against runs of its own, of fresh seeds; speed only with ``rates``."""
    held: list[Claim] = []
    for number, point in enumerate(each for each in found if not each.is_default):
        for each in _live(point, number, rates=rates):
            print(f"{each.kind}: {each.said}", file=sys.stderr, flush=True)
            held.append(each)
    return held


def _live(point: Evidence, number: int, *, rates: bool) -> Iterator[Claim]:
    with workbench(point.framework, point.requested, point.model) as bench:
        if point.no_loss and point.role != Role.RUNTIME_ONLY.value:
            gain = _accuracy(bench, point.params, number) - _default_accuracy(bench, point)
            said = f"{_words(point)}: truly {100 * gain:+.2f} points"
            yield Claim(point.role, said, gain >= -point.margin)
        if rates and point.is_faster:
            speedup = _speedup(bench, point.params, number)
            yield Claim(FASTER, f"{_words(point)}: truly {speedup:.2f}x as fast", speedup > 1)


def _words(point: Evidence) -> str:
    learnt = ", ".join(f"{name} {value}" for name, value in point.params.items())
    return f"{learnt} ({point.speedup.value:.2f}x, {point.difference})"


def _default_accuracy(bench: Workbench, point: Evidence) -> float:
    """Return the default's test accuracy: its reference's, or that of as many runs."""
    reference = find_reference(point.framework, point.dataset, point.model)
    return reference.test_accuracy if reference else _accuracy(bench, bench.default, -1)


def _accuracy(bench: Workbench, params: Params, number: int) -> float:
    """Mean test accuracy of fresh seeds, one a core where one thread is to be had."""
    single = {**params, "threads": 1}
    params = params if bench.space.refusal(single) else single
    seeds = range(SEEDS_APART * (number + 2), SEEDS_APART * (number + 2) + LIVE_SEEDS)
    with contextlib.closing(LocalExecutor(bench.setup)) as executor:
        runs = [
            executor.submit(
                Trial(seed, params, TrialKind.VERIFY, seed, test=True, accuracy_only=True)
            )
            for seed in seeds
        ]
        found = [each.result().test_accuracy for each in runs]
    return statistics.fmean(each for each in found if each is not None)


def _speedup(bench: Workbench, params: Params, number: int) -> float:
    """Return the default's training time over this one's: geometric mean of pairs in turn."""
    logs = []
    for turn in range(LIVE_SEEDS):
        pair = [bench.default, params] if turn % 2 else [params, bench.default]
        rates = {
            id(each): _iteration_s(bench, each, 2 * (LIVE_SEEDS * number + turn) + place)
            for place, each in enumerate(pair)
        }
        logs.append(math.log(rates[id(bench.default)] / rates[id(params)]))
    iterations = iterations_of(bench.default) / iterations_of(params)
    return iterations * math.exp(statistics.fmean(logs))


def _iteration_s(bench: Workbench, params: Params, number: int) -> float:
    """Measure seconds per iteration, at the default's rate: a training that diverges has none."""
    params = {**params, "learning_rate": bench.default["learning_rate"]}
    share = min(1.0, RATE_ITERATIONS / iterations_of(params))
    result = run_trial(bench.setup, Trial(number, params, TrialKind.VERIFY, number, share=share))
    assert result.measurement is not None, result.reason
    return result.metrics["train_time_s"] / iterations_of(params)


def figures(found: Sequence[Claim]) -> dict[str, dict[str, object]]:
    """Count the claims of each kind and those that hold; list the refuted."""
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
    parser.add_argument("--output", default="", help="of studies that have ended (with --live)")
    parser.add_argument("--accuracies", action="store_true", help="no claims of speed (--live)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    by_name = {}
    for name in given.names:
        found: list[Claim] = []
        if given.live:
            evidence = studies(name, given.seeds, given.budget, given.output)
            found = live(evidence, rates=not given.accuracies)
        for seed in range(1, 1 if given.live else given.seeds + 1):
            found += replay(name, seed, given.budget)
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
