"""Evidence of a verified configuration: its figures, and how sure they are."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tuner.config.schema import VerifyConfig
from tuner.recommendation.layouts import Layouts
from tuner.values.exchange import changes
from tuner.values.params import Params, group_size, nodes_of
from tuner.values.quality import ACCURACY, Quality
from tuner.values.trial import Interval
from tuner.values.verified import Role

MARGIN = VerifyConfig.accuracy_margin
"""Loss of accuracy (fraction) that counts as none if a study does not record its own."""
_ID_LETTERS = 16  # of a recommendation's id, hexadecimal
EXPIRES_AFTER_S = 90 * 86400.0
"""Age at which evidence should be measured again; kernels and libraries change by then."""


@dataclass(frozen=True)
class Evidence:
    """One verified configuration, as its study recorded it.

    Attributes:
        params: Params to run with.
        figures: Its entry in ``front.json``: every figure with its interval.
        run_ids: MLflow runs that prove the figures.
        study: MLflow run of the study.
        framework: Name of the framework.
        model: The network: ``default`` is the framework's own.
        fingerprint: Fingerprint of the machine and libraries of the measurement.
        measured_at: Seconds since the epoch.
        dataset: Name of the data set it was measured on.
        requested: Name of the data set that was requested for the study.
        cores: CPUs that its trials owned; 0 if that is not on record.
        jobs_per_host: How many such jobs shared the host during the measurement.
        default: The entry of the default that it was compared with; empty if not on record.
        margin: Loss of accuracy (fraction) that counted as none in its study.
        reference: Where the default's accuracy comes from, in words; empty for its own runs.
        default_part: The part of the default that it was compared with; empty for the whole.
        sandboxed: Whether its workers ran in a sandbox.
        drift: How jobs broke what it promised, in words; empty if none did.
        drift_found: When that was found, seconds since the epoch; 0 if it was not.
        like: The shipped data set whose defaults those of the user's own data are taken from.
        digest: Digest of the images and their split.
        layouts: What the race of its study measured.
        quality: What the accuracies here are scores of; ``figures`` has the plain figures.
    """

    params: Params
    figures: Mapping[str, Any]
    run_ids: tuple[str, ...]
    study: str
    framework: str = ""
    model: str = "default"
    fingerprint: str = ""
    measured_at: float = 0.0
    dataset: str = ""
    requested: str = ""
    cores: int = 0
    jobs_per_host: int = 1
    default: Mapping[str, Any] = field(default_factory=dict)
    margin: float = MARGIN
    reference: str = ""
    default_part: str = ""
    sandboxed: bool = True
    drift: str = ""
    drift_found: float = 0.0
    like: str = ""
    digest: str = ""
    layouts: Layouts = field(default_factory=Layouts)
    quality: Quality = ACCURACY

    @cached_property
    def id(self) -> str:
        """Id of the recommendation to run with it: the same for everyone who is told so."""
        named = f"{self.study}\n{self.figures['name']}"
        return hashlib.sha256(named.encode(errors="surrogatepass")).hexdigest()[:_ID_LETTERS]

    @cached_property
    def train_time_s(self) -> float:
        """Seconds of training."""
        return float(self.figures["train_time_s"]["value"])

    @cached_property
    def job_time_s(self) -> Interval:
        """Predicted seconds of training of one job, with the interval of the prediction.

        A further run varies too. Older studies did not record its interval. With n measured runs,
        it is wider than that of their mean by the square root of n + 1 (in logarithms).
        """
        if told := self.figures.get("job_time_s"):
            return Interval(*(float(told[end]) for end in ("value", "low", "high")))
        time_s = Interval(**self.figures["train_time_s"])
        wider = math.sqrt(len(self.figures["runs"]) + 1)
        return Interval(
            time_s.value,
            time_s.value * (time_s.low / time_s.value) ** wider,
            time_s.value * (time_s.high / time_s.value) ** wider,
        )

    @cached_property
    def job_accuracy(self) -> Interval:
        """Predicted test accuracy (fraction) of one job, as ``job_time_s`` predicts its time.

        For older studies it is much too wide, as it repeats the chance of the choice of images.
        """
        if told := self.figures.get(f"job_{self.quality.name}"):
            return _scores(self.quality.score, told)
        mean, wider = self.test_accuracy, math.sqrt(len(self.figures["runs"]) + 1)
        low, high = (mean.value + wider * (end - mean.value) for end in (mean.low, mean.high))
        return Interval(mean.value, max(low, 0.0), min(high, 1.0))

    @property
    def job_figure(self) -> Interval:
        """Predicted accuracy (fraction) or perplexity of one job."""
        scores = self.job_accuracy
        ends = sorted(map(self.quality.figure, (scores.low, scores.high)))
        return Interval(self.quality.figure(scores.value), *ends)

    @property
    def jobs_per_hour(self) -> float:
        """Trainings that the host completes per hour, with as many concurrent jobs as measured.

        Several nodes that train together count as so many hosts.
        """
        return self.jobs_per_host * 3600 / (self.train_time_s * nodes_of(self.params))

    @property
    def workers(self) -> int:
        """Processes that train together."""
        return group_size(self.params)

    @cached_property
    def memory_mb(self) -> float:
        """Peak memory, MiB."""
        return float(self.figures["peak_memory_bytes"]) / 2**20

    @property
    def accuracy(self) -> float:
        """Test accuracy, fraction 0–1."""
        return self.test_accuracy.value

    @cached_property
    def test_accuracy(self) -> Interval:
        """Test accuracy with its interval, fractions 0–1."""
        return _scores(self.quality.score, self.figures[f"test_{self.quality.name}"])

    @cached_property
    def is_default(self) -> bool:
        """Whether it is the framework's own default, which has no comparison."""
        return self.figures.get("comparison") is None

    @cached_property
    def speedup(self) -> Interval:
        """Default's training time divided by this one's; 1 for the default."""
        return Interval(1, 1, 1) if self.is_default else _interval(self._versus["speedup"])

    @property
    def is_faster(self) -> bool:
        """Whether it is proven to train faster than the default."""
        return self.speedup.low > 1

    @cached_property
    def accuracy_gain(self) -> Interval:
        """Test accuracy minus the default's, a fraction; 0 for the default."""
        if self.is_default:
            return Interval(0, 0, 0)
        return _scores(self.quality.gain_of, self._versus[self.quality.gain_key])

    def is_best_of(self, compared: int) -> bool:
        """Return whether it is proven to be more accurate, as ``Verified.is_best_of`` does."""
        if self.default_part or not self.accuracy_gain.low > 0:
            return False
        if self.role == Role.ACCURACY.value:
            return self._said_no_loss
        p = self._versus.get(f"{self.quality.name}_p")
        confidence = self.figures.get("confidence") or VerifyConfig.confidence
        return p is not None and compared * p < 1 - confidence

    @cached_property
    def default_accuracy(self) -> float:
        """Measured test accuracy of its default, fraction 0–1; 0 if not on record."""
        own = self.figures if self.is_default else self.default
        name, score = f"test_{self.quality.name}", self.quality.score
        return score(float(own[name]["value"])) if own else 0.0

    @cached_property
    def role(self) -> str:
        """What it was verified for; inferred for older studies, which did not record it."""
        said = Role.NO_LOSS if self._said_no_loss else Role.TRADE_OFF
        guess = Role.DEFAULT if self.is_default else said
        return str(self.figures.get("role") or guess.value)

    @cached_property
    def no_loss(self) -> bool:
        """Whether no loss of accuracy is proven; never against only a part of the default.

        It is true for the whole default itself.
        """
        if self.default_part:
            return False
        return self.is_default or (self._said_no_loss and self._against_whole_default)

    @property
    def is_faster_default(self) -> bool:
        """Whether it is proven to be the default's own training, only faster.

        It then loses nothing, even if it is not known what the default reaches at its end.
        """
        return self.role == Role.RUNTIME_ONLY.value and self.is_faster and self._said_no_loss

    def loses_at_most(self, loss: float) -> bool:
        """Return whether it is proven to lose no more accuracy (fraction) than ``loss``.

        Up to the study's margin, only what is proven to lose nothing can be. Above it, that proof
        suffices, and so does any other bound that the study proved.
        """
        if self.default_part:
            return False
        if math.isclose(loss, self.margin):  # a perplexity's is rounded
            return self.no_loss
        proven = self.loss_ruled_out <= loss
        return self.no_loss or proven if loss > self.margin else self.no_loss and proven

    @cached_property
    def loss_ruled_out(self) -> float:
        """Least loss of accuracy (fraction) of which it is proven to lose no more, else infinite.

        The study found it at the level for all its looks and configurations. Older studies
        recorded only plain intervals, which err more often, so nothing is taken from these.
        """
        if self.is_default or (self.role == Role.RUNTIME_ONLY.value and self.no_loss):
            return 0.0
        plain = self._versus.get(f"{self.quality.name}_loss_ruled_out")
        if plain is None or not self._against_whole_default:
            return math.inf
        return self.quality.loss_of(float(plain))

    def keeps_accuracy(self, floor: float) -> bool:
        """Return whether its accuracy counts as proven to be at least ``floor``.

        Either the lower end of its interval reaches the floor, or the default was measured at or
        above the floor and this is the default or is proven to lose nothing against it. Without
        the second rule, a floor just below the default's accuracy would exclude the default.
        """
        if self.test_accuracy.low >= floor:
            return True
        return self.no_loss and self.default_accuracy >= floor

    @cached_property
    def assurance(self) -> str:
        """How sure it is that no accuracy is lost, or how much is lost, in words."""
        unconfined = "" if self.sandboxed else "measured without a sandbox"
        return "; ".join(filter(None, [self._words, changes(self.params), unconfined]))

    @property
    def _words(self) -> str:
        measured = f"{self.quality.name} {shown(self.quality, self.test_accuracy)}"
        if self.default_part:
            return f"{measured}; what the default reaches at its end is not known"
        if self.is_default:
            return f"the untouched default: {measured}"
        alone = self.role == Role.RUNTIME_ONLY.value
        if alone and (source := self.figures.get(f"{self.quality.name}_from")):
            return f"runtime only: nothing else differs, so its {self.quality.name} is {source}"
        what = "the default's own params at another runtime setting; "
        lead = f"runtime only: {what}" if alone else ""
        if self.no_loss:
            confidence = float(self.figures.get("confidence", VerifyConfig.confidence))
            return (
                f"{lead or 'no loss: '}a loss of more than "
                f"{self.quality.shown_loss(self.margin)} is ruled out at "
                f"{100 * confidence:g} % confidence, {self._runs_compared}"
            )
        partly = "" if self._against_whole_default else ", which was trained only in part"
        return f"{lead}{measured}, {self.difference}{partly}"

    @property
    def difference(self) -> str:
        """Difference between its accuracy and the default's, in words."""
        gain = self.quality.gain_in_unit(self.accuracy_gain.value)
        side = "above" if gain > 0 else "below"
        return f"{abs(gain):.2f} {self.quality.gain_unit} {side} the default"

    @property
    def _runs_compared(self) -> str:
        name = f"{self.quality.name}_from"
        own = self.figures.get(name) or _runs(self.figures)
        known_from = self.default.get(name) or self.reference
        return f"{own} against the default's ({known_from or _runs(self.default)})"

    @property
    def _versus(self) -> Mapping[str, Any]:
        versus: Mapping[str, Any] = self.figures["comparison"]
        return versus

    @cached_property
    def _said_no_loss(self) -> bool:
        if self.is_default:
            return True
        return bool(self._versus.get("no_loss", self._versus.get("accuracy_kept")))

    @cached_property
    def _against_whole_default(self) -> bool:
        """Whether the default's accuracy is that of its whole training.

        A projected default (``budget=quick``) without a reference has the accuracy of a shorter
        training. Only a point with the same params is fairly compared with it.
        """
        if self.role == Role.RUNTIME_ONLY.value or not self.default.get("projected"):
            return True
        return bool(self.reference or self.default.get(f"{self.quality.name}_from"))

    def summary(self) -> dict[str, Any]:
        """Return a summary as plain values: role, params, accuracy, time and memory."""
        return {
            "framework": self.framework,
            "role": self.role,
            "no_loss": self.no_loss,
            "params": dict(self.params),
            f"test_{self.quality.name}": self.quality.figure(self.accuracy),
            "train_time_s": self.train_time_s,
            "peak_memory_mb": self.memory_mb,
        }


def shown(quality: Quality, score: Interval) -> str:
    """Format a score with its interval: ``97.07 % (96.74-97.40)``, ``115.20 (113.90-116.52)``."""
    ends = sorted(quality.in_unit(each) for each in (score.low, score.high))
    return f"{quality.shown(score.value)} ({ends[0]:.2f}-{ends[1]:.2f})"


def _scores(convert: Callable[[float], float], entry: Mapping[str, float | None]) -> Interval:
    """Parse an interval of plain figures of ``front.json``, as scores or their differences."""
    plain = _interval(entry)
    value, *ends = (convert(each) for each in (plain.value, plain.low, plain.high))
    return Interval(value, min(ends), max(ends))


def _interval(entry: Mapping[str, float | None]) -> Interval:
    """Parse an interval of ``front.json``; a ``null`` end is infinite."""
    value, low, high = (entry[name] for name in ("value", "low", "high"))
    return Interval(
        math.nan if value is None else value,
        -math.inf if low is None else low,
        math.inf if high is None else high,
    )


def _runs(figures: Mapping[str, Any]) -> str:
    number = int(figures.get("full_runs", 1))
    return f"{number} run{'s' if number != 1 else ''}"
