"""Sphinx builds these pages into ``site/`` (``make docs``); nothing is fetched for it."""

project = "tuner"
html_title = "tuner"
html_theme = "furo"
extensions = ["myst_parser"]
myst_heading_anchors = 3
