"""The command line: ``python -m tuner [overrides]`` tunes, ``python -m tuner <command>`` the rest.

Hydra ends here: it composes ``conf/`` into plain dataclasses and no other module knows it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tuner import __version__
from tuner.errors import TunerError

if TYPE_CHECKING:
    from omegaconf import DictConfig

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
            from tuner.commands import run_command

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
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from tuner.config import TuneConfig
    from tuner.registry import project_folder

    ConfigStore.instance().store(name="tune_config", node=TuneConfig)
    # Hydra prints errors over several lines and exits by itself, unless told to raise them
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = ["tuner", *prepare_overrides(words)]
    entry = hydra.main(
        version_base="1.3", config_path=str(project_folder("conf")), config_name="config"
    )
    command = " ".join(["python -m tuner", *map(_quoted, words)])
    codes: list[int] = []
    failures: list[Exception] = []

    def job(composed: DictConfig) -> None:
        # Hydra would add lines of its own to an error that passes through it, and of several
        # studies (-m) the others are still to be run
        try:
            _run_study(composed, command)
        except TunerError as error:
            codes.append(_complain(error))
        except Exception as error:
            failures.append(error)

    try:
        entry(job)()
    except (HydraException, OmegaConfBaseException) as error:
        if before == "1":
            raise
        print(f"error: {_explain(error)}", file=sys.stderr)
        return 1
    finally:
        os.environ["HYDRA_FULL_ERROR"] = before or "0"
    for failure in failures:
        raise failure
    return codes[0] if codes else 0


def _run_study(composed: DictConfig, command: str) -> None:
    from omegaconf import OmegaConf
    from rich.console import Console

    from tuner.config import TuneConfig
    from tuner.cross_framework import tune_frameworks
    from tuner.report import print_cross_summary, print_summary
    from tuner.study import tune

    config = OmegaConf.to_object(composed)
    assert isinstance(config, TuneConfig)
    # rich takes a pipe for 80 columns, where the table would become a list
    console = Console(width=None if sys.stdout.isatty() else 110)
    if config.frameworks:
        print_cross_summary(tune_frameworks(config, command), console)
    else:
        print_summary(tune(config, command=command), console)


def prepare_overrides(words: Sequence[str]) -> list[str]:
    """Turn what users write into what Hydra's grammar takes.

    ``constraints=peak_memory_mb<=2048`` needs quotes there, ``search_space.x=`` a leading ``++``,
    and a framework tree of the user's own must be on the search path before groups are looked up.
    """
    prepared = []
    for word in words:
        name, _, value = word.partition("=")
        if name == "constraints" and re.search("[<>]", value) and '"' not in value:
            limits = [each.strip(" '") for each in value.strip("[]").split(",")]
            word = "constraints=[" + ",".join(f'"{each}"' for each in limits) + "]"
        elif name.startswith("search_space."):
            word = f"++{word}"
        elif name == "framework_path" and value not in ("", "null"):
            folder = Path(value).expanduser().absolute() / "conf"
            prepared.append(f"hydra.searchpath=[file://{folder}]")
        prepared.append(word)
    return prepared


def _quoted(word: str) -> str:
    return f"'{word}'" if re.search(r"[^\w=.,:/+-]", word) else word


def _explain(error: Exception) -> str:
    """One line: what does not compose, and what would."""
    import difflib

    wanted = getattr(error, "missing_cfg_file", None)
    options = list(getattr(error, "options", None) or [])
    if wanted and options:
        group, _, name = str(wanted).rpartition("/")
        close = difflib.get_close_matches(name, options, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        return f"{group} has no {name!r}; there are: {', '.join(options)}{hint}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = str(error.__cause__ or "").splitlines()[:1]
    return _one_line("; ".join([*lines[:2], *(each for each in cause if each not in lines)]))


if __name__ == "__main__":
    run()
