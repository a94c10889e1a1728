"""A service of its own for tests, asked over HTTP, and what it finds on record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import requests

from tests.report_samples import make_study
from tuner.report import front_json
from tuner.service.server import TOKEN
from tuner.tracking import Tracker


def keep(folder: Path, requested: str = "", **changes) -> None:
    """A study in the MLflow of a folder, as a run would have left it.

    ``requested`` is the data set that was asked for, where another one replaced it.
    """
    study = make_study(**changes)
    tracker = Tracker(
        f"sqlite:///{folder}/mlflow.db",
        folder,
        experiment=f"{study.framework}-{requested or study.dataset}",
        study_id=study.study_id,
        name=study.study_id,
        tags={"fingerprint": "x", "dataset_requested": requested or study.dataset},
        params={},
    )
    front = folder / "front.json"
    front.write_text(json.dumps(front_json(study)))
    tracker.finish([front], {})


class Service:
    """A running server."""

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        environment = {name: text for name, text in os.environ.items() if name != TOKEN}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tuner", "serve", "port=0", f"output={folder}", *words],
            cwd=folder,
            env={**environment, "TUNER_HOME": str(folder / "home"), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("http://"), self.process.communicate()[1]

    def get(self, path: str, headers=None, **asked) -> requests.Response:
        return requests.get(f"{self.address}{path}", params=asked, headers=headers, timeout=10)

    def stop(self) -> tuple[int, str]:
        self.process.terminate()
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said
