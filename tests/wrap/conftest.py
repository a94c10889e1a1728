"""What the tests of programs share."""

from __future__ import annotations

import pytest


@pytest.fixture
def few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies prove by five pairs of runs, however many there is time for."""
    for name in ("_PAIRS", "_PAIRS_WITH_PARAMS"):
        monkeypatch.setattr(f"tuner.wrap.schedule.{name}", 5)
