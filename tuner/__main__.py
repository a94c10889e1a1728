"""The command line: ``python -m tuner [overrides]`` tunes, and ``<command>`` does the rest."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner import __version__
from tuner.values.errors import TunerError

if TYPE_CHECKING:
    from tuner.config.schema import TuneConfig

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; errors of the user are one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    # whoever stops a service or a batch job sends SIGTERM: same care as for Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if words[:1] == ["--version"]:
            print(f"tuner {__version__}")
            return 0
        if words and "=" not in words[0] and not words[0].startswith("-"):
            from tuner.cli.commands import run_command

            return run_command(words[0], words[1:])
        return _tune(words)
    except TunerError as error:
        return _complain(error)
    except KeyboardInterrupt:
        print("interrupted: what was measured is kept; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if error.errno is None:
            raise
        print(f"error: {_one_line(str(error))}", file=sys.stderr)
        return 2


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main())


def _complain(error: TunerError) -> int:
    print(f"error: {_one_line(str(error))}", file=sys.stderr)
    return error.exit_code


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _tune(words: Sequence[str]) -> int:
    from tuner.config.composing import run_each
    from tuner.storage.databases import without_passwords

    command = shlex.join(["python", "-m", "tuner", *without_passwords(words)])
    codes: list[int] = []
    failures: list[Exception] = []

    def run_one(config: TuneConfig) -> None:
        # of several studies (-m) the others are still to be run
        try:
            _run_study(config, command)
        except TunerError as error:
            codes.append(_complain(error))
        except Exception as error:
            failures.append(error)

    run_each(words, run_one)
    for failure in failures:
        raise failure
    return codes[0] if codes else 0


def _run_study(config: TuneConfig, command: str) -> None:
    from rich.console import Console

    from tuner.report import print_cross_summary, print_summary
    from tuner.study.cross_framework import tune_frameworks
    from tuner.study.study import tune

    # rich takes a pipe for 80 columns, where the table would become a list
    console = Console(width=None if sys.stdout.isatty() else 110)
    if config.frameworks:
        print_cross_summary(tune_frameworks(config, command), console)
    else:
        print_summary(tune(config, command=command), console)


if __name__ == "__main__":
    run()
