"""Whole studies on recorded trainings: the tuner's own loop, on a machine that replays.

What a study does is decided by the tuner alone; here it is given a machine on which training
takes no time (``replay.py``), a record that is kept in memory, and that machine's clock.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recorded import GOALS, Recorded
from replay import TEST, VALIDATION, Replay

from tuner.config.schema import (
    BudgetConfig,
    FrameworkConfig,
    SamplerConfig,
    SearchConfig,
    TuneConfig,
    VerifyConfig,
    parse_constraint,
)
from tuner.convergence.references import Reference, run_of
from tuner.datasets.provide import Dataset
from tuner.progress import StudyProgress
from tuner.race.race import Race
from tuner.runtimes import find_runtime
from tuner.search import (
    FactoredSearch,
    JointSearch,
    OptunaStudy,
    Outlook,
    RayTune,
    Strategy,
)
from tuner.study.default_trial import DefaultTrial
from tuner.study.interrupts import DeferredInterrupts
from tuner.study.loop import StudyLoop
from tuner.study.schedule import Schedule
from tuner.study.trial_runs import TrialRuns
from tuner.trials.session import TrialSetup
from tuner.values.trial import Trial, TrialKind, TrialResult
from tuner.values.verified import Verified
from tuner.verification.rounds import Verification

REFERENCE_SEEDS = 10
NOWHERE = Path("replayed")


class Records:
    """What a replayed study keeps, in memory.

    Args:
        machine: Whose clock counts.

    Attributes:
        trials: A folder that is not there.
        facts: All that was saved.
    """

    def __init__(self, machine: Replay) -> None:
        self._machine, self._began_s = machine, machine.now
        self.trials = NOWHERE
        self.facts: dict[str, Any] = {}
        self._results: dict[str, TrialResult] = {}

    @property
    def elapsed_s(self) -> float:
        """Seconds that passed on the machine."""
        return self._machine.now - self._began_s

    def restart_clock(self) -> None:
        """Count from now."""
        self._began_s = self._machine.now

    def save(self, **facts: Any) -> None:
        """Add to the facts."""
        self.facts |= facts

    def keep(self, result: TrialResult) -> None:
        """Record a finished trial."""
        self._results[result.trial.name] = result

    def results(self, *kinds: TrialKind) -> list[TrialResult]:
        """All finished trials of these kinds, by number."""
        found = (each for each in self._results.values() if each.trial.kind in kinds)
        return sorted(found, key=lambda each: each.trial.number)


def make_config(
    recorded: Recorded,
    strategy: str,
    seed: int,
    budget: BudgetConfig,
    verify: VerifyConfig | None = None,
) -> TuneConfig:
    """Configure a study by a strategy.

    Args:
        recorded: What is studied.
        strategy: ``factored``, ``raytune``, a sampler of joint search, or ``constrained``: TPE,
            told as a constraint the accuracy that loses nothing. What is verified need not keep it
            in its trial, which is a single noisy look.
        seed: Of the study.
        budget: Of the study.
        verify: How it verifies; as studies do by default if not given.
    """
    names = {"factored": "factored", "raytune": "raytune"}
    # what the sampler of factored search is does not matter, and this one is fast
    samplers = {"factored": "random", "raytune": "tpe", "constrained": "tpe"}
    least = recorded.truth(recorded.default)[1] - VerifyConfig.accuracy_margin
    return TuneConfig(
        search=SearchConfig(names.get(strategy, "joint")),
        sampler=SamplerConfig(samplers.get(strategy, strategy)),
        constraints=[f"accuracy>={least:.6f}"] if strategy == "constrained" else [],
        budget=budget,
        verify=verify or VerifyConfig(),
        seed=seed,
    )


class ReplayedStudy:
    """One study of recorded trainings.

    Args:
        machine: Where it runs.
        config: Of the study; what it studies is what the machine knows.
        reference: Whether the default's convergence was recorded before, over several seeds.
        progress: Is told what is being done.

    Attributes:
        loop: Of the study; ``loop.run()`` runs it.
        setup: What its trials would share.
        record: What it keeps.
    """

    def __init__(
        self,
        machine: Replay,
        config: TuneConfig,
        *,
        reference: bool = True,
        progress: StudyProgress | None = None,
    ) -> None:
        recorded, records = machine.recorded, Records(machine)
        self.record = records
        shown = progress or StudyProgress()
        self._recorded, self.setup = recorded, _setup(recorded)
        race = self._race(machine, config) if config.search.name == "factored" else None
        strategy = self._strategy(machine, config, race)
        runs = TrialRuns(
            lambda: machine, records, lambda _result: None, config.budget, shown,
            DeferredInterrupts(),
        )  # fmt: skip
        known = _reference(recorded, self.setup, config, machine.seed) if reference else None
        default = DefaultTrial(
            config, self.setup, recorded.space, "", records, runs, shown, lambda *_names: known
        )
        self._verification = Verification(
            config, records, GOALS, [], recorded.space,
            self.setup.dataset.sizes["test"], strategy.min_iterations, strategy.beside,
        )  # fmt: skip
        self.loop = StudyLoop(
            config, self.setup, records, strategy, race, default, self._verification,
            Outlook(recorded.space, config.seed), runs, shown,
        )  # fmt: skip

    @staticmethod
    def _race(machine: Replay, config: TuneConfig) -> Race:
        search, recorded = config.search, machine.recorded
        return Race(
            recorded.space,
            recorded.default,
            machine.session,
            search.race_share * config.budget.time_s,
            clock=lambda: machine.now,
            probe_s=search.probe_s,
        )

    @staticmethod
    def _strategy(machine: Replay, config: TuneConfig, race: Race | None) -> Strategy:
        recorded = machine.recorded
        study = OptunaStudy(
            recorded.space, GOALS, [parse_constraint(each) for each in config.constraints],
            sampler=config.sampler, storage=None, name="replay", default=recorded.default,
            seed=config.seed,
        )  # fmt: skip
        if race is not None:
            return FactoredSearch(study, race, machine.lanes)
        ask = RayTune(study).ask if config.search.name == "raytune" else None
        return JointSearch(study, ask)

    @property
    def verified(self) -> tuple[Verified, ...]:
        """Return what is verified so far: the default first, then the others, fastest first."""
        return self._verification.summary()

    @property
    def proven_s(self) -> float:
        """Least true training time that is proven to lose nothing, and truly does not, s.

        Infinite while nothing is.
        """
        recorded, margin = self._recorded, VerifyConfig.accuracy_margin
        return min(
            (
                recorded.truth(each.params)[0]
                for each in self.verified
                if each.is_faster
                and each.loses_nothing
                and recorded.loses_nothing(each.params, recorded.default, margin)
            ),
            default=math.inf,
        )


def _setup(recorded: Recorded) -> TrialSetup:
    """Return what trials share, as far as a study asks for it."""
    framework, _, dataset = recorded.name.partition("-")
    config = FrameworkConfig(name=framework, title=framework)
    sizes = {"train": 0, "validation": VALIDATION, "test": TEST}
    return TrialSetup(
        framework=config,
        runtime=find_runtime(config),
        dataset=Dataset(
            dataset, dataset, NOWHERE, 28, 28, 1, 10, sizes, split="", digest=recorded.name,
            origin="", source="",
        ),
        model=recorded.model,
        worker=NOWHERE,
        folder=NOWHERE,
        marker="",
        cores=(),
        memory_limit_bytes=0,
        measure=TuneConfig().measure,
    )  # fmt: skip


def _reference(recorded: Recorded, setup: TrialSetup, config: TuneConfig, seed: int) -> Reference:
    """Train the default with several seeds, on a machine of its own."""
    machine = Replay(recorded, seed)
    default = recorded.default
    trial = Schedule(config.budget, config.seed).reference_trial(default, recorded.min_iterations)
    trials: Sequence[Trial] = [
        dataclasses.replace(trial, seed=each) for each in range(1, REFERENCE_SEEDS + 1)
    ]
    return Reference(
        framework=setup.framework.name,
        dataset=setup.dataset.name,
        model=setup.model,
        dataset_digest=setup.dataset.digest,
        params=default,
        setting=recorded.setting(default),
        versions={},
        machine={},
        runs=tuple(run_of(machine.run(each)) for each in trials),
    )
