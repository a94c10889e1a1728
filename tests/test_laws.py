"""The house rules of DESIGN section 3, read from the source: floors, circles, homes, sizes."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.config.catalogue import list_frameworks

PROJECT = Path(__file__).parent.parent
PACKAGE = PROJECT / "tuner"
MOST_LINES = 450

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
    "moocore": {"values"},
    "ray": {"executors", "search"},
}
"""The one place that may import each big third-party package, at any depth."""


def is_worker_code(path: Path) -> bool:
    return path.relative_to(PACKAGE).parts[0] in ("frameworks", "worker_api")


HOST_FILES = sorted(each for each in PACKAGE.rglob("*.py") if not is_worker_code(each))
WORKER_FILES = sorted(each for each in PACKAGE.rglob("*.py") if is_worker_code(each))


def module_name(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in HOST_FILES}


def place_of(module: str) -> str:
    """``report`` of ``tuner.report.front``; empty for ``tuner`` itself."""
    return module.split(".")[1] if "." in module else ""


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(body: list[ast.stmt], *, deep: bool) -> Iterator[ast.stmt]:
    """All statements that run on import; with ``deep`` those of functions too."""
    for node in body:
        if is_type_checking(node):
            continue
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not deep:
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, name, None) or [], deep=deep)
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body, deep=deep)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path, *, deep: bool) -> set[str]:
    """Dotted names of what a file imports; ``from a import b`` gives ``a.b`` if that is ours."""
    found = set()
    for node in statements(parsed(path).body, deep=deep):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else str(node.module))
    return found


def our_imports(path: Path) -> set[str]:
    return {name for name in imports(path, deep=False) if name in MODULES}


def test_the_reader_of_imports_sees_what_it_should(tmp_path):
    source = tmp_path / "example.py"
    source.write_text(
        "from typing import TYPE_CHECKING\nimport tuner.api\nfrom tuner import measure\n"
        "if TYPE_CHECKING:\n    import tuner.race\n"
        "try:\n    import tuner.study\nexcept ImportError:\n    import tuner.values\n"
        "class A:\n    import tuner.cli\n    def f(self):\n        import tuner.config\n"
    )
    shallow = {"typing", "tuner.api", "tuner.measure", "tuner.study", "tuner.values", "tuner.cli"}
    assert imports(source, deep=False) == shallow
    assert imports(source, deep=True) == shallow | {"tuner.config"}


def test_every_module_is_in_a_room():
    assert {place_of(name) for name in MODULES} - {""} == set(ROOMS)


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"tuner"}))
def test_imports_go_within_the_room_or_to_a_lower_one(module):
    floor = ROOMS.index(place_of(module))
    used = {place_of(name) for name in imports(MODULES[module], deep=True) & set(MODULES)} - {""}
    assert {room for room in used if ROOMS.index(room) > floor} == set()


def test_no_import_goes_round_in_a_circle():
    edges = {name: our_imports(path) - {name} for name, path in MODULES.items()}
    while True:
        leaves = {name for name, wanted in edges.items() if not wanted}
        if not leaves:
            break
        edges = {name: wanted - leaves for name, wanted in edges.items() if name not in leaves}
    assert edges == {}


@pytest.mark.parametrize("package", sorted(HOMES))
def test_a_big_package_lives_in_one_place(package):
    users = {
        place_of(module)
        for module, path in MODULES.items()
        if package in {name.partition(".")[0] for name in imports(path, deep=True)}
    }
    assert users == HOMES[package]


@pytest.mark.parametrize("module", ["tuner.values.errors", "tuner.values.trial"])
def test_the_ground_floor_needs_the_standard_library_alone(module):
    import sys

    tops = {name.partition(".")[0] for name in imports(MODULES[module], deep=True)}
    assert tops <= sys.stdlib_module_names | {"tuner"}


@pytest.mark.parametrize("path", WORKER_FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_worker_code_imports_nothing_of_the_host(path):
    assert not {name for name in imports(path, deep=True) if name.partition(".")[0] == "tuner"}


def test_the_host_imports_no_worker_code():
    worker_names = {"worker_api", "tuner.worker_api", "tuner.frameworks"}
    for path in HOST_FILES:
        for name in imports(path, deep=True):
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
    assert lines <= MOST_LINES, f"{path} has {lines} lines"


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
