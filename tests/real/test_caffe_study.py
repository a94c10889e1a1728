"""A whole study of real Caffe as a user runs it, then everything a user does with it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Page, sync_playwright

from tests.conftest import SYNTHETIC
from tuner.config.catalogue import load_framework
from tuner.runtimes import ensure_installed, find_runtime
from tuner.values.errors import RuntimeUnavailable

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).parents[2]
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
def test_mlflow_ui_shows_the_study_its_trials_and_the_report(folder, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # the command the README names, without any option but the port: it must find everything
    with (tmp_path / "ui.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "ui", "--port", str(port)],
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
    finally:
        os.killpg(server.pid, 15)
        server.wait(timeout=30)


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


def _shown_commands() -> list[str]:
    text = "".join((ROOT / name).read_text() for name in ("README.md", "docs/settings.md"))
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]
    return [line.partition("  #")[0].strip() for line in lines]


SERVERS = ("python -m tuner ui", "python -m tuner serve", "mlflow ui")


@pytest.mark.parametrize("command", _shown_commands())
def test_every_command_that_the_documents_show_runs(folder, tmp_path, command):
    if command.startswith(("make", "cd ", "git ")) or command in SERVERS:
        # make targets are what runs this test; the servers have a test of their own above
        target = command.split()[1] if command.startswith("make") else ""
        assert target in ("", "tune", "test", "test-all", "check", "install", "clean")
        return
    words = shlex.split(command)
    if words[1].startswith("benchmarks/"):
        short = [sys.executable, *words[1:], "--trials", "5"]
        assert subprocess.run(short, cwd=ROOT, capture_output=True, check=False).returncode == 0
        return
    assert words[:3] == ["python", "-m", "tuner"], command
    given = words[3:]
    asks = bool(given) and "=" not in given[0]
    if asks and given[0] in ("recommend", "report"):
        given = [word.replace("dataset=mnist", "dataset=mnist_5k") for word in given]
        given = [word for word in given if not word.startswith("min_accuracy")]
        if given[0] == "recommend":  # a study of two minutes proves no loss of nothing
            given.append("max_accuracy_loss=none")
        done = run(folder, *given)
    elif asks and given[0] == "reference":  # the same of what takes seconds
        synthetic = [f"framework_path={SYNTHETIC}", "framework=synthetic", "dataset=digits"]
        synthetic.append("search.probe_s=0.0005")
        done = run(tmp_path, "reference", *synthetic, "seeds=2", f"to={tmp_path}/references")
    elif asks and given[0] == "wrap":  # of a program that takes a second
        (tmp_path / "train.py").write_text("import time; time.sleep(1)")
        at = given.index("--")
        done = run(tmp_path, *given[:at], "--budget", "5", "--", sys.executable, *given[at + 2 :])
    elif asks:
        done = run(tmp_path, *given)
    else:  # a study: the same overrides, on the synthetic framework, which takes seconds
        kept = [word for word in given if not word.startswith(("framework", "dataset", "budget="))]
        tree = [f"framework_path={SYNTHETIC}", "framework=synthetic", "dataset=digits"]
        tree.append("search.probe_s=0.0005")  # its clock only reckons
        if "experiment=cross_framework" in kept:
            tree.append("frameworks=[synthetic]")
        limits = ["budget.time_s=20", "budget.trials=3", f"output={tmp_path}"]
        done = run(tmp_path, *tree, *kept, *limits)
    assert done.returncode == 0, done.stderr
