"""Sphinx builds these pages into ``site/`` (``make docs``); nothing is fetched for it."""

import sys
from pathlib import Path

folder = Path(__file__).parent
# worker_api imports its neighbours as workers do
sys.path[:0] = [str(folder), str(folder.parent / "tuner" / "worker_api")]

project = "tuner"
html_title = "tuner"
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
autodoc_typehints = "none"  # signatures show them
autodoc_member_order = "bysource"


def setup(_app: object) -> None:
    """Write the pages that are made from the code."""
    from generated import write_pages

    write_pages()
