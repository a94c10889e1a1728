"""The figure of merit of what was learnt, and the score that all of them are compared by.

Everything that compares, averages or predicts how well something was learnt works on a *score*, of
which more is better: fields called accuracy hold scores. Of a classifier it is the accuracy
itself. Of a language model it is ``1 - log p / log V``, of a perplexity ``p`` over ``V`` words: 0
for blind guessing, 1 for knowing every word. So equal differences of scores are equal ratios of
perplexities, and a mean of scores is a mean of cross entropies. People and programs are shown
perplexities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_ERROR = 1e-3
"""Added to an error before its logarithm is taken, so that no error is too small for it."""
BLIND_ERROR = 0.9
"""Share of wrong answers of blind guessing, of ten classes."""
_WORD_DEVIATION = 3.0  # of the logarithm of a word's probability; assumed, as no reference is kept


@dataclass(frozen=True, slots=True)
class Quality:
    """What is said of something learnt: its accuracy, or its perplexity.

    Attributes:
        name: ``accuracy`` or ``perplexity``.
        words: Words that a text may consist of; 0 for an accuracy.
    """

    name: str = "accuracy"
    words: int = 0

    @property
    def is_perplexity(self) -> bool:
        """Whether a text is learnt; less is better then."""
        return self.words > 0

    def score(self, figure: float) -> float:
        """Return the score of an accuracy (fraction 0–1) or of a perplexity (from 1 on)."""
        return 1 - math.log(figure) / self._span if self.is_perplexity else figure

    def figure(self, score: float) -> float:
        """Return the accuracy (fraction) or the perplexity of a score."""
        return math.exp((1 - score) * self._span) if self.is_perplexity else score

    @property
    def _span(self) -> float:
        """Logarithm of the perplexity of blind guessing."""
        return math.log(self.words)

    # --- errors, on the scale of which learning curves are nearly straight

    def error(self, score: float) -> float:
        """Return the share of wrong answers, or the perplexity; 0 or more."""
        return self.figure(score) if self.is_perplexity else 1 - score

    def score_of_error(self, error: float) -> float:
        """Return the score of such an error."""
        return self.score(error) if self.is_perplexity else 1 - error

    def log_error(self, score: float) -> float:
        """Return the logarithm of the error; of a perplexity, the cross entropy."""
        if self.is_perplexity:
            return (1 - score) * self._span
        return math.log(max(1 - score, 0.0) + MIN_ERROR)

    def score_of_log_error(self, log_error: float) -> float:
        """Return the score of a logarithm of the error."""
        if self.is_perplexity:
            return 1 - log_error / self._span
        return 1 + MIN_ERROR - math.exp(log_error)

    @property
    def blind_score(self) -> float:
        """Score of blind guessing."""
        return 0.0 if self.is_perplexity else 1 - BLIND_ERROR

    @property
    def first_log_error(self) -> float:
        """Logarithm of the error before anything is learnt."""
        return self._span if self.is_perplexity else math.log(BLIND_ERROR)

    def slope(self, score: float) -> float:
        """Return by how much the logarithm of the error rises as the score falls."""
        return self._span if self.is_perplexity else math.exp(-self.log_error(score))

    def log_error_rise(self, loss: float, score: float) -> float:
        """Return by how much the logarithm of the error rises if the score falls by ``loss``."""
        rise = loss * self.slope(score)
        return rise if self.is_perplexity else math.log(max(1 + rise, 1e-3))

    # --- for readers

    @property
    def heading(self) -> str:
        """Heading of a column of figures, with their unit."""
        return self.name if self.is_perplexity else f"{self.name}, %"

    @property
    def gain_name(self) -> str:
        """What a difference is called."""
        return f"{self.name} {'change' if self.is_perplexity else 'gain'}"

    @property
    def best(self) -> str:
        """What the best of all is."""
        return "lowest perplexity" if self.is_perplexity else "most accurate"

    @property
    def better(self) -> str:
        """What something is that has a higher score."""
        return "of lower perplexity" if self.is_perplexity else "more accurate"

    @property
    def same(self) -> str:
        """What something has that has the same score."""
        return f"same {self.name}"

    def in_unit(self, score: float) -> float:
        """Return the accuracy in percent, or the perplexity."""
        figure = self.figure(score)
        return figure if self.is_perplexity else 100 * figure

    def shown_test(self, score: float) -> str:
        """Return "98.50 % test accuracy" or "a test perplexity of 115.20"."""
        if self.is_perplexity:
            return f"a test perplexity of {self.shown(score)}"
        return f"{self.shown(score)} test accuracy"

    def shown(self, score: float, digits: int = 2) -> str:
        """Return "98.50 %" or "115.20"."""
        figure = self.figure(score)
        return f"{figure:.{digits}f}" if self.is_perplexity else f"{100 * figure:.{digits}f} %"

    def shown_range(self, low: float, high: float) -> str:
        """Return "98.10 to 98.50 %" or "114.10 to 118.90" of two scores."""
        if self.is_perplexity:
            return f"{self.shown(high)} to {self.shown(low)}"
        return f"{self.shown(low).removesuffix(' %')} to {self.shown(high)}"

    @property
    def gain_key(self) -> str:
        """Name of ``plain_gain`` in data for programs."""
        return "perplexity_ratio" if self.is_perplexity else "accuracy_gain"

    def plain_gain(self, gain: float) -> float:
        """Return a difference of accuracies, or a perplexity divided by the other one."""
        return math.exp(-gain * self._span) if self.is_perplexity else gain

    def gain_of(self, plain: float) -> float:
        """Return the difference of scores whose ``plain_gain`` this is."""
        return -math.log(plain) / self._span if self.is_perplexity else plain

    def loss_of(self, plain: float) -> float:
        """Return the difference of scores whose ``plain_loss`` this is."""
        return math.log1p(plain) / self._span if self.is_perplexity else plain

    def plain_loss(self, margin: float) -> float:
        """Return a margin as a difference of accuracies, or as a part of a perplexity."""
        return math.expm1(margin * self._span) if self.is_perplexity else margin

    def gain_in_unit(self, gain: float) -> float:
        """Return a difference of scores in points, or as the change of a perplexity in percent."""
        return 100 * math.expm1(-gain * self._span) + 0.0 if self.is_perplexity else 100 * gain

    @property
    def gain_unit(self) -> str:
        """Unit of ``gain_in_unit``."""
        return "%" if self.is_perplexity else "points"

    def shown_gain(self, gain: float) -> str:
        """Return "+0.25 points" or "-1.20 %", of which less is better."""
        return f"{self.gain_in_unit(gain):+.2f} {self.gain_unit}"

    def shown_loss(self, margin: float) -> str:
        """Return a margin: "0.2 points" or "1 %"."""
        return f"{abs(self.gain_in_unit(-margin)):g} {self.gain_unit}"

    @property
    def items(self) -> str:
        """What is judged one by one."""
        return "words" if self.is_perplexity else "images"

    @property
    def good(self) -> str:
        """What something is that has a high score."""
        return "good" if self.is_perplexity else "accurate"

    # --- chance

    def sampling_deviation(self, score: float, items: int) -> float:
        """Return the standard deviation of a score that the choice of test items gives.

        Of images, that of a binomial share, whose error is taken to be of one image at least. Of
        words, that of a mean of the logarithms of their probabilities.
        """
        if self.is_perplexity:
            return _WORD_DEVIATION / self._span / math.sqrt(items)
        error = min(max(1 - score, 1 / items), 1 - 1 / items)
        return math.sqrt(error * (1 - error) / items)


ACCURACY = Quality()
"""Of all data sets of images."""


def perplexity(words: int) -> Quality:
    """Return the figure of merit of a text of so many different words."""
    return Quality("perplexity", words)
