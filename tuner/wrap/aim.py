"""What one run of a program is to show, and what it showed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.values.trial import TrialResult
from tuner.wrap.hope import Hope
from tuner.wrap.window import Window


@dataclass(frozen=True)
class Aim:
    """What a run is to show.

    Attributes:
        window: Steps to measure; ``None`` to choose them by ``measured_s``.
        measured_s: Seconds of steady steps to measure; infinite for none.
        whole: Whether the program runs to its end; its wall time counts if no steps do.
        beaten: Figure of the objective, for the steps or the whole program, above which it is
            given up as worse than the best.
        time_limit_s: Seconds after which it is killed.
        hope: What its curve must be able to reach; ``None`` if it is not given up for it.
        once: Whether it is not run again if others disturbed it.
    """

    window: Window | None = None
    measured_s: float = math.inf
    whole: bool = False
    beaten: float = math.inf
    time_limit_s: float = math.inf
    hope: Hope | None = None
    once: bool = False

    @property
    def steps(self) -> bool:
        """Whether steps are measured, if the program shows any."""
        return self.window is not None or self.measured_s < math.inf


@dataclass(frozen=True)
class Seen:
    """What a run showed besides its figures.

    Attributes:
        window: The steps that were measured; ``None`` if the whole program was.
        source: Where its progress came from; empty without any.
        mapped: Paths of the files that its processes had mapped.
        start_s: Seconds until the steps that were measured began.
        in_percent: Whether it tells accuracies in per cent; ``None`` if it told none.
    """

    window: Window | None = None
    source: str = ""
    mapped: frozenset[str] = frozenset()
    start_s: float = 0.0
    in_percent: bool | None = None


Ran = tuple[TrialResult, Seen]
"""The result of a run, and what it showed besides."""
