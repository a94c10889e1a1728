"""What must not get worse: the figure that tells how well a program has trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.config.schema import VerifyConfig
from tuner.values.trial import TrialResult

ACCURACY, _SHORT = "accuracy", "acc"
_RELATIVE_MARGIN = 0.01
"""Part of any other figure, as the program reaches it by itself, that counts as no loss."""
_OF_EVALUATION = ("val_", "eval_", "test_", "valid_", "validation_")


@dataclass(frozen=True)
class Goal:
    """A figure that a program reports, and what counts as no loss of it.

    Attributes:
        name: Its name in reports, or of the group in ``--metric``.
        maximize: Whether more is better.
        margin: Difference that counts as none; ``None`` for the one that is usual.
    """

    name: str = ACCURACY
    maximize: bool = True
    margin: float | None = None

    def choose(self, figures: Mapping[str, float]) -> float | None:
        """Return the figure among those of a run; ``None`` if it is not there."""
        name = self.named(figures)
        return None if name is None else figures[name]

    def named(self, figures: Mapping[str, float]) -> str | None:
        """Return the name of the figure among those of a run; ``None`` if it is not there.

        Libraries add ``val_`` or ``eval_`` to the name of what they evaluate, beside that of the
        training data, and some shorten it to ``acc``.
        """
        bases = (self.name, _SHORT) if self.name == ACCURACY else (self.name,)
        names = [f"{prefix}{base}" for base in bases for prefix in (*_OF_EVALUATION, "")]
        return next((each for each in names if each in figures), None)

    def of(self, run: TrialResult) -> float | None:
        """Return the figure of a run, with more as better; ``None`` if it was not read."""
        figure = run.val_accuracy if self.name == ACCURACY else self.choose(run.reported)
        if figure is None or not math.isfinite(figure):
            return None
        return figure if self.maximize else -figure

    def allowance(self, own: float) -> float:
        """Return the difference that counts as none, where a program by itself has ``own``."""
        if self.margin is not None:
            return self.margin
        if self.name == ACCURACY:
            return VerifyConfig.accuracy_margin
        return _RELATIVE_MARGIN * abs(own)

    def margin_shown(self, own: float) -> str:
        """Return the difference that counts as none for readers."""
        allowed = self.allowance(own)
        return f"{100 * allowed:.3g} points" if self.name == ACCURACY else f"{allowed:.3g}"

    def shown(self, value: float) -> str:
        """Return a figure, which has more as better, for readers."""
        figure = value if self.maximize else -value
        if self.name == ACCURACY:
            return f"{figure:.2%}".replace("%", " %")
        return f"{figure:.4g}"
