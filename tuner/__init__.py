"""tuner: hyper-parameter and runtime-configuration tuning of deep-learning frameworks."""

from typing import Any

__version__ = "0.2.0"
__all__ = ["load_results", "recommend", "train", "tune"]


def __getattr__(name: str) -> Any:
    """Import a function of ``tuner.api`` when it is first used: the import takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tuner import api

    return getattr(api, name)
