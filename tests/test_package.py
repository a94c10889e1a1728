"""The wheel carries everything and works from any folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """The wheel as pip builds it from a clean export of the checkout, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True)
    (wheel,) = folder.glob("tuner-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_settings_and_workers_travel_with_it(unpacked):
    inside = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    for tree, home in (("conf", "tuner"), ("search_spaces", "tuner"), ("tuner", "")):
        for path in (ROOT / tree).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert str(Path(home) / path.relative_to(ROOT)) in inside


def test_it_runs_from_any_folder(unpacked, tmp_path):
    def run(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "tuner", *words],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(unpacked), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    where = subprocess.run(
        [sys.executable, "-c", "import tuner; print(tuner.__file__)"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(unpacked))
    assert "caffe" in run("--help").stdout
    assert "there are: caffe" in run("framework=cafe").stderr
    assert "caffe: not installed" in run("runtimes", "list").stdout
    assert list(tmp_path.iterdir()) == []
