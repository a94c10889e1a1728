"""What MLflow holds, kept in memory: a question costs no database."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tuner.config.catalogue import load_framework
from tuner.measure import fingerprint, machine_facts, parse_cores
from tuner.recommendation.evidence import Evidence, evidence_of
from tuner.runtimes import find_runtime
from tuner.tracking import CROSS, StudyRecord, load_everything
from tuner.values.errors import StorageError, TunerError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """All studies as they were at one time.

    Attributes:
        studies: Newest first; comparisons across frameworks are no studies of their own.
        evidence: Their verified points, in the same order.
        stale: Runs of the studies whose machine or libraries differ from what is here.
        damaged: Why each study that cannot be made sense of cannot, by its run.
        read_at: Seconds of the monotonic clock; before all of them if it was never read.
        fault: Why the store could not be read again since; empty if it could.
    """

    studies: tuple[StudyRecord, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    stale: frozenset[str] = frozenset()
    damaged: Mapping[str, str] = field(default_factory=dict)
    read_at: float = -math.inf
    fault: str = ""

    @property
    def age_s(self) -> float:
        """Seconds since the store was read."""
        return time.monotonic() - self.read_at

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

    @property
    def alive(self) -> bool:
        """Whether the store is still looked at."""
        return self._thread.is_alive()

    def _keep_reading(self) -> None:
        while not self._stop.wait(self.refresh_s):
            self.refresh()

    def refresh(self) -> None:
        """Look once. If the store cannot be read, what was read before stands."""
        try:
            self.current = self._look()
        except StorageError as error:
            self.current = dataclasses.replace(self.current, fault=str(error))
        except Exception as error:  # the next look may succeed: no fault may end the thread
            _log.exception("the store could not be read")
            fault = f"the store could not be read: {type(error).__name__}: {error}"
            self.current = dataclasses.replace(self.current, fault=fault)

    def _look(self) -> Snapshot:
        found = load_everything(self.uri, {each.run_id: each for each in self.current.studies})
        studies, evidence = list[StudyRecord](), list[Evidence]()
        damaged: dict[str, str] = {}
        for each in sorted(found.values(), key=lambda study: -study.ended):
            if each.front.get("framework") in (None, CROSS):
                continue
            try:
                points = evidence_of(each)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                damaged[each.run_id] = f"its front.json lacks or garbles {error}"
                continue
            studies.append(each)
            evidence += points
        return Snapshot(
            studies=tuple(studies),
            evidence=tuple(evidence),
            stale=frozenset(_stale(studies, self.framework_path)),
            damaged=damaged,
            read_at=time.monotonic(),
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
