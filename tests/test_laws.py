"""The rules of the code, read from its source: floors, circles, homes, sizes."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tuner.config.catalogue import list_frameworks

PROJECT = Path(__file__).parent.parent
PACKAGE = PROJECT / "tuner"
MAX_LINES = 450

ROOMS = (
    "values",
    "config",
    "measure",
    "progress",
    "datasets",
    "runtimes",
    "storage",
    "trials",
    "executors",
    "convergence",
    "verification",
    "search",
    "race",
    "tracking",
    "report",
    "study",
    "wrap",
    "recommendation",
    "api",
    "service",
    "cli",
    "__main__",
)
"""What lies directly below ``tuner``, from the ground up; each imports from those before it."""

HOMES = {
    "hydra": {"config"},
    "mlflow": {"tracking"},
    "optuna": {"search"},
    "psutil": {"measure"},
    "plotly": {"report"},
    "jinja2": {"report", "service"},
    "fastapi": {"service"},
    "matplotlib": {"report"},
    "PIL": {"datasets"},
    "moocore": {"values"},
    "ray": {"executors", "search"},
}
"""The one place that may import each big third-party package, at any depth."""


def is_worker_code(path: Path) -> bool:
    return path.relative_to(PACKAGE).parts[0] in ("frameworks", "worker_api")


HOST_FILES = sorted(each for each in PACKAGE.rglob("*.py") if not is_worker_code(each))
WORKER_FILES = sorted(each for each in PACKAGE.rglob("*.py") if is_worker_code(each))


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> set[str]:
    """Modules that a file imports, at any depth."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(str(node.module))
    return found


@functools.cache
def host() -> grimp.ImportGraph:
    """All imports of the host, those inside functions included."""
    graph = grimp.build_graph(
        "tuner", include_external_packages=True, exclude_type_checking_imports=True
    )
    # the package itself offers the functions of its api, and imports them when they are asked for
    graph.remove_import(importer="tuner", imported="tuner.api")
    return graph


def room_of(module: str) -> str:
    """``report`` of ``tuner.report.front``."""
    return module.split(".")[1]


def test_every_module_is_in_a_room():
    assert host().find_children("tuner") == {f"tuner.{room}" for room in ROOMS}
    assert len(host().find_descendants("tuner")) == len(HOST_FILES) - 1


def test_imports_go_to_a_lower_room():
    layers = tuple(reversed(ROOMS))
    upward = host().find_illegal_dependencies_for_layers(layers=layers, containers={"tuner"})
    assert {(each.importer, each.imported) for each in upward} == set()


def test_no_import_goes_round_in_a_circle():
    modules = host().find_descendants("tuner")
    edges = {each: host().find_modules_directly_imported_by(each) & modules for each in modules}
    graphlib.TopologicalSorter(edges).prepare()


@pytest.mark.parametrize("package", sorted(HOMES))
def test_a_big_package_lives_in_one_place(package):
    users = host().find_modules_that_directly_import(package)
    assert {room_of(each) for each in users} == HOMES[package]


@pytest.mark.parametrize(
    "module", ["tuner.values.errors", "tuner.values.params", "tuner.values.trial"]
)
def test_the_ground_floor_needs_the_standard_library_alone(module):
    used = host().find_modules_directly_imported_by(module)
    assert used
    assert {each.partition(".")[0] for each in used} <= sys.stdlib_module_names | {"tuner"}


@pytest.mark.parametrize("path", WORKER_FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_worker_code_imports_nothing_of_the_host(path):
    assert not {name for name in imports(path) if name.partition(".")[0] == "tuner"}


def test_the_host_imports_no_worker_code():
    worker_names = {"worker_api", "tuner.worker_api", "tuner.frameworks"}
    for path in HOST_FILES:
        for name in imports(path):
            assert not any(f"{name}.".startswith(f"{each}.") for each in worker_names), path


def test_host_code_names_no_framework():
    """Adding a framework adds no line of host code, so none may be singled out there."""
    names = set(list_frameworks())
    for path in HOST_FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Compare):
                constants = {
                    each.value
                    for each in ast.walk(node)
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                }
                assert not constants & names, f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", HOST_FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_stays_readable(path):
    assert path.stem not in ("utils", "util", "helpers", "helper", "common", "misc")
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{path} has {lines} lines"


def tracked_files() -> list[Path]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout: {error}")
    names = listed.stdout.decode().split("\0")
    return [PROJECT / name for name in names if name and (PROJECT / name).is_file()]


FORBIDDEN = {
    "a registry's host name": [
        "pypi" + ".org",
        "python" + "hosted.org",
        "registry." + "npmjs",
        "conda." + "anaconda",
        "registry." + "yarnpkg",
    ],
    "a path of somebody's machine": [
        "/ho" + "me/",
        "/ro" + "ot/",
        "/Us" + "ers/",
        "/wo" + "rk/",
        "/tmp" + "/v/",
        "C:" + "\\\\",
        str(PROJECT) + "/",
    ],
}


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_no_tracked_file_names(what):
    found = [
        f"{path.relative_to(PROJECT)}: {word}"
        for path in tracked_files()
        for word in FORBIDDEN[what]
        if word.encode() in path.read_bytes()
    ]
    assert found == []
