"""Measurement of a study's default: trial 0, and the source of its accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tuner.config.catalogue import tuner_home
from tuner.config.schema import TuneConfig
from tuner.convergence.default_run import (
    KnownDefault,
    first_part,
    is_part,
    judge,
    least_compared,
    with_reference,
)
from tuner.convergence.departures import departure
from tuner.convergence.references import Reference, find_reference, run_of
from tuner.progress import StudyProgress
from tuner.runtimes import last_words
from tuner.search import Races
from tuner.storage.study_folder import StudyFacts
from tuner.study.baseline import BaselineCache
from tuner.study.schedule import Schedule
from tuner.study.trial_runs import TrialRuns
from tuner.trials.session import TrialSetup
from tuner.values.errors import RuntimeUnavailable
from tuner.values.exchange import lossy
from tuner.values.params import batch_size_of, iterations_of
from tuner.values.space import SearchSpace
from tuner.values.trial import Trial, TrialKind, TrialResult, TrialStatus

_RACE_OF_LEFT = 1 / 3  # largest part of the time left, for the race before a whole default
_WHOLE_OF_LEFT = 0.5  # the same for the default itself, at the fastest setting
_FACT = "default"
_FIRST = "first_run"  # trial 0 as it ran, while more of the default is to be measured


class DefaultTrial:
    """Trains the default as far as a study needs it.

    Args:
        config: The study's configuration.
        setup: What the study's trials share.
        space: The study's search space.
        fingerprint: Fingerprint of this machine and the runtime's packages.
        folder: The study's record.
        runs: Runs the trials.
        progress: Shows what is being done.
        find: Finds a reference by framework, data set, model and ``framework_path``.

    Raises:
        ConfigError: If a reference cannot be read.
    """

    def __init__(
        self,
        config: TuneConfig,
        setup: TrialSetup,
        space: SearchSpace,
        fingerprint: str,
        folder: StudyFacts,
        runs: TrialRuns,
        progress: StudyProgress,
        find: Callable[[str, str, str, str | None], Reference | None] = find_reference,
    ) -> None:
        self._config, self._setup, self._fingerprint = config, setup, fingerprint
        self._find = find
        self._space, self._folder = space, folder
        self._runs, self._progress = runs, progress
        self._schedule = Schedule(config.budget, config.seed, config.baseline)
        self._images = setup.dataset.sizes["validation"]
        self._min_iterations = int(space.iterations.low)

    def measure(self, params: Mapping[str, Any], race: Races | None) -> KnownDefault:
        """Train trial 0, then the whole default if that is needed and there is time for it.

        Args:
            params: The default's params.
            race: Finds the fastest runtime setting for the whole default; ``None`` for no race.

        Raises:
            RuntimeUnavailable: If the framework cannot be imported.
        """
        reference, refusal = self._reference(params)
        trial = self._schedule.default_trial(
            params, part=reference is not None or race is not None
        )
        seed = reference.seed_for(trial.seed) if reference else trial.seed
        trial = dataclasses.replace(trial, seed=seed, curve=self._min_iterations)
        first = self._first_run(trial)
        again = partial(self._as_recorded, trial, first, reference)
        known = judge(first, reference, refusal, self._images, again)
        if known.result.usable and not known.whole and race is not None:
            known = self._trained_whole(params, known, race)
        elif known.result.usable and not known.whole and reference is not None:
            known = self._trained_on(trial, known)
        if known.result.usable and not known.whole and is_part(known.result):
            known = dataclasses.replace(known, result=first_part(known.result))
        if known.words:
            self._progress.message(known.words)
        self._keep(known)
        return known

    def recall(self, results: Sequence[TrialResult]) -> KnownDefault | None:
        """Return what the earlier session with these ``results`` knew of the default, if any."""
        default = next((each for each in results if each.trial.is_default), None)
        fact = self._folder.facts.get(_FACT)
        if default is None or fact is None:
            return None
        reference = Reference.from_json(fact["reference"]) if fact["reference"] else None
        return KnownDefault(default, tuple(fact["accuracies"]), reference, fact["words"])

    def _keep(self, known: KnownDefault) -> None:
        reference = known.reference.to_json() if known.reference else ""
        self._folder.save(
            **{
                _FACT: {
                    "accuracies": known.accuracies,
                    "reference": reference,
                    "words": known.words,
                }
            }
        )

    def _reference(self, params: Mapping[str, Any]) -> tuple[Reference | None, str]:
        """Return a reference that may hold for this default, or why a found one is not used."""
        setup, dataset = self._setup, self._setup.dataset
        found = self._find(
            setup.framework.name, dataset.name, setup.model, self._config.framework_path
        )
        if found is None:
            return None, ""
        refusal = found.refusal(dataset.digest, params)
        if refusal:
            return None, f"the recorded reference is not used: {refusal}"
        return found, ""

    def _first_run(self, trial: Trial) -> TrialResult:
        """Run trial 0, unless a session that was interrupted after that has done so."""
        kept = self._folder.facts.get(_FIRST)
        if kept:
            result = TrialResult.from_json(kept)
            if (result.trial.params, result.trial.seed) == (trial.params, trial.seed):
                return result
        result = self._run(trial)
        if result.usable:
            self._folder.save(**{_FIRST: result.to_json()})
        return result

    def _as_recorded(
        self, trial: Trial, first: TrialResult, reference: Reference | None
    ) -> TrialResult | None:
        """Train the first part once more, at the runtime setting of its seed's recording.

        It may be longer there, so that it can be compared. Return ``None`` if it was trained at
        that setting.
        """
        if reference is None:
            return None
        params = {**trial.params, **reference.setting_of(trial.seed)}
        if params == trial.params:
            return None
        iterations = max(first.iterations, least_compared(reference, trial.seed))
        self._progress.phase("default", "its first part, at the setting of its reference")
        repeat = dataclasses.replace(
            self._schedule.reference_trial(params, self._min_iterations),
            number=1,
            seed=trial.seed,
            test=False,
            share=iterations / iterations_of(params),
            train_time_limit_s=self._schedule.first_part_s,
        )
        result = self._runs.measure(repeat)
        self._folder.keep(result)
        return result

    def _run(self, trial: Trial) -> TrialResult:
        """Run trial 0; a full run is made once per machine and not charged to the budget."""
        if self._config.baseline != "full":
            return self._checked(self._runs.measure(trial))
        cache = BaselineCache(tuner_home() / "baselines", self._setup, trial, self._fingerprint)
        folder = self._folder.trials / trial.name
        result = cache.fetch(folder)
        if result is None:
            result = self._checked(self._runs.measure(trial))
            cache.keep(folder, result)
            self._folder.restart_clock()
        else:
            self._progress.message(f"the default's full run of {cache.folder.name} is reused")
        return result

    def _checked(self, result: TrialResult) -> TrialResult:
        if result.status is TrialStatus.UNAVAILABLE:
            name = self._setup.framework.name
            raise RuntimeUnavailable(
                f"{name}: {result.reason}: {last_words(result.log_tail)}; "
                f"python -m tuner runtimes check {name} tests its runtime"
            )
        return result

    def _trained_whole(
        self, params: Mapping[str, Any], known: KnownDefault, race: Races
    ) -> KnownDefault:
        """Add the default's final accuracy, from one whole training at the fastest setting."""
        if self._config.baseline == "projected":
            return known
        seed = known.result.trial.seed  # only curves of one seed can be compared closely
        results = self._folder.results(TrialKind.REFERENCE)
        kept = [each for each in results if _is_whole(each) and each.trial.seed == seed]
        result = kept[0] if kept else self._whole_run(params, seed, race)
        if result is None or not _is_whole(result):
            return known
        setting = {name: result.params[name] for name in self._space.runtime}
        own = Reference(
            framework=self._setup.framework.name,
            dataset=self._setup.dataset.name,
            model=self._setup.model,
            dataset_digest=self._setup.dataset.digest,
            params=dict(params),
            setting=setting,
            versions=dict(result.versions),
            machine={},
            runs=(run_of(result),),
            quality=result.quality,
        )
        otherwise = departure(
            own, result.trial.seed, known.result.checkpoints, self._images, elsewhere=True
        )
        if otherwise:
            words = f"Its training differs at another runtime setting: {otherwise}."
            return dataclasses.replace(known, words=" ".join(filter(None, [known.words, words])))
        found = with_reference(known.result, own)
        at = ", ".join(f"{value}" for value in setting.values())
        whole = f"one whole training of this study, at {at}"
        words = f"The default's {result.quality.name} is that of {whole}."
        return dataclasses.replace(found, words=" ".join(filter(None, [known.words, words])))

    def _trained_on(self, trial: Trial, known: KnownDefault) -> KnownDefault:
        """Train trial 0 as without a reference, as that does not hold and nothing is raced."""
        if self._config.baseline != "auto":
            return known
        whole = self._schedule.default_trial(trial.params, part=False)
        whole = dataclasses.replace(whole, seed=trial.seed, curve=trial.curve)
        found = judge(self._run(whole), None, known.words, self._images)
        return found if found.result.usable else known

    def _whole_run(self, params: Mapping[str, Any], seed: int, race: Races) -> TrialResult | None:
        """Train the whole default once; return ``None`` if that would take too long.

        It is stopped once all the time is used up, as it may take longer than the race promised.
        """
        self._progress.phase("race", "which runtime settings train fastest")
        left_s = self._schedule.left_s(self._folder.elapsed_s)
        race.run(_RACE_OF_LEFT * left_s)
        batch = batch_size_of(params)
        setting = race.known.fastest(batch, lossy(params))
        train_s = iterations_of(params) * race.known.pace_s(setting, batch)
        left_s = self._schedule.left_s(self._folder.elapsed_s)
        if train_s > _WHOLE_OF_LEFT * left_s:
            return None
        self._progress.phase("default", "its whole training, as no reference is recorded of it")
        trial = self._schedule.reference_trial({**params, **setting}, self._min_iterations)
        trial = dataclasses.replace(trial, seed=seed, train_time_limit_s=left_s)
        result = self._runs.measure(trial)
        self._folder.keep(result)
        return result


def _is_whole(result: TrialResult) -> bool:
    return result.usable and not is_part(result)
