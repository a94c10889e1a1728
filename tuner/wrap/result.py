"""What a study of a program found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.values.trial import Params, TrialResult
from tuner.wrap.comparison import Proof
from tuner.wrap.descent import Effect
from tuner.wrap.program import Program
from tuner.wrap.steps import Window


@dataclass(frozen=True)
class WrapResult:
    """What a study found.

    Attributes:
        program: The program.
        runs: All runs: as it is, with each setting, and those of the proof.
        window: The steps that were timed; ``None`` if whole runs were.
        source: Where the progress came from; empty without any.
        best: The fastest setting; empty if none is faster than the program's own environment.
        variables: What it sets in the environment.
        effects: What each knob changed.
        proof: How the fastest setting compares with the program's own environment; ``None`` if
            there was nothing to prove, no time, or a run failed.
        failed: The run of the proof that failed.
        elapsed_s: Seconds that the study took.
        study_id: Its id.
        facts: The machine, and what was measured with.
    """

    program: Program
    runs: Sequence[TrialResult]
    window: Window | None
    source: str
    best: Params
    variables: Mapping[str, str]
    effects: Sequence[Effect]
    proof: Proof | None
    failed: TrialResult | None
    elapsed_s: float
    study_id: str
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def proven(self) -> bool:
        """Whether a setting is proven to be faster."""
        return self.proof is not None and self.proof.faster
