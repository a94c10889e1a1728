"""What follows from drift: the study is marked in MLflow, and measured again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from pydantic import ValidationError

from tuner.recommendation.evidence import Evidence
from tuner.service.claims import Drift
from tuner.service.jobs import Jobs
from tuner.service.orders import words_of_recheck
from tuner.service.promises import Promises
from tuner.service.records import RecordCache
from tuner.service.requests import RecheckRequest
from tuner.service.study_job import OPEN
from tuner.tracking import StudyRecord, mark_drift
from tuner.values.errors import TunerError

_RECHECK_PAUSE_S = 86400.0  # between two of the same kind: noisy jobs keep no machine busy
_log = logging.getLogger(__name__)


class DriftWatch:
    """Does what follows from drift each time it is called; what fails is tried again.

    Args:
        records: What is on record.
        promises: Where drift is found.
        jobs: The queue.
        words: Overrides of every requested study.
    """

    def __init__(
        self, records: RecordCache, promises: Promises, jobs: Jobs, words: Sequence[str]
    ) -> None:
        self._records, self._promises = records, promises
        self._jobs, self._words = jobs, words
        self._faults: dict[str, str] = {}  # the last one of each step, which is logged once

    def __call__(self) -> None:
        """Mark the studies that drifted, and queue their re-checks."""
        self._try("drift", self._look)

    def _look(self) -> None:
        studies = {each.run_id: each for each in self._records.current.studies}
        for drift in self._promises.drifts():
            if record := studies.get(drift.study):
                self._try(f"mark {drift.study}", partial(self._mark, drift))
                self._try(f"re-check {drift.study}", partial(self._recheck, drift, record))

    def _try(self, step: str, do: Callable[[], None]) -> None:
        try:
            do()
            self._faults.pop(step, None)
        except TunerError as error:
            if self._faults.get(step) != str(error):
                _log.warning("%s failed and will be tried again: %s", step, error)
            self._faults[step] = str(error)

    def _mark(self, drift: Drift) -> None:
        if not drift.marked:  # whoever removes the tag later has taken note of it
            mark_drift(self._records.uri, drift.study, drift.how, drift.found)
            self._promises.marked(drift)

    def _recheck(self, drift: Drift, record: StudyRecord) -> None:
        """Queue a re-check of a study, unless one waits or another one was made lately."""
        if drift.recheck:
            return
        found = [each for each in self._records.current.evidence if each.study == drift.study]
        rechecks = [job for job in self._jobs.all() if job.kind == "recheck"]
        alike = [job for job in rechecks if _is_of(job.words, found)]
        waiting = [job for job in alike if job.state in OPEN]
        if waiting:
            self._promises.queued(drift, waiting[0].id)
        elif all(time.time() - job.submitted >= _RECHECK_PAUSE_S for job in alike):
            try:
                asked = RecheckRequest(kind="recheck", study_id=str(record.front["study_id"]))
                words = words_of_recheck(asked, found, self._words)
            except (TunerError, ValidationError) as error:  # of its record, which will not change
                self._promises.queued(drift, f"none: {_why(error)}")
                return
            job = self._jobs.submit(asked.kind, words, asked.model_dump())
            self._promises.queued(drift, job.id)


def _why(error: TunerError | ValidationError) -> str:
    if isinstance(error, TunerError):
        return str(error)
    fault = error.errors(include_url=False)[0]
    return f"its study_id is {fault['input']!r}: {fault['msg']}"


def _is_of(words: Sequence[str], found: Sequence[Evidence]) -> bool:
    """Return whether a re-check measures as these points were measured; true if there are none."""
    if not found:
        return True
    first = found[0]
    wanted = {
        f"framework={first.framework}",
        f"dataset={first.dataset}",
        f"model={first.model}",
        f"executor.jobs_per_host={first.jobs_per_host}",
    }
    return wanted <= set(words)
