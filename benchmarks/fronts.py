"""Whether what one study found dominates what another found, each beside its own default.

A machine may be a third faster in one run than in the next, so times count as speed-ups over the
default that was measured in the same run. A point is dominated where the other front has one that
is at least as fast and, but for a margin that counts as none (as in verification), as accurate.

    python -m tuner search=joint output=joint
    python -m tuner report output=joint to=joint/report
    python -m tuner output=factored
    python -m tuner report output=factored to=factored/report
    python benchmarks/fronts.py factored/report/front.json joint/report/front.json [--margin 0.002]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tuner.config.schema import VerifyConfig


@dataclass(frozen=True)
class Point:
    """One of a front.

    Attributes:
        name: As the report has it.
        speedup: Over the default's verified time.
        accuracy: On the validation split, fraction.
    """

    name: str
    speedup: float
    accuracy: float

    def __str__(self) -> str:
        return f"{self.name}: {self.speedup:.1f} times as fast, {self.accuracy:.2%}"


def read(path: Path) -> list[Point]:
    """Read a report's front, fastest first."""
    report = json.loads(path.read_text(encoding="utf-8"))
    default_s = report["verified"][0]["train_time_s"]["value"]
    points = [
        Point(
            each["name"],
            default_s / each["metrics"]["train_time_s"],
            each["metrics"]["val_accuracy"],
        )
        for each in report["front"]
    ]
    return sorted(points, key=lambda each: -each.speedup)


def dominating(front: list[Point], point: Point, margin: float) -> Point | None:
    """Return a front's most accurate point that dominates another."""
    able = [
        each
        for each in front
        if each.speedup >= point.speedup and each.accuracy >= point.accuracy - margin
    ]
    return max(able, key=lambda each: each.accuracy, default=None)


def main() -> int:
    """Print each point of the second front beside what dominates it. 1 if anything does not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("front", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--margin", type=float, default=VerifyConfig.accuracy_margin)
    given = parser.parse_args()
    front, other = read(given.front), read(given.other)
    better = [dominating(front, each, given.margin) for each in other]
    for point, by in zip(other, better, strict=True):
        print(f"{point}\n    {f'dominated by {by}' if by else 'NOT DOMINATED'}")
    print(
        f"{sum(by is not None for by in better)} of {len(other)} points are dominated; "
        f"{sum(not dominating(other, each, 0.0) for each in front)} of {len(front)} are not"
    )
    return int(None in better)


if __name__ == "__main__":
    sys.exit(main())
