"""The papers' tables and figures, theirs beside ours, for the page that shows them.

    python benchmarks/papers.py [experiment ...] [--set setting=value ...] [--write docs/papers.md]

Without names, all experiments that the file of ``--write`` has a place for are run, in its order.
An experiment that was run before is continued, or only reported. With ``--write`` the section
replaces what stands between the experiment's two marks in that file.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tuner.config.composing import compose
from tuner.report import paper_section
from tuner.study.paper_experiment import run_paper
from tuner.values.errors import TunerError

BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"


def places(text: str) -> list[str]:
    """Return the names of the experiments that a page has a place for, in its order."""
    return re.findall(r"^<!-- (paper_\w+): begin -->$", text, re.MULTILINE)


def with_section(text: str, name: str, section: str) -> str:
    """Return a page with the section between the marks of an experiment.

    Raises:
        ValueError: If the page has no such marks.
    """
    begin, end = BEGIN.format(name), END.format(name)
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise ValueError(f"the page has no marks {begin} and {end}")
    return f"{before}{begin}\n{section}\n{end}{after}"


def main() -> None:
    """Run and print; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("experiments", nargs="*")
    parser.add_argument("--set", nargs="*", default=[], help="settings for all of them")
    parser.add_argument("--write", type=Path, help="page that is brought up to date")
    given = parser.parse_args()
    page = given.write.read_text(encoding="utf-8") if given.write else ""
    for name in given.experiments or places(page):
        words = [f"experiment={name}", *given.set]
        try:
            result = run_paper(compose(words), " ".join(["python -m tuner", *words]))
        except TunerError as error:
            print(f"{name}: {error}", flush=True)
            continue
        section = paper_section(result)
        print(f"## {name}\n\n{section}\n", flush=True)
        if given.write:
            text = with_section(given.write.read_text(encoding="utf-8"), name, section)
            given.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
