"""Write the report across frameworks: a page, a picture and data for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuner.report.cross.ledger import finest, no_loss_mean, reasons, titles
from tuner.report.files import write_files
from tuner.report.front import SCHEMA, front_json, plain_values
from tuner.values.results import CrossResult, StudyResult, front_of


def write_cross_report(result: CrossResult, folder: Path) -> list[Path]:
    """Write the same files as ``write_report`` for a comparison across frameworks."""

    def draw() -> tuple[str, bytes]:
        # the drawing libraries take a second to import: a failing study skips that
        from tuner.report.cross.page import render_cross_page
        from tuner.report.cross.picture import draw_cross

        return render_cross_page(result), draw_cross(result)

    return write_files(folder, cross_json(result), draw)


def cross_json(result: CrossResult) -> dict[str, Any]:
    """Return the comparison as plain JSON values, in the units of ``front_json``.

    Returns:
        ``cross_id``, ``dataset``, ``model``, ``machine``, ``warnings``, ``budget_s``,
        ``complete``, ``command``; ``ledger`` (one entry per framework: ``framework``, ``title``,
        ``study_id``, ``answers``, ``default`` and ``best`` as in a study's ``verified``);
        ``no_loss_geometric_mean`` (a ratio; unproven ones count as 1); ``front`` (over all
        frameworks on the validation split, unverified: ``framework``, ``trial_number``,
        ``params``, ``metrics``); ``left_out`` (``framework``, ``reason``); ``studies`` (each
        framework's whole ``front_json``).
    """
    studies = {each.framework: front_json(each) for each in result.studies}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        **{name: getattr(result, name) for name in _AS_THEY_ARE},
        "ledger": [
            _entry(each, titles(result)[each.framework], studies[each.framework])
            for each in result.studies
            if each.verified
        ],
        "no_loss_geometric_mean": no_loss_mean(result),
        "front": _front(result),
        "left_out": [
            {"framework": each.framework, "reason": reason}
            for each, (_, reason) in zip(result.left_out, reasons(result), strict=True)
        ],
        "studies": studies,
    }
    plain: dict[str, Any] = plain_values(document)
    return plain


_AS_THEY_ARE = (
    "cross_id", "dataset", "model", "machine", "warnings", "budget_s", "complete", "command",
)  # fmt: skip


def _entry(study: StudyResult, title: str, document: dict[str, Any]) -> dict[str, Any]:
    by_name = {each["name"]: each for each in document["verified"]}
    return {
        "framework": study.framework,
        "title": title,
        "study_id": study.study_id,
        "answers": document["answers"],
        "default": document["verified"][0],
        "best": by_name[finest(study).name],
    }


def _front(result: CrossResult) -> list[dict[str, Any]]:
    owned = [(study, point) for study in result.studies for point in study.points]
    owners = {id(point): study for study, point in owned}
    return [
        {
            "framework": owners[id(each)].framework,
            "trial_number": each.trial.number,
            "params": each.params,
            "metrics": each.metrics,
        }
        for each in front_of([point for _, point in owned], result.objectives)
    ]
