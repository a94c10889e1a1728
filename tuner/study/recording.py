"""Recording of a reference: the default is trained with several seeds.

Accuracy does not depend on how fast a training runs. So where one thread per core trains more
images in all than one training on all cores, as many seeds are trained side by side.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from tuner import measure
from tuner.config.catalogue import tuner_home
from tuner.config.schema import TuneConfig
from tuner.config.validation import validate
from tuner.convergence.references import Reference, read_reference, reference_name, run_of
from tuner.executors import LocalExecutor
from tuner.progress import StudyProgress, describe_params
from tuner.race.machine import MachineRace
from tuner.search.derived import Composition
from tuner.storage.study_folder import write_atomically
from tuner.study.preparation import standalone_setup
from tuner.trials.session import TrialSetup
from tuner.trials.setup import claim_cores, host_facts
from tuner.values.errors import NoTrialSucceeded
from tuner.values.exchange import group_of
from tuner.values.params import Params, batch_size_of
from tuner.values.space import SearchSpace
from tuner.values.trial import Trial, TrialKind, TrialResult

_RACE_S = 60.0  # to race for the setting of the recording, which affects no figure
_KILL_S = 7 * 86400.0


def record_reference(
    config: TuneConfig, seeds: int, folder: Path, progress: StudyProgress
) -> tuple[Reference, Path]:
    """Train the default to its end with seeds 1 to ``seeds``, at a fast runtime setting.

    Runs recorded before under the same conditions are kept: an interrupted recording is resumed,
    and more seeds can be added. A reference recorded under other conditions is set aside.

    Args:
        config: Names the framework, data set and model.
        seeds: Number of seeds.
        folder: Folder for the reference.
        progress: Shows the progress.

    Returns:
        The reference and its file.

    Raises:
        TunerError: If something needed is missing, or a training fails.
    """
    validate(config)
    with (
        standalone_setup(config, progress) as (space, setup),
        claim_cores(config.executor, progress),
    ):
        unrepeated = dataclasses.replace(setup.measure, repeats=0)  # no time is recorded
        setup = dataclasses.replace(setup, folder=setup.folder / "trials", measure=unrepeated)
        setup.folder.mkdir()
        default = space.default(setup.dataset.name, config.model).params
        folder.mkdir(parents=True, exist_ok=True)
        name = reference_name(setup.framework.name, setup.dataset.name, config.model)
        path = folder / f"{name}.json"
        found = _begun(path, setup.dataset.digest, default, progress)
        wanted = {*range(1, seeds + 1)}
        if found and wanted.issubset(found.seeds):
            return found, path
        setting, at_once = _fast_setting(config, setup, space, default, progress)
        trial = Trial(
            number=0,
            params={**default, **setting},
            kind=TrialKind.REFERENCE,
            time_limit_s=_KILL_S,
            test=True,
            curve=int(space.iterations.low),
            accuracy_only=at_once > 1,
        )
        with contextlib.closing(_Trainer(setup, trial, at_once, progress)) as trainer:
            while missing := wanted.difference(found.seeds if found else ()):
                result = trainer.next(missing)
                refusal = found.version_refusal(result.versions) if found else ""
                if refusal:  # its other seeds are recorded anew, too
                    _set_aside(path, refusal, progress)
                    found = None
                found = _extended(found, result, setup, space, default)
                write_atomically(path, found.to_json())
    assert found is not None
    return found, path


def _begun(path: Path, digest: str, default: Params, progress: StudyProgress) -> Reference | None:
    """Return the earlier recording; set it aside if it does not fit this default."""
    found = read_reference(path)
    refusal = found.refusal(digest, default) if found else ""
    if refusal:
        _set_aside(path, refusal, progress)
        return None
    return found


def _set_aside(path: Path, refusal: str, progress: StudyProgress) -> None:
    aside = path.with_suffix(".json.old")
    shutil.move(path, aside)
    progress.warn(f"{path.name} is recorded again, because {refusal}; the old one is {aside}")


def _fast_setting(
    config: TuneConfig,
    setup: TrialSetup,
    space: SearchSpace,
    default: Params,
    progress: StudyProgress,
) -> tuple[Params, int]:
    """Race for about a minute, or reuse an earlier race on this machine.

    Returns:
        The setting to record at, and how many seeds to train side by side at it.
    """
    packages = setup.runtime.packages()
    fingerprint = measure.fingerprint(host_facts(config), packages)
    race = MachineRace(
        setup,
        space,
        default,
        fingerprint,
        tuner_home() / "runtime-maps",
        config=dataclasses.replace(config.search, race_share=1.0),
        budget_s=_RACE_S,
        check=lambda: None,
        tell=progress.task,
    )
    race.run(_RACE_S)
    # a group learns the same, but draws other random numbers: a study could not follow its curves
    alike = [each for each in race.known.settings_of(None) if group_of(each) == group_of(default)]
    batch, composition = batch_size_of(default), Composition(space, race.known)
    at_once, alone = composition.at_once(batch, len(setup.cores)), composition.on_one_core(batch)
    if at_once > 1 and alone in alike:
        return alone, at_once
    return min(alike, key=lambda each: race.known.surely_s(each, batch)), 1


class _Trainer:
    """Trains the default to its end, one seed after another or several side by side.

    Args:
        setup: What the trainings share.
        trial: The training of any seed.
        at_once: How many seeds to train side by side, each on a core of its own.
        progress: Shows the progress.
    """

    def __init__(
        self, setup: TrialSetup, trial: Trial, at_once: int, progress: StudyProgress
    ) -> None:
        self._name, self._trial = setup.framework.name, trial
        self._at_once, self._progress = at_once, progress
        self._executor = LocalExecutor(setup, progress.trial_progress)
        self._running: dict[Future[TrialResult], int] = {}

    def next(self, missing: Collection[int]) -> TrialResult:
        """Return the training of one of the ``missing`` seeds, while others go on."""
        waiting = sorted(set(missing).difference(self._running.values()))
        for seed in waiting[: self._at_once - len(self._running)]:
            self._progress.message(f"seed {seed}, at {describe_params(self._trial.params)}")
            trial = dataclasses.replace(self._trial, number=seed, seed=seed)
            self._running[self._executor.submit(trial)] = seed
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        future = min(done, key=self._running.__getitem__)
        seed, result = self._running.pop(future), future.result()
        self._progress.trial_finished(result, ())
        if not result.usable or not result.measurement:
            raise NoTrialSucceeded(
                f"the default of {self._name} ended {result.status.value} with seed {seed}: "
                f"{result.reason}; no reference can be recorded of it"
            )
        return result

    def close(self) -> None:
        """End the running trainings."""
        self._executor.close()


def _extended(
    found: Reference | None,
    result: TrialResult,
    setup: TrialSetup,
    space: SearchSpace,
    default: Params,
) -> Reference:
    """Return the reference with one more run, or a new one."""
    params = result.trial.params
    begun = found or Reference(
        framework=setup.framework.name,
        dataset=setup.dataset.name,
        model=setup.model,
        dataset_digest=setup.dataset.digest,
        params=dict(default),
        setting={name: params[name] for name in space.runtime},
        versions={name: each for name, each in result.versions.items() if name not in params},
        machine=measure.machine_facts(setup.cores),
        quality=result.quality,
    )
    others = {
        name: params[name] for name in space.runtime if params[name] != begun.setting.get(name)
    }
    return begun.with_run(dataclasses.replace(run_of(result), setting=others))
