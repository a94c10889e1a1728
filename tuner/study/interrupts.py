"""Ctrl-C and SIGTERM, handled where it is safe to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class DeferredInterrupts:
    """Context manager that defers Ctrl-C and SIGTERM until ``check`` raises them.

    A signal handler runs wherever the main thread happens to be. A ``KeyboardInterrupt`` could
    therefore strike in a library's callback that prints and swallows it, or between two steps
    that belong together. A second signal is not deferred: its sender wants to stop at once.

    Only signals whose handler raises ``KeyboardInterrupt`` are deferred, and only in the main
    thread; elsewhere this does nothing. A signal that was never checked for is raised on exit.
    """

    def __init__(self) -> None:
        self._noted = False
        self._deferred: list[signal.Signals] = []

    def __enter__(self) -> DeferredInterrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is signal.default_int_handler:
                    signal.signal(number, self._note)
                    self._deferred.append(number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number in self._deferred:
            signal.signal(number, signal.default_int_handler)
        if kind is None:
            self.check()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            signal.default_int_handler(number, frame)
        self._noted = True

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if a signal was noted."""
        if self._noted:
            raise KeyboardInterrupt
