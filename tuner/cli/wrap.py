"""The command that tunes a user's own training program."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tuner.values.errors import ConfigError
from tuner.values.extras import require_extra

if TYPE_CHECKING:
    from tuner.config.schema import ExecutorConfig
    from tuner.wrap.goal import Goal
    from tuner.wrap.request import Request

_MAX_MARGIN = 0.1  # of the accuracy: more is a margin in per cent


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; python -m tuner wrap --help lists the options")


def wrap_command(words: Sequence[str]) -> int:
    """Find the best runtime setting of your own training program.

    python -m tuner wrap [options] -- command ...

    The command is run once as it is, then with other settings of the libraries that it loads:
    threads, their binding, memory. Only its environment is changed, not the program. Runs with
    the fastest setting, or the one that uses the least CPU time or memory, and runs of the
    program as it is take turns to prove it. The same command resumes an interrupted study.

    Steps are counted by the program's own reports (TUNER_REPORT, see docs/wrap.md), or by a hook
    in PyTorch, Keras, XGBoost, LightGBM, scikit-learn's neural networks, MXNet's Gluon and
    Chainer, or by --step in its output. Then runs are cut short, and a study takes 5 minutes.
    Without steps, whole runs are compared, and a study takes as long as ten of them.

    Params are searched at the best setting, by whole runs. They come from options such as
    --lr 'log(1e-4, 1e-1)', or from a tuner.yaml beside the program. The program as it is runs
    without the options that hold {lr}, or with the value in {lr=0.01}.

    --objective WHAT    what to minimise: time (default), cpu (CPU seconds of all processes), or
                        memory (their peak)
    --NAME RANGE        search this param as well: log(1e-4, 1e-1), uniform(0, 1), int(1, 10),
                        logint(1, 1000) or choice(32, 64); {NAME} in the command is its place
    --workers RANGE     processes that train each batch together: tried as a runtime setting
    --maximize NAME     what must not get worse (default: accuracy) ...
    --minimize NAME     ... or this, such as a loss or a perplexity
    --margin NUMBER     what counts as no loss (default: 0.002 of accuracy, 1 % of any other)
    --step REGEX        each match in the output is one step
    --metric REGEX      reads what must not get worse from the output, by a group of its name
                        such as (?P<accuracy>...); whole runs then show whether it is kept
    --budget SECONDS    length of the study (default: as above; with params 30 whole runs, and 5
                        minutes at least)
    --cores LIST        CPUs that the program may use, such as 0-3 (default: all)
    --executor NAME     local (default), or ray: on the nodes of a Ray cluster that are like this
                        machine, with --cores of each
    --ray-address HOST:PORT    the cluster (default: RAY_ADDRESS, or one on this machine)
    --cores-per-trial N    CPUs of a run there (default: all of a node)
    --knob VAR=A,B      also try these values of an environment variable
    --without KNOB      leave this knob as it is; may be given more than once
    --allow-read PATH   a path outside its folder that the program may read, such as its data
    --network           let it use the network
    --allow-gpu         let it use the GPUs of this machine
    --no-sandbox        run it without a sandbox; changes of its folder then stay
    --output FOLDER     where MLflow's files go (default: .)
    --tracking-uri URI  MLflow's address (default: a database in the output folder)
    --json              print the result as JSON
    --progress KIND     auto, live, plain or none
    --restart           delete earlier results of this command
    """
    from rich.console import Console

    from tuner.progress import make_progress
    from tuner.wrap.document import document
    from tuner.wrap.report import describe
    from tuner.wrap.study import wrap

    _require_text(words)
    _require_command(words)
    end = words.index("--")
    options, others = _parser().parse_known_args(list(words[:end]))
    options.command = list(words[end + 1 :])
    request = _request(options, _ranges(others))
    with make_progress(options.progress, console=Console(stderr=True)) as progress:
        result = wrap(request, progress)
    print(json.dumps(document(result), indent=1) if options.json else describe(result), end="")
    if options.json:
        print()
    return 0


def _parser() -> _Parser:
    parser = _Parser(prog="tuner wrap", add_help=False, allow_abbrev=False)
    for name in ("--step", "--metric", "--cores", "--ray-address", "--tracking-uri"):
        parser.add_argument(name, default="")
    parser.add_argument("--objective", default="time")
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--cores-per-trial", type=int, default=0)
    parser.add_argument("--budget", type=float, default=None)
    for name in ("--knob", "--without", "--allow-read"):
        parser.add_argument(name, action="append", default=[])
    for name in ("--network", "--allow-gpu", "--no-sandbox", "--restart", "--json"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--output", default=".")
    parser.add_argument("--progress", choices=("auto", "live", "plain", "none"), default="auto")
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument("--maximize", default="")
    goal.add_argument("--minimize", default="")
    parser.add_argument("--margin", type=float, default=None)
    return parser


def _ranges(words: Sequence[str]) -> dict[str, str]:
    """Return the ranges of params, by name, among the words that are no options of ours."""
    from tuner.wrap.params import is_spec

    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, spec = word.partition("=")
        spec = spec if equals else next(rest, "")
        if not name.startswith("--") or not is_spec(spec):
            raise ConfigError(
                f"unrecognized argument: {word}; python -m tuner wrap --help lists the options; "
                "a param has a range, such as --lr 'log(1e-4, 1e-1)'"
            )
        name = name.removeprefix("--").replace("-", "_")
        if name in found:
            raise ConfigError(f"the param {name} is given twice: {found[name]} and {spec}")
        found[name] = spec
    return found


def _goal(options: argparse.Namespace) -> Goal:
    from tuner.wrap.goal import ACCURACY, Goal

    name = options.maximize or options.minimize or ACCURACY
    if options.margin is not None and not 0 < options.margin < float("inf"):
        raise ConfigError(f"--margin must be a number above 0, got {options.margin:g}")
    if name == ACCURACY and (options.margin or 0.0) > _MAX_MARGIN:
        raise ConfigError(
            f"--margin of the accuracy is a fraction, such as 0.005 for half a point; "
            f"{options.margin:g} are {100 * options.margin:g} points"
        )
    return Goal(name, not options.minimize, options.margin)


def _executor(options: argparse.Namespace) -> ExecutorConfig:
    from tuner.config.schema import ExecutorConfig

    if options.executor == "ray":
        require_extra("--executor ray", "ray", "ray")
    for name in ("ray_address", "cores_per_trial"):
        if options.executor != "ray" and getattr(options, name):
            raise ConfigError(f"--{name.replace('_', '-')} must be left out unless --executor ray")
    if options.cores_per_trial < 0:
        raise ConfigError(f"--cores-per-trial must be 0 or more, got {options.cores_per_trial}")
    return ExecutorConfig(
        options.executor,
        cores=options.cores,
        address=options.ray_address,
        cores_per_trial=options.cores_per_trial,
    )


def _require_command(words: Sequence[str]) -> None:
    """Raise ``ConfigError`` unless a command follows ``--``."""
    if "--" not in words[:-1]:
        raise ConfigError(
            "the program's command is missing; write it after --: "
            "python -m tuner wrap -- python train.py"
        )


def _require_text(words: Sequence[str]) -> None:
    """Raise ``ConfigError`` if a word could not be in a report, or in MLflow."""
    for each in words:
        try:
            each.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{each!r} is no text in UTF-8; give it another name") from None


def _require_no_ranges(options: argparse.Namespace) -> None:
    """Raise ``ConfigError`` if a param has the name of an option."""
    from tuner.wrap.params import is_spec

    for name in ("step", "metric", "cores", "output", "objective", "maximize", "minimize"):
        if is_spec(getattr(options, name)):
            raise ConfigError(
                f"--{name} is an option of its own; give the param {name} another name"
            )


def _normal(path: str) -> Path:
    """Return an absolute path without ``..``, which would lead out of a folder that is shown."""
    return Path(os.path.abspath(_at_home(path)))  # noqa: PTH100 - keeps links


def _at_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - takes a user that there is not


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - takes an argument that can be no path


def _request(options: argparse.Namespace, ranges: Mapping[str, str]) -> Request:
    from tuner.trials.setup import core_sets
    from tuner.wrap.knobs import parse_knob
    from tuner.wrap.objective import read_objective
    from tuner.wrap.params import FILE, read_params
    from tuner.wrap.program import Program
    from tuner.wrap.request import Request, option

    if options.budget is not None and not 0 < options.budget < float("inf"):
        raise ConfigError(f"--budget must be seconds above 0, got {options.budget:g}")
    _require_no_ranges(options)
    objective, goal = read_objective(options.objective, "--objective"), _goal(options)
    if options.metric and f"(?P<{goal.name}>" not in options.metric:
        raise ConfigError(
            f"--metric {options.metric!r} has no group named {goal.name}; write the number as "
            rf"(?P<{goal.name}>\S+)"
        )
    for name in ("step", "metric"):
        try:
            re.compile(getattr(options, name))
        except (re.error, OverflowError, RecursionError) as error:
            text = getattr(options, name)
            raise ConfigError(f"--{name} {text!r} is no regular expression: {error}") from None
    folder, argv = Path.cwd(), tuple(options.command)
    beside = (folder / FILE, *((folder / each).parent / FILE for each in argv))
    executor = _executor(options)
    cores = len(core_sets(executor, option)[0])
    params = read_params(ranges, next(filter(_is_file, beside), None), cores)
    program = Program(
        argv=argv,
        folder=folder,
        readable=tuple(_normal(each) for each in options.allow_read),
        network=options.network,
        gpu=options.allow_gpu,
        confined=not options.no_sandbox,
        step=options.step,
        metric=options.metric,
        params=params.with_own(argv),
        goal=goal,
    )
    return Request(
        program=program,
        objective=objective,
        budget_s=options.budget or 0.0,
        executor=executor,
        knobs=tuple(map(parse_knob, options.knob)),
        without=tuple(options.without),
        output=Path(_at_home(options.output)),
        tracking_uri=options.tracking_uri,
        fresh=options.restart,
    )
