"""The commands beside tuning. Words are ``name=value`` as for tuning; unknown ones are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

import yaml

from tuner.config.catalogue import (
    list_datasets,
    list_frameworks,
    load_dataset_config,
    load_framework,
    tuner_home,
)
from tuner.progress import make_progress
from tuner.runtimes import Runtime, ensure_installed, find_runtime
from tuner.values.errors import ConfigError, NothingRecommended, RuntimeUnavailable


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
        except ConfigError:
            raise
        except ValueError:
            raise ConfigError(f"{name} must be a number, got {text!r}") from None
    return values


_TRACKED: Mapping[str, Callable[[str], Any]] = {
    "framework": str,
    "dataset": str,
    "output": str,
    "tracking_uri": str,
}


def _loss(text: str) -> float | None:
    """A fraction, or ``none`` where any loss is allowed."""
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"max_accuracy_loss must be a number or none, got {text!r}") from None


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"behind_proxy must be true or false, got {text!r}")
    return text == "true"


_ASKED: Mapping[str, Callable[[str], Any]] = {
    **_TRACKED,
    "max_train_time_s": float,
    "max_memory_mb": float,
    "min_accuracy": float,
    "max_accuracy_loss": _loss,
    "cores": int,
    "jobs_per_host": int,
    "objective": str,
    "framework_path": str,
}


def recommend_command(words: Sequence[str]) -> int:
    """Say which verified configuration a job should run with.

    python -m tuner recommend [framework=caffe] dataset=mnist [limits]

    It is the fastest that is proven to lose no accuracy against the framework's default;
    max_accuracy_loss=0.01 allows to lose one point, max_accuracy_loss=none any.
    Without framework= it chooses among all frameworks that have results.
    Further limits are max_train_time_s=60 max_memory_mb=500 min_accuracy=0.985 cores=2.
    jobs_per_host=2 is for two such jobs side by side (python -m tuner experiment=tenancy).
    objective=train_time_s|accuracy|memory_mb chooses among what keeps them (train_time_s).
    output= is the folder with mlflow.db (here), tracking_uri= another MLflow.
    """
    from tuner.api import recommend

    asked = _read(words, _ASKED)
    answer = recommend(**asked)
    wanted = asked.get("dataset", "mnist")
    if answer["dataset"] != wanted:
        instead = f"{answer['dataset']}, which a study used in place of {wanted}"
        print(f"warning: measured on {instead}", file=sys.stderr)
    print(yaml.dump(answer, Dumper=_Dumper, sort_keys=False, allow_unicode=True), end="")
    return 0


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, ready to be copied, and every value in full."""

    def ignore_aliases(self, _data: object) -> bool:
        """Write what is named twice twice."""
        return True


def _literal(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _literal)


def report_command(words: Sequence[str]) -> int:
    """Copy the newest study's report out of MLflow into a folder.

    python -m tuner report [framework=caffe] dataset=mnist [to=folder]

    Without framework= it is the report across frameworks (experiment=cross_framework).
    The files are report.html, front.png and front.json.
    output= is the folder with mlflow.db (here), tracking_uri= another MLflow.
    """
    from tuner.api import load_results
    from tuner.tracking import CROSS, connect

    values = {"framework": CROSS, "dataset": "mnist", **_read(words, {**_TRACKED, "to": str})}
    framework, dataset = values["framework"], values["dataset"]
    target = Path(values.pop("to", f"report-{framework}-{dataset}"))
    records = load_results(**values)
    if not records:
        wanted = "experiment=cross_framework" if framework == CROSS else f"framework={framework}"
        raise NothingRecommended(
            f"no {framework} study of {dataset} is on record here; "
            f"python -m tuner {wanted} dataset={dataset} makes one"
        )
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
    from tuner.datasets.provide import check_dataset, list_cached, load_dataset, remove_dataset

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


def studies_command(words: Sequence[str]) -> int:
    """See and remove what this machine keeps of studies so that they can go on.

    python -m tuner studies list|remove [study ...|all] [older_than_days=30]

    list: each study, newest first. remove: delete its folder in TUNER_HOME; its results stay in
    MLflow. older_than_days= leaves out what was written since.
    """
    from tuner.storage.kept_studies import kept_studies, remove_study

    own = [word for word in words if word.startswith("older_than_days=")]
    oldest_s = 86_400 * _read(own, {"older_than_days": float}).get("older_than_days", 0.0)
    action, names, _ = _action([word for word in words if word not in own], ("list", "remove"))
    kept = [each for each in kept_studies(tuner_home()) if each.age_s >= oldest_s]
    if action == "list":
        for each in kept:
            print(
                f"{each.id}  {each.state:11}  {each.framework:10} {each.dataset:14} "
                f"{each.trials:4} trials  {each.elapsed_s:7,.0f} s  {each.size / 2**20:6.1f} MiB  "
                f"{each.age_s / 86_400:5.1f} days old"
            )
        return 0
    _require(names, action, [*(each.id for each in kept), "all"])
    ended = [each.id for each in kept if each.state != "running"]
    for name in ended if names == ["all"] else names:
        print(f"{name}: {remove_study(tuner_home(), name) / 2**20:.1f} MiB freed")
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


def reference_command(words: Sequence[str]) -> int:
    """Record how a framework's default converges, so that studies need not train it to its end.

    python -m tuner reference framework=caffe dataset=mnist [model=default] [seeds=10] [to=folder]

    The default is trained to its end with each seed, at the fastest runtime setting; an
    interrupted recording goes on. Kept are accuracies, no times. Without to= it is kept in
    TUNER_HOME, where studies on this machine look first.
    """
    from tuner.api import record_reference

    own = [each for each in words if each.startswith(("seeds=", "to="))]
    found, path = record_reference(
        *(each for each in words if each not in own), **_read(own, {"seeds": int, "to": str})
    )
    spread = f", {100 * stdev(found.test_accuracies):.2f} between seeds" if found.runs[1:] else ""
    print(
        f"{found.name}: {100 * found.test_accuracy:.2f} % test accuracy over "
        f"{len(found.runs)} seeds{spread}\n{path}"
    )
    return 0


def doctor_command(words: Sequence[str]) -> int:
    """Say what this machine has and lacks for each framework, with the remedy.

    python -m tuner doctor [framework_path=folder]
    """
    from tuner.cli.doctor import diagnose, format_findings, is_well

    path = _read(words, {"framework_path": str}).get("framework_path")
    findings = diagnose([load_framework(name, path) for name in list_frameworks(path)])
    print(format_findings(findings))
    return 0 if is_well(findings) else RuntimeUnavailable.exit_code


def ui_command(words: Sequence[str]) -> int:
    """Browse all studies in MLflow. Not while something is being measured: it needs 2 GB.

    python -m tuner ui [output=folder] [port=5000]

    It names the address of the newest study's experiment among model trainings: MLflow itself
    opens every experiment as one of a language model.
    """
    from tuner.tracking import default_tracking_uri, newest_experiment

    values = {"port": 5000, **_read(words, {"output": str, "port": int})}
    folder = Path(values.get("output", ".")).absolute()
    uri, port = default_tracking_uri(folder), values["port"]
    newest = newest_experiment(uri)
    if newest:
        view = f"#/experiments/{newest}?workflowType=machine_learning"
        print(f"the newest study's experiment: http://127.0.0.1:{port}/{view}", flush=True)
    command = [sys.executable, "-m", "mlflow", "ui", "--port", str(port)]
    command += ["--backend-store-uri", uri]
    return subprocess.call(command, cwd=folder)


def serve_command(words: Sequence[str]) -> int:
    """Answer over HTTP which configuration a job should run with, and show what is on record.

    python -m tuner serve [host=127.0.0.1] [port=8765] [behind_proxy=true]
        [output=folder] [tracking_uri=]

    The page is at /, the API's description at /openapi.json. Studies asked for are run one
    after the other; one that it is stopped in goes on when it is started again. framework_path= is
    a folder with frameworks of your own; executor= with its settings, and storage=, are those of
    all studies. On any host= but this machine's own loopback, and behind a proxy, clients must
    send the token that TUNER_SERVICE_TOKEN holds.
    """
    from tuner.service import serve
    from tuner.tracking import default_tracking_uri

    known = dict.fromkeys(("host", "output", "tracking_uri", "framework_path"), str)
    of_studies = [
        each for each in words if each.startswith(("executor=", "executor.", "storage="))
    ]
    own = [each for each in words if each not in of_studies]
    values = _read(own, {**known, "port": int, "behind_proxy": _switch})
    output = Path(values.pop("output", ".")).absolute()
    uri = values.pop("tracking_uri", "") or default_tracking_uri(output)
    serve(uri, output=str(output), words=of_studies, **values)
    return 0


_COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "recommend": recommend_command,
    "report": report_command,
    "runtimes": runtimes_command,
    "datasets": datasets_command,
    "studies": studies_command,
    "reference": reference_command,
    "doctor": doctor_command,
    "ui": ui_command,
    "serve": serve_command,
}
