"""The folder of a program, packed for the nodes of a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

from tuner.wrap import packing
from tuner.wrap.program import Brought, Program


def test_a_folder_that_is_too_large_is_not_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "_MAX_SENT_BYTES", 10_000)
    (tmp_path / "train.py").write_text("pass")
    assert packing.pack(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(bytes(20_000))
    assert packing.pack(tmp_path), "what the tuner writes is not sent"
    (tmp_path / "images").write_bytes(bytes(20_000))
    assert packing.pack(tmp_path) == b""


def test_a_copy_is_placed_only_where_the_folder_is_another(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "train.py").write_text("sent")
    python = Path(sys.executable)
    program = Program(
        (sys.executable, "train.py"),
        folder,
        readable=(folder / "data", tmp_path),
        brought=Brought(python, {}),
    )
    sent = packing.state_of(program), packing.pack(folder), tmp_path / "copy"
    assert packing.place_program(program, *sent) is program
    (folder / "train.py").write_text("another")
    placed = packing.place_program(program, *sent)
    assert placed.here(folder / "train.py").read_text() == "sent"
    assert placed.readable == (tmp_path,), "the copy holds what is in the folder"
