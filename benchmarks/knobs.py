"""What each runtime knob of each framework does to the training speed on this machine.

Caffe's LeNet (``model=lenet``) on the 5,000 MNIST images at batch 64. From the framework's own
default one knob at a time is turned, and with it what it alone offers, such as the kernels of
another BLAS library; every round runs all settings once, in turning order, and a knob's effect is
the median over the rounds of its ratio to the default of the same round. The worker's own report
and the mapped libraries attest each setting, else it is given as invalid.

    python benchmarks/knobs.py [framework ...] [--rounds 5] [--write docs/frameworks.md]

With ``--write`` the table replaces what stands between the two marks of that file; rows of other
frameworks are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from workbench import MODEL, workbench

from tuner.config.catalogue import list_frameworks
from tuner.measure import machine_facts, parse_cores
from tuner.trials.session import TrialSetup, WorkerSession
from tuner.values.errors import TunerError
from tuner.values.params import Params, ParamValue
from tuner.values.ranges import Choices
from tuner.values.space import SearchSpace
from tuner.values.trial import Trial, TrialResult, TrialStatus

BEGIN, END = "<!-- knobs: begin -->", "<!-- knobs: end -->"
COLUMNS = ("framework", "knob", "setting", "speed ×", "range", "iterations/s", "note")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
TIME_LIMIT_S = 120.0
NO_EFFECT = "no effect shown"


@dataclass
class Setting:
    """One knob turned from the default, and the rates seen (iterations a second)."""

    knob: str
    value: ParamValue
    params: Params
    rates: list[float] = field(default_factory=list)
    fault: str = ""


def settings_of(space: SearchSpace) -> list[Setting]:
    """List the default, then every single change of a runtime param, and what only that offers."""
    base = dict(space.default("mnist", MODEL).params)
    found = [Setting("default", "", base)]
    knobs = {name: each for name, each in space.params.items() if isinstance(each, Choices)}
    for name, param in knobs.items():
        for value in param.values(base):
            if value == base[name]:
                continue
            changed = space.completed({**base, name: value})
            found.append(Setting(name, value, changed))
            found += [
                Setting(f"{name}, {other}", f"{value}, {new}", {**changed, other: new})
                for other, dependent in knobs.items()
                if dependent.given == name
                for new in dependent.values(changed)
                if new != changed[other] and new not in dependent.values(base)
            ]
    return found


def measure(setup: TrialSetup, settings: list[Setting], rounds: int, seconds: float) -> None:
    """Fill in the rates, all settings interleaved, each in a warm session of its own."""
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(WorkerSession(setup, each.params)) for each in settings]
        iterations = {}
        for index, (session, setting) in enumerate(zip(sessions, settings, strict=True)):
            first = session.run(_trial(index, setting, 10))
            if first.status is not TrialStatus.COMPLETE:
                setting.fault = f"{first.status.value}: {first.reason}"
            else:
                iterations[index] = max(4, int(seconds * _rate(first)))
        number = len(settings)
        for turn in range(rounds):
            order = sorted(iterations)
            for index in order[turn % len(order) :] + order[: turn % len(order)]:
                number += 1
                trial = _trial(number, settings[index], iterations[index])
                result = sessions[index].run(trial)
                if result.status is TrialStatus.COMPLETE:
                    settings[index].rates.append(_rate(result))
                else:
                    settings[index].fault = f"{result.status.value}: {result.reason}"


def _trial(number: int, setting: Setting, iterations: int) -> Trial:
    params = {**setting.params, "batch_size": 64, "iterations": iterations}
    return Trial(number, params, time_limit_s=TIME_LIMIT_S)


def _rate(result: TrialResult) -> float:
    assert result.measurement is not None
    return result.iterations / max(result.measurement.train_time_s, 1e-9)


def rows(name: str, settings: list[Setting]) -> Iterator[str]:
    """Yield the framework's table lines, marking the setting with the largest effect."""
    effects = {index: _effect(each, settings[0]) for index, each in enumerate(settings)}
    shown = {index: abs(math.log(each[1])) for index, each in effects.items() if each and each[3]}
    most = max(shown, key=shown.__getitem__, default=None)
    for index, each in enumerate(settings):
        effect = effects[index]
        if effect is None:
            yield f"| {name} | {each.knob} | {each.value} | – | – | – | {each.fault} |"
            continue
        low, ratio, high, acts = effect
        note = "**matters most**" if index == most else "" if acts or not index else NO_EFFECT
        yield (
            f"| {name} | {each.knob} | {each.value} | {ratio:.2f} | {low:.2f}–{high:.2f} "
            f"| {statistics.median(each.rates):.0f} | {each.fault or note} |"
        )


def _effect(setting: Setting, default: Setting) -> tuple[float, float, float, bool] | None:
    """Lowest, median and highest ratio to the default, and whether that shows an effect."""
    if not setting.rates or not default.rates:
        return None
    ratios = [own / base for own, base in zip(setting.rates, default.rates, strict=False)]
    low, high = min(ratios), max(ratios)
    return low, statistics.median(ratios), high, not low <= 1 <= high


def measure_framework(name: str, rounds: int, seconds: float) -> list[str]:
    """All rows of one framework; one row with the reason where it cannot be had."""
    try:
        with workbench(name, "mnist_5k") as bench:
            settings = settings_of(bench.space)
            measure(bench.setup, settings, rounds, seconds)
    except TunerError as error:
        return [f"| {name} | – | – | – | – | – | {error} |"]
    return list(rows(name, settings))


def write_table(path: Path, measured: dict[str, list[str]], remark: str) -> None:
    """Replace the rows of the measured frameworks in the file's table, keep the others."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    inside, _, after = rest.partition(END)
    kept: dict[str, list[str]] = {}
    for line in inside.splitlines():
        match = re.match(r"\| (\w+) \| (?!knob)", line)
        if match:
            kept.setdefault(match[1], []).append(line)
    table = [line for name in sorted(kept | measured) for line in (kept | measured)[name]]
    body = "\n".join(["", remark, "", HEAD, *table, ""])
    path.write_text(f"{before}{BEGIN}{body}{END}{after}", encoding="utf-8")


def main() -> None:
    """Measure and print; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("frameworks", nargs="*", default=list_frameworks())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="training a setting and round")
    parser.add_argument("--write", type=Path, help="file whose table is brought up to date")
    given = parser.parse_args()
    machine = machine_facts(parse_cores(""))
    remark = (
        f"Measured on {machine.get('cpu', 'this CPU')}, {len(parse_cores(''))} cores, by `python "
        f"benchmarks/knobs.py`: medians and ranges of {given.rounds} interleaved rounds."
    )
    print(remark, HEAD, sep="\n\n")
    measured = {}
    for name in given.frameworks:
        measured[name] = measure_framework(name, given.rounds, given.seconds)
        print("\n".join(measured[name]), flush=True)
        if given.write:
            write_table(given.write, measured, remark)


if __name__ == "__main__":
    main()
