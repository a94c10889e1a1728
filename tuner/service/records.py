"""What MLflow holds, kept in memory: a question costs no database."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tuner.errors import StorageError, TunerError
from tuner.evidence import Evidence, evidence_of
from tuner.measure import fingerprint, machine_facts, parse_cores
from tuner.registry import load_framework
from tuner.runtimes import find_runtime
from tuner.tracking import CROSS, StudyRecord, load_everything


@dataclass(frozen=True)
class Snapshot:
    """All studies as they were at one time.

    Attributes:
        studies: Newest first; comparisons across frameworks are no studies of their own.
        evidence: Their verified points, in the same order.
        stale: Runs of the studies whose machine or libraries differ from what is here.
        read_at: Seconds since the epoch.
        fault: Why the store could not be read again since; empty if it could.
    """

    studies: tuple[StudyRecord, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    stale: frozenset[str] = frozenset()
    read_at: float = 0.0
    fault: str = ""

    def evidence_for(self, framework: str, dataset: str) -> list[Evidence]:
        """The verified points of a framework (of all if empty) on a data set.

        Where nothing was measured on it, those of studies that were asked for it and had to use
        another data set in its place.
        """
        of_framework = [each for each in self.evidence if framework in ("", each.framework)]
        found = [each for each in of_framework if each.dataset == dataset]
        return found or [each for each in of_framework if each.requested == dataset]


@dataclass
class Records:
    """Reads the store again and again in a thread of its own, while ``with`` lasts.

    Args:
        uri: MLflow's tracking address.
        refresh_s: Seconds between two looks; what has not changed is not read again.
        framework_path: Folder with frameworks of the user's own.
    """

    uri: str
    refresh_s: float = 5.0
    framework_path: str | None = None
    current: Snapshot = field(default_factory=Snapshot)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_reading, daemon=True, name="records")

    def __enter__(self) -> Records:
        self.refresh()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _keep_reading(self) -> None:
        while not self._stop.wait(self.refresh_s):
            self.refresh()

    def refresh(self) -> None:
        """Look once. If the store cannot be read, what was read before stands."""
        before = self.current
        try:
            found = load_everything(self.uri, {each.run_id: each for each in before.studies})
        except StorageError as error:
            self.current = dataclasses.replace(before, fault=str(error))
            return
        studies = sorted(
            (each for each in found.values() if each.front.get("framework") not in (None, CROSS)),
            key=lambda each: -each.ended,
        )
        self.current = Snapshot(
            studies=tuple(studies),
            evidence=tuple(point for each in studies for point in evidence_of(each)),
            stale=frozenset(_stale(studies, self.framework_path)),
            read_at=time.time(),
        )


def _stale(studies: Sequence[StudyRecord], framework_path: str | None) -> Iterator[str]:
    """Runs of the studies that were measured on another machine or with other libraries."""
    machine = machine_facts(parse_cores(""))
    packages: dict[str, dict[str, str]] = {}
    for study in studies:
        name, then = str(study.front["framework"]), study.front["machine"]
        if name not in packages:
            packages[name] = {}
            with suppress(TunerError):  # a framework that is none of ours
                packages[name] = find_runtime(load_framework(name, framework_path)).packages()
        # a study on some of this machine's cores, or on a shared host, is none of another machine
        use = {name: then[name] for name in ("cores", "jobs_per_host") if name in then}
        here = fingerprint({**machine, **use}, packages[name])
        if here != fingerprint(then, study.front["runtime"]):
            yield study.run_id
