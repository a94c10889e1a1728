"""Reports on a paper's table or figure: its figures beside ours.

Machines differ, so what is compared is the ratio to the first row, and the order of the rows.
"""

from __future__ import annotations

from tuner.report.papers.figures import FIGURES, PaperResult, PaperRun, needs_test
from tuner.report.papers.files import paper_json, paper_section, write_paper_report
from tuner.report.papers.terminal import print_paper_summary
from tuner.report.papers.wording import paper_headline, paper_metrics

__all__ = [
    "FIGURES",
    "PaperResult",
    "PaperRun",
    "needs_test",
    "paper_headline",
    "paper_json",
    "paper_metrics",
    "paper_section",
    "print_paper_summary",
    "write_paper_report",
]
