"""A framework's own settings file, filled in with the params of a recommendation."""

from __future__ import annotations

import string
from pathlib import Path

from tuner.values.params import Params, ParamValue


def fill_settings(template: Path, params: Params) -> str:
    """Return the framework's own settings file with ``params`` filled in.

    ``$name`` is a param, ``$name_80pct`` is 80 % of it, rounded down.
    """
    text = template.read_text(encoding="utf-8")
    return string.Template(text).safe_substitute(_Values(params))


class _Values(dict[str, ParamValue]):
    """Params by name, and their percentages."""

    def __missing__(self, name: str) -> ParamValue:
        param, _, percent = name.removesuffix("pct").rpartition("_")
        if not name.endswith("pct") or not percent.isdecimal():
            raise KeyError(name)
        return int(self[param] or 0) * int(percent) // 100
