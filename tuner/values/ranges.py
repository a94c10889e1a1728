"""The values that a param may have: a range of numbers, or choices, which may depend on others.

They are read from ``search_spaces/<framework>.yaml``, or from a user's ``tuner.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.values.errors import ConfigError
from tuner.values.params import UNSET, Params, ParamValue
from tuner.values.shares import counts, shares

_OTHERWISE = "otherwise"  # the case of all values that have no case of their own
_KEYS = {
    "int": ("low", "high", "log"),
    "float": ("low", "high", "log"),
    "categorical": ("choices",),
    "conditional": ("given", "cases", "choices"),
}
"""What an entry may have by its type, beside ``type`` and ``affects``."""


class Suggests(Protocol):
    """What a sampler's trial offers; Optuna's ``Trial`` does."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """Propose a whole number from ``low`` to ``high``, both included."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Propose a number from ``low`` to ``high``."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Propose one of ``choices``."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; ``log`` searches their logarithm."""

    low: float
    high: float
    integer: bool
    log: bool = False

    def suggest(self, trial: Suggests, name: str, chosen: Params) -> ParamValue:
        """Let ``trial`` propose a value."""
        if self.integer:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def refusal(self, value: ParamValue, chosen: Params) -> str:
        """Return why ``value`` is not a member; empty if it is."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        whole = number and (not self.integer or float(value or 0).is_integer())
        if whole and self.low <= float(value or 0) <= self.high:
            return ""
        kind = "a whole number" if self.integer else "a number"
        return f"must be {kind} from {self.low:g} to {self.high:g}, got {value!r}"

    def optuna_name(self, name: str, chosen: Params) -> str | None:
        """Return the name that the sampler knows it by."""
        return name


@dataclass(frozen=True, slots=True)
class Choices:
    """One of several values, which may depend on another param.

    Attributes:
        cases: Values by the value of ``given``, or ``otherwise`` for all values not named; a
            single case under ``""`` without ``given``.
        given: The param chosen before, or empty.
        runtime: Whether it changes only the cost of training, not what is learned.
    """

    cases: Mapping[str, tuple[ParamValue, ...]]
    given: str = ""
    runtime: bool = True

    def values(self, chosen: Params) -> tuple[ParamValue, ...]:
        """Return the values allowed by what was chosen before."""
        case = str(chosen.get(self.given, ""))
        return self.cases.get(case, self.cases.get(_OTHERWISE, ()))

    def suggest(self, trial: Suggests, name: str, chosen: Params) -> ParamValue:
        """Let ``trial`` propose a value, unless there is only one."""
        known_as = self.optuna_name(name, chosen)
        if known_as is None:
            return self.values(chosen)[0]
        value: ParamValue = trial.suggest_categorical(known_as, self.values(chosen))
        return value

    def refusal(self, value: ParamValue, chosen: Params) -> str:
        """Return why ``value`` is not a member; empty if it is."""
        if value in self.values(chosen):
            return ""
        under = f" with {self.given}={chosen.get(self.given)}" if self.given else ""
        known = ", ".join(map(str, self.values(chosen)))
        return f"must be one of {known}{under}, got {value!r}"

    def optuna_name(self, name: str, chosen: Params) -> str | None:
        """Return the name that the sampler knows it by; ``None`` if there is no choice.

        Each case has its own values, so to a sampler it is another param.
        """
        if len(self.values(chosen)) < 2:
            return None
        return f"{name}[{chosen[self.given]}]" if self.given else name


def read_param(
    name: str, entry: Mapping[str, Any], cores: int, flags: Collection[str] = ()
) -> Range | Choices:
    """Read an entry of ``params``: what values it allows.

    Args:
        name: Name of the param.
        entry: The entry.
        cores: CPUs of a trial: the highest number of threads offered.
        flags: Instruction sets of the CPU.

    Raises:
        ConfigError: If it cannot be read.
    """
    kind = entry.get("type")
    try:
        if kind in ("int", "float"):
            return _read_range(name, entry)
        runtime = _is_runtime(name, entry)
        if kind == "categorical":
            return Choices({"": _read_values(entry["choices"], cores, flags)}, runtime=runtime)
        if kind == "conditional":
            cases = entry["cases"]
            cases = (shares(cores) if cases == "per_worker" else cases).items()
            read = {str(case): _read_values(values, cores, flags) for case, values in cases}
            kept = _read_values(entry["choices"], cores, flags) if "choices" in entry else None
            for case, values in read.items():
                read[case] = tuple(each for each in values if kept is None or each in kept)
            return Choices(read, entry["given"], runtime)
    except ConfigError:  # which is a ValueError too
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"search_space.{name} cannot be read: {error!r}") from error
    raise ConfigError(
        f"search_space.{name}.type must be int, float, categorical or conditional, got {kind!r}"
    )


def check_keys(name: str, changes: Mapping[str, Any], kind: str) -> None:
    """Raise ``ConfigError`` if params of this type have none of the entries to be changed."""
    known = _KEYS.get(kind, tuple(changes))
    for key in changes.keys() - {"type", "affects", *known}:
        raise ConfigError(
            f"search_space.{name}.{key} changes nothing, as {name} is of type {kind}; it has "
            f"{', '.join(known)}"
        )


def check_known(name: str, param: Range | Choices, offered: Range | Choices) -> None:
    """Raise ``ConfigError`` if one of a param's choices is none of those that are offered.

    What a framework does not know would only be found out by trials that fail.
    """
    if not (isinstance(param, Choices) and isinstance(offered, Choices)):
        return
    if param.given or offered.given:  # its choices only leave out some
        return
    known = [repr(each) for each in offered.values({})]
    for value in param.values({}):
        if repr(value) not in known:
            shown = ", ".join(map(str, offered.values({})))
            raise ConfigError(
                f"search_space.{name}.choices must be among {shown} on this machine, got {value}"
            )


def _is_runtime(name: str, entry: Mapping[str, Any]) -> bool:
    affects = entry.get("affects", "time")
    if affects not in ("time", "accuracy"):
        raise ConfigError(f"search_space.{name}.affects must be time or accuracy, got {affects!r}")
    return bool(affects == "time")


def _read_range(name: str, entry: Mapping[str, Any]) -> Range:
    low, high, log = float(entry["low"]), float(entry["high"]), bool(entry.get("log", False))
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ConfigError(
            f"search_space.{name} needs low <= high, got low={entry['low']} high={entry['high']}"
        )
    if low <= 0 and (log or name in ("batch_size", "iterations", "learning_rate")):
        raise ConfigError(f"search_space.{name}.low must be above 0, got {entry['low']}")
    integer = entry["type"] == "int"
    if integer and not (low.is_integer() and high.is_integer()):
        raise ConfigError(
            f"search_space.{name} needs whole numbers, got low={entry['low']} high={entry['high']}"
        )
    return Range(low, high, integer, log)


def check_cases(params: Mapping[str, Range | Choices]) -> None:
    """Raise ``ConfigError`` if an earlier choice leaves no value for a param given by it."""
    before: dict[str, Range | Choices] = {}
    for name, param in params.items():
        if isinstance(param, Choices):
            given = before.get(param.given)
            if param.given and not isinstance(given, Choices):
                raise ConfigError(
                    f"search_space.{name}.given must be a categorical param defined before it, "
                    f"got {param.given!r}"
                )
            values = given.cases.values() if isinstance(given, Choices) else [("",)]
            for value in (str(value) for case in values for value in case):
                if not param.values({param.given: value}):
                    why = f"search_space.{name} has no value for this CPU"
                    if param.given:
                        why += f" with {param.given}={value}; search_space.{param.given}.choices "
                        why += "can leave that out"
                    raise ConfigError(why)
        before[name] = param


def _read_values(
    raw: str | Sequence[Any], cores: int, flags: Collection[str]
) -> tuple[ParamValue, ...]:
    if raw == "per_core":
        return (UNSET, *counts(cores))
    if raw == "up_to_cores":
        return counts(cores)
    if isinstance(raw, str) or not raw:
        raise ValueError(f"{raw!r} is not a list of values")
    values: list[ParamValue] = []
    for each in raw:
        if isinstance(each, Mapping):
            values += [value for value, needed in each.items() if needed in flags]
        else:
            values.append(each)
    return tuple(values)
