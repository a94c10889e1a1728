"""How many examples fuzzers try: few, or as many as ``TUNER_FUZZ_EXAMPLES`` says."""

from __future__ import annotations

import os

_WANTED = int(os.environ.get("TUNER_FUZZ_EXAMPLES", "0"))


def examples(usual: int) -> int:
    """How many to try, where ``usual`` are enough for the test suite."""
    return _WANTED or usual
