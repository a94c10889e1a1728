"""The command line: ``python -m tuner <command>``; settings without a command tune."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence

from tuner import __version__
from tuner.cli.complaint import complain
from tuner.values.errors import INTERRUPTED, TunerError

_STDOUT = 1  # file descriptor


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; print user errors as one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    # service managers and batch systems send SIGTERM: handle it like Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = _run(words)
        sys.stdout.flush()  # a closed pipe shows here, not at exit
    except TunerError as error:
        complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: all measurements are kept; the same command resumes", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 0
        if error.errno is None:
            raise
        complain(error)
        return 2
    return code


def run() -> None:
    """Run the command line and exit: the entry point of the console script."""
    sys.exit(main())


def _nobody_reads() -> bool:
    """Return whether the reader of our output, such as ``head``, has exited; then write nowhere.

    The pipe of a worker may break too, and that is an error.
    """
    poll = select.poll()
    poll.register(_STDOUT, 0)  # a pipe without a reader is reported unasked
    gone = bool(poll.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return gone


def _run(words: list[str]) -> int:
    if words == ["--version"]:
        print(f"tuner {__version__}")
        return 0
    from tuner.cli.commands import run_command

    if not words or words[0] in ("--help", "-h"):
        return run_command("help", words[1:])
    if "=" in words[0] or words[0].startswith("-"):
        return run_command("tune", words)
    return run_command(words[0], words[1:])


if __name__ == "__main__":
    run()
