"""A framework's own settings file, found and filled in with the params of a recommendation."""

from __future__ import annotations

import string
from pathlib import Path

from tuner.config.catalogue import find_setting_file, framework_folder
from tuner.config.schema import FrameworkConfig
from tuner.measure import cpu_flags
from tuner.values.params import AVERAGE_WEIGHTS, Params, ParamValue
from tuner.values.space import SearchSpace


def settings_template(
    framework: FrameworkConfig, dataset: str, model: str, path: str | None = None
) -> Path | None:
    """Return the settings file of the matching default, else of the framework, else ``None``."""
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


def fill_settings(template: Path, params: Params) -> str:
    """Return the framework's own settings file with ``params`` filled in.

    ``$name`` is a param, ``$name_80pct`` is 80 % of it, rounded down. Studies that did not know
    averaged weights averaged none.
    """
    text = template.read_text(encoding="utf-8")
    return string.Template(text).safe_substitute(_Values({AVERAGE_WEIGHTS: False, **params}))


class _Values(dict[str, ParamValue]):
    """Params by name, and their percentages."""

    def __missing__(self, name: str) -> ParamValue:
        param, _, percent = name.removesuffix("pct").rpartition("_")
        if not name.endswith("pct") or not percent.isdecimal():
            raise KeyError(name)
        return int(self[param] or 0) * int(percent) // 100
