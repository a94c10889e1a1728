"""Search spaces: the params that a framework offers, their valid values, and its own default.

They are read from ``search_spaces/<framework>.yaml``; the format is explained in those files.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as SafeLoader  # ten times faster
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]  # the same class, in Python

from tuner.values.errors import ConfigError
from tuner.values.likeness import Likeness
from tuner.values.params import (
    AVERAGE_WEIGHTS,
    Params,
    ParamValue,
    batch_size_of,
    group_size,
    iterations_of,
)
from tuner.values.ranges import (
    Choices,
    Range,
    Suggests,
    check_cases,
    check_keys,
    check_known,
    read_param,
)
from tuner.values.shares import with_nodes

_BOLDER_RATE, _FEWER_ITERATIONS = 3.0, 0.5  # times the default's, for a start point
_OTHER_BATCH = 4  # times smaller or larger than the default's, for two more
_FEWER_WITH_AVERAGE = 0.5  # of the iterations of each; Caffe's default needs less on MNIST
_RATE_RULES = {"linear": 1.0, "square_root": 0.5, "constant": 0.0}
"""The power of the batch size that the learning rate of a larger batch grows with."""


@dataclass(frozen=True)
class Default:
    """A framework's own default for some data sets.

    Attributes:
        model, datasets: What it is the default for.
        params: The default itself.
        source: Where it is written.
        ranges: Entries by param that replace those of the space for this model.
        start: Differences from the default that are worth trying first.
        rate_rule: How the learning rate grows with the batch of a group.
        recommended_rate: Learning rate that the authors of its optimizer recommend; 0 if none.
        settings_template: Replaces the framework's; empty to use that.
        least_budget_s: Seconds below which a study of it cannot prove anything.
    """

    model: str
    datasets: tuple[str, ...]
    params: Params
    source: str
    ranges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    start: tuple[Params, ...] = ()
    rate_rule: str = "square_root"
    recommended_rate: float = 0.0
    settings_template: str = ""
    least_budget_s: float = 0.0

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Default:
        """Read an entry of ``defaults``. Raises ``LookupError``, ``TypeError``, ``ValueError``."""
        rule = str(raw.get("rate_rule", cls.rate_rule))
        if rule not in _RATE_RULES:
            known = ", ".join(_RATE_RULES)
            raise ValueError(f"rate_rule of {raw['model']} must be one of {known}, got {rule!r}")
        return cls(
            model=raw["model"],
            datasets=tuple(raw["datasets"]),
            params=dict(raw["params"]),
            source=str(raw["source"]),
            ranges={name: dict(entry) for name, entry in raw.get("ranges", {}).items()},
            start=tuple(dict(each) for each in raw.get("start", ())),
            rate_rule=rule,
            recommended_rate=float(raw.get("recommended_rate", 0)),
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
        rate_rule: How the learning rate grows with the batch of a group.
        recommended_rate: Learning rate that the authors of the optimizer recommend; 0 if none.
    """

    framework: str
    params: Mapping[str, Range | Choices]
    defaults: tuple[Default, ...]
    start: tuple[Params, ...] = ()
    rate_rule: str = Default.rate_rule
    recommended_rate: float = Default.recommended_rate

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
        overrides, offered = overrides or {}, dict(entries)
        changed = [each.ranges for each in own[:1]] + [overrides]
        for name, changes in (item for each in changed for item in each.items()):
            if name not in entries or not isinstance(changes, Mapping):
                known = ", ".join(entries)
                raise ConfigError(f"search_space.{name} is not a param of {path.stem}: {known}")
            entries[name] = {**entries[name], **changes}
            check_keys(name, changes, str(entries[name].get("type")))
        params = {
            name: read_param(name, entry, cores, cpu_flags) for name, entry in entries.items()
        }
        for name, changes in overrides.items():
            if "type" not in changes:  # who names the type means values of their own
                check_known(name, params[name], read_param(name, offered[name], cores, cpu_flags))
        check_cases(params)
        found = cls(path.stem, params, defaults)
        named = ("start", "rate_rule", "recommended_rate")
        return replace(found, **{name: getattr(own[0], name) for name in named}) if own else found

    @property
    def runtime(self) -> dict[str, Choices]:
        """The params that change only the cost of training, in their order."""
        return {
            name: param
            for name, param in self.params.items()
            if isinstance(param, Choices) and param.runtime
        }

    @property
    def iterations(self) -> Range:
        """The iterations of trainings in the space, from the shortest to the longest."""
        found = self.params["iterations"]
        assert isinstance(found, Range)
        return found

    @property
    def learns_by(self) -> list[str]:
        """Names of the params that change what is learned, but for the iterations."""
        return [name for name in self.params if name not in self.runtime and name != "iterations"]

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
        longer = replace(self.iterations, high=max(self.iterations.high, float(iterations)))
        return replace(self, params={**self.params, "iterations": longer})

    def start_points(self, default: Params) -> list[dict[str, ParamValue]]:
        """Return params worth trying first that this machine and these ranges allow.

        They are those named in the search space, and some that hold for all frameworks. Defaults
        are chosen to be safe, so a higher rate often gets as far in fewer iterations
        (doi:10.1117/12.2520589). Small batches need fewer images
        (doi:10.48550/arXiv.1804.07612). Large ones need as many (doi:10.48550/arXiv.1706.02677),
        but some frameworks train on them in a fraction of the time. No measured accuracy enters
        the points, but for how few iterations suffice with averaged weights.
        """
        named = [{**default, **each} for each in self.start]
        points = [each for each in named if not self.refusal(each)]
        rate = self.params.get("learning_rate")
        if isinstance(rate, Range) and default.get("learning_rate"):
            first = points[0] if points else default
            setting = {name: first[name] for name in self.runtime}
            thriftier = [{**each, **setting} for each in self._thriftier(default, rate)]
            points += [each for each in thriftier if not self.refusal(each)]
        return points

    def _thriftier(self, default: Params, rate: Range) -> Iterator[dict[str, ParamValue]]:
        """Yield the default in fewer iterations, or in cheaper ones.

        The first has a higher rate, the others a smaller and a larger batch. Where a yet smaller
        one is in the range, it keeps the rate, to get far on few images. Else the rate falls with
        the square root of the batch size (doi:10.48550/arXiv.1404.5997), under any optimizer, and
        grows as ``rate_rule`` says, unless it is that of a single sample. All begin at the
        recommended rate if the default's own is lower. Where weights may be averaged, all average
        them: that removes the noise which a falling rate would, at any stop, so that fewer
        iterations are enough (doi:10.48550/arXiv.1212.1824, doi:10.48550/arXiv.1803.05407).
        """
        own, batch = float(default["learning_rate"] or 0), batch_size_of(default)
        iterations, sizes = self.iterations, self.params["batch_size"]
        assert isinstance(sizes, Range)
        averages = self.params.get(AVERAGE_WEIGHTS)
        averaged = isinstance(averages, Choices) and True in averages.values(default)
        grows = _RATE_RULES[self.rate_rule]
        falls = min(grows, _RATE_RULES["square_root"])
        smaller, larger = max(int(sizes.low), batch // _OTHER_BATCH), batch * _OTHER_BATCH
        usual = max(own, self.recommended_rate)
        smallest = smaller // _OTHER_BATCH
        points = [(batch, max(_BOLDER_RATE * own, usual), _FEWER_ITERATIONS)]
        if smaller < batch:
            points.append((smaller, usual * (smaller / batch) ** falls, 1.0))
        if smallest >= sizes.low:
            points.append((smallest, usual, 1.0))
        points.append((larger, usual * (larger / batch) ** grows, 1.0 / _OTHER_BATCH))
        for size, learning_rate, share in points:
            length = share * iterations_of(default) * (_FEWER_WITH_AVERAGE if averaged else 1.0)
            point = {
                **default,
                "batch_size": size,
                "learning_rate": min(max(learning_rate, rate.low), rate.high),
                "iterations": max(int(iterations.low), int(length)),
            }
            yield {**point, AVERAGE_WEIGHTS: True} if averaged else point

    def group_points(self, default: Params) -> list[dict[str, ParamValue]]:
        """Return the default in larger batches, one for each group, the largest group first.

        Each process gets a batch of the default's size, and all together train on as many images
        as the default. The rate grows with the batch size under SGD with momentum
        (doi:10.48550/arXiv.1706.02677), and with its square root under other optimizers
        (doi:10.48550/arXiv.1404.5997), as ``rate_rule`` says. Groups whose batch or rate is
        outside the ranges are left out.
        """
        if not default.get("learning_rate"):
            return []
        names = [name for name in ("nodes", "workers") if name in self.runtime]
        points = []
        for values in itertools.product(*(self.runtime[name].values({}) for name in names)):
            point = self.completed({**default, **dict(zip(names, values, strict=True))})
            times = group_size(point)
            point["batch_size"] = times * batch_size_of(default)
            point["iterations"] = iterations_of(default) // times
            rate = float(default["learning_rate"] or 0)
            point["learning_rate"] = rate * times ** _RATE_RULES[self.rate_rule]
            points += [point] if times > 1 and not self.refusal(point) else []
        return sorted(points, key=group_size, reverse=True)

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
