"""Reports of a study for people and programs: terminal table, HTML page, picture and JSON.

Every figure is compared with the framework's default and has an interval. Only verified results
are claimed.
"""

from __future__ import annotations

from tuner.report.answers import study_metrics
from tuner.report.cross import cross_lines, cross_metrics, print_cross_summary, write_cross_report
from tuner.report.files import REPORT_FILES, report_lacks_files, write_report
from tuner.report.front import front_json
from tuner.report.papers import (
    FIGURES,
    PaperResult,
    PaperRun,
    needs_test,
    paper_headline,
    paper_metrics,
    paper_section,
    print_paper_summary,
    write_paper_report,
)
from tuner.report.terminal import print_summary
from tuner.report.wording import headline

__all__ = [
    "REPORT_FILES",
    "report_lacks_files",
    "write_report",
    "print_summary",
    "front_json",
    "headline",
    "study_metrics",
    "write_cross_report",
    "print_cross_summary",
    "cross_lines",
    "cross_metrics",
    "FIGURES",
    "PaperResult",
    "PaperRun",
    "needs_test",
    "paper_headline",
    "paper_metrics",
    "paper_section",
    "print_paper_summary",
    "write_paper_report",
]
