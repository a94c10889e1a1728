"""Write the three files of a report, each atomically."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.report.front import front_json
from tuner.values.errors import StorageError
from tuner.values.results import StudyResult


def write_report(result: StudyResult, folder: Path) -> list[Path]:
    """Write ``report.html``, ``front.png`` and ``front.json`` into ``folder``.

    The folder is created if needed. Each file is written atomically: readers never see half of
    one, even after an interruption.

    Returns:
        The three paths, in that order.

    Raises:
        StorageError: If the folder cannot be written to.
    """
    # the drawing libraries take a second to import: a failing study skips that
    from tuner.report.page import render_page
    from tuner.report.picture import draw_front

    contents = {
        "report.html": render_page(result).encode(),
        "front.png": draw_front(result),
        "front.json": json_bytes(front_json(result)),
    }
    return write_files(contents, folder)


def json_bytes(document: dict[str, Any]) -> bytes:
    """Encode a document of ``front.json`` as strict JSON: no NaN, no infinity."""
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


def write_files(contents: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write each file atomically; create ``folder`` if needed.

    Raises:
        StorageError: If the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_write(folder / name, content) for name, content in contents.items()]
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
