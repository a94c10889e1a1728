"""Choice of the verified configuration that a job should run with, under limits.

Everything here is pure. Only verified points are recommended: figures of the search are biased, as
they were selected for being good. Unless asked otherwise, a point must be proven to lose no
accuracy against the framework's default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tuner.config.schema import VerifyConfig
from tuner.progress import describe_params
from tuner.recommendation.evidence import MARGIN, Evidence, shown
from tuner.values.errors import ConfigError, NothingRecommended
from tuner.values.quality import Quality

OBJECTIVES = ("train_time_s", "accuracy", "memory_mb", "perplexity")
PERPLEXITY_MARGIN = VerifyConfig.perplexity_margin
_LEARNT = {
    "accuracy": ("min_accuracy", "max_accuracy_loss"),
    "perplexity": ("max_perplexity", "max_perplexity_loss"),
}
"""Limits of what is learnt, and of what may be lost of it, by what it is measured by."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a job; ``None`` is no limit. Seconds, MiB, fractions 0–1, CPUs.

    A measured time holds only for the same number of CPUs and of concurrent jobs on the host, so
    ``cores`` and ``jobs_per_host`` must match exactly. ``min_accuracy`` is a floor as defined by
    ``Evidence.keeps_accuracy``. ``max_accuracy_loss`` admits points that are proven to lose no
    more against their framework's default. Both apply together: to trade accuracy down to a
    floor, set the loss to ``None``. Of a text, ``max_perplexity`` and ``max_perplexity_loss`` (a
    part of the default's) take their places. ``max_workers`` bounds the processes that train one
    job together: a job that is started as one process can use 1.
    """

    max_train_time_s: float | None = None
    max_memory_mb: float | None = None
    min_accuracy: float | None = None
    max_accuracy_loss: float | None = MARGIN
    cores: int | None = None
    jobs_per_host: int = 1
    max_workers: int | None = None
    max_perplexity: float | None = None
    max_perplexity_loss: float | None = PERPLEXITY_MARGIN

    def check(self) -> None:
        """Raise ``ConfigError`` for an invalid value."""
        for name in ("jobs_per_host", "cores", "max_workers"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ConfigError(f"{name} must be at least 1, got {count}")
        for name in ("max_train_time_s", "max_memory_mb", "max_perplexity", "max_perplexity_loss"):
            most = getattr(self, name)
            if most is not None and not 0 <= most < math.inf:
                raise ConfigError(f"{name} must be a finite number of at least 0, got {most:g}")
        for name, meaning in (
            ("max_accuracy_loss", "(0.002 is 0.2 points) or none"),
            ("min_accuracy", "(0.985 is 98.5 %)"),
        ):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ConfigError(
                    f"{name} must be a fraction from 0 to 1 {meaning}, got {share:g}"
                )

    def check_for(self, quality: Quality, objective: str) -> None:
        """Raise ``ConfigError`` if a limit or the objective is of what is not measured."""
        (other,) = _LEARNT.keys() - {quality.name}
        untouched = Limits()
        asked = [
            (name, right)
            for name, right in zip(_LEARNT[other], _LEARNT[quality.name], strict=True)
            if getattr(self, name) != getattr(untouched, name)
        ]
        if objective == other:
            asked.append(("objective", f"objective={quality.name}"))
        if asked:
            raise ConfigError(
                f"{asked[0][0]} is of {other}, but what is learnt here is measured by "
                f"{quality.name}; say {asked[0][1]}"
            )

    def learnt(self, quality: Quality) -> tuple[float | None, float | None]:
        """Return the least score, and the largest loss of scores; ``None`` is no limit."""
        least, loss = (getattr(self, name) for name in _LEARNT[quality.name])
        return (
            None if least is None else quality.score(max(least, 1e-9)),
            None if loss is None else quality.loss_of(loss),
        )

    def lenient(self) -> Limits:
        """Return the limits that allow any loss."""
        return dataclasses.replace(self, max_accuracy_loss=None, max_perplexity_loss=None)

    def words(self, quality: Quality, *names: str) -> str:
        """Format the named limits; without names, all that are set and a point can break."""
        breakable = "max_train_time_s", "max_memory_mb", *_LEARNT[quality.name], "max_workers"
        given = names or [name for name in breakable if getattr(self, name) is not None]
        return ", ".join(f"{name}={getattr(self, name):.12g}" for name in given)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The point to run with, and the other points that keep the limits, best first.

    Attributes:
        note: Why the choice is the untouched default; empty if it is not.
        evidence: All that it was chosen from, whatever its cores and jobs on a host.
    """

    choice: Evidence
    alternatives: tuple[Evidence, ...]
    note: str = ""
    evidence: tuple[Evidence, ...] = ()


def recommend(
    evidence: Sequence[Evidence], limits: Limits, objective: str = "train_time_s"
) -> Recommendation:
    """Return the best configuration by ``objective`` among those that keep all limits.

    Unless ``objective`` is memory, an untouched default is not chosen if a point of the same
    framework and model keeps the limits and is proven to be faster and to lose nothing.

    Raises:
        ConfigError: If the objective is unknown or a limit is invalid.
        NothingRecommended: If there is no evidence, or nothing keeps the limits; the message
            names the binding limit and the nearest point.
    """
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    limits.check()
    if not evidence:
        raise NothingRecommended(
            "no verified study that could answer is on record here; "
            "run python -m tuner framework=... dataset=... first, "
            "or say where it was tracked (tracking_uri=)"
        )
    evidence = known = of_newest_data(evidence)
    limits.check_for(evidence[0].quality, objective)
    for name in ("jobs_per_host", "cores"):
        evidence = _measured_so(evidence, name, getattr(limits, name))
    fitting = _ranked(evidence, limits, objective)
    if not fitting:
        raise _why_nothing(evidence, limits)
    choice, *others = fitting
    note = _why_default(evidence, limits, objective) if choice.is_default else ""
    return Recommendation(choice, tuple(others), note, tuple(known))


def recommend_fresh(
    evidence: Sequence[Evidence],
    limits: Limits,
    objective: str = "train_time_s",
    stale: Collection[str] = (),
) -> Recommendation:
    """Return what ``recommend`` does of fresh evidence; if that answers nothing, of all evidence.

    Args:
        evidence: See ``recommend``.
        limits: See ``recommend``.
        objective: See ``recommend``.
        stale: Run ids of studies that are not fresh, beside those that broke what they promised.

    Raises:
        ConfigError: If the objective is unknown or a limit is invalid.
        NothingRecommended: If nothing keeps the limits, stale or not.
    """
    evidence = of_newest_data(evidence)
    fresh = [each for each in _undrifted(evidence) if each.study not in stale]
    with contextlib.suppress(NothingRecommended):
        return recommend(fresh, limits, objective)
    return recommend(evidence, limits, objective)


def _undrifted(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return the evidence that no job contradicts.

    If what a study promised was broken, what was measured before in the same way on the same
    machine is no better; what was measured since is.
    """
    found: dict[object, float] = {}
    for each in evidence:
        if each.drift:
            how = _measured_how(each)
            found[how] = max(each.drift_found, each.measured_at, found.get(how, 0.0))
    return [
        each for each in evidence if each.measured_at > found.get(_measured_how(each), -math.inf)
    ]


def _measured_how(point: Evidence) -> object:
    of_machine = point.fingerprint, point.jobs_per_host, point.cores
    return point.framework, point.model, point.dataset, of_machine


def of_newest_data(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return the evidence without that of earlier images of the user's own data.

    A folder of images may change and keep its name, and what was proven before holds no more.
    """
    newest = {
        each.dataset: each.digest for each in sorted(evidence, key=lambda each: each.measured_at)
    }
    return [each for each in evidence if not each.like or each.digest == newest[each.dataset]]


def _measured_so(evidence: Sequence[Evidence], name: str, wanted: int | None) -> list[Evidence]:
    """Return the evidence that was measured with the wanted value of ``name``.

    Raises:
        NothingRecommended: If there is none.
    """
    found = [each for each in evidence if wanted in (None, getattr(each, name))]
    if not found:
        known = sorted({getattr(each, name) for each in evidence} - {0})
        raise NothingRecommended(
            f"nothing was measured with {name}={wanted}; measured: "
            f"{', '.join(map(str, known)) or 'nothing'}",
            binding=[name],
        )
    return found


def _ranked(evidence: Sequence[Evidence], limits: Limits, objective: str) -> list[Evidence]:
    """Return the points that keep the limits, best first; those that stand back come last.

    A default stands back if a point of the same framework and model is proven to be faster and
    to lose nothing, unless the objective is memory: measured accuracies differ by chance. If the
    objective is time, a point that is not proven to be faster stands back behind its default.
    """
    fitting = [each for each in evidence if not _violations(each, limits)]
    defaults = {_place(each) for each in fitting if each.is_default}
    replaced = {_place(each) for each in fitting if each.is_faster and each.no_loss}

    def stands_back(point: Evidence) -> bool:
        if point.is_default:
            return objective != "memory_mb" and _place(point) in replaced
        return objective == "train_time_s" and not point.is_faster and _place(point) in defaults

    def cost(point: Evidence) -> float:
        learnt = objective in _LEARNT
        return -point.accuracy if learnt else float(getattr(point, objective))

    fitting.sort(key=lambda each: (stands_back(each), cost(each), -each.accuracy))
    return fitting


def _place(point: Evidence) -> tuple[str, str]:
    """Return the framework and model, which identify the default of a point."""
    return point.framework, point.model


def _violations(point: Evidence, limits: Limits) -> dict[str, float]:
    """Return how far each broken limit is exceeded, as a fraction of the limit."""
    broken = {}
    for name, limit, value in (
        ("max_train_time_s", limits.max_train_time_s, point.train_time_s),
        ("max_memory_mb", limits.max_memory_mb, point.memory_mb),
        ("max_workers", limits.max_workers, point.workers),
    ):
        if limit is not None and value > limit:
            broken[name] = (value - limit) / max(limit, 1e-9)
    floor, loss = limits.learnt(point.quality)
    least, lost = _LEARNT[point.quality.name]
    if floor is not None and not point.keeps_accuracy(floor):
        broken[least] = (floor - point.test_accuracy.low) / max(floor, 1e-9)
    if loss is not None and not point.loses_at_most(loss):
        broken[lost] = max(0.0, -point.accuracy_gain.low - loss) / max(loss, 1e-9)
    return broken


def _why_nothing(evidence: Sequence[Evidence], limits: Limits) -> NothingRecommended:
    relaxed, quality = limits.lenient(), evidence[0].quality
    otherwise = _ranked(evidence, relaxed, OBJECTIVES[0])
    if otherwise:
        return _too_lossy(evidence, limits, otherwise[0])
    nearest = min(evidence, key=lambda each: max(_violations(each, relaxed).values()))
    alone = set.intersection(*(set(_violations(each, relaxed)) for each in evidence))
    binding = sorted(alone or _violations(nearest, relaxed))
    return NothingRecommended(
        f"no measured configuration meets {limits.words(quality, *binding)}"
        f"{'' if alone else ' together with the other limits'}; the closest takes "
        f"{_costs(nearest)}: {describe_params(nearest.params)}",
        binding,
        nearest.summary(),
    )


def _too_lossy(
    evidence: Sequence[Evidence], limits: Limits, instead: Evidence
) -> NothingRecommended:
    """Explain that only the limit on the loss excludes all; ``instead`` keeps the other limits."""
    lost = _LEARNT[instead.quality.name][1]
    lossless = [set(_violations(each, limits)) for each in evidence]
    lossless = [each for each in lossless if lost not in each] or [set()]
    others = sorted(set.intersection(*lossless) or set.union(*lossless))
    quality = instead.quality
    together = f" together with {limits.words(quality, *others)}" if others else ""
    return NothingRecommended(
        f"no measured configuration is proven to meet {limits.words(quality, lost)}{together}; "
        f"{lost}=none would give {_costs(instead)}, {instead.difference}: {dict(instead.params)}"
        f"{_of_the_default(evidence)}",
        [lost, *others],
        instead.summary(),
    )


def _of_the_default(evidence: Sequence[Evidence]) -> str:
    """Tell which setting speeds a default up of which only a part is known; empty for none.

    It is no answer: nobody knows what the whole default takes and reaches.
    """
    found = [each for each in evidence if each.default_part and each.is_faster_default]
    if not found:
        return ""
    best = max(found, key=lambda each: each.speedup.value)
    own = best.default.get("params", {})
    setting = {name: value for name, value in best.params.items() if value != own.get(name)}
    return (
        f"; only {best.default_part} of the default are known, and its own params train "
        f"{best.speedup.value:.3g} times as fast with {setting}"
    )


def _costs(point: Evidence) -> str:
    whose = f" with {point.framework}" if point.framework else ""
    return (
        f"{point.train_time_s:.1f} s and {point.memory_mb:.0f} MiB for "
        f"{shown(point.quality, point.test_accuracy)}{whose}"
    )


_NOTHING_BETTER = {
    "train_time_s": "no faster configuration is proven to meet",
    "accuracy": "no faster configuration that is as accurate is proven to meet",
    "perplexity": "no faster configuration of as low a perplexity is proven to meet",
    "memory_mb": "no configuration that needs less memory is proven to meet",
}


def _why_default(evidence: Sequence[Evidence], limits: Limits, objective: str) -> str:
    """Explain why the answer is the untouched default, and what allowing a loss would give."""
    quality = evidence[0].quality
    lost = _LEARNT[quality.name][1]
    kept = limits.words(quality) if getattr(limits, lost) is not None else "the limits"
    note = f"this is the untouched default: {_NOTHING_BETTER[objective]} {kept}"
    best = _ranked(evidence, limits.lenient(), objective)[0]
    if best.is_default:
        return note
    return f"{note}; {lost}=none would give {_costs(best)}, {best.difference}"
