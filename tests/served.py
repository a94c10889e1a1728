"""Services for tests, asked over HTTP, and what they find on record."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import requests
import uvicorn
from fastapi import FastAPI

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


class Client:
    """Asks a service at an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, headers=None, **asked) -> requests.Response:
        return requests.get(f"{self.address}{path}", params=asked, headers=headers, timeout=60)

    def post(self, path: str, **sent) -> requests.Response:
        return requests.post(f"{self.address}{path}", json=sent, timeout=60)


@contextlib.contextmanager
def served_here(app: FastAPI) -> Iterator[Client]:
    """A service in this process, which saves the seconds that another one takes to start."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while thread.is_alive() and not server.started:
            time.sleep(0.01)
        try:
            yield Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join()


class Service(Client):
    """A service in a process of its own, as users start it."""

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
        super().__init__(self.process.stdout.readline().strip())
        assert self.address.startswith("http://"), self.process.communicate()[1]

    def stop(self) -> tuple[int, str]:
        self.process.terminate()
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said
