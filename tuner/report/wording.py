"""What may be said of a study, in words and rounded figures, the same on terminal and page."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.pareto import Objective
from tuner.progress import describe_params, format_seconds
from tuner.results import StudyResult, Verified
from tuner.trial import Interval, TrialResult, TrialStatus

NOT_VERIFIED = "Not verified: nothing may be claimed."
_MIB = 2**20
_FACTORS_WITHIN = 1.25  # else the time an iteration takes depends on more than batch and runtime
_LEAST_RUNS = 3  # fewer do not tell that from a machine that was slow meanwhile


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """One verified configuration, rounded for print.

    Attributes:
        point: The figures themselves.
        params: In a few words.
        accuracy, train_time, speedup, gain: Value and interval: percent, seconds, times,
            percentage points; the last two are empty for the default.
        cpu: User and system time, seconds.
        memory: Average and maximum, MiB.
        notes: For ``speedup`` and ``gain``: "not significant" where that is so.
        tone: ``reference``, ``good``, ``trade`` (faster or better, at a price) or ``none``.
    """

    point: Verified
    params: str
    accuracy: tuple[str, str]
    train_time: tuple[str, str]
    speedup: tuple[str, str]
    gain: tuple[str, str]
    cpu: tuple[str, str]
    memory: tuple[str, str]
    notes: tuple[str, str]
    tone: str


def verified_rows(result: StudyResult) -> list[VerifiedRow]:
    """The verified configurations, rounded, in their order: the default first."""
    return [_row(point) for point in result.verified]


def _row(point: Verified) -> VerifiedRow:
    versus = point.against_default
    return VerifiedRow(
        point=point,
        params=describe_params(point.params),
        accuracy=_percent_with_range(point.test_accuracy, "", "–"),
        train_time=_with_range(point.train_time_s),
        speedup=_with_range(versus.speedup) if versus else ("", ""),
        gain=_percent_with_range(versus.accuracy_gain, "+", " to ") if versus else ("", ""),
        cpu=(format_seconds(point.cpu_user_s), format_seconds(point.cpu_system_s)),
        memory=(
            f"{point.avg_memory_bytes / _MIB:,.0f}",
            f"{point.peak_memory_bytes / _MIB:,.0f}",
        ),
        notes=significance_notes(point),
        tone=_tone(point),
    )


def _percent_with_range(figure: Interval, sign: str, to: str) -> tuple[str, str]:
    value, low, high = (
        f"{100 * each:{sign}.2f}" for each in (figure.value, figure.low, figure.high)
    )
    return value, f"{low}{to}{high}"


def _with_range(figure: Interval) -> tuple[str, str]:
    """Three digits of the value, and its ends to the same decimal place."""
    digits = 0 if figure.value >= 99.95 else 1 if figure.value >= 9.995 else 2
    value, low, high = (f"{each:,.{digits}f}" for each in (figure.value, figure.low, figure.high))
    return value, f"{low}–{high}"


def significance_notes(point: Verified) -> tuple[str, str]:
    """For the speed-up and for the accuracy gain: "not significant" or nothing."""
    if point.against_default is None:
        return ("", "")
    level, note = 1 - point.confidence, "not significant"
    versus = point.against_default
    return (
        "" if versus.speedup_p < level else note,
        "" if versus.accuracy_p < level else note,
    )


def _tone(point: Verified) -> str:
    if point.against_default is None:
        return "reference"
    faster, better = is_faster(point), is_better(point)
    if (faster and point.against_default.accuracy_kept) or (better and not is_slower(point)):
        return "good"
    return "trade" if faster or better else "none"


def is_faster(point: Verified) -> bool:
    """Whether it trains significantly faster than the default."""
    versus = point.against_default
    return bool(versus and versus.speedup.value > 1 and versus.speedup_p < 1 - point.confidence)


def is_slower(point: Verified) -> bool:
    """Whether it trains significantly slower than the default."""
    versus = point.against_default
    return bool(versus and versus.speedup.value < 1 and versus.speedup_p < 1 - point.confidence)


def is_better(point: Verified) -> bool:
    """Whether it is significantly more accurate than the default."""
    versus = point.against_default
    return bool(
        versus and versus.accuracy_gain.value > 0 and versus.accuracy_p < 1 - point.confidence
    )


def best_point(result: StudyResult) -> Verified | None:
    """The verified configuration to speak of first.

    The fastest of those shown to lose no accuracy, else of those that measured no lower, else of
    those not shown to lose any, else the most accurate of those that are better, else the fastest
    at all; ``None`` if none beats the default significantly.
    """
    faster = [each for each in result.verified if is_faster(each)]
    shown = [each for each in faster if _tone(each) == "good"]
    measured = [each for each in faster if _accuracy_gain(each) >= 0]
    unrefuted = [each for each in faster if not loses_accuracy(each)]
    better = [each for each in result.verified if is_better(each)]
    kept = shown or measured or unrefuted
    if kept or not better:
        return max(kept or faster, key=_speedup, default=None)
    return max(better, key=lambda each: each.test_accuracy.value)


def _accuracy_gain(point: Verified) -> float:
    return point.against_default.accuracy_gain.value if point.against_default else 0.0


def loses_accuracy(point: Verified) -> bool:
    """Whether the accuracy is significantly below the default's."""
    versus = point.against_default
    if versus is None:
        return False
    return versus.accuracy_gain.value < 0 and versus.accuracy_p < 1 - point.confidence


def _speedup(point: Verified) -> float:
    return point.against_default.speedup.value if point.against_default else 1.0


def headline(result: StudyResult) -> str:
    """What was found, in one or two sentences that every reader may quote."""
    if not any(each.usable for each in result.trials):
        return "No trial gave usable figures: there is nothing to compare."
    if not result.verified:
        found = len(result.front)
        return f"{NOT_VERIFIED} {count(found, 'trial')} on the front of the validation split."
    best = best_point(result)
    default = next((each for each in result.verified if each.against_default is None), None)
    if best is None or default is None:
        return f"No verified configuration beats the default of {result.title} significantly."
    fastest = max(result.verified, key=_speedup)
    sentence = f"{_claim(best, default, result.title)}."
    if loses_accuracy(best):
        sentence = f"No faster configuration keeps the accuracy. {sentence}"
    if is_faster(fastest) and fastest is not best:
        sentence += f" {fastest.name.capitalize()}: {fastest.verdict}."
    if default.projected:
        sentence += (
            " The default was not trained to its end: its time is projected, its final accuracy "
            "unknown; baseline=full measures both."
        )
    return sentence


def _claim(best: Verified, default: Verified, title: str) -> str:
    time = f"{_said(best)} instead of {_said(default)}"
    accuracy = (
        f"{100 * best.test_accuracy.value:.2f} % test accuracy against "
        f"{100 * default.test_accuracy.value:.2f} %"
        f"{' after a part of its iterations' if default.projected else ''}, {accuracy_words(best)}"
    )
    ratio = _speedup(best)
    if is_faster(best):
        speed = f"trains {ratio:.1f}x faster than"
    elif is_slower(best):
        speed = f"is more accurate, though {1 / ratio:.1f}x slower, than"
    else:
        speed = "is more accurate, in no significantly different time, than"
    return f"{best.name.capitalize()} {speed} the default of {title}: {time}, {accuracy}"


def _said(point: Verified) -> str:
    said = f"{format_seconds(point.train_time_s.value)} s"
    return f"{said} (projected)" if point.projected else said


def accuracy_words(point: Verified) -> str:
    """What may be said of its accuracy against the default's."""
    versus = point.against_default
    if versus is None:
        return "reference"
    if versus.accuracy_p >= 1 - point.confidence:
        return (
            "difference not significant"
            if versus.accuracy_kept
            else "difference not significant, though a loss is not ruled out"
        )
    words = f"{100 * versus.accuracy_gain.value:+.2f} points"
    if versus.accuracy_gain.value < 0 and versus.accuracy_kept:
        words += ", within the margin that counts as no loss"
    return words


def footnotes(result: StudyResult) -> list[str]:
    """How the figures came about, and what was left out, one line each."""
    notes = [*_run_notes(result.verified), *projection_notes(result), *_composed_notes(result)]
    if result.verified:
        confidence = f"{100 * result.verified[0].confidence:g} %"
        sure = ", ".join(f"{each.name} {each.on_front:.0%}" for each in result.verified)
        notes.append(f"On the front of those verified, with what confidence: {sure}.")
        notes.append(
            f"Intervals at {confidence} confidence. Training time is the training loop alone; "
            "CPU and memory are the medians of the worker's process tree."
        )
    counts = status_counts(result.trials)
    notes.append(f"{count(len(result.trials), 'trial')}{': ' if counts else ''}{counts}.")
    notes += disturbance_notes(result)
    return notes


def _run_notes(verified: Iterable[Verified]) -> list[str]:
    """How each configuration was measured again; equal ways share a line."""
    ways: dict[str, list[str]] = {}
    for each in verified:
        way = count(each.full_runs, "full run")
        if each.rate_runs:
            way += (
                f", training time re-measured over {100 * each.rate_share:.3g} % of the "
                f"iterations in {count(each.rate_runs, 'interleaved repeat')}"
            )
        ways.setdefault(way, []).append(each.name)
    return [f"{', '.join(names)}: {way}." for way, names in ways.items()]


def _composed_notes(result: StudyResult) -> list[str]:
    """Composed and verified times side by side, and what the race threw away."""
    notes = [
        f"{each.name.capitalize()}: {format_seconds(each.composed[0])} s and "
        f"{100 * each.composed[1]:.2f} % composed, "
        f"{format_seconds(each.train_time_s.value)} s and "
        f"{100 * each.test_accuracy.value:.2f} % (test) verified"
        + (
            f": its composed {each.refuted} is refuted, the verified one stands."
            if each.refuted
            else "."
        )
        for each in result.verified
        if each.composed is not None
    ]
    runtimes = result.runtimes
    if runtimes is not None:
        raced = f"{count(len(runtimes.settings), 'runtime setting')} raced in "
        raced += count(len(runtimes.probes), "probe")
        if runtimes.disturbed:
            raced += f"; {count(runtimes.disturbed, 'disturbed probe')} thrown away"
        if runtimes.faults:
            raced += f"; {count(len(runtimes.faults), 'setting')} could not be measured"
        notes.append(f"{raced}.")
    ratios = result.pace_ratios
    if ratios:
        middle = statistics.median(ratios)
        extent = f" ({ratios[0]:.2f}–{ratios[-1]:.2f})" if len(ratios) > 1 else ""
        runs = count(len(ratios), "run")
        kept = f"{runs} took {middle:.2f} times{extent} what probes promised"
        outside = not 1 / _FACTORS_WITHIN <= middle <= _FACTORS_WITHIN
        doubt = outside and len(ratios) >= _LEAST_RUNS
        notes.append(
            f"{kept}: time does not factor here, trust no time that was composed."
            if doubt
            else f"{kept}."
        )
    return notes


def projection_notes(result: StudyResult) -> list[str]:
    """Says plainly of which configurations the time is projected, not measured in full."""
    names = [each.name for each in result.verified if each.projected]
    if not result.verified and result.default and result.default.trial.share < 1:
        names = ["default"]
    if not names:
        return []
    share = result.default.trial.share if result.default else 1.0
    part = f"{100 * share:.3g} %" if share < 1 else "a part"
    return [
        f"Projected, not measured in full: {', '.join(names)} trained only {part} of its "
        "iterations; its time is projected from that rate, and its accuracy is that of the "
        "shorter training."
    ]


def status_counts(trials: Iterable[TrialResult]) -> str:
    """How many trials ended how: "14 COMPLETE, 1 STOPPED"."""
    counted = Counter(each.status for each in trials)
    return ", ".join(f"{counted[each]} {each.value}" for each in TrialStatus if counted[each])


def disturbance_notes(result: StudyResult) -> list[str]:
    """How many measurements were thrown away, and how many stand though they were disturbed."""
    runs = (*result.trials, *result.verifications)
    marked = sum(1 for each in runs if each.measurement and each.measurement.disturbed)
    notes = []
    if result.discarded:
        notes.append(f"{count(result.discarded, 'disturbed measurement')} discarded and repeated.")
    if marked:
        notes.append(f"{count(marked, 'measurement')} kept though disturbed, and marked so.")
    return notes or ["No measurement was disturbed."]


def interruption(result: StudyResult) -> str:
    """How to go on with a study that was cut short; empty for a complete one."""
    if result.complete:
        return ""
    return f"Interrupted: what is here was measured; resume with {result.command}"


def front_label(result: TrialResult) -> str:
    """A trial and its params in words, for hover texts and lists."""
    return f"{result.trial.title}: {describe_params(result.params)}"


def objective_text(trial: TrialResult, objective: Objective) -> str:
    """A trial's value of an objective, in the objective's unit; accuracies in percent."""
    value = objective.value(trial.metrics)
    return (
        f"{100 * value:.2f} %" if objective.metric.endswith("accuracy") else format_seconds(value)
    )


def count(number: int, noun: str) -> str:
    """A number of things: "1 trial", "2 trials"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
