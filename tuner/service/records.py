"""MLflow's records, kept in memory so that a query needs no database."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuner.recommendation.evidence import Evidence
from tuner.recommendation.reading import evidence_of
from tuner.recommendation.this_machine import ThisMachine
from tuner.tracking import CROSS, StudyRecord, load_everything
from tuner.values.errors import StorageAway, StorageError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """All studies at one point in time.

    Attributes:
        studies: Newest first; comparisons across frameworks do not count as studies.
        evidence: Every verified point of every study, in the order of the studies.
        programs: Studies of users' programs, newest first.
        stale: Run ids of studies that were measured on another machine or with other libraries.
        damaged: Why a study cannot be read; a mapping from its run id.
        read_at: Time of the read, seconds of the monotonic clock; minus infinity if never read.
        fault: Why the last attempt to read the store failed; empty if it succeeded.
    """

    studies: tuple[StudyRecord, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    programs: tuple[StudyRecord, ...] = ()
    stale: frozenset[str] = frozenset()
    damaged: Mapping[str, str] = field(default_factory=dict)
    read_at: float = -math.inf
    fault: str = ""

    @property
    def age_s(self) -> float:
        """Seconds since the store was read."""
        return time.monotonic() - self.read_at

    def evidence_for(self, framework: str, dataset: str) -> list[Evidence]:
        """Return the verified points of a framework (of all frameworks if empty) on a data set.

        If nothing was measured on that data set, return the points of studies that requested it
        but had to use another data set instead.
        """
        of_framework = [each for each in self.evidence if framework in ("", each.framework)]
        found = [each for each in of_framework if each.dataset == dataset]
        return found or [each for each in of_framework if each.requested == dataset]


@dataclass
class RecordCache:
    """Reads the store periodically in its own thread, inside a ``with`` block.

    Args:
        uri: MLflow's tracking address.
        refresh_s: Seconds between two reads; unchanged studies are not read again.
        framework_path: Folder with the user's own frameworks.
        try_out: Called once with each study alone; one for which it fails counts as damaged. It
            must build all that is ever told of a study.

    Attributes:
        current: What is on record.
        after: Called after each read, in the thread that reads.
    """

    uri: str
    refresh_s: float = 5.0
    framework_path: str | None = None
    try_out: Callable[[Snapshot], None] = lambda _alone: None
    current: Snapshot = field(default_factory=Snapshot)
    after: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._read: dict[str, StudyRecord] = {}  # all, those too that nothing is answered from
        self._thread = threading.Thread(target=self._keep_reading, daemon=True, name="records")

    def __enter__(self) -> RecordCache:
        self.refresh()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread that reads the store is running."""
        return self._thread.is_alive()

    def known(self) -> Snapshot:
        """Return what is on record.

        Raises:
            StorageAway: If the store was never read since the service started: "nothing" would be
                a wrong answer.
        """
        if not math.isfinite(self.current.read_at):
            raise StorageAway(f"nothing is known yet: {self.current.fault}")
        return self.current

    def _keep_reading(self) -> None:
        while not self._stop.wait(self.refresh_s):
            self.refresh()
            try:
                self.after()
            except Exception:  # keep the thread alive
                _log.exception("what follows a read failed")

    def refresh(self) -> None:
        """Read the store once. If that fails, keep what was read before."""
        try:
            self.current = self._look()
        except StorageError as error:
            self.current = dataclasses.replace(self.current, fault=str(error))
        except Exception as error:  # keep the thread alive: the next read may succeed
            _log.exception("the store could not be read")
            fault = f"the store could not be read: {type(error).__name__}: {error}"
            self.current = dataclasses.replace(self.current, fault=fault)

    def _look(self) -> Snapshot:
        found = load_everything(self.uri, self._read)
        studies, evidence = list[StudyRecord](), list[Evidence]()
        programs = list[StudyRecord]()
        damaged: dict[str, str] = {}
        here = ThisMachine(self.framework_path)
        stale: set[str] = set()
        for each in sorted(found.values(), key=lambda study: -study.ended):
            if each.away:
                damaged[each.run_id] = each.away
            if not each.has_front:
                continue
            sound = self._read.get(each.run_id) is each and each.run_id not in self.current.damaged
            try:
                if each.program:
                    if not sound:
                        self.try_out(Snapshot(programs=(each,)))
                    programs.append(each)
                    continue
                if each.front.get("framework") in (None, CROSS):
                    continue
                points = evidence_of(each)
                if points and points[0].quality.is_perplexity:
                    continue  # it is asked about accuracy; ``recommend`` answers for texts
                if not sound:
                    self.try_out(Snapshot((each,), tuple(points)))
                outdated = here.differs_from(each)
            except Exception as error:  # the next study is to be read all the same
                damaged[each.run_id] = f"{type(error).__name__}: {error}"
                continue
            studies.append(each)
            evidence += points
            stale |= {each.run_id} if outdated else set()
        self._read = found
        return Snapshot(
            studies=tuple(studies),
            evidence=tuple(evidence),
            programs=tuple(programs),
            stale=frozenset(stale),
            damaged=damaged,
            read_at=time.monotonic(),
        )
