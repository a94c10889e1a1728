"""Commands about what this machine keeps: runtimes, data sets, studies and references."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import stdev
from typing import TYPE_CHECKING

from tuner.cli.words import read_action, read_words, require_names
from tuner.config.catalogue import (
    list_datasets,
    list_frameworks,
    load_dataset_config,
    load_framework,
    tuner_home,
)
from tuner.progress import make_progress
from tuner.runtimes import Runtime, ensure_installed, find_runtime
from tuner.values.errors import ConfigError, DatasetUnavailable, RuntimeUnavailable

if TYPE_CHECKING:
    from tuner.datasets.provide import Dataset

RUNTIME_ACTIONS = ("list", "install", "check", "remove")


def runtimes_command(words: Sequence[str]) -> int:
    """List, install, check and remove the frameworks' runtimes.

    python -m tuner runtimes list|install|check|remove [framework ...|all] [framework_path=folder]

      list      which runtimes are installed, with their size
      install   fetch and verify now; tune does so by itself
      check     run each once
      remove    delete

    A runtime that cannot be installed is reported with the reason, and the command goes on
    with the others.
    """
    action, names, path = read_action(words, RUNTIME_ACTIONS)
    known = list_frameworks(path)
    require_names(names or action in ("list", "check"), action, [*known, "all"])
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


DATASET_ACTIONS = ("list", "get", "check", "remove")


def datasets_command(words: Sequence[str]) -> int:
    """List, fetch, check and remove data sets.

    python -m tuner datasets list|get|check|remove [dataset ...|all]
    python -m tuner datasets get dataset.path=~/flowers [dataset.name=flowers ...]

      list      which data sets are cached
      get       fetch now; tune does so by itself. With dataset.path=, check and prepare your
                own data, and say what they become
      check     compare the cached files with their hashes; exit code 3 if any is corrupt
      remove    delete; your own files are left alone
    """
    from tuner.datasets.provide import check_dataset, list_cached, load_dataset, remove_dataset

    if own := [word for word in words if word.startswith("dataset.")]:
        return _get_own_data(own, [word for word in words if word not in own])
    action, names, _ = read_action(words, DATASET_ACTIONS)
    known, cached = list_datasets(), {each.name: each for each in list_cached()}
    require_names(names or action in ("list", "check"), action, [*known, "all"])
    if names in ([], ["all"]):
        every = {"list": [*dict.fromkeys([*known, *cached])], "get": known}
        names = every.get(action, list(cached))
    for name in names:
        if action == "get" or name not in cached:
            load_dataset_config(name)  # which refuses an unknown one, before anything is done
    failed = 0
    for name in names:
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
            failed = DatasetUnavailable.exit_code if corrupt else failed
        else:
            print(f"{name}: {_describe(cached.get(name))}")
    return failed


def _describe(cached: Dataset | None) -> str:
    if cached is None:
        return "not cached"
    return f"{cached.folder}{f', from {cached.origin}' if cached.likeness else ''}"


def _get_own_data(settings: Sequence[str], words: Sequence[str]) -> int:
    """Prepare the user's own data, and print the facts that reports of it show."""
    from tuner.config.composing import compose
    from tuner.datasets.provide import load_dataset

    if list(words) != ["get"]:
        raise ConfigError(f"dataset.path= is for datasets get, got datasets {' '.join(words)}")
    config = compose(settings).dataset
    if not config.path:
        raise ConfigError(f"dataset.path= is needed beside {settings[0]}")
    with make_progress("auto") as progress:
        dataset = load_dataset(config, progress=progress.task)
    for name, fact in dataset.facts().items():
        print(f"{name.replace('_', ' ')}: {fact}")
    return 0


STUDY_ACTIONS = ("list", "remove")


def studies_command(words: Sequence[str]) -> int:
    """List and remove what this machine keeps to resume studies.

    python -m tuner studies list|remove [study ...|all] [older_than_days=30]

      list      each study, newest first
      remove    delete its folder in TUNER_HOME; its results stay in MLflow

    older_than_days= limits list and remove all to studies unchanged for that many days.
    """
    from tuner.storage.kept_studies import kept_studies, remove_study

    own = [word for word in words if word.startswith("older_than_days=")]
    oldest_s = 86_400 * read_words(own, {"older_than_days": float}).get("older_than_days", 0.0)
    action, names, _ = read_action([word for word in words if word not in own], STUDY_ACTIONS)
    kept = [each for each in kept_studies(tuner_home()) if each.age_s >= oldest_s]
    if action == "list":
        for each in kept:
            print(
                f"{each.id}  {each.state:11}  {each.framework:10} {each.dataset:14} "
                f"{each.trials:4} trials  {each.elapsed_s:7,.0f} s  {each.size / 2**20:6.1f} MiB  "
                f"{each.age_s / 86_400:5.1f} days old"
            )
        return 0
    require_names(names, action, [*(each.id for each in kept), "all"])
    ended = [each.id for each in kept if each.state != "running"]
    for name in ended if names == ["all"] else names:
        print(f"{name}: {remove_study(tuner_home(), name) / 2**20:.1f} MiB freed")
    return 0


def reference_command(words: Sequence[str]) -> int:
    """Record a default's learning curve, so that studies need not train it fully.

    python -m tuner reference framework=caffe dataset=mnist [model=default] [seeds=10] [to=folder]

    It trains the default fully with each seed, at the fastest runtime setting. The same command
    resumes an interrupted recording. The record holds accuracies and no times. It goes to the
    folder to=, or else to TUNER_HOME/references, where studies on this machine look first.
    """
    from tuner.api import record_reference

    own = [each for each in words if each.startswith(("seeds=", "to="))]
    found, path = record_reference(
        *(each for each in words if each not in own), **read_words(own, {"seeds": int, "to": str})
    )
    quality, spread = found.quality, ""
    if found.runs[1:]:
        deviation = abs(quality.gain_in_unit(stdev(found.test_accuracies)))
        unit = " %" if quality.is_perplexity else ""
        spread = f", {deviation:.2f}{unit} between seeds"
    print(
        f"{found.name}: {quality.shown_test(found.test_accuracy)} over "
        f"{len(found.runs)} seeds{spread}\n{path}"
    )
    return 0


def doctor_command(words: Sequence[str]) -> int:
    """Say what each framework lacks on this machine, with the remedy.

    python -m tuner doctor [framework_path=folder]
    """
    from tuner.cli.doctor import diagnose, format_findings, is_well

    path = read_words(words, {"framework_path": str}).get("framework_path")
    findings = diagnose([load_framework(name, path) for name in list_frameworks(path)])
    print(format_findings(findings))
    return 0 if is_well(findings) else RuntimeUnavailable.exit_code
