"""The frozen values of verification: one configuration against the default, and the answers."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.values.exchange import changes
from tuner.values.params import ParamValue
from tuner.values.quality import ACCURACY, Quality
from tuner.values.trial import Interval

_COMPOSED_SLACK = 1.1  # factor that a composed time may be beyond the verified interval
_SPLITS_DIFFER = 0.03  # that validation accuracy may be outside the interval of test accuracy


@dataclass(frozen=True, slots=True)
class CostRatio:
    """A cost of one verified configuration divided by the default's; below 1 is cheaper.

    Attributes:
        value: The ratio.
        low, high: Ends of its confidence interval, ``None`` if it has none.
        p: Two-sided p-value of "the ratio is 1"; ``None`` without an interval.
        gap: Why there is no interval; empty if there is one.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    gap: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One verified configuration against the verified default.

    Attributes:
        speedup: Default's training time divided by this one's; above 1 is faster.
        speedup_p: Two-sided p-value of "the speed-up is 1".
        accuracy_gain: Test accuracy minus the default's, a fraction; above 0 is better.
        accuracy_p: Two-sided p-value of "the accuracies are equal".
        no_loss: Whether non-inferiority is proven: the accuracy is not below the default's by
            more than the margin, see ``tuner.verification.noninferiority``.
        no_loss_looks: Number of looks at the data for that proof.
        loss_ruled_out: Least loss of accuracy, a fraction, of which it is proven to lose no more,
            whatever the margin; below 0 for a gain, infinite if nothing is proven.
        cpu: CPU seconds (user and system) of a whole run, compared round by round.
        memory: Peak memory, compared between runs of one kind, either full or over a share.
    """

    speedup: Interval
    speedup_p: float
    accuracy_gain: Interval
    accuracy_p: float
    no_loss: bool
    no_loss_looks: int = 1
    loss_ruled_out: float = math.inf
    cpu: CostRatio | None = None
    memory: CostRatio | None = None


class Role(enum.Enum):
    """What a configuration was verified for."""

    DEFAULT = "default"
    RUNTIME_ONLY = "runtime only"
    """The default's own params at the fastest runtime setting."""
    STOPPED = "default stopped"
    """The default's own params but for fewer iterations, which its reference proves to suffice."""
    NO_LOSS = "no loss"
    """A candidate for the fastest configuration that loses nothing."""
    ACCURACY = "most accurate"
    """A candidate for the most accurate configuration."""
    TRADE_OFF = "trade-off"
    """Any other point of the front."""


@dataclass(frozen=True, slots=True)
class Verified:
    """One configuration measured again, interleaved with the others, with fresh seeds.

    Attributes:
        name: ``default`` or ``trial 12``.
        trial_number: The trial that found it.
        params: What was run.
        full_runs: Runs trained to their last iteration; every accuracy comes from these.
        rate_runs: Further runs that trained only ``rate_share`` of the iterations to measure
            the rate again.
        rate_share: Fraction (0–1) of the iterations in those runs; 1 if there are none.
        projected: Whether even the full run was a share of the default's iterations
            (``budget=quick``): time projected, accuracy that of the shorter training.
        composed: Training time in seconds and validation accuracy as composed by the search, the
            accuracy ``None`` if nothing had been trained for so long; ``None`` if both were
            measured in one run.
        test_accuracy: Fraction 0–1; of a perplexity, its score (see ``tuner.values.quality``).
        train_time_s: Seconds for all iterations.
        test_time_s, cpu_user_s, cpu_system_s: Median over the full runs, seconds.
        avg_memory_bytes, peak_memory_bytes: Median over the full runs.
        runs: Names of the verification runs behind the figures (``verify-0003``).
        against_default: ``None`` for the default itself.
        confidence: Level of every interval here (0–1).
        on_front: Confidence (0–1) that no other verified configuration dominates it.
        role: What it was verified for.
        accuracy_from: Source of the accuracy, in words, if not its own full runs.
        stop_of: Name of the longer training whose full runs were evaluated on the way, where this
            one stops; empty if it has full runs of its own.
        job_time_s, job_accuracy: The same figures with the interval of one further run, which is
            wider than that of a mean; of an accuracy, on the same test images.
        quality: What the accuracies are scores of.
    """

    name: str
    trial_number: int
    params: Mapping[str, ParamValue]
    full_runs: int
    rate_runs: int
    rate_share: float
    projected: bool
    test_accuracy: Interval
    train_time_s: Interval
    test_time_s: float
    cpu_user_s: float
    cpu_system_s: float
    avg_memory_bytes: float
    peak_memory_bytes: float
    runs: tuple[str, ...] = ()
    against_default: Comparison | None = None
    confidence: float = 0.95
    composed: tuple[float, float | None] | None = None
    on_front: float = 1.0
    role: Role = Role.TRADE_OFF
    accuracy_from: str = ""
    stop_of: str = ""
    quality: Quality = ACCURACY
    job_time_s: Interval | None = None
    job_accuracy: Interval | None = None

    @property
    def is_default(self) -> bool:
        """Whether this is the default, which the others are compared with."""
        return self.against_default is None

    @property
    def learns_the_same(self) -> bool:
        """Whether it learns what the default learns, so that only its rate was measured."""
        return self.role is Role.RUNTIME_ONLY and bool(self.accuracy_from)

    @property
    def speedup(self) -> float:
        """Default's training time divided by this one's; 1 for the default."""
        return self.against_default.speedup.value if self.against_default else 1.0

    @property
    def default_time_s(self) -> float:
        """Seconds that the default trained in the rounds of this one, which ``speedup`` compares.

        They differ from the default's own figure, which is of all rounds, if the machine was
        slower in some.
        """
        return self.train_time_s.value * self.speedup

    @property
    def gain(self) -> float:
        """Test accuracy minus the default's, a fraction; 0 for the default."""
        return self.against_default.accuracy_gain.value if self.against_default else 0.0

    @property
    def is_faster(self) -> bool:
        """Whether it trains significantly faster than the default."""
        return self.speedup > 1 and self._time_differs

    @property
    def is_slower(self) -> bool:
        """Whether it trains significantly slower than the default."""
        return self.speedup < 1 and self._time_differs

    @property
    def is_better(self) -> bool:
        """Whether it is significantly more accurate than the default."""
        return self.gain > 0 and self._accuracy_differs

    @property
    def is_worse(self) -> bool:
        """Whether it is significantly less accurate than the default."""
        return self.gain < 0 and self._accuracy_differs

    def is_best_of(self, compared: int) -> bool:
        """Return whether it is more accurate than the default, as the best of several may seem so.

        What was verified for that had a test of its own, which was planned. Of anything else, the
        p-value is multiplied by how many were compared with the default (Bonferroni).
        """
        versus = self.against_default
        if versus is None or not self.is_better:
            return False
        planned = self.role is Role.ACCURACY
        return versus.no_loss if planned else compared * versus.accuracy_p < 1 - self.confidence

    @property
    def loses_nothing(self) -> bool:
        """Whether it is proven to lose no accuracy; always true of the default."""
        return self.against_default is None or self.against_default.no_loss

    @property
    def _time_differs(self) -> bool:
        versus = self.against_default
        return versus is not None and versus.speedup_p < 1 - self.confidence

    @property
    def _accuracy_differs(self) -> bool:
        versus = self.against_default
        return versus is not None and versus.accuracy_p < 1 - self.confidence

    @property
    def refuted(self) -> str:
        """The composed figure that verification refuted, such as ``time``; else empty."""
        if self.composed is None:
            return ""
        (time_s, accuracy), time, test = self.composed, self.train_time_s, self.test_accuracy
        if not time.low / _COMPOSED_SLACK <= time_s <= time.high * _COMPOSED_SLACK:
            return "time"
        if accuracy is None:
            return ""
        if not test.low - _SPLITS_DIFFER <= accuracy <= test.high + _SPLITS_DIFFER:
            return self.quality.name
        return ""

    @property
    def verdict(self) -> str:
        """The claim that the figures support: "2.1x faster, no loss of accuracy"."""
        if self.against_default is None:
            return "reference"
        ratio = self.speedup
        time = "time not significant"
        if self.is_faster or self.is_slower:
            time = f"{ratio:.1f}x faster" if ratio > 1 else f"{1 / ratio:.1f}x slower"
        name = self.quality.name
        found = f"{name} difference not significant"
        if self.loses_nothing and not self.is_better:
            found = f"no loss of {name}"
        elif self._accuracy_differs:
            found = f"{name} {self.quality.shown_gain(self.gain)}"
        changed = changes(self.params)
        return f"{time}, {found}{f'; {changed}' if changed else ''}"


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers that users ask for first; each is ``None`` if nothing was proven.

    Attributes:
        no_loss: The fastest configuration that is faster than the default and loses nothing.
        runtime_only: The default's own params at the fastest runtime setting, if faster.
        most_accurate: The most accurate of those that are more accurate than the default, see
            ``Verified.is_best_of``.
    """

    no_loss: Verified | None = None
    runtime_only: Verified | None = None
    most_accurate: Verified | None = None


def answers_of(verified: Sequence[Verified]) -> Answers:
    """Pick the answers from the verified configurations."""
    lossless = [each for each in verified if each.is_faster and each.loses_nothing]
    runtimes = [each for each in lossless if each.role is Role.RUNTIME_ONLY]
    others = [each for each in verified if not each.is_default]
    compared = [each for each in others if each.role is not Role.RUNTIME_ONLY]
    better = [each for each in compared if each.is_best_of(len(compared))]
    return Answers(
        no_loss=max(lossless, key=lambda each: each.speedup, default=None),
        runtime_only=max(runtimes, key=lambda each: each.speedup, default=None),
        most_accurate=max(better, key=lambda each: each.test_accuracy.value, default=None),
    )
