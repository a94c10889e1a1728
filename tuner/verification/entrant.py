"""One configuration that is verified, and the roles in which configurations are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.values.params import iterations_of
from tuner.values.trial import SideBySide, TrialResult
from tuner.values.verified import Role

CANDIDATES = (Role.NO_LOSS, Role.ACCURACY)
"""Roles that accuracy decides, which only whole runs tell."""
OF_DEFAULT = (Role.RUNTIME_ONLY, Role.STOPPED)
"""Roles of the default's own training, whose accuracy is known: only its rate is measured."""


@dataclass(frozen=True)
class Entrant:
    """One configuration that is verified, and earlier stops of its training.

    Attributes:
        result: How it was found: its params, and what it took then.
        role: What it is verified for.
        beside: How its accuracy is measured side by side with other runs; ``None`` where each of
            its runs measures accuracy and time.
        rounds: Rounds of accuracies that were planned when it was chosen. They stay, whatever is
            configured later: looks that are added once others have failed would err more often.
        in_parts: Whether only parts of its training run, as there is no time for whole runs.
        stops: Earlier stops of its training, the latest first. Its runs tell of them too.
    """

    result: TrialResult
    role: Role
    beside: SideBySide | None = None
    rounds: int = 0
    in_parts: bool = False
    stops: tuple[TrialResult, ...] = ()

    @property
    def points(self) -> tuple[TrialResult, ...]:
        """What its runs tell of: its end, and its earlier stops, the latest first."""
        return (self.result, *self.stops)

    @property
    def iterations(self) -> tuple[int, ...]:
        """How long it trains until each of its points."""
        return tuple(iterations_of(each.params) for each in self.points)

    @property
    def stops_on_the_way(self) -> tuple[int, ...]:
        """How long it trains until each of its earlier stops, ascending."""
        return tuple(sorted(self.iterations[1:]))

    def to_json(self) -> dict[str, Any]:
        """Return plain values; ``from_json`` reads them back."""
        beside = dataclasses.asdict(self.beside) if self.beside else None
        return {
            "role": self.role.value,
            "result": self.result.to_json(),
            "beside": beside,
            "rounds": self.rounds,
            "in_parts": self.in_parts,
            "stops": [each.to_json() for each in self.stops],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Entrant:
        """Read what ``to_json`` wrote."""
        beside = SideBySide(**raw["beside"]) if raw.get("beside") else None
        result = TrialResult.from_json(raw["result"])
        return cls(
            result,
            Role(raw["role"]),
            beside,
            raw.get("rounds", 0),
            raw.get("in_parts", False),
            tuple(map(TrialResult.from_json, raw.get("stops", ()))),
        )
