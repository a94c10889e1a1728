"""Search spaces: the params that a framework offers, their valid values, and its own default.

They are read from ``search_spaces/<framework>.yaml``; the format is explained in those files.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import yaml

try:
    from yaml import CSafeLoader as SafeLoader  # ten times faster
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]  # the same class, in Python

from tuner.values.errors import ConfigError
from tuner.values.likeness import Likeness
from tuner.values.shares import counts, shares, with_nodes
from tuner.values.trial import UNSET, Params, ParamValue


class Suggests(Protocol):
    """What a sampler's trial offers; Optuna's ``Trial`` does."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """Propose a whole number from ``low`` to ``high``, both included."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Propose a number from ``low`` to ``high``."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Propose one of ``choices``."""


_BOLDER_RATE, _FEWER_ITERATIONS = 3.0, 0.5  # times the default's, for a start point
_OTHERWISE = "otherwise"  # the case of all values that have no case of their own
_SMALLER_BATCH = 4  # times smaller than the default's, for another start point


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


@dataclass(frozen=True)
class Default:
    """A framework's own default for some data sets.

    Attributes:
        model, datasets: What it is the default for.
        params: The default itself.
        source: Where it is written.
        ranges: Entries by param that replace those of the space for this model.
        start: Differences from the default that are worth trying first.
        settings_template: Replaces the framework's; empty to use that.
        least_budget_s: Seconds below which a study of it cannot prove anything.
    """

    model: str
    datasets: tuple[str, ...]
    params: Params
    source: str
    ranges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    start: tuple[Params, ...] = ()
    settings_template: str = ""
    least_budget_s: float = 0.0

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Default:
        """Read an entry of ``defaults``. Raises ``LookupError`` or ``TypeError``."""
        return cls(
            model=raw["model"],
            datasets=tuple(raw["datasets"]),
            params=dict(raw["params"]),
            source=str(raw["source"]),
            ranges={name: dict(entry) for name, entry in raw.get("ranges", {}).items()},
            start=tuple(dict(each) for each in raw.get("start", ())),
            settings_template=str(raw.get("settings_template", "")),
            least_budget_s=float(raw.get("least_budget_s", 0)),
        )

    def fitted(self, likeness: Likeness, entries: Mapping[str, Mapping[str, Any]]) -> Default:
        """Return the default of a user's data set that is like one of this default's."""
        own = {name: {**entry, **self.ranges.get(name, {})} for name, entry in entries.items()}
        params, words = likeness.fitted(self.params, own)
        ranges = {
            name: {**self.ranges.get(name, {}), **ends}
            for name, ends in likeness.ranges(params, own).items()
        }
        return replace(
            self,
            datasets=(likeness.name,),
            params=params,
            source=f"{self.source}; {words}",
            ranges={**self.ranges, **ranges},
        )


@dataclass(frozen=True)
class SearchSpace:
    """All params of one framework, in the order in which they are chosen.

    Attributes:
        framework: Its name.
        params: What may be chosen.
        defaults: The framework's own defaults.
        start: Differences from the default that are worth trying first.
    """

    framework: str
    params: Mapping[str, Range | Choices]
    defaults: tuple[Default, ...]
    start: tuple[Params, ...] = ()

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        cores: int,
        cpu_flags: Collection[str] = (),
        dataset: str = "",
        model: str = "",
        overrides: Mapping[str, Any] | None = None,
        likeness: Likeness | None = None,
        nodes: int = 1,
    ) -> SearchSpace:
        """Read a file of ``search_spaces/``.

        Args:
            path: The file.
            cores: CPUs of a trial: the highest number of threads offered.
            cpu_flags: Instruction sets of the CPU.
            dataset: Data set whose ranges and start points are used, with ``model``; empty to
                use only what the file has for all.
            model: See ``dataset``.
            overrides: Entries by param that replace those of the file.
            likeness: What a user's own ``dataset`` takes its defaults over from, if it is one.
            nodes: Machines that a trial may train on; above 1 this is the param ``nodes``.

        Raises:
            ConfigError: If the file or the overrides are not a valid search space.
        """
        try:
            raw = yaml.load(path.read_text(encoding="utf-8"), SafeLoader)
            entries = {name: dict(entry) for name, entry in raw["params"].items()}
            defaults = tuple(map(Default.read, raw["defaults"]))
        except (
            OSError,
            yaml.YAMLError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            raise ConfigError(f"{path} is not a search space: {error}") from error
        if nodes > 1:
            entries = with_nodes(entries, nodes)
            defaults = tuple(replace(d, params={**d.params, "nodes": 1}) for d in defaults)
        if likeness:
            like = [each for each in defaults if likeness.like in each.datasets]
            defaults += tuple(each.fitted(likeness, entries) for each in like)
        own = [each for each in defaults if each.model == model and dataset in each.datasets]
        changed = [each.ranges for each in own[:1]] + [overrides or {}]
        for name, changes in (item for each in changed for item in each.items()):
            if name not in entries or not isinstance(changes, Mapping):
                known = ", ".join(entries)
                raise ConfigError(f"search_space.{name} is not a param of {path.stem}: {known}")
            entries[name] |= changes
        params = {
            name: read_param(name, entry, cores, cpu_flags) for name, entry in entries.items()
        }
        check_cases(params)
        return cls(path.stem, params, defaults, own[0].start if own else ())

    @property
    def runtime(self) -> dict[str, Choices]:
        """The params that change only the cost of training, in their order."""
        return {
            name: param
            for name, param in self.params.items()
            if isinstance(param, Choices) and param.runtime
        }

    def completed(self, params: Params) -> dict[str, ParamValue]:
        """Return ``params`` with each choice that earlier ones rule out set to its first value."""
        whole = dict(params)
        for name, param in self.params.items():
            if isinstance(param, Choices) and whole.get(name) not in param.values(whole):
                whole[name] = param.values(whole)[0]
        return whole

    def suggest(self, trial: Suggests) -> dict[str, ParamValue]:
        """Let a sampler's trial propose params."""
        chosen: dict[str, ParamValue] = {}
        for name, param in self.params.items():
            chosen[name] = param.suggest(trial, name, chosen)
        return chosen

    def refusal(self, params: Params) -> str:
        """Return why ``params`` are not a member of the space; empty if they are."""
        for name, param in self.params.items():
            if why := param.refusal(params.get(name), params):
                return f"{name} {why}"
        unknown = sorted(set(params) - set(self.params))
        return f"{', '.join(unknown)} is not a param of {self.framework}" if unknown else ""

    def with_longer(self, iterations: int) -> SearchSpace:
        """Return the space with ``iterations`` extended to at least this many."""
        known = self.params["iterations"]
        assert isinstance(known, Range)
        longer = replace(known, high=max(known.high, float(iterations)))
        return replace(self, params={**self.params, "iterations": longer})

    def start_points(self, default: Params) -> list[dict[str, ParamValue]]:
        """Return params worth trying first that this machine and these ranges allow.

        They are those named in the search space, and two that hold for all frameworks. Defaults
        are chosen to be safe, so a higher rate often gets as far in fewer iterations
        (doi:10.1117/12.2520589). Small batches need fewer images
        (doi:10.48550/arXiv.1804.07612). No measured accuracy enters them.
        """
        points = [{**default, **each} for each in self.start]
        rate = self.params.get("learning_rate")
        if isinstance(rate, Range) and default.get("learning_rate"):
            first = points[0] if points else default
            setting = {name: first[name] for name in self.runtime}
            points += [{**each, **setting} for each in self._thriftier(default, rate)]
        return [each for each in points if not self.refusal(each)]

    def _thriftier(self, default: Params, rate: Range) -> Iterator[dict[str, ParamValue]]:
        """Yield the default with fewer images: at a higher rate, and in smaller batches.

        The rate falls with the square root of the batch size (doi:10.48550/arXiv.1404.5997).
        """
        own, sizes = float(default["learning_rate"] or 0), self.params["batch_size"]
        yield {
            **default,
            "learning_rate": min(_BOLDER_RATE * own, rate.high),
            "iterations": int(_FEWER_ITERATIONS * int(default["iterations"] or 1)),
        }
        assert isinstance(sizes, Range)
        batch = int(default["batch_size"] or 1)
        smaller = max(int(sizes.low), batch // _SMALLER_BATCH)
        if smaller < batch:
            fallen = max(own * (smaller / batch) ** 0.5, rate.low)
            yield {**default, "batch_size": smaller, "learning_rate": fallen}

    def optuna_params(self, params: Params) -> dict[str, ParamValue]:
        """Return the params under the sampler's names, without those that offer no choice."""
        named = {
            param.optuna_name(name, params): params[name] for name, param in self.params.items()
        }
        return {name: value for name, value in named.items() if name is not None}

    def default(self, dataset: str, model: str) -> Default:
        """Return the framework's own default. Raises ``ConfigError`` if it has none."""
        for each in self.defaults:
            if each.model == model and dataset in each.datasets:
                return each
        pairs = [(name, each.model) for each in self.defaults for name in each.datasets]
        near = [pair for pair in pairs if pair[0] == dataset]
        known = ", ".join(f"{name} (model={found})" for name, found in near or pairs)
        raise ConfigError(
            f"{self.framework} has no default for {dataset} with model={model}; it has: {known}"
        )


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
            return Choices(read, entry["given"], runtime)
    except ConfigError:  # which is a ValueError too
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"search_space.{name} cannot be read: {error!r}") from error
    raise ConfigError(
        f"search_space.{name}.type must be int, float, categorical or conditional, got {kind!r}"
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
                    under = f" with {param.given}={value}" if param.given else ""
                    raise ConfigError(f"search_space.{name} has no value for this CPU{under}")
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
