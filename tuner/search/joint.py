"""``search=joint`` and ``search=raytune``: one Optuna study over all params at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.search.optuna_study import OptunaStudy
from tuner.search.strategy import Train, View
from tuner.values.params import ParamValue
from tuner.values.results import front_of
from tuner.values.trial import TrialResult


class JointSearch:
    """Lets the sampler of a stored study decide; see ``Strategy``.

    Args:
        study: The study that it asks and tells.
        ask: Begins a trial of the study; without it, the study itself does.
    """

    min_iterations = 0
    warm = False
    lanes = 1

    def __init__(
        self,
        study: OptunaStudy,
        ask: Callable[[], tuple[int, dict[str, ParamValue]]] | None = None,
    ) -> None:
        self.study = study
        self._ask = ask or study.ask
        self.front: list[TrialResult] = []
        self.derived: list[TrialResult] = []
        space, default = study.space, study.default
        self._starts = [*space.start_points(default), *space.group_points(default)[:1]]

    def next(self, view: View) -> Train:  # noqa: ARG002 - a sampler does not look at the clock
        """Train the default, then the start points, then what the sampler proposes."""
        with self.study.alone():
            self.study.enqueue_first(self._starts)
            return Train(*self._ask())

    def tell(self, result: TrialResult) -> None:
        """Learn how a trial ended."""
        if self.study.tell(result):
            self._learn([result])

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Resume where an earlier session stopped."""
        self.study.recall(results)
        self._learn(results)

    def retry(self, number: int) -> None:
        """Ask again for a trial that was left running."""
        self.study.retry(number)

    def learn_paces(self) -> None:
        """Learn nothing: there is no race."""

    def beside(self, _point: TrialResult) -> None:
        """Return nothing: each trial measures times, so nothing may run beside it."""

    def _learn(self, results: Sequence[TrialResult]) -> None:
        self.front = front_of([*self.front, *results], self.study.objectives)
