"""The drivers of one study: which of them are alive, and which one leads.

A driver shows that it is alive by incrementing a counter in the study's database. It is dead once
its counter has not changed for the length of a lease, measured by the observer's own monotonic
clock. So the clocks of two machines are never compared, and a clock step changes nothing. The
driver that measures the default leads: it verifies and reports. It publishes in the database what
another driver needs to take over.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import optuna
from sqlalchemy.exc import SQLAlchemyError

from tuner.values.errors import ConfigError

LEASE_S = 120.0
"""Seconds without a sign of life after which a driver is dead."""

_BEAT_S = 10.0
_JOIN_S = 5.0
_BEAT, _LEADER, _REPORTED, _PUBLISHED = "beat:", "leader", "reported", "led:"
_FAULTS = (optuna.exceptions.OptunaError, SQLAlchemyError, OSError)


@dataclass(frozen=True)
class Driver:
    """One of several processes that drive a study, each with trials of its own.

    Attributes:
        name: Unique among the drivers.
        fingerprint: Fingerprint of its machine; times compare only between equal ones.
    """

    name: str
    fingerprint: str


def refuse_deletion_if_driven(
    storage: optuna.storages.BaseStorage, name: str, driver: Driver | None
) -> None:
    """Raise ``ConfigError`` if another driver of a study is alive, which takes two beats to see.

    If ``driver`` is ``None``, the study belongs to one process.
    """
    if driver is None:
        return
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:  # there is none
        return
    before = _beats(study, but=driver.name)
    if before:
        time.sleep(2 * _BEAT_S)
    if _beats(study, but=driver.name) != before:
        raise ConfigError(
            f"study {name} is being run by another driver, and resume=restart would delete it; "
            "end that driver first"
        )


def _beats(study: optuna.Study, but: str) -> dict[str, int]:
    drivers = {
        name.removeprefix(_BEAT): count
        for name, count in study.user_attrs.items()
        if name.startswith(_BEAT)
    }
    return {name: count for name, count in drivers.items() if name != but}


class Crew:
    """The drivers of a study, as one of them sees them.

    Args:
        study: The study whose database they share.
        driver: The driver that this process is.
        clock: Monotonic clock, seconds.
    """

    def __init__(
        self,
        study: optuna.Study,
        driver: Driver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study, self._clock = study, clock
        self.driver = driver
        self._seen: dict[str, tuple[int, float]] = {}
        self._led = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True, name="heartbeat")

    def begin(self) -> None:
        """Start the heartbeat, which shows until ``close`` that this driver is alive."""
        self.beat()
        self._thread.start()

    def close(self) -> None:
        """Stop the heartbeat."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def beat(self) -> None:
        """Increment the counter, from where an earlier process of this driver stopped."""
        self._study.set_user_attr(_BEAT + self.driver.name, self._count(self.driver.name) + 1)

    def _live(self) -> None:
        while not self._closing.wait(_BEAT_S):
            with contextlib.suppress(*_FAULTS):  # the study itself detects and reports it
                self.beat()

    def _count(self, name: str) -> int:
        return int(self._study.user_attrs.get(_BEAT + name, 0))

    def dead(self, names: Iterable[str]) -> set[str]:
        """Return which of these drivers have shown no sign of life for a whole lease."""
        return {
            name for name in names if name != self.driver.name and self._silent_s(name) > LEASE_S
        }

    def outlives(self, name: str, tick: Callable[[], None]) -> bool:
        """Wait until another driver beats, reports or is dead; return whether it is dead.

        Args:
            name: Name of the other driver.
            tick: Called repeatedly while waiting; it pauses briefly.
        """
        self._silent_s(name)
        count, _ = self._seen[name]
        while self._silent_s(name) <= LEASE_S:
            if self.reported or self._seen[name][0] != count:
                return False
            tick()
        return True

    def _silent_s(self, name: str) -> float:
        """Return the seconds for which this process has seen no sign of life of a driver."""
        count, now = self._count(name), self._clock()
        if name not in self._seen or self._seen[name][0] != count:
            self._seen[name] = count, now
        return now - self._seen[name][1]

    # -- who leads ------------------------------------------------------------------------------

    @property
    def leader(self) -> str:
        """Name of the leading driver; empty before the default is begun."""
        return str(self._study.user_attrs.get(_LEADER, ""))

    @property
    def leads(self) -> bool:
        """Whether this driver leads; the last known answer if the database cannot be read."""
        with contextlib.suppress(*_FAULTS):
            self._led = self.leader == self.driver.name
        return self._led

    def lead(self) -> None:
        """Become the leading driver."""
        self._study.set_user_attr(_LEADER, self.driver.name)

    @property
    def reported(self) -> bool:
        """Whether the leading driver has ended the study, and nothing is left to do for it."""
        return bool(self._study.user_attrs.get(_REPORTED))

    def note_report(self, *, written: bool) -> None:
        """Tell the other drivers whether the study has ended with its report."""
        self._study.set_user_attr(_REPORTED, written)

    def publish(self, name: str, value: Any) -> None:
        """Publish, if this driver leads, a JSON value that another needs to take over."""
        if self.leads:
            self._study.set_user_attr(_PUBLISHED + name, value)

    @property
    def published(self) -> dict[str, Any]:
        """All that leading drivers have published, by name."""
        return {
            name.removeprefix(_PUBLISHED): value
            for name, value in self._study.user_attrs.items()
            if name.startswith(_PUBLISHED)
        }
