"""Recording of a reference: the default is trained with several seeds in turn."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from tuner import measure
from tuner.config.catalogue import tuner_home
from tuner.config.schema import TuneConfig
from tuner.config.validation import validate
from tuner.convergence.references import Reference, read_reference, reference_name, run_of
from tuner.progress import StudyProgress, format_seconds
from tuner.race.machine import MachineRace
from tuner.storage.study_folder import write_atomically
from tuner.study.preparation import standalone_setup
from tuner.trials.session import TrialSetup, run_trial
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
        setup = dataclasses.replace(setup, folder=setup.folder / "trials")
        setup.folder.mkdir()
        default = space.default(setup.dataset.name, config.model).params
        folder.mkdir(parents=True, exist_ok=True)
        name = reference_name(setup.framework.name, setup.dataset.name, config.model)
        path = folder / f"{name}.json"
        found = _begun(path, setup.dataset.digest, default, progress)
        setting: Params | None = None
        while missing := {*range(1, seeds + 1)}.difference(found.seeds if found else ()):
            if setting is None:
                setting = _fast_setting(config, setup, space, default, progress)
            seed = min(missing)
            progress.message(f"seed {seed} of {seeds}, at {', '.join(map(str, setting.values()))}")
            result = _trained(seed, setup, space, {**default, **setting}, progress)
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
) -> Params:
    """Race for about a minute, or reuse an earlier race on this machine."""
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
    return min(alike, key=lambda each: race.known.surely_s(each, batch_size_of(default)))


def _trained(
    seed: int, setup: TrialSetup, space: SearchSpace, params: Params, progress: StudyProgress
) -> TrialResult:
    """Train the default to its end with one more seed."""
    trial = Trial(
        number=seed,
        params=params,
        kind=TrialKind.REFERENCE,
        seed=seed,
        time_limit_s=_KILL_S,
        test=True,
        curve=int(space.iterations.low),
    )
    result = run_trial(setup, trial, listener=progress.trial_progress)
    if not result.usable or not result.measurement:
        raise NoTrialSucceeded(
            f"the default of {setup.framework.name} ended {result.status.value} with seed {seed}: "
            f"{result.reason}; no reference can be recorded of it"
        )
    reached = result.quality.shown(result.test_accuracy or 0.0)
    progress.message(
        f"seed {seed}: {reached} on the test split after {result.iterations:,} iterations, "
        f"{format_seconds(result.measurement.train_time_s)} s"
    )
    return result


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
