"""The same study for several frameworks in turn: one budget, one report.

Each is an ordinary study with its own folder and MLflow run, and is reused and resumed as such.
Only the shares of the budget are stored in addition, so that the same command finds each study
complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from tuner import measure
from tuner.config.catalogue import list_frameworks, tuner_home
from tuner.config.schema import TuneConfig, objectives_of
from tuner.config.validation import validate
from tuner.datasets.provide import Dataset, load_dataset
from tuner.progress import make_progress
from tuner.report import cross_lines, cross_metrics, write_cross_report
from tuner.storage.study_folder import write_atomically
from tuner.study.entrants import Entrant, prepare_entrant
from tuner.study.preparation import results_place, shown_config
from tuner.study.study import tune
from tuner.tracking import CROSS, Outbox, TrackedDataset, Tracker, experiment_name
from tuner.trials.setup import core_sets
from tuner.values.errors import (
    BudgetTooSmall,
    ConfigError,
    NoTrialSucceeded,
    RuntimeUnavailable,
)
from tuner.values.results import CrossResult, Outcome, StudyResult

ALL = "all"
_MIN_SHARE = 0.5  # of an equal share, however far earlier studies overran the budget


def tune_frameworks(config: TuneConfig, command: str = "") -> CrossResult:
    """Run the study of each of ``config.frameworks`` and report on them together.

    ``budget.time_s`` (seconds) covers all studies together; each gets an equal part of what is
    left. ``budget.trials`` applies to each study.

    Args:
        config: Validated first. The overrides of its ``framework`` apply only to the framework
            of that name; its ``runtime.install`` applies to all.
        command: Command that resumes the studies, shown in the report.

    A framework yields an ``Outcome`` with a reason if it is unavailable here, has no default for
    the data set and model, has too small a share for its network, or had no successful trial.
    Ctrl-C (``KeyboardInterrupt``, re-raised) loses only the running trial; the report then says
    what is missing.

    Raises:
        ConfigError: A value cannot be used, or another process runs one of the studies.
        DatasetUnavailable: The data set is not here and cannot be obtained.
        NoTrialSucceeded: No framework produced any figures.
    """
    validate(config)
    names = chosen_frameworks(config)
    uri, output = results_place(config)
    with make_progress(config.progress) as shown:
        dataset = load_dataset(config.dataset, progress=shown.task)
        entrants = [prepare_entrant(config, name, dataset, uri, shown) for name in names]
    return _CrossStudy(config, entrants, dataset, command, uri, output).run()


def chosen_frameworks(config: TuneConfig) -> list[str]:
    """Return the names of the frameworks to study; ``[all]`` selects every known one.

    Raises:
        ConfigError: If a framework is unknown.
    """
    known = list_frameworks(config.framework_path)
    unknown = [each for each in config.frameworks if each not in (*known, ALL)]
    if unknown:
        raise ConfigError(
            f"unknown framework {unknown[0]!r}; choose from: {', '.join(known)}; or [{ALL}]"
        )
    return known if ALL in config.frameworks else list(config.frameworks)


def _outcome(entrant: Entrant, study: StudyResult | None, reason: str) -> Outcome:
    framework = entrant.framework
    said = reason.removeprefix(f"{framework.name}: ")
    return Outcome(framework.name, framework.title, study, said)


class _Shares:
    """Shares of a budget; a framework that was given a share gets the same one again.

    Args:
        path: File that stores the shares.
        total_s: The budget, seconds. If it changes, new shares are given.
    """

    def __init__(self, path: Path, total_s: float) -> None:
        self._path, self.total_s = path, total_s
        self._given: dict[str, float] = {}
        with contextlib.suppress(OSError, ValueError, KeyError):
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["time_s"] == total_s:
                self._given = dict(kept["shares"])

    def share(self, name: str, spent_s: float, waiting: int, entrants: int) -> float:
        """Return the seconds for ``name``, the first of ``waiting``, with ``spent_s`` used up."""
        if name not in self._given:
            least = _MIN_SHARE * self.total_s / entrants
            self._given[name] = max(least, (self.total_s - spent_s) / waiting)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            kept = {"time_s": self.total_s, "shares": self._given}
            write_atomically(self._path, json.dumps(kept, indent=1))
        return self._given[name]


class _CrossStudy:
    """A run of all entrants' studies."""

    def __init__(
        self,
        config: TuneConfig,
        entrants: Sequence[Entrant],
        dataset: Dataset,
        command: str,
        uri: str,
        output: Path,
    ) -> None:
        self.config, self.entrants, self.dataset = config, entrants, dataset
        self.command, self.uri, self.output = command, uri, output
        text = json.dumps(sorted((each.framework.name, each.study_id) for each in entrants))
        self.cross_id = hashlib.sha256(text.encode()).hexdigest()[:10]
        self.folder = tuner_home() / CROSS / self.cross_id
        self.shares = _Shares(self.folder / "shares.json", config.budget.time_s)
        self.outcomes: list[Outcome] = []

    def run(self) -> CrossResult:
        """Run every study that can be run, then report."""
        try:
            self._run_studies()
        except KeyboardInterrupt:
            missing = self.entrants[len(self.outcomes) :]
            self.outcomes += [
                _outcome(each, None, each.obstacle or "interrupted before its study was complete")
                for each in missing
            ]
            if any(each.study for each in self.outcomes):
                self._report(complete=False)
            raise
        if not any(each.study for each in self.outcomes):
            reasons = "; ".join(f"{each.framework}: {each.reason}" for each in self.outcomes)
            raise NoTrialSucceeded(
                f"none of {len(self.outcomes)} frameworks gave any figures: {reasons}"
            )
        return self._report(complete=True)

    def _run_studies(self) -> None:
        waiting = [each for each in self.entrants if not each.obstacle]
        count, spent_s = len(waiting), 0.0
        for each in self.entrants:
            if each.obstacle:
                self.outcomes.append(_outcome(each, None, each.obstacle))
                continue
            share_s = self.shares.share(each.framework.name, spent_s, len(waiting), count)
            place = count - len(waiting) + 1
            outcome, took_s = self._run_study(each, share_s, f"study {place} of {count}")
            self.outcomes.append(outcome)
            spent_s += took_s
            waiting.remove(each)

    def _run_study(self, entrant: Entrant, share_s: float, place: str) -> tuple[Outcome, float]:
        """Run one framework's study; return its outcome and the seconds of budget it used."""
        budget = dataclasses.replace(entrant.config.budget, time_s=share_s)
        config = dataclasses.replace(entrant.config, budget=budget)
        start = time.monotonic()
        with make_progress(config.progress) as shown:
            shown.message(f"{place}: {entrant.framework.title}, {share_s:,.0f} s of the budget")
            try:
                study = tune(config, shown, self.command)
            except (BudgetTooSmall, RuntimeUnavailable, NoTrialSucceeded) as error:
                took_s = min(share_s, time.monotonic() - start)
                return _outcome(entrant, None, str(error)), took_s
        return _outcome(entrant, study, _gap(study)), study.elapsed_s

    def _report(self, *, complete: bool) -> CrossResult:
        cores = core_sets(self.config.executor)[0]
        result = CrossResult(
            cross_id=self.cross_id,
            dataset=self.dataset.name,
            model=self.config.model,
            objectives=tuple(objectives_of(self.config)),
            outcomes=tuple(self.outcomes),
            machine=measure.machine_facts(cores),
            warnings=_warnings(self.outcomes, self.dataset),
            budget_s=self.config.budget.time_s,
            complete=complete,
            command=self.command,
        )
        files = write_cross_report(result, self.folder / "report")
        requested = self.dataset.requested
        tracker = Tracker(
            self.uri,
            self.output,
            experiment=experiment_name(CROSS, requested),
            study_id=self.cross_id,
            name=f"{CROSS} {requested} {self.cross_id}",
            tags={
                "kind": "comparison",
                "dataset": result.dataset,
                "dataset_requested": requested,
                "model": result.model,
                "fingerprint": measure.fingerprint(result.machine),
            },
            params=shown_config(self.config),
            dataset=TrackedDataset(self.dataset.name, self.dataset.digest, self.dataset.origin),
        )
        with make_progress(self.config.progress) as shown:
            outbox = Outbox(tracker, lambda _: contextlib.nullcontext(), shown.message)
            tracked = outbox.finish(
                files,
                _tags(result),
                complete=complete,
                metrics=cross_metrics(result),
                description="\n\n".join(cross_lines(result)),
            )
            if not complete:
                shown.message(f"the report of what was measured is in {files[0].parent}")
            if not tracked:
                shown.message(
                    f"MLflow has not got this report, which is in {files[0].parent}; the same "
                    "command sends it once MLflow answers"
                )
        return result


def _gap(study: StudyResult) -> str:
    """Return why nothing was verified against the default; empty if something was."""
    if study.verified:
        return ""
    if study.default is None:
        first = study.trials[0]
        return f"its default gave no figures ({first.status.value}: {first.reason})"
    return "no configuration of it was verified against its default, so nothing may be claimed"


def _warnings(outcomes: Sequence[Outcome], dataset: Dataset) -> tuple[str, ...]:
    """Return each warning once: the data set's, then the others with their frameworks' titles."""
    owners: dict[str, list[str]] = {}
    for each in outcomes:
        for warning in each.study.warnings if each.study else ():
            if warning != dataset.warning:
                owners.setdefault(warning, []).append(each.title)
    own = [f"{', '.join(titles)}: {warning}" for warning, titles in owners.items()]
    return (*([dataset.warning] if dataset.warning else []), *own)


def _tags(result: CrossResult) -> dict[str, str]:
    """Return tags to find the run by: its frameworks, their studies and those left out."""
    return {
        "frameworks": ", ".join(study.framework for study in result.studies),
        "left_out": ", ".join(each.framework for each in result.left_out),
        **{f"study.{study.framework}": study.study_id for study in result.studies},
    }
