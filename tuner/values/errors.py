"""The errors of the tuner; each class holds the exit code that the command ends with.

A message is one line: the fact, the value received, the remedy.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping, Sequence
from typing import Any

DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""``errno`` of faults of the disk, which no setting and no worker's permissions cause."""

PASSING_FAULTS = (
    *DISK_FAULTS,
    errno.EAGAIN,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ESTALE,
)
"""``errno`` of faults that may pass: those of the disk, and of a machine that lacks something."""

INTERRUPTED = 128 + signal.SIGINT
"""Exit code of what Ctrl-C or SIGTERM ended, as shells give it for Ctrl-C."""


class TunerError(Exception):
    """Root of everything that the user can act on; shown as one line, without a traceback."""

    exit_code = 1


class CompositionError(TunerError, ValueError):
    """Overrides do not compose to a configuration."""


class ConfigError(TunerError, ValueError):
    """A value given by the user cannot be used."""

    exit_code = 2


class BudgetTooSmall(ConfigError):
    """A study of a network this large can prove nothing in its time."""


class StorageError(ConfigError):
    """A folder or database that results should go to cannot be read or written."""


class StorageAway(StorageError):
    """The storage cannot be reached or written now; the same command may resume later."""


class DamagedStudy(StorageError):
    """A study's record in MLflow cannot be read as one."""


class RuntimeUnavailable(TunerError):
    """A framework's runtime is not installed and cannot be."""

    exit_code = 3


class DatasetUnavailable(TunerError):
    """A data set is neither cached nor available from any mirror."""

    exit_code = 3


class NoTrialSucceeded(TunerError):
    """Every trial of the study failed, so there is nothing to report."""

    exit_code = 4


class ProtocolError(TunerError):
    """A worker wrote something that the worker protocol does not allow."""

    exit_code = 4


class NothingRecommended(TunerError):
    """No measured configuration answers the question.

    Attributes:
        binding: Names of the limits that no configuration keeps; empty without any evidence.
        nearest: The nearest configuration, as plain values; ``None`` without any evidence.
    """

    exit_code = 4

    def __init__(
        self, message: str, binding: Sequence[str] = (), nearest: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.binding, self.nearest = tuple(binding), nearest
