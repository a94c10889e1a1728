"""Write the three files of a report, each atomically."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
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

    def draw() -> tuple[str, bytes]:
        # the drawing libraries take a second to import: a failing study skips that
        from tuner.report.page import render_page
        from tuner.report.picture import draw_front

        return render_page(result), draw_front(result)

    return write_files(folder, front_json(result), draw)


def write_files(
    folder: Path, document: dict[str, Any], draw: Callable[[], tuple[str, bytes]]
) -> list[Path]:
    """Write the files of a report; see ``write_report``.

    Args:
        folder: Where they go.
        document: Content of ``front.json``; numbers must be finite, as in strict JSON.
        draw: Returns the page, and the bytes of the picture.
    """
    page, picture = ("", b"") if drawing_missing() else draw()
    data = json.dumps(document, indent=2, allow_nan=False) + "\n"
    return write_contents(folder, dict(zip(REPORT_FILES, (page, picture, data), strict=True)))


def write_contents(folder: Path, contents: Mapping[str, str | bytes]) -> list[Path]:
    """Write files into ``folder``, each atomically; one without content is left out.

    Args:
        folder: Created if needed.
        contents: Content by name.

    Returns:
        The paths of those that were written.

    Raises:
        StorageError: If the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [
            _write(folder / name, each.encode() if isinstance(each, str) else each)
            for name, each in contents.items()
            if each
        ]
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
