"""Where ours agrees with theirs: ratios to the first row, order of the rows, claims in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.config.paper import PaperClaim
from tuner.config.papers import find_paper
from tuner.report.papers.figures import FIGURES, Figure, PaperResult, PaperRun

AGREES, PARTLY, DIFFERS = "agrees", "agrees in part", "differs"
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be told"
_PAIRS = 2 / 3  # least part of the pairs of rows that must go the same way
_ABOUT = 0.05  # of a factor that a claim names
_LEAST_RANKED = 3  # rows below which a rank correlation says nothing
_CORES_MATTER = {"threads", "threads_per_core", "workers", "blas"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of one row on both sides.

    Attributes:
        theirs, ours: In the figure's unit; NaN for a diverged training, ``None`` if unknown.
        their_ratio, our_ratio: To the first row that both sides have.
    """

    theirs: float | None
    ours: float | None
    their_ratio: float | None = None
    our_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Trend:
    """Whether the rows of one series, or all of them, have the same order on both sides.

    Attributes:
        figure: Name of the figure.
        scope: Name of the series; empty for all rows.
        rows: Number of rows that both sides have.
        same_best: Whether the row that is best here is also best there (or as good).
        alike, pairs: Of all pairs of rows, how many go the same way: up, down, or no difference.
        rank: Spearman's rank correlation; ``None`` with fewer than three rows, or if all of one
            side are equal.
        verdict: ``AGREES`` if the best row is the same and two thirds of the pairs go the same
            way, ``DIFFERS`` if neither, else ``PARTLY``.
        why: Why it may differ; empty if it agrees or nothing is known.
    """

    figure: str
    scope: str
    rows: int
    same_best: bool
    alike: int
    pairs: int
    rank: float | None
    verdict: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """One of the paper's claims, and whether it holds here.

    Attributes:
        claim: What the paper says.
        order: The rows that it is about, in its order, the lowest first, with its factors.
        verdict: ``HOLDS``, ``FAILS`` or ``UNKNOWN``.
        words: Why it does not hold or cannot be told; else empty.
    """

    claim: PaperClaim
    order: str
    verdict: str
    words: str


def cells(result: PaperResult, figure: str) -> list[Cell]:
    """Return a figure of every row, with ratios to the first row that both sides have.

    Where the paper states an order in words alone, ours are to the first row that we have.
    """
    both = [_cell(result, run, figure) for run in result.runs]
    in_words = not any(_finite(each.theirs) for each in both)
    first = next(
        (each for each in both if _finite(each.ours) and (in_words or _finite(each.theirs))),
        Cell(None, None),
    )
    return [
        Cell(
            each.theirs,
            each.ours,
            _ratio(each.theirs, first.theirs),
            _ratio(each.ours, first.ours),
        )
        for each in both
    ]


def _cell(result: PaperResult, run: PaperRun, figure: str) -> Cell:
    return Cell(run.row.theirs.get(figure), result.ours(run, figure))


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _ratio(value: float | None, first: float | None) -> float | None:
    return value / first if value is not None and math.isfinite(value) and first else None


def trends(result: PaperResult) -> list[Trend]:
    """Return the trends of every figure: of each series with two rows or more, then of all.

    There is none of all rows where two of them are the same training.
    """
    found = []
    trained = [(each.row.framework, each.params) for each in result.runs if each.params]
    shared = any(one == other for one, other in itertools.combinations(trained, 2))
    for figure in result.paper.metrics:
        pairs = [
            (run.row.of, each.theirs, each.ours)
            for run, each in zip(result.runs, cells(result, figure), strict=True)
        ]
        known = [
            (of, _worth(theirs), _worth(ours))
            for of, theirs, ours in pairs
            if theirs is not None and ours is not None
        ]
        series = list(dict.fromkeys(of for of, _, _ in known))
        for scope in [*series, *([] if shared else [""])] if len(series) > 1 else [""]:
            rows = [(theirs, ours) for of, theirs, ours in known if scope in ("", of)]
            if len(rows) > 1:
                found.append(_trend(result, figure, scope, rows))
    return found


def _worth(value: float) -> float:
    """Return a figure to order rows by: an accuracy of a diverged training is the lowest."""
    return 0.0 if math.isnan(value) else value


def _trend(
    result: PaperResult, figure: str, scope: str, rows: Sequence[tuple[float, float]]
) -> Trend:
    kind = FIGURES[figure]
    best = max if kind.higher else min
    theirs, ours = zip(*rows, strict=True)
    ours_best = ours.index(best(ours))
    same_best = not _way(kind, theirs[ours_best], best(theirs)) or not _way(
        kind, ours[theirs.index(best(theirs))], best(ours)
    )
    couples = list(itertools.combinations(rows, 2))
    alike = sum(
        _way(kind, one[0], other[0]) == _way(kind, one[1], other[1]) for one, other in couples
    )
    enough = alike >= _PAIRS * len(couples)
    verdict = AGREES if same_best and enough else PARTLY if same_best or enough else DIFFERS
    return Trend(
        figure,
        scope,
        len(rows),
        same_best,
        alike,
        len(couples),
        rank_correlation(theirs, ours),
        verdict,
        "" if verdict == AGREES else why(result, figure),
    )


def _way(kind: Figure, first: float, second: float) -> int:
    """Return the sign of the change from one value to another; 0 within the tolerance."""
    margin = kind.tolerance * (1 if kind.absolute else max(abs(first), abs(second)))
    return 0 if abs(second - first) <= margin else (1 if second > first else -1)


def rank_correlation(theirs: Sequence[float], ours: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; see ``Trend.rank``."""
    if len(theirs) < _LEAST_RANKED or len(set(theirs)) == 1 or len(set(ours)) == 1:
        return None
    from scipy import stats  # takes longer to import than all the rest

    return float(stats.spearmanr(theirs, ours).statistic)


def why(result: PaperResult, figure: str) -> str:
    """Return why a figure may differ: by the declaration, and by the number of cores."""
    paper = result.paper
    _, machine = find_paper(paper)
    words = [paper.why.get(figure, "")]
    if machine.cores not in (0, result.cores) and _CORES_MATTER & set(paper.sweeps):
        here = f"{result.cores} core{'s' if result.cores > 1 else ''}"
        words.append(f"A trial here has {here}; the paper's machine had {machine.cores}.")
    return " ".join(filter(None, words))


def judged_claims(result: PaperResult) -> list[Judged]:
    """Return each claim of the paper, and whether our rows have the order that it states."""
    return [_judged(result, claim) for claim in result.paper.claims]


def _judged(result: PaperResult, claim: PaperClaim) -> Judged:
    groups = [[result.runs[number - 1] for number in group] for group in claim.order]
    labels = [", ".join(row_label(run) for run in group) for group in groups]
    factors = claim.times or [1.0] * (len(groups) - 1)
    signs = ["", *(f" × {each:g} ≤ " if each > 1 else " < " for each in factors)]
    order = "".join(sign + label for sign, label in zip(signs, labels, strict=False))
    values = [[result.ours(run, claim.figure) for run in group] for group in groups]
    lacking = [
        run
        for group, found in zip(groups, values, strict=True)
        for run, value in zip(group, found, strict=True)
        if value is None
    ]
    if lacking:
        names = ", ".join(dict.fromkeys(row_label(run) for run in lacking))
        return Judged(claim, order, UNKNOWN, f"not measured here: {names}")
    known = [[_worth(value) for value in found if value is not None] for found in values]
    broken = list(_broken(FIGURES[claim.figure], groups, known, claim.times))
    if not broken:
        return Judged(claim, order, HOLDS, "")
    words = f"{'; '.join(broken)}. {why(result, claim.figure)}".strip()
    return Judged(claim, order, FAILS, words)


def _broken(
    kind: Figure,
    groups: Sequence[Sequence[PaperRun]],
    values: Sequence[Sequence[float]],
    times: Sequence[float],
) -> Iterator[str]:
    """Yield each neighbouring pair of groups whose order here is not that of the claim.

    Where the claim has a factor, about as many ``times`` as much is enough.
    """
    for place, (below, above) in enumerate(itertools.pairwise(values)):
        way = _way(kind, max(below), min(above))
        factor = times[place] if times else 1.0
        if way <= 0:
            same = "less than" if way else "about the same as"
        elif min(above) < (1 - _ABOUT) * factor * max(below):
            same = f"less than {factor:g} times"
        else:
            continue
        low = groups[place][below.index(max(below))]
        high = groups[place + 1][above.index(min(above))]
        yield (
            f"{row_label(high)} has {figure_text(kind, min(above))}, {same} "
            f"{row_label(low)} with {figure_text(kind, max(below))}"
        )


def row_label(run: PaperRun) -> str:
    """Return what a row is called: its framework there and its params."""
    params = ", ".join(f"{name.replace('_', ' ')} {each}" for name, each in run.row.params.items())
    return f"{run.row.of}: {params}" if params else run.row.of


def figure_text(kind: Figure, value: float | None) -> str:
    """Format a figure; "-" if it is not known, "NaN" if the training diverged."""
    if value is None:
        return "-"
    if math.isnan(value):
        return "NaN"
    if kind.digits >= 0:
        return f"{value:,.{kind.digits}f}"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.3g}"
