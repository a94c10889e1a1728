"""A study's report as data for programs: ``front.json``."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import Counter
from typing import Any

from tuner.report.answers import same_accuracy
from tuner.report.wording import in_unit, plain_gain
from tuner.values.exchange import lossy
from tuner.values.quality import Quality
from tuner.values.results import StudyResult
from tuner.values.runtime_map import RuntimeMap
from tuner.values.trial import Interval, TrialResult
from tuner.values.verified import Comparison, CostRatio, Verified

SCHEMA = 1


def front_json(result: StudyResult) -> dict[str, Any]:
    """Return the study as plain JSON values.

    Under one ``schema`` number, keys are only ever added. Units are in the names: ``*_s``
    seconds, ``*_bytes``, ``*_mb`` MiB, ``*_pct`` percent of the trial's cores. Accuracies are
    fractions 0–1, and gains differences of them. ``speedup`` is a ratio (2.0 is twice as fast as
    the default). ``cpu_ratio`` and ``memory_ratio`` are costs divided by the default's (0.5 is
    half). Of a text, ``perplexity`` takes the place of ``accuracy`` in all names;
    ``perplexity_ratio``, a perplexity divided by the default's, that of ``accuracy_gain``; and
    ``perplexity_margin`` and ``perplexity_loss_ruled_out``, parts of the default's, those of
    ``accuracy_margin`` and ``accuracy_loss_ruled_out``. An interval is
    ``{"value", "low", "high"}`` in the unit of its name, at the ``confidence`` of its entry in
    ``verified``; ``iteration_s`` at 95 %. A value that was not measured is ``null`` or absent.

    Returns:
        ``study_id``, ``framework``, ``title``, ``dataset``, ``dataset_facts``, ``model``,
        ``quality`` (``name``: ``accuracy``, or ``perplexity`` over so many ``words``),
        ``objectives``, ``constraints``; ``default`` (trial 0: ``name``, ``trial_number``,
        ``params``, ``metrics``, ``projected``, ``disturbed``; ``null`` before it has ended);
        ``answers`` (the ``name`` of the verified configuration for each of ``no_loss``,
        ``runtime_only``, ``most_accurate`` and ``same_accuracy``; ``null`` if nothing was proven.
        ``same_accuracy`` replaces the others if only the first part of the default is known);
        ``verified`` (the default first: ``name``, ``role``, ``trial_number``, ``params``, the
        figures, ``job_time_s`` and ``job_accuracy`` (with the intervals of one further run),
        ``accuracy_from``, ``stop_of`` (the longer training whose runs were evaluated on the way,
        where this one stops), ``verdict``, ``changes_learning`` (whether a lossy exchange of
        gradients changes what is learned), ``runs``, and the ``comparison`` with the
        default: ``speedup``, ``accuracy_gain``, ``cpu_ratio`` and ``memory_ratio`` with p-values,
        ``no_loss``, ``no_loss_looks``, ``accuracy_loss_ruled_out`` (the least loss of which it is
        proven to lose no more, with the level for all looks and configurations; below 0 for a
        gain); ``accuracy_kept`` is the former name of ``no_loss``);
        ``accuracy_margin`` (the loss that counts as none), ``reference`` (where the default's
        accuracy comes from, in words; empty for its own run), ``default_part`` (the first part of
        the default that everything is compared with, in words; empty for the whole), ``notes``;
        ``front`` (on the validation split, unverified, same keys as ``default``); ``trials``
        (counts by status);
        ``runtimes`` (results of the race of the runtime settings: ``setting``, ``iteration_s``
        by batch size; in the order of their least ratio to the fastest at any batch size;
        ``null`` without a race);
        ``groups`` (by number of processes and threads and the ``exchange`` of gradients, which
        changes what is learned unless it is ``exact``; fastest first, at the default's batch size:
        ``samples_s``, ``speedup`` over one process with as many threads, ``efficiency``,
        ``against_one``, the ratio to the fastest single process (each ``null`` if that process
        is not known), and ``sent_bytes`` an iteration; empty if no setting has several
        ``workers``);
        ``discarded_measurements``; ``machine``, ``runtime``, ``versions``, ``budget``,
        ``warnings``, ``started``, ``elapsed_s``, ``complete``, ``command``.
    """
    default, quality = result.default, result.quality
    document = {
        "schema": SCHEMA,
        **{name: getattr(result, name) for name in _AS_THEY_ARE},
        "quality": dataclasses.asdict(quality),
        f"{quality.name}_margin": quality.plain_loss(result.accuracy_margin),
        "objectives": [
            {"name": each.name, "metric": each.metric, "direction": each.direction.value}
            for each in result.objectives
        ],
        "default": _trial(default) if default else None,
        "answers": _answers(result),
        "verified": [_verified(each) for each in result.verified],
        "front": [_trial(each) for each in result.front],
        "trials": dict(Counter(each.status.value for each in result.trials)),
        "discarded_measurements": result.discarded,
        "runtimes": _runtimes(result.runtimes) if result.runtimes else None,
        "groups": [
            dataclasses.asdict(each) | {"efficiency": each.efficiency} for each in result.groups
        ],
        "versions": framework_versions(result),
    }
    plain: dict[str, Any] = plain_values(document)
    return plain


_AS_THEY_ARE = (
    "study_id", "framework", "title", "dataset", "dataset_facts", "model", "constraints",
    "machine", "runtime", "warnings", "started", "elapsed_s", "budget", "complete", "command",
    "reference", "default_part", "notes",
)  # fmt: skip


def _answers(result: StudyResult) -> dict[str, str | None]:
    """Return the names of the verified configurations that are the answers."""
    answers = result.answers
    found = {each.name: getattr(answers, each.name) for each in dataclasses.fields(answers)}
    found["same_accuracy"] = same_accuracy(result) if result.default_part else None
    if result.quality.is_perplexity:
        found["lowest_perplexity"] = found.pop("most_accurate")
        found["same_perplexity"] = found.pop("same_accuracy")
    return {question: point.name if point else None for question, point in found.items()}


def _runtimes(runtimes: RuntimeMap) -> list[dict[str, Any]]:
    return [
        {
            "setting": setting,
            "iteration_s": {
                str(size): _interval(runtimes.iteration_s(setting, size))
                for size in runtimes.batch_sizes
                if runtimes.was_probed(setting, size)
            },
        }
        for setting in runtimes.contenders(math.inf)
    ]


def framework_versions(result: StudyResult) -> dict[str, str]:
    """Return the versions of framework, interpreter and libraries that a trial reported."""
    return next((dict(each.versions) for each in result.trials if each.versions), {})


def _trial(result: TrialResult) -> dict[str, Any]:
    return {
        "name": result.trial.title,
        "trial_number": result.trial.number,
        "params": result.params,
        "metrics": result.metrics,
        "projected": result.trial.share < 1,
        "disturbed": result.measurement.disturbed if result.measurement else "",
    }


def _verified(point: Verified) -> dict[str, Any]:
    quality = point.quality
    figures: dict[str, Any] = {
        name: _interval(value) if isinstance(value, Interval) else value
        for name in point.__dataclass_fields__
        if name not in ("against_default", "quality")
        for value in [getattr(point, name)]
    }
    if quality.is_perplexity:
        del figures["test_accuracy"]
        figures["test_perplexity"] = _interval(in_unit(quality, point.test_accuracy))
        del figures["job_accuracy"]
        if point.job_accuracy:
            figures["job_perplexity"] = _interval(in_unit(quality, point.job_accuracy))
        figures["perplexity_from"] = figures.pop("accuracy_from")
        if point.composed and point.composed[1] is not None:
            figures["composed"] = (point.composed[0], quality.figure(point.composed[1]))
    versus = point.against_default
    told = {"verdict": point.verdict, "changes_learning": lossy(point.params) is not None}
    return {**figures, **told, "comparison": _comparison(versus, quality)}


def _comparison(versus: Comparison | None, quality: Quality) -> dict[str, Any] | None:
    if versus is None:
        return None
    return {
        "speedup": _interval(versus.speedup),
        "speedup_p": versus.speedup_p,
        quality.gain_key: _interval(plain_gain(quality, versus.accuracy_gain)),
        f"{quality.name}_p": versus.accuracy_p,
        "no_loss": versus.no_loss,
        "no_loss_looks": versus.no_loss_looks,
        f"{quality.name}_loss_ruled_out": quality.plain_loss(versus.loss_ruled_out),
        **({} if quality.is_perplexity else {"accuracy_kept": versus.no_loss}),
        "cpu_ratio": _cost(versus.cpu),
        "memory_ratio": _cost(versus.memory),
    }


def _cost(cost: CostRatio | None) -> dict[str, Any] | None:
    return dataclasses.asdict(cost) if cost else None


def _interval(interval: Interval) -> dict[str, float]:
    return dataclasses.asdict(interval)


def plain_values(value: Any) -> Any:
    """Convert ``value`` to strict JSON values; NaN and infinity become ``None``."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "items"):
        return {str(name): plain_values(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(each) for each in value]
    return value
