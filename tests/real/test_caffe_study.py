"""A whole study of real Caffe as a user runs it, then everything a user does with it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import pytest
import yaml
from playwright.sync_api import Page, sync_playwright

from tests.test_docs import ASKING
from tuner.config.catalogue import load_framework
from tuner.runtimes import ensure_installed, find_runtime
from tuner.values.errors import RuntimeUnavailable

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
CHROMIUM = shutil.which("chromium")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """The tuner, from a folder of the user's."""
    return subprocess.run(
        [sys.executable, "-m", "tuner", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where one quick study of Caffe has been run."""
    try:
        ensure_installed(find_runtime(load_framework("caffe")))
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("study")
    done = run(folder, "framework=caffe", "dataset=mnist_5k", "budget=quick", "resume=restart")
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stdout)
    return folder


def test_the_table_compares_with_the_first_part_of_the_default_and_says_so(folder):
    # of these 5,000 images no reference is recorded, and two minutes are no time for the whole
    said = " ".join((folder / "said.txt").read_text().split())
    assert re.search(r"the first [\d,]+ of 10,000 iterations", said)
    # two minutes on a noisy machine may prove nothing; then it has to say just that
    assert re.search(r"Same accuracy: .*(reaches [\d.]+ % after|nothing is proven)", said)
    assert "No loss:" not in said


def test_report_and_recommendation_come_from_mlflow(folder):
    copied = run(folder, "report", "framework=caffe", "dataset=mnist_5k", "to=report")
    assert copied.returncode == 0, copied.stderr
    front = json.loads((folder / "report" / "front.json").read_text())
    assert front["verified"][0]["name"] == "default"
    assert len(front["verified"]) >= 2
    assert (folder / "report" / "front.png").read_bytes().startswith(b"\x89PNG")
    asked = "recommend", "framework=caffe", "dataset=mnist_5k", "max_memory_mb=4000"
    unknown = run(folder, *asked)
    assert unknown.returncode == 4, "nothing is proven against the default's end"
    assert "max_accuracy_loss=none" in unknown.stderr
    found = run(folder, *asked, "max_accuracy_loss=none")
    assert found.returncode == 0, found.stderr
    answer = yaml.safe_load(found.stdout)
    assert f"base_lr: {answer['params']['learning_rate']}" in answer["settings"]
    assert "LD_LIBRARY_PATH" in answer["environment"]
    impossible = run(folder, "recommend", "framework=caffe", "dataset=mnist_5k", "max_memory_mb=1")
    assert impossible.returncode == 4
    assert "max_memory_mb=1" in impossible.stderr


@pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"
)
def test_the_ui_shows_the_study_its_trials_and_the_report_until_it_is_ended(folder, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # the command the README names, without any option but the port: it must find everything
    with (tmp_path / "ui.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tuner", "ui", f"port={port}"],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/health")
        experiment = _experiment(address, "caffe-mnist_5k")
        runs = f"{address}/#/experiments/{experiment}/runs"
        study = _run(address, experiment, "tags.`tuner.study_id` != ''")
        default = _run(address, experiment, "tags.kind = 'default'")
        with _browser() as page:
            page.goto(runs)
            page.get_by_text("caffe mnist_5k").first.wait_for()
            page.goto(f"{runs}/{default}")
            page.get_by_text("learning_rate").first.wait_for()
            page.get_by_text("val_accuracy").first.wait_for()
            page.goto(f"{runs}/{study}/artifacts/report.html")
            page.locator(".mlflow-html-iframe").wait_for()
            report = page.frame_locator(".mlflow-html-iframe")
            report.get_by_role("heading", name="Verified against the default").wait_for()
            report.locator(".main-svg").first.wait_for()
        server.terminate()
        server.wait(timeout=30)
        with pytest.raises(URLError):
            urllib.request.urlopen(f"{address}/health", timeout=2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(address, timeout=2).close()
        except OSError:
            assert time.monotonic() < deadline, "the MLflow UI did not start"
            time.sleep(0.5)
        else:
            return


def _ask(address: str, path: str, query: dict) -> dict:
    request = urllib.request.Request(
        f"{address}/api/2.0/mlflow/{path}",
        data=json.dumps(query).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def _experiment(address: str, name: str) -> str:
    found = _ask(address, "experiments/search", {"max_results": 100})["experiments"]
    return next(each["experiment_id"] for each in found if each["name"] == name)


def _run(address: str, experiment: str, query_text: str) -> str:
    query = {"experiment_ids": [experiment], "filter": query_text}
    return _ask(address, "runs/search", query)["runs"][0]["info"]["run_id"]


@contextlib.contextmanager
def _browser() -> Iterator[Page]:
    """A page of Debian's Chromium; nothing is downloaded."""
    flags = "--no-sandbox --disable-gpu --disable-quic --disable-background-networking"
    quiet = "--disable-component-update --disable-sync"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*flags.split(), *quiet.split()]
        )
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        page.set_default_timeout(60_000)
        yield page
        browser.close()


@pytest.mark.parametrize("command", ASKING)
def test_what_the_documents_ask_of_a_study_is_answered(folder, command):
    given = [word.replace("dataset=mnist", "dataset=mnist_5k") for word in command.split()[3:]]
    if given[0] == "recommend":  # a study of two minutes proves no loss of nothing
        given.append("max_accuracy_loss=none")
    done = run(folder, *given)
    assert done.returncode == 0, done.stderr
