"""The command line in the tests' own process: a start of Python and its imports take seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import MLFLOW, add_database
from tuner.__main__ import main


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]
"""Runs ``tuner`` with these words, and with these variables set."""


@pytest.fixture(name="tuner")
def fixture_tuner(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Run commands from an empty folder that has MLflow's tables already."""
    assert home.parent == tmp_path
    add_database(tmp_path, MLFLOW)
    monkeypatch.delenv("TUNER_DATA_MIRROR", raising=False)

    def run(*words: str, cwd: Path = tmp_path, **variables: str) -> Done:
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            for name, value in variables.items():
                patch.setenv(name, value)
            capfd.readouterr()
            try:
                code = main(list(words))
            except SystemExit as end:
                code = int(end.code or 0)
        return Done(code, *capfd.readouterr())

    return run
