"""What studies across frameworks found: each one against its own default, and a front of all.

Frameworks were measured one after the other: what is said of two of them carries no p-value.
"""

from __future__ import annotations

from tuner.report.cross.files import write_cross_report
from tuner.report.cross.ledger import cross_lines, cross_metrics
from tuner.report.cross.terminal import print_cross_summary

__all__ = ["cross_lines", "cross_metrics", "print_cross_summary", "write_cross_report"]
