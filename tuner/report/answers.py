"""The three answers that users ask for first, as sentences that can be quoted."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.progress import describe_params, format_seconds, printable
from tuner.values.exchange import changes
from tuner.values.params import iterations_of
from tuner.values.results import StudyResult, least_of_interest
from tuner.values.verified import Role, Verified

FIRST_PART = "first part"

_MAX_TRADE_OFFS = 3
_DEFAULTS_OF_A_STUDY = 2.0  # trainings of the default that fit into Caffe's study in the README
_ROLES = {
    Role.DEFAULT: "reference",
    Role.RUNTIME_ONLY: "tried for runtime only",
    Role.STOPPED: "tried for no loss",
    Role.NO_LOSS: "tried for no loss",
    Role.TRADE_OFF: "trade-off",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    Attributes:
        label: The question: "No loss", "Runtime only" or "Most accurate" ("Lowest perplexity");
            "Same accuracy" if only the first part of the default is known.
        figure: The answer in its shortest form: "6.1x", "+0.21 points", "not proven".
        text: The rest of the sentence.
        point: The proven configuration; ``None`` if nothing was proven.
    """

    label: str
    figure: str
    text: str
    point: Verified | None

    @property
    def sentence(self) -> str:
        """The whole sentence: "No loss: trial 4 trains 6.1x faster …"."""
        return f"{self.label}: {self.text}"


def three_answers(result: StudyResult) -> list[Answer]:
    """Return no loss, runtime only and most accurate, in this order.

    The list is empty if nothing was verified. If only the first part of the default is known,
    "same accuracy" takes the place of no loss, and none is the most accurate.
    """
    default = verified_default(result)
    if default is None:
        return []
    if result.default_part:
        return [_same_accuracy(result, default), _runtime_only(result, default)]
    return [_no_loss(result, default), _runtime_only(result, default), _accurate(result, default)]


def verified_default(result: StudyResult) -> Verified | None:
    """Return the verified default; ``None`` if nothing was verified."""
    return next((each for each in result.verified if each.is_default), None)


def roles(result: StudyResult, point: Verified) -> str:
    """Name the role of a verified configuration: "no loss" if proven, else "tried for no loss".

    What is proven too, but is not the fastest, is "also no loss".
    """
    found = labels(result, point)
    if found:
        return ", ".join(found)
    if result.default_part and point.is_default:
        return FIRST_PART
    role = Role.DEFAULT if point.is_default else point.role
    proven = point.loses_nothing and not result.default_part
    if role in (Role.NO_LOSS, Role.STOPPED) and proven:  # but another one is faster
        return "also no loss"
    return f"tried for {point.quality.name}" if role is Role.ACCURACY else _ROLES[role]


def labels(result: StudyResult, point: Verified) -> list[str]:
    """Return the answers that a verified configuration gives, in lower case: ["no loss"]."""
    found, lossless = result.answers, ("no loss", result.answers.no_loss)
    pairs = (
        (point.quality.same, same_accuracy(result)) if result.default_part else lossless,
        ("runtime only", found.runtime_only),
        (point.quality.best, found.most_accurate),
    )
    return [label for label, answer in pairs if answer is point]


def same_accuracy(result: StudyResult) -> Verified | None:
    """Return the fastest configuration that is as accurate as the default's first part.

    It is ``None`` if there is none or if the whole default is known.
    """
    as_good = [each for each in result.verified if each.is_faster and _reaches(result, each)]
    return max(as_good, key=lambda each: each.speedup, default=None)


def _reaches(result: StudyResult, point: Verified) -> bool:
    """Return whether it is as accurate as the default's first part, whatever the training time."""
    versus = point.against_default
    return (
        bool(result.default_part)
        and versus is not None
        and versus.accuracy_gain.low >= -result.accuracy_margin
    )


def best_tried(result: StudyResult) -> Verified | None:
    """Return the most accurate of the faster configurations that are not proven to lose nothing.

    Those tried for no loss come before all others.
    """
    faster = [each for each in result.verified if each.is_faster and not each.loses_nothing]
    meant = [each for each in faster if each.role is Role.NO_LOSS]
    return max(meant or faster, key=lambda each: each.gain, default=None)


def _seems_faster(result: StudyResult) -> Verified | None:
    """Return the fastest configuration that loses nothing, and is not proven to be faster."""
    unsure = [
        each
        for each in result.verified
        if each.loses_nothing and each.speedup > 1 and not each.is_faster
        if not each.is_default and not each.learns_the_same
    ]
    return max(unsure, key=lambda each: each.speedup, default=None)


def trade_offs(result: StudyResult) -> list[Verified]:
    """Return configurations that are faster than the first answer but may lose accuracy.

    At most three are returned, fastest first. None is both slower and less accurate than another,
    and none makes more than five times the default's errors.
    """
    default = verified_default(result)
    if default is None:
        return []
    least = least_of_interest(default.test_accuracy.value, default.quality)
    best = result.answers.no_loss or same_accuracy(result)
    fast_enough = best.speedup if best else 1.0
    priced = [
        each
        for each in result.verified
        if each.is_faster
        and not each.loses_nothing
        and not _reaches(result, each)
        and each.speedup > fast_enough
        and each.test_accuracy.value >= least
    ]
    priced.sort(key=lambda each: -each.speedup)
    worth: list[Verified] = []
    for each in priced:
        if not worth or each.gain > worth[-1].gain:
            worth.append(each)
    return worth[:_MAX_TRADE_OFFS]


def further_lines(result: StudyResult) -> list[str]:
    """Return the lines below the answers: the trade-offs."""
    priced = [f"{each.name} trains {priced_words(each)}" for each in trade_offs(result)]
    return [f"Trade-offs: {'; '.join(priced)}."] if priced else []


def priced_words(point: Verified) -> str:
    """Describe a speed-up and its price: "57.6x faster at -1.95 points"."""
    doubt = "" if point.is_worse else " (not significant)"
    return f"{point.speedup:.1f}x faster at {point.quality.shown_gain(point.gain)}{doubt}"


def _same_accuracy(result: StudyResult, default: Verified) -> Answer:
    """Return the answer about what reaches the accuracy of the default's first part sooner."""
    quality = default.quality
    label, point = quality.same.capitalize(), same_accuracy(result)
    if point is None:
        text = (
            f"nothing is proven to be faster and as {quality.good} as the default after "
            f"{result.default_part}."
        )
        return Answer(label, "not proven", text, None)
    text = (
        f"{_subject(point, default)} trains {point.speedup:.1f}x faster "
        f"({_times(point)}) to {_test(point)}; the default reaches "
        f"{_figure(default)} after {result.default_part}.{_changed(point)}"
    )
    return Answer(label, f"{point.speedup:.1f}x", text, point)


def _no_loss(result: StudyResult, default: Verified) -> Answer:
    label, point = "No loss", result.answers.no_loss
    quality = default.quality
    margin = f"a loss of more than {quality.shown_loss(result.accuracy_margin)}"
    if point is None:
        text = f"no faster configuration is proven to keep the {quality.name}."
        unsure, best = _seems_faster(result), best_tried(result)
        if tried := unsure or best:
            subject = _subject(tried, default).rstrip(",")
            text += f" The best that was tried is {subject}: "
        if unsure is not None:
            text += f"it loses none, but being {unsure.speedup:.1f}x faster ({_times(unsure)}) "
            text += "is not significant."
        elif best is not None:
            doubt = "" if best.is_worse else f", where {margin} is not ruled out"
            text += f"{_figure(best)}, {quality.shown_gain(best.gain)}{doubt}."
        return Answer(label, "not proven", text + _too_short(result, default), None)
    kept = f"{_accuracies(point, default)}; {margin} is ruled out at "
    kept += f"{100 * point.confidence:g} % confidence"
    if point.learns_the_same:
        kept = (
            f"its {quality.name} ({_figure(default)}), as nothing but the runtime setting differs"
        )
    text = (
        f"{_subject(point, default)} trains {point.speedup:.1f}x faster than the default of "
        f"{result.title} ({_times(point)}) at {kept}.{_changed(point)}"
    )
    return Answer(label, f"{point.speedup:.1f}x", text, point)


def _too_short(result: StudyResult, default: Verified) -> str:
    """Tell that a study had too little time to prove anything, if the default took most of it."""
    needed_s = _DEFAULTS_OF_A_STUDY * default.train_time_s.value
    if result.elapsed_s >= needed_s:
        return ""
    return (
        f" The default alone trains for {_seconds(default)}, and the study took "
        f"{result.elapsed_s:,.0f} s: one of {needed_s:,.0f} s (budget.time_s=) could prove more."
    )


def _runtime_only(result: StudyResult, default: Verified) -> Answer:
    label, point, part = "Runtime only", result.answers.runtime_only, result.default_part
    if point is not None and point is (same_accuracy(result) or result.answers.no_loss):
        text = f"the same configuration, {point.speedup:.1f}x faster."
        return Answer(label, f"{point.speedup:.1f}x", text, point)
    if point is not None:
        text = (
            f"{_subject(point, default)} trains {point.speedup:.1f}x faster "
            f"({_times(point)}{f' over {part}' if part else ''}), nothing else changed."
        )
        return Answer(label, f"{point.speedup:.1f}x", text, point)
    text = "no runtime setting is proven to train the default's own params faster without loss."
    tried = [each for each in result.verified if each.role is Role.RUNTIME_ONLY]
    if tried:
        best = max(tried, key=lambda each: each.speedup)
        text += f" The best that was tried is {_subject(best, default)}: {best.verdict}."
    return Answer(label, "not proven", text, None)


def _accurate(result: StudyResult, default: Verified) -> Answer:
    quality, point = default.quality, result.answers.most_accurate
    label = quality.best.capitalize()
    if point is None:
        text = (
            f"the default itself ({_figure(default)}); nothing was proven to be {quality.better}."
        )
        seeming = [
            each for each in result.verified if each.is_better and each.role is not Role.ACCURACY
        ]
        if seeming and not result.default_part:
            best = max(seeming, key=lambda each: each.gain)
            seen = f"{_subject(best, default)} ({quality.shown_gain(best.gain)})"
            text += f" As the best of several, {seen} is not significant."
        return Answer(label, "the default", text, None)
    gain = quality.shown_gain(point.gain)
    reached = f"{_subject(point, default)} reaches {_accuracies(point, default)}"
    text = f"{reached} ({gain}), {_pace(point)}.{_changed(point)}"
    return Answer(label, gain, text, point)


def _changed(point: Verified) -> str:
    """Say that a lossy exchange changes what is learned, and what the accuracy rests on."""
    words = changes(point.params)
    name = point.quality.name
    return f" Its {words}; the {name} is that of {point.full_runs} such runs." if words else ""


def _subject(point: Verified, default: Verified) -> str:
    """Name the subject of a sentence: "trial 4" or "the default with mkl, 2 threads"."""
    if point.role not in (Role.RUNTIME_ONLY, Role.STOPPED):
        return printable(point.name)
    changed = {
        name: value
        for name, value in point.params.items()
        if default.params.get(name) != value and name != "iterations"
    }
    setting = f"with {describe_params(changed) or 'its own setting'}"
    if point.role is Role.RUNTIME_ONLY:
        return f"the default {setting}"
    own, whole = iterations_of(point.params), iterations_of(default.params)
    where = f" {setting}," if changed else ""
    return f"the default, stopped after {own:,} of {whole:,} iterations,{where}"


def _times(point: Verified) -> str:
    return f"{_seconds(point)} instead of {format_seconds(point.default_time_s)} s"


def _seconds(point: Verified) -> str:
    return f"{format_seconds(point.train_time_s.value)} s"


def _accuracies(point: Verified, default: Verified) -> str:
    return f"{_test(point)} against {_figure(default)}"


def _test(point: Verified) -> str:
    return point.quality.shown_test(point.test_accuracy.value)


def _figure(point: Verified) -> str:
    return point.quality.shown(point.test_accuracy.value)


def _pace(point: Verified) -> str:
    if point.is_faster:
        return f"{point.speedup:.1f}x faster than the default"
    if point.is_slower:
        return f"{1 / point.speedup:.1f}x slower than the default"
    return "in no significantly different time"


def study_metrics(result: StudyResult) -> dict[str, float]:
    """Return the answers as figures to sort studies by.

    If nothing was proven, the default is the answer: a speed-up of 1, a gain of 0.

    Returns:
        ``no_loss_speedup``, ``no_loss_accuracy_gain``, ``runtime_only_speedup``,
        ``best_accuracy``, ``default_train_time_s``, ``default_accuracy`` (accuracies as
        fractions), all absent if nothing was verified; ``same_accuracy_speedup`` if only the
        first part of the default is known (the default's figures are then those of that part);
        ``elapsed_s``, ``trials``. Of a text, perplexity takes the place of accuracy, and
        ``no_loss_perplexity_ratio`` that of the gain: the perplexity divided by the default's.
    """
    figures = {"elapsed_s": result.elapsed_s, "trials": float(len(result.trials))}
    default, found = verified_default(result), result.answers
    if default is None:
        return figures
    lossless, quality, best = found.no_loss or default, default.quality, found.most_accurate
    if result.default_part:
        figures[f"same_{quality.name}_speedup"] = (same_accuracy(result) or default).speedup
    return figures | {
        "no_loss_speedup": lossless.speedup,
        f"no_loss_{quality.gain_key}": quality.plain_gain(lossless.gain),
        "runtime_only_speedup": (found.runtime_only or default).speedup,
        f"best_{quality.name}": quality.figure((best or default).test_accuracy.value),
        "default_train_time_s": default.train_time_s.value,
        f"default_{quality.name}": quality.figure(default.test_accuracy.value),
    }
