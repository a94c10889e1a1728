"""Completion of command lines in bash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from tuner.config.catalogue import project_folder
from tuner.config.schema import TuneConfig
from tuner.config.validation import CHOICES

if TYPE_CHECKING:
    from tuner.cli.commands import Command

SCRIPT = """\
_tuner() {
    local IFS=$'\\n'
    COMPREPLY=($("$1" completion "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o nospace -F _tuner tuner
"""


def complete(line: str, commands: Mapping[str, Command]) -> list[str]:
    """Return what the last word of a command line may become.

    A completed word ends with a blank, a setting with ``=``. Of ``name=value`` only the value is
    returned, as bash ends a word at ``=``.

    Args:
        line: The command line up to the cursor, the program's name included.
        commands: All commands by their names.
    """
    *before, last = [*line.split()[1:], *([""] if line[-1:].isspace() else [])] or [""]
    name, equals, start = last.partition("=")
    if equals:
        return [f"{value} " for value in _values(name) if value.startswith(start)]
    whole, names = _offered(before, commands)
    found = [*(f"{each} " for each in whole), *(f"{each}=" for each in names)]
    return [each for each in found if each.startswith(last)]


def _offered(
    before: Sequence[str], commands: Mapping[str, Command]
) -> tuple[Sequence[str], Iterable[str]]:
    """Return the whole words, and the names of settings, that may follow some words."""
    of_tune = commands["tune"].names
    if not before:
        return tuple(commands), of_tune
    first, *rest = before
    if "=" in first or first.startswith("-"):
        return (), of_tune
    if first not in commands:
        return (), ()
    command = commands[first]
    whole = command.objects() if rest or not command.actions else command.actions
    return whole, command.names


def _values(name: str) -> Sequence[str]:
    options = sorted(path.stem for path in (project_folder("conf") / name).glob("*.yaml"))
    return options or CHOICES.get(name, ())


def settings() -> list[str]:
    """Return the names of all settings of a study."""
    return ["experiment", *_names(TuneConfig())]


def _names(part: Any, group: str = "") -> Iterator[str]:
    for each in fields(part):
        if each.name != "name":  # it is chosen by the group itself, as in search=joint
            yield group + each.name
        value = getattr(part, each.name)
        if is_dataclass(value):
            yield from _names(value, f"{group}{each.name}.")
