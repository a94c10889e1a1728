"""The words after a command: ``name=value``, or an action and names. Unknown ones are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.values.errors import ConfigError

Parser = Callable[[str], Any]
"""Turns the text of a word into its value; raises ``ValueError`` or ``ConfigError``."""


def read_words(words: Sequence[str], known: Mapping[str, Parser]) -> dict[str, Any]:
    """Read ``name=value`` words. Raises ``ConfigError`` for unknown names and wrong values."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in known:
            raise ConfigError(
                f"unknown word {word!r}; expected name=value with one of: {', '.join(known)}"
            )
        try:
            values[name] = known[name](text)
        except ConfigError:
            raise
        except ValueError:
            kind = "a whole number" if known[name] is int else "a number"
            raise ConfigError(f"{name} must be {kind}, got {text!r}") from None
    return values


def read_action(words: Sequence[str], actions: Sequence[str]) -> tuple[str, list[str], str | None]:
    """Return the action, the names after it, and the framework path.

    Raises:
        ConfigError: If the action is none of ``actions``.
    """
    names = [word for word in words if "=" not in word]
    values = read_words([word for word in words if "=" in word], {"framework_path": str})
    action = names.pop(0) if names else "list"
    if action not in actions:
        raise ConfigError(f"unknown action {action!r}; choose from: {', '.join(actions)}")
    return action, names, values.get("framework_path")


def require_names(named: object, action: str, known: Sequence[str]) -> None:
    """Raise ``ConfigError`` if an action that needs a name was given none."""
    if not named:
        raise ConfigError(f"{action} needs a name; choose from: {', '.join(known)}")
