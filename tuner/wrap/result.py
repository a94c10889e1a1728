"""What a study of a program found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.values.params import Params
from tuner.values.trial import TrialKind, TrialResult
from tuner.wrap.comparison import Proof
from tuner.wrap.descent import Effect
from tuner.wrap.knobs import Knob, variables_of
from tuner.wrap.objective import Objective
from tuner.wrap.params import WORKERS
from tuner.wrap.program import Program
from tuner.wrap.window import Window


@dataclass(frozen=True)
class Tested:
    """A setting that interleaved runs compared with the program as it is.

    Attributes:
        setting: The setting, and values of the program's params.
        proof: How it compares; ``None`` if too few runs are done.
        failed: The run that failed, which ends the comparison.
        changes_params: Whether it changes the program's params.
    """

    setting: Params
    proof: Proof | None
    failed: TrialResult | None = None
    changes_params: bool = False

    @property
    def proven(self) -> bool:
        """Whether it is proven to be better, and to lose nothing if it changes params."""
        if self.proof is None or self.failed:
            return False
        return self.proof.better and (self.proof.no_loss is True or not self.changes_params)

    @property
    def always_alike(self) -> bool:
        """Whether the program reached the same in every run, so that nothing can be proven."""
        return bool(self.proof and self.proof.reached and self.proof.no_loss is None)


@dataclass(frozen=True)
class WrapResult:
    """What a study found.

    Attributes:
        program: The program.
        objective: What was minimised.
        runs: All runs: as it is, with each setting, and those of the proof.
        window: The steps that were measured; ``None`` if whole runs were.
        source: Where the progress came from; empty without any.
        found: The best setting of the search; empty if none is better than the program as it is.
        knobs: The knobs of the program.
        effects: What each knob changed.
        tested: The settings that were compared with the program as it is, in order.
        elapsed_s: Seconds that the study took.
        study_id: Its id.
        facts: The machine, and what was measured with.
        gpu: ``used`` if the program had a GPU open, ``hidden`` if its sandbox hid one whose
            libraries it loads; else empty.
        untried: Names of the knobs that there was no time to try with all their values.
    """

    program: Program
    objective: Objective
    runs: Sequence[TrialResult]
    window: Window | None
    source: str
    found: Params
    knobs: Sequence[Knob]
    effects: Sequence[Effect]
    tested: Sequence[Tested]
    elapsed_s: float
    study_id: str
    facts: Mapping[str, str] = field(default_factory=dict)
    gpu: str = ""
    untried: Sequence[str] = ()

    @property
    def best(self) -> Params:
        """The setting that was proven or tested, else the best that was found."""
        return self.chosen.setting if self.chosen else self.found

    @property
    def variables(self) -> dict[str, str]:
        """What the best setting sets in the environment."""
        return self.variables_of(self.best)

    def variables_of(self, setting: Params) -> dict[str, str]:
        """Return what a setting sets in the environment."""
        return variables_of(self.knobs, setting, self.program.environment)

    @property
    def searched(self) -> list[TrialResult]:
        """The runs before the proof: the program as it is, then the others in order."""
        runs = [each for each in self.runs if each.trial.kind is not TrialKind.VERIFY]
        return sorted(runs, key=lambda each: (not each.trial.is_default, each.trial.number))

    def changes_params(self, run: TrialResult) -> bool:
        """Return whether a run had other params than the program as it is."""
        return bool(self.program.params.part_of(run.trial.params))

    def is_oversubscribed(self, setting: Params) -> bool:
        """Return whether the workers of a setting have more threads than there are cores."""
        workers, most = setting.get(WORKERS), 1
        if not isinstance(workers, int):
            return False
        for knob in self.knobs:
            threads = setting.get(knob.name)
            if knob.per_core and isinstance(threads, int):
                most = max(most, threads)
        return workers * most > int(self.facts["cores"].split()[0])

    @property
    def chosen(self) -> Tested | None:
        """The first setting that is proven, else the first that was tested."""
        return next((each for each in self.tested if each.proven), next(iter(self.tested), None))

    @property
    def proof(self) -> Proof | None:
        """How the chosen setting compares with the program as it is."""
        return self.chosen.proof if self.chosen else None

    @property
    def proven(self) -> bool:
        """Whether a setting is proven to be better."""
        return self.chosen is not None and self.chosen.proven
