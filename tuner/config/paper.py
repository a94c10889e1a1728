"""The types of a paper's experiment: a table or figure, with the paper's own figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class PaperRow:
    """One row of a table, or one point of a figure.

    Attributes:
        of: What the paper calls the row's framework or group; rows of one name are one series.
        framework: Our framework that stands for it; empty if the row cannot be run.
        params: The row's setting, by our names. ``threads_per_core`` counts threads in multiples
            of the trial's cores.
        run: What is run in place of some of these params.
        theirs: The paper's figures, by the names of ``FIGURES`` (``tuner.report.papers``).
        note: What a reader of the row must know.
        absent: Why it cannot be run.
    """

    of: str = ""
    framework: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, float] = field(default_factory=dict)
    note: str = ""
    absent: str = ""


@dataclass
class PaperClaim:
    """An order of rows that the paper states in words, where a plot alone shows the figures.

    Attributes:
        says: The paper's own words.
        figure: What it is about.
        order: Groups of row numbers, counted from 1, from the lowest figure to the highest;
            nothing is claimed within a group.
        times: How many times as high as the group before each group is at least, from the second
            one on, where the paper states such factors; empty where it does not.
    """

    says: str = ""
    figure: str = ""
    order: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


@dataclass
class PaperConfig:
    """One experiment of a paper; there is none if ``rows`` is empty.

    Attributes:
        name: Name of the experiment, that of its file.
        source: Name of the paper in ``conf/papers.yaml``.
        where: Table or figure, as the paper numbers it, and page if known.
        about: What it shows, in a few words.
        machine: Name of the machine in ``conf/papers.yaml`` that the paper measured on.
        held: What the paper holds fixed, in words.
        sweeps: Params that vary, for the list of experiments.
        metrics: Figures that are measured and compared, the most important one first.
        fixed: Params of all rows.
        rows: The rows.
        claims: Orders of rows that the paper states in words.
        missing: What of the table or figure cannot be run here, each with its reason.
        why: Why a figure may differ, by its name; shown where it does.
    """

    name: str = ""
    source: str = ""
    where: str = ""
    about: str = ""
    machine: str = ""
    held: str = ""
    sweeps: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    fixed: dict[str, Any] = field(default_factory=dict)
    rows: list[PaperRow] = field(default_factory=list)
    claims: list[PaperClaim] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
