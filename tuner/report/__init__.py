"""What a study found, for people and programs: terminal table, HTML page, picture and JSON.

Everything is said against the framework's default, with intervals, and nothing is claimed that
was not verified.
"""

from __future__ import annotations

from tuner.report.answers import study_metrics
from tuner.report.cross import cross_lines, cross_metrics, print_cross_summary, write_cross_report
from tuner.report.files import write_report
from tuner.report.front import front_json
from tuner.report.terminal import print_summary
from tuner.report.wording import headline

__all__ = [
    "write_report",
    "print_summary",
    "front_json",
    "headline",
    "study_metrics",
    "write_cross_report",
    "print_cross_summary",
    "cross_lines",
    "cross_metrics",
]
