"""Write the three files of a report, each atomically."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tuner.report.front import front_json
from tuner.values.errors import StorageError
from tuner.values.extras import missing_extra
from tuner.values.results import StudyResult

REPORT_FILES = ("report.html", "front.png", "front.json")
"""What a report consists of, in the order in which it is written."""


def drawing_missing() -> str:
    """Return what page and picture need and is not installed; empty if they can be drawn."""
    return missing_extra("report", "plotly", "matplotlib")


def report_lacks_files(folder: Path) -> bool:
    """Return whether ``folder`` has less of a report than can be written here."""
    files = REPORT_FILES[-1:] if drawing_missing() else REPORT_FILES
    return not all((folder / name).exists() for name in files)


def write_report(result: StudyResult, folder: Path) -> list[Path]:
    """Write ``report.html``, ``front.png`` and ``front.json`` into ``folder``.

    The folder is created if needed. Each file is written atomically: readers never see half of
    one, even after an interruption.

    Returns:
        The three paths, in that order; only the last one where ``drawing_missing``.

    Raises:
        StorageError: If the folder cannot be written to.
    """
    data = json_bytes(front_json(result))
    if drawing_missing():
        return write_files(folder, data)
    # the drawing libraries take a second to import: a failing study skips that
    from tuner.report.page import render_page
    from tuner.report.picture import draw_front

    return write_files(folder, data, render_page(result), draw_front(result))


def json_bytes(document: dict[str, Any]) -> bytes:
    """Encode a document of ``front.json`` as strict JSON: no NaN, no infinity."""
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


def write_files(folder: Path, data: bytes, page: str = "", picture: bytes = b"") -> list[Path]:
    """Write each file of a report that has contents, atomically; create ``folder`` if needed.

    Returns:
        The paths, in the order of ``REPORT_FILES``.

    Raises:
        StorageError: If the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        contents = zip(REPORT_FILES, (page.encode(), picture, data), strict=True)
        return [_write(folder / name, content) for name, content in contents if content]
    except OSError as error:
        raise StorageError(f"the report cannot be written to {folder}: {error}") from error


def _write(path: Path, content: bytes) -> Path:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)  # with mkstemp's 0600 a web server could not read it
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
