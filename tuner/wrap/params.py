"""The params of a program: their ranges, and how their values reach its command line."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tuner.values.errors import ConfigError
from tuner.values.params import Params, ParamValue, text_of
from tuner.values.ranges import Choices, Range, check_cases, read_param
from tuner.values.space import SearchSpace

FILE = "tuner.yaml"
SEED = "seed"
WORKERS = "workers"
"""The param whose name says that it changes the time alone: a group that shares each batch."""
_NAME = r"[A-Za-z_]\w*"
_PLAIN = (str, int, float, bool)
_SPEC = re.compile(r"\s*(log|uniform|int|logint|choice)\((.*)\)\s*", re.DOTALL)
_HOLE = re.compile(rf"\{{({_NAME})(?:=([^{{}}]*))?\}}", re.ASCII)
_DIGITS = 3  # of a number that the search proposes, within its range
_KEYS = {"params", "default", "start"}


@dataclass(frozen=True)
class ParamSpace:
    """The params of a program.

    Attributes:
        params: What may be chosen, by name.
        default: Values of the program as it is, where these are known.
        start: Values worth trying first.
        timed: Values of params that change the time alone, by name: runtime settings.
    """

    params: Mapping[str, Range | Choices] = field(default_factory=dict)
    default: Params = field(default_factory=dict)
    start: tuple[Params, ...] = ()
    timed: Mapping[str, tuple[ParamValue, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether there are any that change more than the time."""
        return bool(self.params)

    @property
    def space(self) -> SearchSpace:
        """The same as a search space."""
        return SearchSpace("the program", self.params, ())

    def rounded(self, params: Params) -> dict[str, ParamValue]:
        """Return values with as many digits as a person would write."""
        short = {name: _rounded(value, self.params[name]) for name, value in params.items()}
        return dict(params) if self.space.refusal(short) else short

    def with_own(self, argv: Sequence[str]) -> ParamSpace:
        """Return the params with the values that a command gives to them, as in ``{lr=0.1}``."""
        own = {
            name: _scalar(value)
            for each in argv
            for name, value in _HOLE.findall(each)
            if value and name in self.names
        }
        return replace(self, default={**self.default, **own})

    def part_of(self, setting: Params) -> dict[str, ParamValue]:
        """Return those values of a setting that change more than the time."""
        return {name: value for name, value in setting.items() if name in self.params}

    @property
    def names(self) -> set[str]:
        """The names of all params."""
        return {*self.params, *self.timed}

    def values_in(self, setting: Params) -> dict[str, ParamValue]:
        """Return those values of a setting that the program is told."""
        return {name: value for name, value in setting.items() if name in self.names}


def is_spec(text: str) -> bool:
    """Return whether a text is a range such as ``log(1e-4, 1e-1)``."""
    return bool(_SPEC.fullmatch(text))


def read_params(specs: Mapping[str, str], file: Path | None, cores: int) -> ParamSpace:
    """Return the params that the command line and a file describe.

    Args:
        specs: Ranges by name: ``log``, ``uniform``, ``int`` or ``logint`` with the lowest and the
            highest value, or ``choice`` with all values. They replace those of the file.
        file: A ``tuner.yaml``; ``None`` without one.
        cores: CPUs of a run: the highest number that ``up_to_cores`` offers.

    Raises:
        ConfigError: If something cannot be read.
    """
    raw = _read_file(file) if file else {}
    entries = {**raw.get("params", {}), **{name: _entry(name, specs[name]) for name in specs}}
    all_params = {name: _param(name, entry, cores) for name, entry in entries.items()}
    params = {name: each for name, each in all_params.items() if not _is_timed(each)}
    timed = {
        name: each.values({})
        for name, each in all_params.items()
        if isinstance(each, Choices) and name not in params
    }
    if len({name.upper() for name in all_params}) < len(all_params):
        raise ConfigError("two params have names that differ only in capital letters")
    try:
        check_cases(params)
    except ConfigError as error:
        raise _of_param(error) from error
    default = _read_values(raw.get("default", {}), all_params, file)
    own = {name: value for name, value in default.items() if name in params}
    start = tuple({**own, **_read_values(each, params, file)} for each in raw.get("start", ()))
    space = ParamSpace(params, default, start, timed)
    for each in start:
        if why := space.space.refusal(each):
            raise ConfigError(f"{file}: start: {why}")
    return space


def _read_values(
    values: Mapping[str, Any], params: Mapping[str, Range | Choices], file: Path | None
) -> dict[str, ParamValue]:
    unknown = [name for name in values if name not in params]
    if unknown:
        raise ConfigError(f"{file}: {unknown[0]} is no param")
    return {  # YAML takes 1e-3 for a text
        name: _scalar(value) if isinstance(value, str) else value for name, value in values.items()
    }


def _read_file(file: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        shaped = raw.keys() <= _KEYS and all(
            isinstance(each, Mapping)
            for each in (raw.get("params", {}), raw.get("default", {}), *raw.get("start", ()))
        )
    except (OSError, ValueError, AttributeError, TypeError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"{file} cannot be read: {first}") from error
    if not shaped:
        raise ConfigError(
            f"{file} must have these entries alone: params, default, start; the first two are "
            "tables, start is a list of tables"
        )
    return dict(raw)


def _param(name: Any, entry: Any, cores: int) -> Range | Choices:
    named = isinstance(name, str) and re.fullmatch(_NAME, name, re.ASCII) and name != SEED
    if not named:
        raise ConfigError(f"{name!r} is no name of a param; use letters, digits and _, not seed")
    if not isinstance(entry, Mapping):
        raise ConfigError(f"param {name} must be a table such as {{type: int, low: 1, high: 9}}")
    try:
        affects = {"affects": "time" if name == WORKERS else "accuracy", **entry}
        param = read_param(name, affects, cores)
    except ConfigError as error:
        raise _of_param(error) from error
    if affects["affects"] == "time" and (isinstance(param, Range) or param.given):
        raise ConfigError(f"param {name} affects the time alone; list its values: choice(1, 2)")
    cases = param.cases.values() if isinstance(param, Choices) else ()
    for value in (value for case in cases for value in case):
        if not isinstance(value, _PLAIN):
            raise ConfigError(f"param {name}: {value!r} is neither a number nor a text")
    return param


def _is_timed(param: Range | Choices) -> bool:
    return isinstance(param, Choices) and param.runtime


def _of_param(error: ConfigError) -> ConfigError:
    return ConfigError(str(error).replace("search_space.", "param ", 1))


def _entry(name: str, spec: str) -> dict[str, Any]:
    """Return a range of the command line as an entry of a search space."""
    match = _SPEC.fullmatch(spec)
    words = [each.strip() for each in match[2].split(",")] if match else []
    if match and match[1] == "choice" and all(words):
        return {"type": "categorical", "choices": [_scalar(each) for each in words]}
    try:
        low, high = map(float, words)
    except ValueError:
        raise ConfigError(
            f"--{name} {spec!r} is no range; write log(1e-4, 1e-1), uniform(0, 1), int(1, 10), "
            "logint(1, 1000) or choice(32, 64)"
        ) from None
    assert match is not None
    whole, log = match[1].endswith("int"), match[1].startswith("log")
    return {"type": "int" if whole else "float", "low": low, "high": high, "log": log}


def holes(argv: Sequence[str]) -> set[str]:
    """Return the names in braces in a command's arguments."""
    return {name for each in argv for name, _ in _HOLE.findall(each)}


def fill(
    argv: Sequence[str], names: Collection[str], values: Params, default: Params
) -> list[str]:
    """Return a command with values in place of the names in braces.

    An argument whose value is unknown is left out, with the option before it, so that the
    program's own default holds. ``{lr=0.1}`` says what to write then.

    Args:
        argv: The command.
        names: Names that stand for params; other braces stay as they are.
        values: Values by name.
        default: Values where ``values`` has none, and the command says none.

    Raises:
        ConfigError: If an argument can be neither filled nor left out.
    """
    filled: list[str] = []
    for argument in argv:
        missing = [
            name
            for name, own in _HOLE.findall(argument)
            if name in names and name not in values and name not in default and not own
        ]
        if not missing:
            filled.append(_HOLE.sub(lambda hole: _value(hole, names, values, default), argument))
        elif "=" in _HOLE.sub("", argument) or argument.startswith("-"):
            continue
        elif filled and filled[-1].startswith("-") and "=" not in filled[-1]:
            filled.pop()
        else:
            raise ConfigError(
                f"the argument {argument!r} has no option that could be left out for the program "
                f"as it is; write its own value as {{{missing[0]}=VALUE}}"
            )
    return filled


def _value(hole: re.Match[str], names: Collection[str], values: Params, default: Params) -> str:
    name, own = hole[1], hole[2]
    if name not in names:
        return hole[0]
    if name in values:
        return text_of(values[name])
    return own or text_of(default[name])


def _scalar(text: str) -> ParamValue:
    """Return what a text on the command line stands for: a number, true, false, or itself."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return {"true": True, "false": False}.get(text, text)


def _rounded(value: ParamValue, param: Range | Choices) -> ParamValue:
    if not isinstance(value, float) or not isinstance(param, Range):
        return value
    if param.log or param.high == param.low:
        return float(f"{value:.{_DIGITS}g}")
    return round(value, _DIGITS - 1 - math.floor(math.log10(param.high - param.low)))
