"""The interface of search strategies: they decide what to do next, and are told the result.

A strategy runs nothing itself. A study carries out its decisions with an executor, a benchmark
with recorded trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.search.optuna_study import OptunaStudy
from tuner.search.outlook import Aim
from tuner.values.params import Params
from tuner.values.runtime_map import RuntimeMap
from tuner.values.trial import SideBySide, Trial, TrialResult


@dataclass(frozen=True, slots=True)
class View:
    """The state of the study that a strategy sees when it is asked.

    Attributes:
        limit_s: Longest time that the next trial may train, seconds.
        left_s: Time left to search, seconds.
        running: Number of trials under way.
        default_known: Whether trial 0 is measured, or another driver is running it.
        aim: What to look for first; ``None`` where the default's final accuracy is unknown.
    """

    limit_s: float
    left_s: float
    running: int
    default_known: bool
    aim: Aim | None = None


@dataclass(frozen=True, slots=True)
class Train:
    """Run a trial. Number 0 is the default.

    Attributes:
        number: Number of the trial.
        params: Params of the trial.
        pace_s: Seconds per iteration at the setting that it stands for, if it is run for its
            accuracy alone; 0 where its own times are measured.
    """

    number: int
    params: Params
    pace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Probe:
    """Race the runtime settings while nothing else runs, then have the strategy learn the paces.

    Attributes:
        max_s: Seconds after which the race begins nothing new.
    """

    max_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Begin nothing more, for a reason in words. Trials still running may change that."""

    reason: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Run these verification trials while no other trial runs. No strategy asks for this."""

    trials: tuple[Trial, ...]


Step = Train | Probe | Verify | Stop
"""What a study does next."""


class Strategy(Protocol):
    """Decides what a study does next."""

    @property
    def study(self) -> OptunaStudy:
        """The stored study that trials are asked from and told to."""

    @property
    def front(self) -> Sequence[TrialResult]:
        """The best of all results told and of the points derived from them."""

    @property
    def derived(self) -> Sequence[TrialResult]:
        """The points derived from the trials."""

    @property
    def min_iterations(self) -> int:
        """Iterations of the shortest training to consider; 0 where only a run's end counts.

        Trials look at their accuracy from there on, so each gives a learning curve.
        """

    @property
    def warm(self) -> bool:
        """Whether trials may share a worker, one after the other."""

    @property
    def lanes(self) -> int:
        """How many trials run at once; above 1, only their accuracies count, not their times."""

    def beside(self, point: TrialResult) -> SideBySide | None:
        """Return how to measure accuracies side by side; ``None`` if not worth it."""

    def next(self, view: View) -> Train | Probe | Stop:
        """Decide what to do next. A lack of time is a reason to stop, never an error."""

    def tell(self, result: TrialResult) -> None:
        """Learn how a trial ended; telling the same trial again changes nothing."""

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Resume where an earlier session stopped, which measured ``results``.

        Trials that it asked for and did not measure are asked for again.
        """

    def retry(self, number: int) -> None:
        """Ask again, under the same number, for a trial that was left running."""

    def learn_paces(self) -> None:
        """Learn what the race has found since the last call; do nothing without a race."""


class Races(Protocol):
    """Measures what runtime settings cost, turn by turn."""

    @property
    def known(self) -> RuntimeMap:
        """All measurements, always the same map object; at first those of earlier turns."""

    @property
    def recorded(self) -> bool:
        """Whether the map is an earlier study's, and not yet confirmed."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to try, or no time is left."""

    def run(self, max_s: float) -> object:
        """Measure the default's setting if none is known, then race for ``max_s`` seconds.

        A recorded map is checked first, and forgotten if it no longer holds.
        """
