"""The page of the papers' tables: what it has places for exists, and can be filled in."""

from __future__ import annotations

from pathlib import Path

import pytest
from papers import places, with_section

from tuner.config.catalogue import project_folder

PAGE = (Path(__file__).parents[1] / "docs" / "papers.md").read_text(encoding="utf-8")


def test_every_place_is_of_an_experiment_and_is_closed():
    known = {path.stem for path in (project_folder("conf") / "experiment").glob("paper_*.yaml")}
    found = places(PAGE)
    assert len(found) == len(set(found)) >= 10
    assert set(found) <= known
    for name in found:
        filled = with_section(PAGE, name, "| a | b |")
        assert filled.count(f"<!-- {name}: begin -->\n| a | b |\n<!-- {name}: end -->") == 1
        assert places(filled) == found


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(ValueError, match="has no marks <!-- paper_new: begin -->"):
        with_section("text", "paper_new", "section")
