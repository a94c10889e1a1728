"""Writes the reference pages of these documents from the code and files that they describe."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tuner.cli.commands import COMMANDS
from tuner.config.catalogue import list_frameworks, load_framework, project_folder
from tuner.service.app import make_app
from tuner.service.jobs import Jobs

FOLDER = Path(__file__).parent / "reference"
"""Where the pages go; git ignores it."""

_SETTING = re.compile(r"^(?P<indent> *)(?P<name>[a-z_]+):(?P<value>[^#]*)(?:#(?P<said>.*))?$")
_NO_SETTINGS = ("framework", "dataset", "experiment")  # of interest to those who add one
_GROUPS = ("framework", "dataset", "search", "sampler", "executor", "budget", "experiment")


def write_pages() -> None:
    """Write every page; an unchanged one keeps its time, so that Sphinx does not read it again."""
    FOLDER.mkdir(exist_ok=True)
    for name, lines in {
        "commands": _commands(),
        "all-settings": _settings(),
        "search-spaces": _search_spaces(),
        "rest": _rest(),
        "python": _python(),
        "worker-protocol": _worker_protocol(),
        "front-document": _front_document(),
    }.items():
        path, text = FOLDER / f"{name}.md", "\n".join(lines) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield ""
    for row in (headings, ["---"] * len(headings), *rows):
        cells = [cell.replace("|", r"\|").replace("<", "&lt;") for cell in row]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _code(value: object) -> str:
    return f"`{value}`" if str(value).strip() else ""


# -- the command line -----------------------------------------------------------------------


def _commands() -> Iterator[str]:
    yield "# Commands"
    yield "\nWhat `python -m tuner help <command>` prints."
    for name, command in COMMANDS.items():
        yield f"\n## {name}\n\n```text\n{command.help}\n```"


def _settings() -> Iterator[str]:
    yield "# All settings"
    yield "\nAs in `conf/config.yaml`, with its defaults. A group such as `budget` is chosen by"
    yield "`budget=quick`, and each of its settings can be given as well: `budget.time_s=60`."
    conf = project_folder("conf")
    rows = list(_entries((conf / "config.yaml").read_text(encoding="utf-8")))
    yield from _table(("setting", "default", "meaning"), rows)
    for group in _GROUPS:
        yield f"\n## Group {group}\n"
        for path in sorted((conf / group).glob("*.yaml")):
            text = path.read_text(encoding="utf-8")
            yield f"`{group}={path.stem}`: {_headline(text) or path.stem}\n"
        if group not in _NO_SETTINGS:
            yield from _settings_of_group(group, conf / group)


def _settings_of_group(group: str, folder: Path) -> Iterator[str]:
    """Yield a table of a group's settings, with a column for each of its options."""
    options = sorted(folder.glob("*.yaml"))
    values: dict[str, dict[str, str]] = {}
    meanings: dict[str, str] = {}
    for path in options:
        text = path.read_text(encoding="utf-8")
        for name, value, said in _entries(text, "" if "@package _global_" in text else group):
            values.setdefault(name, {})[path.stem] = value
            meanings[name] = meanings.get(name) or said
    names = [path.stem for path in options]
    yield from _table(
        ("setting", *names, "meaning"),
        [
            (name, *(found.get(each, "") for each in names), meanings[name])
            for name, found in values.items()
        ],
    )


def _headline(text: str) -> str:
    """Return the comment that a file begins with, without the line that only Hydra reads."""
    comment = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line.lstrip("# ") for line in comment]
    return " ".join(line for line in lines if line and not line.startswith("@package"))


def _entries(text: str, group: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each setting of a file with its value and its comment."""
    outer = group
    for found in filter(None, map(_SETTING.match, text.splitlines())):
        name, value, said = found["name"], found["value"].strip(), (found["said"] or "").strip()
        if name == "hydra":  # the rest is not the tuner's
            return
        if not value:
            outer = f"{group}.{name}" if group else name
        elif name != "name":
            outer = outer if found["indent"] else group
            yield _code(f"{outer}.{name}" if outer else name), _code(value), said


# -- frameworks -----------------------------------------------------------------------------


def _search_spaces() -> Iterator[str]:
    yield "# Search spaces"
    yield "\nFrom `search_spaces/`; `search_space.<param>.high=128` narrows a range."
    for name in list_frameworks():
        path = project_folder("search_spaces") / f"{name}.yaml"
        text = path.read_text(encoding="utf-8")
        raw: dict[str, Any] = yaml.safe_load(text)
        yield f"\n## {load_framework(name).title}\n\n{_headline(text)}"
        rows = [(_code(param), _range(entry)) for param, entry in raw["params"].items()]
        yield from _table(("param", "values"), rows)
        defaults = [
            (
                each["model"],
                ", ".join(each["datasets"]),
                ", ".join(f"{key} {value}" for key, value in each["params"].items()),
                each.get("source", ""),
            )
            for each in raw["defaults"]
        ]
        yield from _table(("model", "data sets", "default", "source"), defaults)


def _range(entry: dict[str, Any]) -> str:
    if "low" in entry:
        scale = ", logarithmic" if entry.get("log") else ""
        return f"{entry['type']} from {entry['low']} to {entry['high']}{scale}"
    if entry.get("cases") == "per_worker":
        return f"by {_code(entry['given'])}: up to its share of the cores; unset for 1"
    if "cases" in entry:
        cases = [f"{value}: {_choices(choices)}" for value, choices in entry["cases"].items()]
        return f"by {_code(entry['given'])}: {'; '.join(cases)}"
    return _choices(entry["choices"])


def _choices(choices: object) -> str:
    if choices == "per_core":
        return "unset, 1, 2, 4 … cores"
    if choices == "up_to_cores":
        return "1, 2, 4 … cores"
    assert isinstance(choices, list)
    return ", ".join(
        f"{name} (with {flag})"
        for each in choices
        for name, flag in (each.items() if isinstance(each, dict) else [(each, "")])
    ).replace(" (with )", "")


# -- interfaces -----------------------------------------------------------------------------


def _rest() -> Iterator[str]:
    yield "# REST"
    yield "\nThe service describes itself at `/openapi.json`; this is that description."
    with TemporaryDirectory() as folder:
        document = make_app(f"sqlite:///{folder}/mlflow.db", Jobs(Path(folder))).openapi()
    for path, methods in document["paths"].items():
        for method, entry in methods.items():
            yield f"\n## {method.upper()} {path}\n\n{entry.get('description', '')}"
            if "requestBody" in entry:
                body = entry["requestBody"]["content"]["application/json"]["schema"]
                yield f"\nThe body is {_type(body)}, see [Objects](#objects)."
            rows = [
                (_code(each["name"]), _type(each["schema"]), each["schema"].get("description", ""))
                for each in entry.get("parameters", [])
            ]
            if rows:
                yield from _table(("parameter", "type", "meaning"), rows)
            answers = [
                (code, answer.get("description", ""))
                for code, answer in entry["responses"].items()
            ]
            yield from _table(("answer", "meaning"), answers)
    yield "\n## Objects"
    for name, schema in sorted(document["components"]["schemas"].items()):
        if "properties" in schema:
            yield f"\n### {name}\n\n{schema.get('description', '')}"
            rows = [
                (_code(field), _type(entry), entry.get("description", ""))
                for field, entry in schema["properties"].items()
            ]
            yield from _table(("field", "type", "meaning"), rows)


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_type(each) for each in several)
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum") or [schema["const"]]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _autodoc(*directives: str) -> str:
    return "```{eval-rst}\n" + "\n\n".join(directives) + "\n```"


def _python() -> Iterator[str]:
    yield "# Python API\n"
    yield "`import tuner` gives `tune`, `train`, `recommend` and `load_results`; `tuner.api` has"
    yield "all public functions. Everything else may change with any version.\n"
    yield _autodoc(
        ".. automodule:: tuner.api\n"
        "   :members: tune, train, record_reference, load_results, recommend, recommend_program"
    )
    yield "\n## Errors\n"
    yield _autodoc(".. automodule:: tuner.values.errors\n   :members:\n   :show-inheritance:")


def _worker_protocol() -> Iterator[str]:
    yield "# Worker protocol\n"
    yield "[Add a framework](../adding-a-framework.md) builds a worker step by step. One in Python"
    yield "calls `serve`; one in another language uses the files that these modules describe.\n"
    yield _autodoc(
        ".. automodule:: tuner.trials.protocol",
        ".. automodule:: tuner.worker_api.worker_api\n"
        "   :members: serve, Trial, Impossible, Diverged",
        ".. automodule:: tuner.worker_api.worker_group\n"
        "   :members: meeting, help_with, places, Broken",
    )


def _front_document() -> Iterator[str]:
    yield "# front.json\n"
    yield "Every report has this document beside it, and so does each study's run in MLflow.\n"
    yield _autodoc(
        ".. autofunction:: tuner.report.front.front_json",
        ".. autofunction:: tuner.report.cross.files.cross_json",
    )
