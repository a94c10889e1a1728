"""What benchmarks that train share: a framework made ready for Caffe's LeNet, plans, studies."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tuner.config.catalogue import (
    list_frameworks,
    load_dataset_config,
    load_framework,
    tuner_home,
)
from tuner.config.schema import TuneConfig, VerifyConfig
from tuner.progress import StudyProgress
from tuner.study.preparation import standalone_setup
from tuner.study.study import tune
from tuner.trials.session import TrialSetup
from tuner.values.errors import TunerError
from tuner.values.params import Params
from tuner.values.results import StudyResult
from tuner.values.space import SearchSpace
from tuner.verification.entrant import Entrant
from tuner.verification.plan import Plan

MODEL = "lenet"


@dataclass(frozen=True)
class Workbench:
    """What trials of one framework on one data set need."""

    space: SearchSpace
    default: Params
    setup: TrialSetup


@contextlib.contextmanager
def workbench(framework: str, dataset: str, model: str = MODEL) -> Iterator[Workbench]:
    """Install what is missing; what the trials leave is deleted at the end.

    Raises:
        TunerError: If framework or data set cannot be had.
    """
    config = TuneConfig(
        framework=load_framework(framework), dataset=load_dataset_config(dataset), model=model
    )
    with standalone_setup(config, StudyProgress()) as (space, setup):
        yield Workbench(space, space.default(dataset, model).params, setup)


def each_framework(
    about: str,
    seconds: str,
    check: Callable[..., dict[str, Any]],
    lines: Callable[[dict[str, Any]], Iterable[str]],
    flags: Mapping[str, str] | None = None,
) -> None:
    """Check the frameworks of the command line in turn, and print what was found.

    Args:
        about: The benchmark's docstring.
        seconds: What takes ``--seconds``.
        check: Checks one framework, in so many rounds of so many seconds, with the flags by name;
            a ``TunerError`` or a missing param leaves it out.
        lines: Tells what was found for readers.
        flags: Further options that are on or off, each with its help.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("frameworks", nargs="*", default=list_frameworks())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help=seconds)
    for name, told in (flags or {}).items():
        parser.add_argument(f"--{name}", action="store_true", help=told)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    cases = [(name, given.rounds, given.seconds) for name in given.frameworks]
    on = {name: getattr(given, name) for name in flags or {}}
    print_each(cases, functools.partial(check, **on), lines, as_json=given.json)


def print_each(
    cases: Iterable[tuple[Any, ...]],
    check: Callable[..., dict[str, Any]],
    lines: Callable[[dict[str, Any]], Iterable[str]],
    *,
    as_json: bool,
) -> None:
    """Check cases in turn, and print what was found: each at once, or as JSON all at the end.

    Args:
        cases: Arguments of each check, the name of a framework first.
        check: Checks one; a ``TunerError`` or a missing param leaves it out.
        lines: Tells what was found for readers.
        as_json: Whether to print JSON.
    """
    everything = []
    for case in cases:
        try:
            found = check(*case)
        except (TunerError, KeyError) as error:
            print(f"{case[0]}: {error}", file=sys.stderr)
            continue
        everything.append(found)
        if not as_json:
            print(*lines(found), sep="\n", flush=True)
    if as_json:
        print(json.dumps(everything, indent=1))


def side_by_side(
    entrants: Sequence[Entrant], rounds: int, config: VerifyConfig, seed: int, test_images: int
) -> Plan:
    """Plan for all to run in every round, the default first of ``entrants``."""
    plan = Plan(tuple(entrants), (), config, seed, test_images)
    for _ in range(rounds):
        plan = plan.with_round(plan.turned(range(len(entrants))))
    return plan


@contextlib.contextmanager
def empty_home(folder: Path) -> Iterator[None]:
    """Set a TUNER_HOME with what is installed; no study and no race of another one is in it.

    A folder that was one before keeps its own.
    """
    installed = tuner_home()
    for each in ("runtimes", "caches", "datasets"):
        (installed / each).mkdir(parents=True, exist_ok=True)  # nothing may be installed yet
        if not (folder / each).is_symlink():
            (folder / each).symlink_to(installed / each)
    with mock.patch.dict(os.environ, TUNER_HOME=str(folder)):
        yield


def fresh_study(name: str, budget_s: float) -> StudyResult:
    """Run a factored study of framework-dataset that knows nothing of earlier ones."""
    framework, _, dataset = name.partition("-")
    with tempfile.TemporaryDirectory() as folder, empty_home(Path(folder)):
        config = TuneConfig(
            framework=load_framework(framework), dataset=load_dataset_config(dataset),
            model=MODEL, tracking_uri=f"sqlite:///{folder}/mlflow.db", output=folder,
        )  # fmt: skip
        config.search.name = "factored"
        config.budget.time_s = budget_s
        return tune(config, StudyProgress())
