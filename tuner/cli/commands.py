"""The table of commands, and functions that find, explain and run one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.cli import machine, results
from tuner.cli.completion import SCRIPT, complete, settings
from tuner.cli.overview import overview
from tuner.cli.tune import config_command, tune_command
from tuner.cli.wrap import wrap_command
from tuner.config.catalogue import list_datasets, list_frameworks
from tuner.values.errors import ConfigError


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        run: Takes the words after the command's name, returns the exit code. Its docstring is
            the command's help; the first line is its summary.
        names: What it takes as ``name=value``.
        actions: What it takes as its first word.
        objects: Lists what may follow an action.
    """

    run: Callable[[Sequence[str]], int]
    names: Iterable[str] = ()
    actions: Sequence[str] = ()
    objects: Callable[[], Sequence[str]] = tuple

    @property
    def help(self) -> str:
        """The whole help text."""
        return inspect.cleandoc(self.run.__doc__ or "")

    @property
    def summary(self) -> str:
        """The first line of the help text."""
        return self.help.partition("\n")[0]


def run_command(name: str, words: Sequence[str]) -> int:
    """Run a command and return its exit code.

    Raises:
        ConfigError: If there is no such command.
    """
    command = _find(name)
    if {"--help", "-h"} & set(_own_words(words)):
        print(command.help)
        return 0
    return command.run(words)


def _own_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words before ``--``: what follows is a program's."""
    return words[: words.index("--")] if "--" in words else words


def _find(name: str) -> Command:
    if name not in COMMANDS:
        raise ConfigError(
            f"unknown command {name!r}; choose from: {', '.join(COMMANDS)}; "
            "or give settings such as framework=caffe to tune"
        )
    return COMMANDS[name]


def help_command(words: Sequence[str]) -> int:
    """Explain a command, or list all of them.

    python -m tuner help [command]
    """
    if words:
        print(_find(words[0]).help)
    else:
        print(overview({name: each.summary for name, each in COMMANDS.items()}))
    return 0


def completion_command(words: Sequence[str]) -> int:
    """Print a script that completes commands, settings and values in bash.

    tuner completion >> ~/.bashrc

    It completes the program tuner, which is on PATH once the environment is activated.
    """
    if words:
        print(*complete(words[-1], COMMANDS), sep="\n")
    else:
        print(SCRIPT, end="")
    return 0


COMMANDS: Mapping[str, Command] = {
    "tune": Command(tune_command, settings()),
    "wrap": Command(wrap_command),
    "recommend": Command(results.recommend_command, results.ASKED),
    "report": Command(results.report_command, results.REPORT_WORDS),
    "ui": Command(results.ui_command, results.UI_WORDS),
    "serve": Command(results.serve_command, results.SERVE_WORDS),
    "reference": Command(machine.reference_command, ("seeds", "to", *settings())),
    "runtimes": Command(
        machine.runtimes_command, ("framework_path",), machine.RUNTIME_ACTIONS, list_frameworks
    ),
    "datasets": Command(machine.datasets_command, (), machine.DATASET_ACTIONS, list_datasets),
    "studies": Command(machine.studies_command, ("older_than_days",), machine.STUDY_ACTIONS),
    "doctor": Command(machine.doctor_command, ("framework_path",)),
    "config": Command(config_command, settings()),
    "completion": Command(completion_command),
    "help": Command(help_command, objects=lambda: list(COMMANDS)),
}
"""All commands, in the order in which help lists them."""
