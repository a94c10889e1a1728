"""Workers that attack the host, ready to run, and a home folder that none may touch."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.config.catalogue import framework_folder, load_framework
from tuner.runtimes import find_runtime
from tuner.trials.session import TrialSetup
from tuner.values.trial import Trial, TrialKind

HOSTILE = Path(__file__).parent
SECRET = "nobody's business"
Attack = Callable[..., Trial]


@pytest.fixture
def decoy(tmp_path: Path) -> Iterator[Path]:
    """A home folder that no attack may read or change."""
    folder = tmp_path / "decoy"
    folder.mkdir()
    (folder / "precious").write_text("for ever")
    (folder / "secret").write_text(SECRET)
    before = digest_of(folder)
    yield folder
    assert digest_of(folder) == before


def digest_of(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def hostile(setup: TrialSetup, tmp_path: Path) -> TrialSetup:
    framework = load_framework("hostile", str(HOSTILE))
    return dataclasses.replace(
        setup,
        framework=framework,
        runtime=find_runtime(framework, tmp_path / "home"),
        worker=framework_folder("hostile", str(HOSTILE)) / framework.worker,
    )


@pytest.fixture
def attack(decoy: Path) -> Attack:
    def make(name: str, number: int = 1, **fields: object) -> Trial:
        params = {
            "batch_size": 10,
            "iterations": 100,
            "learning_rate": 0.1,
            "blas": "none",
            "threads": 1,
            "attack": name,
            "decoy": str(decoy),
        }
        fields = {"time_limit_s": 10.0, **fields}
        return Trial(number, params, TrialKind.SEARCH, **fields)

    return make
