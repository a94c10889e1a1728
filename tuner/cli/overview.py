"""What ``python -m tuner help`` prints: the commands, and the settings that matter most."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import yaml

from tuner import __version__
from tuner.config.catalogue import list_datasets, list_frameworks, project_folder

_WIDTH, _INDENT = 100, 22  # columns


def overview(commands: Mapping[str, str]) -> str:
    """Return the overview.

    Args:
        commands: The summary of each command by its name.
    """
    defaults = _defaults()
    settings = {f"{name}={defaults.get(name, '')}": text for name, text in _settings().items()}
    return "\n".join(
        [
            f"tuner {__version__} finds the settings with which a deep-learning framework trains "
            "fastest on this machine",
            "without losing accuracy, and proves them against the framework's own defaults.",
            "",
            "  python -m tuner [tune] [setting=value ...]",
            "  python -m tuner <command> [name=value ...]",
            "",
            "Commands (python -m tuner help <command> explains one):",
            *_table(commands),
            "",
            "Settings that matter most, with their defaults (python -m tuner config lists all):",
            *_table(settings),
            "",
            "Examples:",
            "  python -m tuner framework=caffe dataset=mnist budget=quick",
            "  python -m tuner recommend framework=caffe dataset=mnist max_train_time_s=60",
            "",
            "Exit codes: 0 done, 1 bad setting, 2 unusable value, 3 no runtime or data, "
            "4 no result, 130 stopped.",
        ]
    )


def _table(rows: Mapping[str, str]) -> list[str]:
    wrapped = {name: textwrap.wrap(text, _WIDTH - _INDENT) for name, text in rows.items()}
    return [
        f"  {start:{_INDENT - 2}}{line}"
        for name, lines in wrapped.items()
        for start, line in zip([name, *[""] * len(lines)], lines, strict=False)
    ]


def _settings() -> dict[str, str]:
    return {
        "framework": "The framework to tune: " + ", ".join(list_frameworks()) + ".",
        "dataset": ", ".join(list_datasets()) + "; or dataset.path=~/pets",
        "model": "The framework's own; or a shared one: lenet, alexnet, vgg, resnet50, lstm.",
        "budget": "12 minutes; or quick: 2 minutes, thorough: 2 hours; or budget.time_s=1800.",
        "goal": "The fastest without loss of accuracy; or accuracy: the most accurate.",
        "constraints": "Limits such as 'constraints=[peak_memory_mb<=2048]'.",
        "executor.cores": "CPUs that trials use, such as 0-3; all if empty.",
        "seed": "Seed of the search and of the weights.",
        "resume": "Resume the same study; or restart: delete its earlier results first.",
        "output": "Folder for MLflow's database and files.",
    }


def _defaults() -> dict[str, Any]:
    """Return the values in ``conf/config.yaml``: of its groups, and of its own settings."""
    text = (project_folder("conf") / "config.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    groups = {
        k: v for each in values["defaults"] if isinstance(each, dict) for k, v in each.items()
    }
    return {**groups, **values}
