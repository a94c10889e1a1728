"""Reports across frameworks: each one against its own default, and a front over all.

Frameworks are measured one after the other, so comparisons between two of them have no p-value.
"""

from __future__ import annotations

from tuner.report.cross.files import write_cross_report
from tuner.report.cross.ledger import cross_lines, cross_metrics
from tuner.report.cross.terminal import print_cross_summary

__all__ = ["cross_lines", "cross_metrics", "print_cross_summary", "write_cross_report"]
