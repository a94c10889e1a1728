"""References: the recorded convergence of frameworks' defaults, over several seeds.

Accuracies carry over between machines; times never do. With a reference, a study need not train a
slow default to its end once the default's first part was seen to converge as recorded. MLPerf's
reference convergence points serve the same purpose (doi:10.48550/arXiv.1910.01500). Here a noisier
reference makes a claim harder, never easier.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner.config.catalogue import framework_roots, project_folder, tuner_home
from tuner.values.errors import ConfigError
from tuner.values.exchange import lossy
from tuner.values.params import Params, iterations_of
from tuner.values.quality import ACCURACY, Quality
from tuner.values.trial import ENDED_ITSELF, Checkpoint, TrialResult, TrialStatus

_NOT_THE_FRAMEWORK = ("python", "numpy", "lua")  # versions that may differ
_LAST = ("runs", "quality")  # fields that a file has in another form


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Accuracies (fractions 0–1) on both splits after some iterations."""

    iteration: int
    val_accuracy: float
    test_accuracy: float


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """One whole training of the default.

    Attributes:
        seed: Seed of weights and data order.
        looks: Looks in the order of training; the last one is its end.
        setting: Its runtime params that are not those of the reference's ``setting``.
    """

    seed: int
    looks: tuple[Accuracies, ...]
    setting: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """The recorded convergence of a default.

    Attributes:
        framework, dataset, model: Their names.
        dataset_digest: Digest of the images and their split.
        params: The default's own params, those of the runtime included.
        setting: The runtime params that it was recorded with; a run may have others.
        versions: Versions of framework and libraries, as the worker reported them.
        machine: Facts of the machine it was recorded on; times are not recorded.
        runs: One run per seed.
        quality: What their accuracies are scores of.
    """

    framework: str
    dataset: str
    model: str
    dataset_digest: str
    params: Params
    setting: Params
    versions: Mapping[str, str]
    machine: Mapping[str, str]
    runs: tuple[ReferenceRun, ...] = ()
    quality: Quality = ACCURACY

    @property
    def name(self) -> str:
        """Name of its file without the ending, such as ``caffe-mnist-default``."""
        return reference_name(self.framework, self.dataset, self.model)

    @property
    def seeds(self) -> list[int]:
        """The recorded seeds, ascending."""
        return sorted(each.seed for each in self.runs)

    @cached_property
    def test_accuracies(self) -> list[float]:
        """Test accuracies at the end of each run, fractions 0–1."""
        return [each.looks[-1].test_accuracy for each in self.runs]

    @property
    def test_accuracy(self) -> float:
        """Mean test accuracy of the runs at their end."""
        return statistics.fmean(self.test_accuracies)

    @property
    def val_accuracy(self) -> float:
        """Mean validation accuracy of the runs at their end."""
        return statistics.fmean(each.looks[-1].val_accuracy for each in self.runs)

    @property
    def iterations(self) -> int:
        """Mean iterations of a run: fewer than the default asks for where it ends by itself."""
        return round(statistics.fmean(each.looks[-1].iteration for each in self.runs))

    @cached_property
    def curve(self) -> list[Accuracies]:
        """Means over the runs at every iteration at which all of them have a look."""
        by_iteration: dict[int, list[Accuracies]] = {}
        for run in self.runs:
            for look in run.looks:
                by_iteration.setdefault(look.iteration, []).append(look)
        return [
            Accuracies(
                iteration,
                statistics.fmean(each.val_accuracy for each in looks),
                statistics.fmean(each.test_accuracy for each in looks),
            )
            for iteration, looks in sorted(by_iteration.items())
            if len(looks) == len(self.runs)
        ]

    def looks_of(self, seed: int) -> dict[int, Accuracies]:
        """Return the looks of one seed's run by iteration; empty without such a run."""
        looks = (each.looks for each in self.runs if each.seed == seed)
        return {look.iteration: look for look in next(looks, ())}

    def setting_of(self, seed: int) -> Params:
        """Return the runtime params that a seed's run was recorded with."""
        others = (each.setting for each in self.runs if each.seed == seed)
        return {**self.setting, **next(others, {})}

    def refusal(self, dataset_digest: str, params: Params) -> str:
        """Tell why it does not hold for a study's default; empty if it does.

        Args:
            dataset_digest: Digest of the study's data set.
            params: The study's default.
        """
        if dataset_digest != self.dataset_digest:
            return "it was recorded on other images, or another split of them"
        changed = [
            f"{name}={value}" for name, value in self.params.items() if params.get(name) != value
        ]
        changed = [each for each in changed if each.partition("=")[0] not in self.setting]
        if changed:
            return f"it was recorded with {', '.join(changed)}"
        if lossy(params) or lossy(self.setting):
            return "a lossy exchange of gradients changes what is learned"
        return ""

    def version_refusal(self, versions: Mapping[str, str]) -> str:
        """Tell why it does not hold for the versions that a worker reports; empty if it does."""
        names = set(self.versions) - {*_NOT_THE_FRAMEWORK, *self.params}
        other = sorted(
            f"{name} {self.versions[name]}"
            for name in names
            if versions.get(name) != self.versions[name]
        )
        return f"it was recorded with {', '.join(other)}" if other else ""

    def seed_for(self, seed: int) -> int:
        """Return the recorded seed to train with in place of ``seed``, for a comparison."""
        return self.seeds[seed % len(self.runs)]

    def completed(self, result: TrialResult) -> TrialResult:
        """Return trial 0 as if its first part had continued to the end, as recorded.

        Accuracies are means over the recorded seeds, also at the checkpoints. Its time is
        extrapolated from its own first part; no time comes from a reference.
        """
        assert result.measurement is not None
        asked, ended = iterations_of(result.trial.params), self.iterations
        # the figures of a share are projected to all iterations already
        counted = asked if result.trial.projected else result.iterations
        by_itself = f"stopped after {ended} iterations: {ENDED_ITSELF}" if ended < asked else ""
        factor = ended / max(counted, 1)
        measured = result.measurement
        train_time_s = measured.train_time_s * factor
        looks = {each.iteration: each.val_accuracy for each in self.curve}
        looks[ended] = self.val_accuracy  # no seed may have ended just there
        return dataclasses.replace(
            result,
            trial=dataclasses.replace(result.trial, share=min(1.0, result.iterations / ended)),
            status=TrialStatus.STOPPED if by_itself else TrialStatus.COMPLETE,
            reason=by_itself,
            iterations=ended,
            val_accuracy=self.val_accuracy,
            test_accuracy=self.test_accuracy,
            checkpoints=tuple(
                Checkpoint(iteration, train_time_s * iteration / ended, None, val_accuracy)
                for iteration, val_accuracy in looks.items()
            ),
            measurement=dataclasses.replace(
                measured,
                train_time_s=train_time_s,
                cpu_user_s=measured.cpu_user_s * factor,
                cpu_system_s=measured.cpu_system_s * factor,
            ),
            accuracy_from=self.words,
        )

    @property
    def words(self) -> str:
        """Its name in reports."""
        return f"reference of {len(self.runs)} seed{'s' if self.runs[1:] else ''}"

    def with_run(self, run: ReferenceRun) -> Reference:
        """Return the same reference with one more run."""
        runs = sorted((*self.runs, run), key=lambda each: each.seed)
        return Reference(**{**_fields(self), "runs": tuple(runs)})

    def to_json(self) -> str:
        """Serialise, one run per line; ``from_json`` reads it back to an equal value."""
        head = {name: each for name, each in _fields(self).items() if name not in _LAST}
        if self.quality != ACCURACY:
            head["quality"] = asdict(self.quality)
        lines = [
            f" {json.dumps(name)}: {json.dumps(value, default=dict)}"
            for name, value in head.items()
        ]
        runs = ",\n".join(f"  {json.dumps(_entries(each))}" for each in self.runs)
        return "{\n" + ",\n".join(lines) + ',\n "runs": [\n' + runs + "\n ]\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Reference:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError, KeyError, TypeError: For anything else.
        """
        raw = json.loads(text)
        runs = tuple(
            ReferenceRun(
                int(each["seed"]),
                tuple(Accuracies(*look) for look in each["looks"]),
                each.get("setting", {}),
            )
            for each in raw.pop("runs")
        )
        quality = Quality(**raw.pop("quality", {}))
        return cls(**raw, runs=runs, quality=quality)


def _fields(reference: Reference) -> dict[str, Any]:
    return {name: getattr(reference, name) for name in reference.__dataclass_fields__}


def _entries(run: ReferenceRun) -> dict[str, Any]:
    setting = {"setting": dict(run.setting)} if run.setting else {}
    return {"seed": run.seed, **setting, "looks": [[*asdict(each).values()] for each in run.looks]}


def reference_name(framework: str, dataset: str, model: str) -> str:
    """Return the name of a reference's file, without its ending."""
    return f"{framework}-{dataset}-{model}"


def reference_folders(framework_path: str | None = None) -> list[Path]:
    """Return the folders of references: the user's recordings, the user's tree, the project's."""
    own = [root / "references" for root in framework_roots(framework_path)[:-1]]
    return [tuner_home() / "references", *own, project_folder("references")]


def find_reference(
    framework: str, dataset: str, model: str, framework_path: str | None = None
) -> Reference | None:
    """Return the first reference of that name with at least one run; ``None`` without.

    Raises:
        ConfigError: If its file cannot be read.
    """
    for folder in reference_folders(framework_path):
        found = read_reference(folder / f"{reference_name(framework, dataset, model)}.json")
        if found and found.runs:
            return found
    return None


def read_reference(path: Path) -> Reference | None:
    """Read a reference's file; return ``None`` if there is none.

    Raises:
        ConfigError: If it cannot be read.
    """
    try:
        return Reference.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"reference {path} cannot be read: {error}; remove it, or record it again: "
            "python -m tuner reference"
        ) from error


def run_of(result: TrialResult) -> ReferenceRun:
    """Return the run that a training of kind ``REFERENCE`` recorded."""
    looks: Sequence[Accuracies] = [
        Accuracies(each.iteration, each.val_accuracy, each.test_accuracy)
        for each in result.checkpoints
        if each.test_accuracy is not None
    ]
    return ReferenceRun(result.trial.seed, tuple(looks))
