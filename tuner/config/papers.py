"""The papers' experiments as data: tables and figures, with the papers' own figures.

Each is a file ``conf/experiment/paper_<paper>_<table or figure>.yaml``; ``conf/papers.yaml`` holds
what several of them share: the papers, and the machines that they measured on.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from tuner.config.catalogue import project_folder
from tuner.config.paper import PaperConfig
from tuner.values.errors import ConfigError

LIST = "list"
"""The word that lists all experiments: ``experiment=list``."""
_ABOUT = 48  # columns


@dataclass(frozen=True)
class PaperMachine:
    """A machine that a paper measured on.

    Attributes:
        words: What it is.
        cores: Physical cores; 0 if the paper does not say or they do not count.
    """

    words: str
    cores: int = 0


@dataclass(frozen=True)
class PaperSource:
    """A paper.

    Attributes:
        title, authors, venue: As on its first page.
        doi: Empty if its text gives none.
        short: How lists name it.
        editions: Other texts of the same work, and how they differ.
        machines: What it measured on, by name.
    """

    title: str
    authors: str
    venue: str
    short: str
    machines: dict[str, PaperMachine]
    doi: str = ""
    editions: str = ""


@cache
def load_papers() -> dict[str, PaperSource]:
    """Return the papers of ``conf/papers.yaml`` by name.

    Raises:
        ConfigError: If the file cannot be read.
    """
    path = project_folder("conf") / "papers.yaml"
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {
            name: PaperSource(
                **{
                    **entry,
                    "machines": {
                        each: PaperMachine(**facts) for each, facts in entry["machines"].items()
                    },
                }
            )
            for name, entry in raw.items()
        }
    except (OSError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def find_paper(paper: PaperConfig) -> tuple[PaperSource, PaperMachine]:
    """Return the source of an experiment and the machine that its figures were measured on.

    Raises:
        ConfigError: If ``conf/papers.yaml`` does not have them.
    """
    known = load_papers()
    if paper.source not in known:
        raise ConfigError(
            f"paper.source {paper.source!r} is not in conf/papers.yaml; it has: {', '.join(known)}"
        )
    source = known[paper.source]
    if paper.machine not in source.machines:
        raise ConfigError(
            f"paper.machine {paper.machine!r} is none of {paper.source}'s machines; "
            f"they are: {', '.join(source.machines)}"
        )
    return source, source.machines[paper.machine]


def experiment_lines() -> list[str]:
    """Return one line for each file of ``conf/experiment/``, below a line of headings.

    Each has the name, the paper, the table or figure, what varies, the frameworks, and the time
    that the experiment may take here.
    """
    rows = [("experiment=", "paper", "where", "sweeps", "frameworks", "time here, at most")]
    usual = yaml.safe_load((project_folder("conf") / "budget/default.yaml").read_text("utf-8"))
    for path in sorted((project_folder("conf") / "experiment").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        raw = yaml.safe_load(text) or {}
        time_s = (raw.get("budget") or usual["budget"])["time_s"]
        rows.append((path.stem, *_facts(raw, text), f"{max(1, round(time_s / 60))} min"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _facts(raw: dict[str, Any], text: str) -> tuple[str, str, str, str]:
    """Return paper, place, sweep and frameworks of an experiment's file."""
    paper = raw.get("paper")
    if not paper:
        comment = next(line for line in text.splitlines() if not line.startswith("# @"))
        about = textwrap.shorten(comment.lstrip("# ").rstrip(":"), _ABOUT, placeholder=" ...")
        return "-", "-", about, ", ".join(raw.get("frameworks") or ["one"])
    used = dict.fromkeys(row["framework"] for row in paper["rows"] if row.get("framework"))
    source = load_papers()[paper["source"]]
    return source.short, paper["where"], ", ".join(paper["sweeps"]), ", ".join(used)
