"""The commands beside tuning. Words are ``name=value`` as for tuning; unknown ones are refused."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tuner.config import FrameworkConfig
from tuner.errors import ConfigError, NothingRecommended, RuntimeUnavailable
from tuner.measure import cpu_flags
from tuner.progress import make_progress
from tuner.recommend import (
    Evidence,
    Limits,
    Recommendation,
    evidence_of,
    fill_settings,
    recommend,
)
from tuner.registry import (
    find_setting_file,
    framework_folder,
    list_datasets,
    list_frameworks,
    load_dataset_config,
    load_framework,
)
from tuner.runtimes import Runtime, ensure_installed, find_runtime
from tuner.space import SearchSpace

if TYPE_CHECKING:
    from tuner.tracking import StudyRecord


def run_command(name: str, words: Sequence[str]) -> int:
    """Run the command called ``name``. Returns its exit code."""
    command = _COMMANDS.get(name)
    if command is None:
        raise ConfigError(
            f"no command is called {name!r}; there are: {', '.join(_COMMANDS)}; "
            "overrides such as framework=caffe tune"
        )
    if {"--help", "-h"} & set(words):
        print((command.__doc__ or "").strip())
        return 0
    return command(words)


def _read(words: Sequence[str], known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Values of ``name=value`` words. Raises ``ConfigError`` for unknown names or wrong values."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in known:
            raise ConfigError(
                f"{word!r} is not understood here; write {', '.join(known)} as name=value"
            )
        try:
            values[name] = known[name](text)
        except ValueError:
            raise ConfigError(f"{name} must be a number, got {text!r}") from None
    return values


_TRACKED: Mapping[str, Callable[[str], Any]] = {
    "framework": str,
    "dataset": str,
    "output": str,
    "tracking_uri": str,
}


def recommend_command(words: Sequence[str]) -> int:
    """Say which verified configuration a job should run with.

    python -m tuner recommend [framework=caffe] dataset=mnist [limits]

    Without framework= it chooses among all frameworks that have results.
    Limits are max_train_time_s=60 max_memory_mb=500 min_accuracy=0.985.
    objective=train_time_s|accuracy|memory_mb chooses among what keeps them (train_time_s).
    output= is the folder with mlflow.db (here), tracking_uri= another MLflow.
    """
    limits = dict.fromkeys(("max_train_time_s", "max_memory_mb", "min_accuracy"), float)
    values = _read(words, {**_TRACKED, **limits, "objective": str, "framework_path": str})
    path, dataset = values.get("framework_path"), values.get("dataset", "mnist")
    names = list_frameworks(path)
    if "framework" in values:
        names = [load_framework(values["framework"], path).name]
    evidence = [
        point
        for name in names
        for record in _records(values, name, dataset)
        for point in evidence_of(record, time.time())
    ]
    asked = Limits(**{name: values.get(name) for name in limits})
    found = recommend(evidence, asked, values.get("objective", "train_time_s"))
    framework = load_framework(found.choice.framework, path)
    answer = {"framework": framework.name, "dataset": dataset, "model": found.choice.model}
    answer |= _configuration(framework, found.choice)
    if template := settings_template(framework, dataset, found.choice.model, path):
        answer["settings"] = fill_settings(template, found.choice.params)
    answer |= _proof(found)
    print(yaml.dump(answer, Dumper=_Dumper, sort_keys=False, allow_unicode=True), end="")
    return 0


def settings_template(
    framework: FrameworkConfig, dataset: str, model: str, path: str | None = None
) -> Path | None:
    """The settings file for this data set and model: of their default, else of the framework."""
    space = SearchSpace.load(
        find_setting_file("search_spaces", framework.name, path), cores=1, cpu_flags=cpu_flags()
    )
    names = [
        each.settings_template
        for each in space.defaults
        if each.model == model and dataset in each.datasets
    ]
    name = next(filter(None, names), framework.settings_template)
    return framework_folder(framework.name, path) / name if name else None


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, ready to be copied."""


def _literal(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _literal)


def _configuration(framework: FrameworkConfig, choice: Evidence) -> dict[str, Any]:
    environment = find_runtime(framework).environment(choice.params)
    return {"params": dict(choice.params), "environment": environment}


def _proof(found: Recommendation) -> dict[str, Any]:
    """Figures with their intervals, in the units of their names, and the runs they come from."""
    choice = found.choice
    return {
        "measured": {
            name: choice.figures[name]
            for name in (
                *("test_accuracy", "train_time_s", "test_time_s", "cpu_user_s", "cpu_system_s"),
                *("avg_memory_bytes", "peak_memory_bytes", "projected", "confidence", "verdict"),
            )
        },
        "against_default": choice.figures["comparison"],
        "evidence": {
            "study_run_id": choice.study,
            "run_ids": list(choice.run_ids),
            "age_s": round(choice.age_s),
            "fingerprint": choice.fingerprint,
        },
        "alternatives": [
            {
                "framework": each.framework,
                "params": dict(each.params),
                "test_accuracy": each.accuracy,
                "train_time_s": each.train_time_s,
                "peak_memory_mb": each.memory_mb,
            }
            for each in found.alternatives[:3]
        ],
    }


def _records(values: Mapping[str, Any], framework: str, dataset: str) -> list[StudyRecord]:
    from tuner.tracking import default_tracking_uri, load_results

    uri = values.get("tracking_uri") or default_tracking_uri(Path(values.get("output", ".")))
    return load_results(uri, framework, dataset)


def report_command(words: Sequence[str]) -> int:
    """Copy the newest study's report out of MLflow into a folder.

    python -m tuner report [framework=caffe] dataset=mnist [to=folder]

    Without framework= it is the report across frameworks (experiment=cross_framework).
    The files are report.html, front.png and front.json.
    output= is the folder with mlflow.db (here), tracking_uri= another MLflow.
    """
    from tuner.tracking import CROSS, connect

    values = _read(words, {**_TRACKED, "to": str})
    framework, dataset = values.get("framework", CROSS), values.get("dataset", "mnist")
    records = _records(values, framework, dataset)
    if not records:
        wanted = "experiment=cross_framework" if framework == CROSS else f"framework={framework}"
        raise NothingRecommended(
            f"no {framework} study of {dataset} is on record here; "
            f"python -m tuner {wanted} dataset={dataset} makes one"
        )
    target = Path(values.get("to", f"report-{framework}-{dataset}"))
    target.mkdir(parents=True, exist_ok=True)
    for name in ("report.html", "front.png", "front.json"):
        connect(records[0].uri).download_artifacts(records[0].run_id, name, str(target))
        print(target / name)
    return 0


def runtimes_command(words: Sequence[str]) -> int:
    """See and change which runtimes are installed.

    python -m tuner runtimes list|install|remove|check [framework ...|all] [framework_path=folder]

    list: which are installed. install: fetch and verify now. check: run it once. remove: delete.
    One that cannot be had is named with the reason, and the others go on.
    """
    action, names, path = _action(words, ("list", "install", "remove", "check"))
    known = list_frameworks(path)
    _require(names or action in ("list", "check"), action, [*known, "all"])
    failed = 0
    for name in known if names in ([], ["all"]) else names:
        try:
            _act_on_runtime(action, find_runtime(load_framework(name, path)))
        except RuntimeUnavailable as error:
            failed = error.exit_code
            print(f"error: {error}", file=sys.stderr)
    return failed


def _act_on_runtime(action: str, runtime: Runtime) -> None:
    name = runtime.framework.name
    if action == "install":
        with make_progress("auto") as progress:
            ensure_installed(runtime, progress.task)
        print(f"{name}: {runtime.describe()}", flush=True)
    elif action == "remove":
        runtime.remove()
        print(f"{name}: removed")
    elif not runtime.installed():
        print(f"{name}: not installed ({runtime.framework.runtime.kind})")
    else:
        print(f"{name}: {runtime.verify() if action == 'check' else runtime.describe()}")


def datasets_command(words: Sequence[str]) -> int:
    """See and change which data sets are cached.

    python -m tuner datasets list|get|remove|check [dataset ...]

    list: which are cached. get: fetch now. check: hash the cached files. remove: delete.
    """
    from tuner.datasets import check_dataset, list_cached, load_dataset, remove_dataset

    action, names, _ = _action(words, ("list", "get", "remove", "check"))
    cached = {each.name: each for each in list_cached()}
    for name in names or (list_datasets() if action == "list" else list(cached)):
        if action == "get":
            with make_progress("auto") as progress:
                dataset = load_dataset(load_dataset_config(name), progress=progress.task)
            print(f"{name}: {dataset.folder}")
            if dataset.warning:
                print(f"warning: {dataset.warning}", file=sys.stderr)
        elif action == "remove":
            print(f"{name}: {remove_dataset(name) / 2**20:.0f} MiB freed")
        elif action == "check":
            corrupt = check_dataset(name)
            print(f"{name}: {', '.join(map(str, corrupt)) + ' corrupt' if corrupt else 'ok'}")
        else:
            print(f"{name}: {cached[name].folder if name in cached else 'not cached'}")
    _require(names or action in ("list", "check"), action, list_datasets())
    return 0


def _action(words: Sequence[str], actions: Sequence[str]) -> tuple[str, list[str], str | None]:
    """The action, the names after it, and the framework path."""
    names = [word for word in words if "=" not in word]
    values = _read([word for word in words if "=" in word], {"framework_path": str})
    action = names.pop(0) if names else "list"
    if action not in actions:
        raise ConfigError(f"no action is called {action!r}; there are: {', '.join(actions)}")
    return action, names, values.get("framework_path")


def _require(named: object, action: str, known: Sequence[str]) -> None:
    if not named:
        raise ConfigError(f"{action} what? there are: {', '.join(known)}")


def doctor_command(words: Sequence[str]) -> int:
    """Say what this machine has and lacks for each framework, with the remedy.

    python -m tuner doctor [framework_path=folder]
    """
    from tuner.doctor import diagnose, format_findings, is_well

    path = _read(words, {"framework_path": str}).get("framework_path")
    findings = diagnose([load_framework(name, path) for name in list_frameworks(path)])
    print(format_findings(findings))
    return 0 if is_well(findings) else RuntimeUnavailable.exit_code


def ui_command(words: Sequence[str]) -> int:
    """Browse all studies in MLflow. Not while something is being measured: it needs 2 GB.

    python -m tuner ui [output=folder] [port=5000]
    """
    from tuner.tracking import default_tracking_uri

    values = _read(words, {"output": str, "port": int})
    folder = Path(values.get("output", ".")).absolute()
    command = [sys.executable, "-m", "mlflow", "ui", "--port", str(values.get("port", 5000))]
    command += ["--backend-store-uri", default_tracking_uri(folder)]
    return subprocess.call(command, cwd=folder)


_COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "recommend": recommend_command,
    "report": report_command,
    "runtimes": runtimes_command,
    "datasets": datasets_command,
    "doctor": doctor_command,
    "ui": ui_command,
}
