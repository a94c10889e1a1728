"""The conclusion of a study: its result, its report, and what MLflow is told at the end."""

from __future__ import annotations

import dataclasses

import yaml

from tuner.report import headline, report_lacks_files, study_metrics, write_report
from tuner.storage.study_folder import write_atomically
from tuner.study.parts import Parts
from tuner.study.preparation import shown_config
from tuner.trials.setup import UNCONFINED
from tuner.values.errors import NoTrialSucceeded
from tuner.values.results import StudyResult, default_warnings
from tuner.values.trial import TrialKind


class Conclusion:
    """Draws up what a study has found.

    Args:
        parts: The study's parts.
        command: Command that resumes it, shown in the report.
    """

    def __init__(self, parts: Parts, command: str) -> None:
        self._parts, self._command = parts, command

    def result(self, *, complete: bool) -> StudyResult:
        """Return what was found so far."""
        parts, loop = self._parts, self._parts.loop
        dataset, budget, known = parts.setup.dataset, parts.config.budget, loop.known
        return StudyResult(
            study_id=parts.folder.path.name,
            framework=parts.setup.framework.name,
            title=parts.setup.framework.title,
            dataset=dataset.name,
            dataset_facts=dataset.facts()
            | ({"default": parts.default.source} if dataset.likeness else {}),
            model=parts.config.model,
            objectives=tuple(parts.objectives),
            constraints=tuple(map(str, parts.constraints)),
            trials=tuple(loop.trials),
            derived=tuple(parts.search.derived),
            runtimes=parts.race.known if parts.race and parts.race.known.probes else None,
            verifications=tuple(parts.folder.results(TrialKind.VERIFY)),
            verified=parts.verification.summary(),
            machine=parts.machine,
            runtime=parts.packages,
            warnings=(
                *filter(None, [dataset.warning, "" if parts.config.sandbox else UNCONFINED]),
                *default_warnings(loop.trials, known.part if known else ""),
            ),
            started=str(parts.folder.facts.get("started", "")),
            elapsed_s=parts.folder.elapsed_s,
            budget={
                "name": budget.name,
                "time_s": f"{budget.time_s:g}",
                "trials": str(budget.trials or "no limit"),
            },
            complete=complete,
            command=self._command,
            accuracy_margin=parts.config.verify.margin(dataset.quality),
            reference=known.words if known else "",
            default_part=known.part if known else "",
            notes=parts.verification.notes(),
        )

    def finish(self, *, complete: bool) -> StudyResult:
        """Report what was found, and send it to MLflow.

        Raises:
            NoTrialSucceeded: If the study is complete, and nothing could be measured.
        """
        result = self.result(complete=complete)
        if complete and not any(each.usable for each in result.trials):
            first = result.trials[0]
            raise NoTrialSucceeded(
                f"none of {len(result.trials)} trials succeeded; the default ended as "
                f"{first.status.value}: {first.reason}; logs are in {self._parts.folder.trials}"
            )
        self._parts.progress.phase("report")
        return self._report(result)

    def renew(self) -> StudyResult:
        """Return the result of a study that was complete before.

        It is reported again if files of its report are missing, or MLflow has not got all of it.
        """
        result, folder = self.result(complete=True), self._parts.folder
        if folder.facts.get("tracked", True) and not report_lacks_files(folder.path / "report"):
            return result
        return self._report(result)

    def _report(self, result: StudyResult) -> StudyResult:
        """Write the report, and send it with everything that MLflow still lacks."""
        parts, outbox = self._parts, self._parts.outbox
        folder = parts.folder.path / "report"
        files = write_report(result, folder)
        resolved = yaml.safe_dump(shown_config(parts.config), sort_keys=False)
        write_atomically(folder / "config.yaml", resolved)
        files.append(folder / "config.yaml")
        if parts.stored.shared:  # a crashed driver may have sent less than it measured
            outbox.doubt()
            for each in (*result.trials, *result.verifications):
                parts.track(each)
        tags = {"elapsed_s": f"{result.elapsed_s:.0f}", "trials": str(len(result.trials))}
        tracked = outbox.finish(
            files,
            tags,
            complete=result.complete,
            metrics=study_metrics(result),
            description="\n\n".join(headline(result)),
        )
        parts.folder.save(tracked=tracked)
        if not result.complete:
            parts.progress.message(f"the report of what was measured is in {folder}")
        if not tracked:
            parts.progress.message(
                f"MLflow has not got all of study {parts.folder.path.name}; its report is in "
                f"{folder}, and the same command sends what is missing once MLflow answers"
            )
        return dataclasses.replace(result, tracked=tracked)
