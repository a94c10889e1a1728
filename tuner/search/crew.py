"""The drivers of one study: which of them live, and which one leads.

A driver shows that it lives by counting on in the study's database. One whose count has not
changed for the length of a lease, by the observer's own monotonic clock, is dead: no two machines'
clocks are compared, and a step of one changes nothing. The driver that measures the default leads:
it verifies and reports. What another needs to go on in its place, it publishes in the database.
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

LEASE_S = 120.0
"""Seconds without a sign of life after which a driver is dead."""

_BEAT_S = 10.0
_JOIN_S = 5.0
_BEAT, _LEADER, _PUBLISHED = "beat:", "leader", "led:"
_FAULTS = (optuna.exceptions.OptunaError, SQLAlchemyError, OSError)


@dataclass(frozen=True)
class Driver:
    """One of several processes that drive a study, each with trials of its own.

    Attributes:
        name: No other driver's.
        fingerprint: Of its machine; times compare only among drivers that have the same.
    """

    name: str
    fingerprint: str


class Crew:
    """The drivers of a study, as one of them sees them.

    Args:
        study: In whose database they meet.
        driver: Who this is.
        clock: Seconds, monotonic.
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
        """Show that this driver lives, until it is closed."""
        self.beat()
        self._thread.start()

    def close(self) -> None:
        """Stop showing it."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def beat(self) -> None:
        """Count on, from where an earlier process of this driver stopped."""
        self._study.set_user_attr(_BEAT + self.driver.name, self._count(self.driver.name) + 1)

    def _live(self) -> None:
        while not self._closing.wait(_BEAT_S):
            with contextlib.suppress(*_FAULTS):  # the study itself finds out, and says so
                self.beat()

    def _count(self, name: str) -> int:
        return int(self._study.user_attrs.get(_BEAT + name, 0))

    def dead(self, names: Iterable[str]) -> set[str]:
        """Which of these drivers have shown no sign of life for a whole lease."""
        return {
            name for name in names if name != self.driver.name and self._silent_s(name) > LEASE_S
        }

    def outlives(self, name: str, tick: Callable[[], None]) -> bool:
        """Wait until another driver counts on, or its lease ends. Returns whether it is dead.

        Args:
            name: Of the other driver.
            tick: Called while waiting; it waits a moment.
        """
        self._silent_s(name)
        count, _ = self._seen[name]
        while self._silent_s(name) <= LEASE_S:
            if self._seen[name][0] != count:
                return False
            tick()
        return True

    def _silent_s(self, name: str) -> float:
        """Seconds for which this process has seen no sign of life."""
        count, now = self._count(name), self._clock()
        if name not in self._seen or self._seen[name][0] != count:
            self._seen[name] = count, now
        return now - self._seen[name][1]

    # -- who leads ------------------------------------------------------------------------------

    @property
    def leader(self) -> str:
        """Name of the driver that leads; empty before the default is begun."""
        return str(self._study.user_attrs.get(_LEADER, ""))

    @property
    def leads(self) -> bool:
        """Whether this driver leads, as far as it knows where the database cannot be read."""
        with contextlib.suppress(*_FAULTS):
            self._led = self.leader == self.driver.name
        return self._led

    def lead(self) -> None:
        """Lead from now on."""
        self._study.set_user_attr(_LEADER, self.driver.name)

    def publish(self, name: str, value: Any) -> None:
        """Leave what a driver needs that goes on in this one's place; JSON."""
        if self.leads:
            self._study.set_user_attr(_PUBLISHED + name, value)

    @property
    def published(self) -> dict[str, Any]:
        """All that those who led have published, by name."""
        return {
            name.removeprefix(_PUBLISHED): value
            for name, value in self._study.user_attrs.items()
            if name.startswith(_PUBLISHED)
        }
