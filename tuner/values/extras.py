"""Packages that come with an extra of ``pyproject.toml``, not with ``pip install tuner``."""

from __future__ import annotations

import importlib.util

from tuner.values.errors import ConfigError


def missing_extra(extra: str, *packages: str) -> str:
    """Say which packages of an extra are missing, and how to install them.

    Args:
        extra: Its name in ``pyproject.toml``.
        *packages: Some of its packages, by the names that code imports.

    Returns:
        Such as ``ray: pip install 'tuner[ray]'``; empty if none is missing.
    """
    absent = [each for each in packages if not importlib.util.find_spec(each)]
    return f"{', '.join(absent)}: pip install 'tuner[{extra}]'" if absent else ""


def require_extra(purpose: str, extra: str, *packages: str) -> None:
    """Check that the packages of an extra are installed.

    Args:
        purpose: What needs them, as the user wrote it.
        extra: Its name in ``pyproject.toml``.
        *packages: Some of its packages, by the names that code imports.

    Raises:
        ConfigError: If one is missing.
    """
    if missing := missing_extra(extra, *packages):
        raise ConfigError(f"{purpose} needs {missing}")
