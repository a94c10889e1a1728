"""Texts and rounded figures of a study, the same on terminal and page."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.progress import describe_params, format_seconds, printable
from tuner.report.answers import (
    further_lines,
    labels,
    roles,
    three_answers,
    verified_default,
)
from tuner.values.exchange import changes, lossy
from tuner.values.pareto import Objective
from tuner.values.quality import Quality
from tuner.values.results import StudyResult
from tuner.values.trial import Interval, TrialResult, TrialStatus
from tuner.values.verified import Role, Verified

NOT_VERIFIED = "Not verified: nothing may be claimed."
_MIB = 2**20
_FACTORS_WITHIN = 1.25  # else time per iteration depends on more than batch and runtime
_UNEVEN = 1.1  # factor between the default's times in rounds that deserves a word
_MIN_RUNS = 3  # with fewer runs the machine may just have been slow for a while


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """One verified configuration, rounded for print.

    Attributes:
        point: The figures themselves.
        role: What it answers, or what it was verified for.
        proven: Whether it is one of the answers.
        params: In a few words.
        accuracy, train_time, speedup, gain: Value and interval: percent (of a perplexity itself),
            seconds, ratio, percentage points (change of a perplexity in percent); the last two
            are empty for the default.
        cpu: User and system time, seconds.
        memory: Average and maximum, MiB.
        notes: For ``speedup`` and ``gain``: "not significant" or empty.
        tone: ``reference``, ``good``, ``trade`` (faster or better, at a price) or ``none``.
    """

    point: Verified
    role: str
    proven: bool
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
    """Return the verified configurations, rounded, in their order: the default first."""
    return [_row(result, point) for point in result.verified]


def _row(result: StudyResult, point: Verified) -> VerifiedRow:
    versus, proven = point.against_default, bool(labels(result, point))
    return VerifiedRow(
        point=point,
        role=roles(result, point),
        proven=proven,
        params=describe_params(point.params),
        accuracy=_figure_with_range(in_unit(point.quality, point.test_accuracy), "", "–"),
        train_time=_with_range(point.train_time_s),
        speedup=_with_range(versus.speedup) if versus else ("", ""),
        gain=_gain(point),
        cpu=(format_seconds(point.cpu_user_s), format_seconds(point.cpu_system_s)),
        memory=(
            f"{point.avg_memory_bytes / _MIB:,.0f}",
            f"{point.peak_memory_bytes / _MIB:,.0f}",
        ),
        notes=significance_notes(point),
        tone="good" if proven else _tone(point),
    )


def _gain(point: Verified) -> tuple[str, str]:
    """Return the accuracy gain and its interval; no interval with the default's own params."""
    versus = point.against_default
    if versus is None:
        return "", ""
    gain = gain_in_unit(point.quality, versus.accuracy_gain)
    value, ends = _figure_with_range(gain, "+", " to ")
    return value, "same params" if point.learns_the_same else ends


def in_unit(quality: Quality, scores: Interval) -> Interval:
    """Return an accuracy in percent, or a perplexity, with the ends of its interval."""
    return _converted(scores, quality.in_unit)


def gain_in_unit(quality: Quality, gain: Interval) -> Interval:
    """Return a gain of accuracy in points, or the change of a perplexity in percent."""
    return _converted(gain, quality.gain_in_unit)


def plain_gain(quality: Quality, gain: Interval) -> Interval:
    """Return a gain of accuracy (fraction), or a perplexity divided by the other one."""
    return _converted(gain, quality.plain_gain)


def _converted(scores: Interval, convert: Callable[[float], float]) -> Interval:
    value, *ends = (convert(each) for each in (scores.value, scores.low, scores.high))
    return Interval(value, min(ends), max(ends))


def _figure_with_range(figure: Interval, sign: str, to: str) -> tuple[str, str]:
    value, low, high = (f"{each:{sign}.2f}" for each in (figure.value, figure.low, figure.high))
    return value, f"{low}{to}{high}"


def _with_range(figure: Interval) -> tuple[str, str]:
    """Format the value with three digits, and both ends to the same decimal place."""
    digits = 0 if figure.value >= 99.95 else 1 if figure.value >= 9.995 else 2
    value, low, high = (f"{each:,.{digits}f}" for each in (figure.value, figure.low, figure.high))
    return value, f"{low}–{high}"


def significance_notes(point: Verified) -> tuple[str, str]:
    """Return "not significant" or an empty string for the speed-up and the accuracy gain."""
    if point.is_default:
        return ("", "")
    note = "not significant"
    return (
        "" if point.is_faster or point.is_slower else note,
        "" if point.is_better or point.is_worse or point.learns_the_same else note,
    )


def _tone(point: Verified) -> str:
    if point.is_default:
        return "reference"
    if (point.is_faster and point.loses_nothing) or (point.is_better and not point.is_slower):
        return "good"
    return "trade" if point.is_faster or point.is_better else "none"


def headline(result: StudyResult) -> list[str]:
    """Return the findings, one line each: the answers and trade-offs, or why there are none."""
    if not any(each.usable for each in result.trials):
        return ["No trial gave usable figures: there is nothing to compare."]
    answers = three_answers(result)
    if not answers:
        found = len(result.front)
        return [f"{NOT_VERIFIED} {count(found, 'trial')} on the front of the validation split."]
    return [*(each.sentence for each in answers), *further_lines(result)]


def footnotes(result: StudyResult) -> list[str]:
    """Explain how the figures were obtained and what was left out, one line each."""
    notes = [*_time_notes(result), *_accuracy_notes(result), *_prediction_notes(result)]
    notes += _data_notes(result.dataset_facts)
    if result.verified:
        confidence = f"{100 * result.verified[0].confidence:g} %"
        notes.append(f"Probability of being on the front of what was verified: {_sure(result)}.")
        notes.append(
            f"Intervals at {confidence} confidence. Training time is the training loop alone; "
            "CPU and memory are the medians of the worker's process tree."
        )
    counts = status_counts(result.trials)
    notes.append(f"{count(len(result.trials), 'trial')}{': ' if counts else ''}{counts}.")
    return [*notes, *disturbance_notes(result), *map(_as_sentence, result.notes)]


def _data_notes(facts: Mapping[str, str]) -> list[str]:
    """Tell what the user's own images became, and where their default comes from."""
    if "defaults_of" not in facts:
        return []
    notes = [f"Your images: {facts['images']}; {facts['prepared']}; classes {facts['classes']}."]
    return [*notes, *(f"Default: {facts[name]}." for name in ("default",) if name in facts)]


def _sure(result: StudyResult) -> str:
    """List the probability of being on the front: "100 % trial 4, trial 8; 52 % default"."""
    names: dict[str, list[str]] = {}
    for each in sorted(result.verified, key=lambda each: -each.on_front):
        names.setdefault(f"{100 * each.on_front:.0f} %", []).append(each.name)
    return "; ".join(f"{sure} {', '.join(each)}" for sure, each in names.items())


def _as_sentence(text: str) -> str:
    ended = text if text.endswith((".", "!", "?")) else f"{text}."
    return ended[:1].upper() + ended[1:]


def _time_notes(result: StudyResult) -> list[str]:
    """Explain how the times of the verified configurations were obtained, one line per way."""
    whole = [each for each in result.verified if each.full_runs and not each.rate_runs]
    partly = [each for each in result.verified if each.full_runs and each.rate_runs]
    mixed, stops = (
        [each for each in partly if bool(each.stop_of) is way] for way in (False, True)
    )
    rates = [each for each in result.verified if not each.full_runs]
    notes = []
    if whole:
        runs = _extent([each.full_runs for each in whole], "whole, interleaved run")
        each_of = " each" if whole[1:] else ""
        notes.append(
            f"Time and {result.quality.name} of {_names(result, whole)}: from {runs}{each_of}."
        )
    if mixed:
        runs = _extent([each.full_runs for each in mixed], "whole run")
        learnt = f"{result.quality.name.capitalize()} of {_names(result, mixed)}"
        notes.append(f"{learnt}: from {runs}; time {_rate(mixed)}.")
    for each in stops:
        learnt = f"{result.quality.name.capitalize()} of {_names(result, [each])}"
        runs = count(each.full_runs, "run")
        way = f"on the way of {runs} of {printable(each.stop_of)}"
        notes.append(f"{learnt}: {way}; time {_rate([each])}.")
    if rates:
        notes.append(f"Training time of {_names(result, rates)}: {_rate(rates)}.")
    notes += _uneven_note(result)
    trial_0 = result.default
    if trial_0 and trial_0.trial.projected and not result.verified:
        share = f"{100 * trial_0.trial.share:.3g} %"
        notes.append(
            f"Training time of the default: from its rate over {share} of its iterations."
        )
    return notes


def _uneven_note(result: StudyResult) -> list[str]:
    """Say that the default's pace changed between rounds, if it did by more than a tenth."""
    times = [each.default_time_s for each in result.verified if not each.is_default]
    if not times or max(times) <= _UNEVEN * min(times):
        return []
    low, high = (format_seconds(each) for each in (min(times), max(times)))
    return [
        f"The default trained in {low} s in some rounds and in {high} s in others. "
        "Each speed-up compares runs of the same rounds."
    ]


def _rate(measured: Sequence[Verified]) -> str:
    """Describe a rate: "from its rate over 10 % of the iterations, in 2 interleaved runs"."""
    shares = _ends([100 * each.rate_share for each in measured])
    runs = _extent([each.rate_runs for each in measured], "interleaved run")
    whose = "their rates" if measured[1:] else "its rate"
    return f"from {whose} over {shares} % of the iterations, in {runs}"


def _extent(numbers: Sequence[int], noun: str) -> str:
    """Format the least and the greatest of several counts: "2 runs", "2–5 runs"."""
    most = max(numbers)
    return count(most, noun) if min(numbers) == most else f"{_ends(numbers)} {noun}s"


def _ends(numbers: Sequence[float]) -> str:
    low, high = (f"{each:.3g}" for each in (min(numbers), max(numbers)))
    return low if low == high else f"{low}–{high}"


def _names(result: StudyResult, points: Sequence[Verified]) -> str:
    """Join the names of configurations for a sentence: "the default and runtime only"."""
    default = "the default's first part" if result.default_part else "the default"
    said = [default if each.is_default else printable(each.name) for each in points]
    *first, last = said
    return f"{', '.join(first)} and {last}" if first else last


def _accuracy_notes(result: StudyResult) -> list[str]:
    """Explain the source of accuracies that do not come from a configuration's own runs."""
    name = result.quality.name.capitalize()
    notes = [_as_sentence(result.reference)] if result.reference else []
    told = result.default is not None and bool(result.default.accuracy_from)  # by the reference
    default = verified_default(result)
    if default is not None and default.accuracy_from and not told:
        notes.append(f"{name} of the default: from {default.accuracy_from}.")
    same = [each for each in result.verified if each.learns_the_same]
    if same:
        why = "as nothing but the runtime setting differs"
        notes.append(f"{name} of {_names(result, same)}: the default's, {why}.")
    stopped = (each for each in result.verified if each.role is Role.STOPPED)
    notes += [
        f"{name} of {each.name}: {each.accuracy_from}, each compared with its own end."
        for each in stopped
    ]
    return notes


def _prediction_notes(result: StudyResult) -> list[str]:
    """Compare predicted with verified figures, and report what the race discarded."""
    notes = [_prediction_note(each, *each.composed) for each in result.verified if each.composed]
    runtimes = result.runtimes
    if runtimes is not None:
        raced = f"{count(len(runtimes.settings), 'runtime setting')} raced in "
        raced += count(len(runtimes.probes), "probe")
        if runtimes.disturbed:
            raced += f"; {count(runtimes.disturbed, 'disturbed probe')} thrown away"
        if runtimes.faults:
            raced += f"; {count(len(runtimes.faults), 'setting')} could not be measured"
        notes += [f"{raced}.", *_group_notes(result)]
    ratios = result.pace_ratios
    if ratios:
        middle = statistics.median(ratios)
        extent = f" ({ratios[0]:.2f}–{ratios[-1]:.2f})" if len(ratios) > 1 else ""
        runs = count(len(ratios), "run")
        kept = f"{runs} took {middle:.2f} times{extent} what probes predicted"
        outside = not 1 / _FACTORS_WITHIN <= middle <= _FACTORS_WITHIN
        doubt = outside and len(ratios) >= _MIN_RUNS
        notes.append(
            f"{kept}: time does not factor here; do not trust predicted times."
            if doubt
            else f"{kept}."
        )
    return notes


def _group_notes(result: StudyResult) -> list[str]:
    """Say what the fastest group is worth on these cores, and the fastest lossy one."""
    exact = [each for each in result.groups if each.exact]
    notes = []
    for each in [each for each in exact if each.workers > 1 and each.against_one][:1]:
        threads, nodes = each.threads, each.nodes
        own = f" of {count(threads, 'thread')} each" if isinstance(threads, int) else ""
        where = f" on {nodes} nodes" if nodes > 1 else ""
        notes.append(
            f"{each.workers} workers{own}{where} train {each.against_one:.2f} times as fast as "
            "the fastest single process."
        )
    for each in [each for each in result.groups if exact and not each.exact][:1]:
        ratio = each.samples_s.value / exact[0].samples_s.value
        tried = [lossy(trial.params) for trial in result.trials]
        searched = lossy(each.setting) in (*result.lossy_kinds, *tried)
        notes.append(
            f"{changes(each.setting)}, and trains {ratio:.2f} times as fast as the fastest "
            f"setting that does not{'' if searched else '; so it was not searched'}."
        )
    return notes


def _prediction_note(point: Verified, time_s: float, accuracy: float | None) -> str:
    """Compare predicted and verified figures; only the times if an accuracy was not measured."""
    predicted = f"{format_seconds(time_s)} s"
    verified = f"{format_seconds(point.train_time_s.value)} s"
    if accuracy is not None and not point.accuracy_from:
        predicted += f" and {point.quality.shown(accuracy)}"
        verified += f" and {point.quality.shown(point.test_accuracy.value)} (test)"
    fate = f": the predicted {point.refuted} is refuted; the verified one counts"
    name = printable(point.name).capitalize()
    return f"{name}: {predicted} predicted, {verified} verified{fate if point.refuted else ''}."


def status_counts(trials: Iterable[TrialResult]) -> str:
    """Count the trials by status: "14 COMPLETE, 1 STOPPED"."""
    counted = Counter(each.status for each in trials)
    return ", ".join(f"{counted[each]} {each.value}" for each in TrialStatus if counted[each])


def disturbance_notes(result: StudyResult) -> list[str]:
    """Count the measurements that were discarded, with their cost, and those kept as disturbed."""
    runs = (*result.trials, *result.verifications)
    marked = sum(1 for each in runs if each.measurement and each.measurement.disturbed)
    notes = []
    if result.discarded:
        lost_s = sum(lost.wall_time_s for each in runs for lost in each.discarded)
        notes.append(
            f"{count(result.discarded, 'disturbed measurement')} discarded and repeated, which "
            f"cost {format_seconds(lost_s)} s."
        )
    if marked:
        notes.append(f"{count(marked, 'measurement')} kept though disturbed, and marked so.")
    return notes or ["No measurement was disturbed."]


def interruption(result: StudyResult) -> str:
    """Tell how to resume an interrupted study; empty for a complete one."""
    if result.complete:
        return ""
    return f"Interrupted: everything shown was measured; resume with {result.command}"


def front_label(result: TrialResult) -> str:
    """Describe a trial and its params, for hover texts and lists."""
    return f"{result.trial.title}: {describe_params(result.params)}"


def objective_text(trial: TrialResult, objective: Objective) -> str:
    """Format a trial's value of an objective, in the objective's unit; accuracies in percent."""
    value, quality = objective.value(trial.metrics), trial.quality
    return quality.shown(quality.score(value)) if objective.is_quality else format_seconds(value)


def count(number: int, noun: str) -> str:
    """Format a count with its noun: "1 trial", "2 trials"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
