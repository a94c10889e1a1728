"""The command that tunes, and the one that shows Hydra's whole tree of settings."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.cli.complaint import complain
from tuner.values.errors import TunerError

if TYPE_CHECKING:
    from tuner.config.schema import TuneConfig


def tune_command(words: Sequence[str]) -> int:
    """Search for faster configurations, and prove them against the default.

    python -m tuner [tune] [setting=value ...]

    The word tune may be left out before a setting. The same command resumes an interrupted
    study. With -m a comma separates values, and each combination runs as a separate study:
      python -m tuner -m framework=caffe,torch dataset=mnist
    Experiments are studies with a name, and tables and figures of papers, measured again:
      python -m tuner experiment=list                            one line for each of them
      python -m tuner experiment=cross_framework dataset=mnist   every framework, one report
      python -m tuner experiment=paper_wu_table_10               theirs beside ours

    python -m tuner help lists the settings that matter most, python -m tuner config all.
    """
    from tuner.config.composing import run_each
    from tuner.config.papers import LIST, experiment_lines
    from tuner.values.addresses import without_password

    if f"experiment={LIST}" in words:
        print(*experiment_lines(), sep="\n")
        return 0
    command = shlex.join(["python", "-m", "tuner", *map(without_password, words)])
    codes: list[int] = []
    failures: list[Exception] = []

    def run_one(config: TuneConfig) -> None:
        # with -m, the remaining studies still run
        try:
            _run_study(config, command)
        except TunerError as error:
            complain(error)
            codes.append(error.exit_code)
        except Exception as error:
            failures.append(error)

    run_each(words, run_one)
    for failure in failures:
        raise failure
    return codes[0] if codes else 0


def _run_study(config: TuneConfig, command: str) -> None:
    from rich.console import Console

    from tuner.report import print_cross_summary, print_paper_summary, print_summary
    from tuner.study.cross_framework import tune_frameworks
    from tuner.study.paper_experiment import run_paper
    from tuner.study.study import tune

    # rich assumes 80 columns for a pipe, too few for the table
    console = Console(width=None if sys.stdout.isatty() else 110)
    if config.paper.rows:
        print_paper_summary(run_paper(config, command), console)
    elif config.frameworks:
        print_cross_summary(tune_frameworks(config, command), console)
    else:
        print_summary(tune(config, command=command), console)


def config_command(words: Sequence[str]) -> int:
    """Show every group and setting with its value.

    python -m tuner config [setting=value ...]

    The values are those that tune would use with the same words. python -m tuner config
    --cfg job prints them alone, as YAML; Hydra's other options work too (--hydra-help).
    """
    from tuner.config.composing import run_each

    options = [word for word in words if word.startswith("-")]
    run_each(words if options else [*words, "--help"], lambda _: None)
    return 0
