"""Recommendation of the proven setting of a user's own program, from its study's ``wrap.json``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tuner.recommendation.evidence import EXPIRES_AFTER_S
from tuner.tracking import StudyRecord
from tuner.values.errors import NothingRecommended

_NEEDED = {
    "command_line",
    "no_loss",
    "accuracy",
    "params",
    "environment",
    "speedup",
    "fingerprint",
}


def recommend_program(program: str, records: Sequence[StudyRecord]) -> dict[str, Any]:
    """Return the setting that the newest study with a proof found for a program.

    Args:
        program: The program's name, such as ``train.py``.
        records: Its studies, the newest first, each with its ``wrap.json`` as front.

    Returns:
        ``program``, ``command`` (with the setting, for a shell), ``no_loss`` (whether that is
        proven; ``None`` if accuracy was not read), ``assurance``, ``params``, ``environment``,
        ``speedup`` with its interval, and ``evidence``.

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
    if not proven:
        raise NothingRecommended(
            f"no setting of {program} is proven to be faster; its own is the best that is known"
        )
    record = proven[0]
    found = record.front
    value, low, high = found["speedup"]
    return {
        "program": program,
        "command": found["command_line"],
        "no_loss": found["no_loss"],
        "assurance": found["accuracy"],
        "params": dict(found["params"]),
        "environment": dict(found["environment"]),
        "speedup": {"value": value, "low": low, "high": high},
        "evidence": {
            "study_run_id": record.run_id,
            "run_ids": list(record.run_ids.values()),
            "age_s": round(time.time() - record.ended),
            "expires": round(record.ended + EXPIRES_AFTER_S),
            "fingerprint": found["fingerprint"],
        },
    }
