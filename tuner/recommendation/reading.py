"""Evidence read from the records of studies, which anybody may have written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.measure import fingerprint
from tuner.recommendation.evidence import MARGIN, Evidence
from tuner.recommendation.layouts import Layouts
from tuner.tracking import StudyRecord
from tuner.values.errors import DamagedStudy
from tuner.values.quality import Quality


def evidence_of(record: StudyRecord) -> list[Evidence]:
    """Return the verified points of one study.

    Raises:
        DamagedStudy: If its ``front.json`` lacks or garbles something that an answer needs.
    """
    try:
        _check(record.front)
        found = _evidence_of(record)
        for each in found:  # all that is read later must be there
            each.summary()
            _ = each.assurance, each.difference, each.default_accuracy, each.loss_ruled_out
            _ = each.job_time_s, each.job_figure
    except Exception as error:  # whoever writes to MLflow writes any front.json
        raise DamagedStudy(f"its front.json lacks or garbles {error}") from error
    return found


def _check(front: Mapping[str, Any]) -> None:
    """Raise an error, of any kind, if an answer could not be read from a study's front."""
    front["trials"].items()
    fingerprint(front["machine"], front["runtime"])
    for point in front.get("verified", []):
        point["params"].items()
        if not 0 < float(point["train_time_s"]["value"]) < math.inf:
            raise ValueError("train_time_s")


def _evidence_of(record: StudyRecord) -> list[Evidence]:
    front = record.front
    verified: Sequence[Mapping[str, Any]] = front.get("verified", [])
    default = next((each for each in verified if each.get("comparison") is None), {})
    cores = str(front["machine"].get("cores", "")).split()
    data: Mapping[str, Any] = front.get("dataset_facts") or {}
    layouts = Layouts.of(front)
    said: Mapping[str, Any] = front.get("quality") or {}
    quality = Quality(str(said.get("name", "accuracy")), int(said.get("words", 0)))
    return [
        Evidence(
            params=point["params"],
            figures=point,
            run_ids=tuple(
                record.run_ids[name] for name in point["runs"] if name in record.run_ids
            ),
            study=record.run_id,
            framework=str(front.get("framework", "")),
            model=str(front.get("model", "default")),
            fingerprint=fingerprint(front["machine"], front["runtime"]),
            measured_at=record.ended,
            dataset=str(front.get("dataset", "")),
            requested=record.requested,
            cores=int(cores[0]) if cores and cores[0].isdecimal() else 0,
            jobs_per_host=int(front["machine"].get("jobs_per_host", 1)),
            default=default,
            margin=quality.loss_of(float(front.get(f"{quality.name}_margin", MARGIN))),
            quality=quality,
            reference=str(front.get("reference") or ""),
            default_part=str(front.get("default_part") or ""),
            sandboxed=front["machine"].get("sandbox") != "off",
            drift=record.drift,
            drift_found=float(record.drift_found) if record.drift_found.isdecimal() else 0.0,
            like=str(data.get("defaults_of", "")),
            digest=str(data.get("digest", "")),
            layouts=layouts,
        )
        for point in verified
    ]
