"""User errors on the command line."""

from __future__ import annotations

import sys


def complain(error: Exception) -> None:
    """Print a user error as one line on stderr."""
    print("error:", *str(error).split(), file=sys.stderr)
