"""Recommendation of the proven setting of a user's own program, from its study's ``wrap.json``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.recommendation.evidence import EXPIRES_AFTER_S
from tuner.recommendation.this_machine import ThisMachine
from tuner.tracking import StudyRecord
from tuner.values.errors import NothingRecommended
from tuner.wrap.objective import Objective

_NEEDED = {
    "command_line",
    "no_loss",
    "accuracy",
    "params",
    "environment",
    "speedup",
    "fingerprint",
    "machine",
}


def recommend_program(
    program: str, records: Sequence[StudyRecord], objective: Objective = Objective.TIME
) -> dict[str, Any]:
    """Return the setting that the newest study of an objective with a proof found for a program.

    One that was measured on this machine, and with the files of the newest study of all, goes
    before others.

    Args:
        program: The program's name, such as ``train.py``.
        records: Its studies, the newest first, each with its ``wrap.json`` as front.
        objective: What the study minimised.

    Returns:
        ``program``, ``command`` (with the setting, for a shell), ``no_loss`` (whether that is
        proven; ``None`` if accuracy was not read), ``assurance``, ``params``, ``environment``,
        ``objective``, ``gain`` (how many times less of it is needed) and ``speedup`` (how many
        times as fast it is), both with their intervals, ``all_disturbed`` (whether other work on
        the machine disturbed every run of the proof; ``None`` if that is not on record),
        ``evidence``, ``stale`` (whether it was measured on another machine, or with other files
        than the newest study) and ``note`` (which of these, in words; ``None`` if it is not
        stale).

    Raises:
        NothingRecommended: If there is no study, or it proved no setting.
    """
    if not records:
        raise NothingRecommended(
            f"no study of {program} is on record here; run python -m tuner wrap -- … first, or "
            "say where it was tracked (output=, tracking_uri=)"
        )
    proven = [
        each for each in records if each.front.get("proven") and each.front.keys() >= _NEEDED
    ]
    fitting = [each for each in proven if _objective(each) == objective.value]
    if not fitting:
        others = [each for each in Objective if each.value in map(_objective, proven)]
        known = "its own is the best that is known"
        if others:
            known = f"one is proven to {others[0].better}: objective={others[0].value}"
        raise NothingRecommended(
            f"no setting of {program} is proven to {objective.better}; {known}"
        )
    here = ThisMachine()
    notes = [_outdated(each, records[0], here) for each in fitting]
    record, note = min(zip(fitting, notes, strict=True), key=lambda pair: pair[1] != "")
    found = record.front
    return {
        "program": program,
        "command": found["command_line"],
        "no_loss": found["no_loss"],
        "assurance": found["accuracy"],
        "params": dict(found["params"]),
        "environment": dict(found["environment"]),
        "objective": objective.value,
        "gain": _interval(found.get("gain", found["speedup"])),
        "speedup": _interval(found["speedup"]),
        "all_disturbed": found.get("all_disturbed"),
        "evidence": {
            "study_run_id": record.run_id,
            "run_ids": list(record.run_ids.values()),
            "age_s": round(time.time() - record.ended),
            "expires": round(record.ended + EXPIRES_AFTER_S),
            "fingerprint": found["fingerprint"],
        },
        "stale": note != "",
        "note": note or None,
    }


def _outdated(record: StudyRecord, newest: StudyRecord, here: ThisMachine) -> str:
    """Return why what a study proved may hold no more; empty if nothing speaks against it."""
    if here.differs_from(record):
        return "measured on another machine, or with another kernel or version of Python"
    if record.front.get("gpu") == "hidden":
        return "measured on the CPU: the sandbox hid the GPU, whose libraries the program loads"
    then, now = _files(record), _files(newest)
    if then is None or now is None:  # of an older version of the tuner
        return "which version of its files was measured is not on record" if now else ""
    changed = [name for name in then if now.get(name, then[name]) != then[name]]
    return f"a newer study was of another version of {changed[0]}" if changed else ""


def _files(record: StudyRecord) -> Mapping[str, str] | None:
    """Return the digests of the files that a study measured; ``None`` if not on record."""
    files = record.front.get("files")
    return files if isinstance(files, Mapping) else None


def _objective(record: StudyRecord) -> str:
    """Return what a study minimised; those before there was a choice minimised the time."""
    return str(record.front.get("objective", Objective.TIME.value))


def _interval(ends: Sequence[float]) -> dict[str, float]:
    value, low, high = ends
    return {"value": value, "low": low, "high": high}
