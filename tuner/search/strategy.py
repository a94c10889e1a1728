"""What a search strategy is: it says what to do next, and is told how that ended.

The loop that carries the answers out is not the strategy's: a study has one with an executor, a
benchmark one with recorded trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.search.optuna_study import OptunaStudy
from tuner.search.outlook import Aim
from tuner.values.runtime_map import RuntimeMap
from tuner.values.trial import Params, SideBySide, Trial, TrialResult


@dataclass(frozen=True, slots=True)
class View:
    """What a strategy is shown of the study when it is asked.

    Attributes:
        limit_s: Longest that the next trial may train, seconds.
        left_s: Time left to search, seconds.
        running: Trials under way.
        default_known: Whether trial 0 is measured, or another driver is about it.
        aim: What to look for first; ``None`` where the default's end is not known.
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
        number: Of the trial.
        params: Of the trial.
        pace_s: Seconds an iteration at the setting that it stands for, if it is run for its
            accuracy alone; 0 where its own times are measured.
    """

    number: int
    params: Params
    pace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Probe:
    """Race the runtime settings while nothing else runs, then have the strategy learn the paces.

    Attributes:
        most_s: Seconds after which the race begins nothing new.
    """

    most_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Begin nothing more, for a reason in words. What still runs may change that."""

    reason: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Run these, one after the other and nothing beside them; no strategy asks for it itself."""

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
        """The best of all that was told, and of what that stands for."""

    @property
    def derived(self) -> Sequence[TrialResult]:
        """What the trials stand for beside themselves."""

    @property
    def shortest(self) -> int:
        """Iterations of the shortest training of interest; 0 where only a run's end counts."""

    @property
    def warm(self) -> bool:
        """Whether trials may share a worker, one after the other."""

    @property
    def lanes(self) -> int:
        """Search trials that run at once for their accuracy alone; 1 where times are measured."""

    def beside(self, point: TrialResult) -> SideBySide | None:
        """How a point's accuracy is had while others run; ``None`` where that is not worth it."""

    def next(self, view: View) -> Train | Probe | Stop:
        """Say what to do next. Never raises for want of time: that is a reason to stop."""

    def tell(self, result: TrialResult) -> None:
        """Learn how a trial ended; telling the same trial again changes nothing."""

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Go on where an earlier session stopped, which measured ``results``.

        What it asked for and did not measure will be asked for again.
        """

    def retry(self, number: int) -> None:
        """Ask again, under its number, for a trial that was left running."""

    def learn_paces(self) -> None:
        """Learn what the race has found since; without a race there is nothing to learn."""


class Races(Protocol):
    """Finds out what runtime settings cost, turn by turn."""

    @property
    def known(self) -> RuntimeMap:
        """All that is known, always the same map; empty before the first turn."""

    @property
    def recorded(self) -> bool:
        """Whether what is known is an earlier study's, and not yet seen to hold now."""

    @property
    def over(self) -> bool:
        """Whether there is nothing left to try, or no time for it."""

    def run(self, most_s: float) -> object:
        """Measure the default's setting if none is known, then race on for so many seconds.

        What is recorded is checked first, and forgotten if it does not hold.
        """
