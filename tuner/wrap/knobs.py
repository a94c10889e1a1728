"""The knobs of a program: runtime settings that its libraries read from the environment."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tuner.values.errors import ConfigError
from tuner.values.params import Params, ParamValue
from tuner.wrap.params import WORKERS, ParamSpace

PRELOAD = "LD_PRELOAD"
_CATALOGUE = Path(__file__).with_name("knobs.yaml")


@dataclass(frozen=True)
class Knob:
    """One runtime setting.

    Attributes:
        name: Its name in settings and reports.
        libraries: Regular expression on the names of mapped files, one of which reads it; empty
            if that is unknown.
        values: Variables that each value sets, by the value, in the order to try them.
        ordered: Whether neighbouring values are alike, as numbers of threads are.
        per_core: Whether its values are numbers of threads, up to the cores.
        along: Values of other knobs that are tried with a value, by the value.
    """

    name: str
    libraries: str
    values: Mapping[ParamValue, Mapping[str, str]]
    ordered: bool = False
    per_core: bool = False
    along: Mapping[ParamValue, Params] = field(default_factory=dict)

    def reads(self, mapped: Collection[str]) -> bool:
        """Return whether one of these mapped files reads the knob."""
        return any(re.search(self.libraries, Path(each).name) for each in mapped)


def find_knobs(
    mapped: Collection[str],
    cores: int,
    cpu_flags: Collection[str],
    *,
    own: Sequence[Knob] = (),
    without: Collection[str] = (),
) -> list[Knob]:
    """Return the knobs of a program, those first that usually matter most.

    Args:
        mapped: Paths of the files that the program has mapped.
        cores: Number of CPUs that it may use.
        cpu_flags: Instruction sets of the CPU.
        own: Knobs that the user adds.
        without: Names of knobs that the user does not want.

    Raises:
        ConfigError: If ``without`` names no knob, or two knobs have one name.
    """
    known = all_knobs(cores, cpu_flags)
    twice = [name for name, count in Counter(each.name for each in own).items() if count > 1]
    clash = [each.name for each in own if each.name in {other.name for other in known}]
    if twice or clash:
        raise ConfigError(f"--knob {(twice or clash)[0]} is given twice, or is the name of a knob")
    unknown = sorted({*without} - {each.name for each in (*known, *own)})
    if unknown:
        names = ", ".join(each.name for each in known)
        raise ConfigError(f"there is no knob {unknown[0]!r}; choose from: {names}")
    read = [each for each in known if each.values and each.reads(mapped)]
    found = [each for each in (*read, *own) if each.name not in without]
    return [_sharing(each, found, cores) if each.name == WORKERS else each for each in found]


def all_knobs(cores: int, cpu_flags: Collection[str]) -> list[Knob]:
    """Return all knobs that are known, with the values that this machine allows.

    Args:
        cores: Number of CPUs that a program may use.
        cpu_flags: Instruction sets of the CPU.
    """
    return [_read(entry, cores, cpu_flags) for entry in _entries()]


def timed_knobs(params: ParamSpace) -> list[Knob]:
    """Return the params of a program that change its time alone as knobs."""
    return [
        Knob(
            name,
            "",
            {value: {} for value in values},
            ordered=all(isinstance(each, int | float) for each in values),
        )
        for name, values in params.timed.items()
    ]


def _sharing(workers: Knob, knobs: Sequence[Knob], cores: int) -> Knob:
    """Return a knob of workers, each of which first gets at most its share of the cores."""
    along: dict[ParamValue, Params] = {}
    for count in workers.values:
        if isinstance(count, int) and count > 1:
            fitting = [each for each in thread_counts(cores) if each * count <= cores] or [1]
            along[count] = {each.name: fitting[0] for each in knobs if each.per_core}
    return replace(workers, along=along)


def knob_names() -> list[str]:
    """Return the names of all knobs that are known, whatever a program loads."""
    return [entry["name"] for entry in _entries()]


def parse_knob(text: str) -> Knob:
    """Read ``VARIABLE=value,value``: a variable of the environment, and the values to try.

    Raises:
        ConfigError: If it cannot be read.
    """
    name, equals, values = text.partition("=")
    if not (equals and re.fullmatch(r"[A-Za-z_]\w*", name) and all(values.split(","))):
        raise ConfigError(f"--knob {text!r} cannot be read; write VARIABLE=value,value")
    return Knob(name, "", {each: {name: each} for each in values.split(",")})


def variables_of(
    knobs: Sequence[Knob], setting: Params, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that a setting sets.

    Args:
        knobs: All knobs of the program.
        setting: Value of each knob that does not stay as it is.
        environment: The program's own environment. What it loads first stays loaded.
    """
    found: dict[str, str] = {}
    for knob in knobs:
        if knob.name in setting:
            found |= knob.values[setting[knob.name]]
    if PRELOAD in found and environment.get(PRELOAD):
        found[PRELOAD] = f"{found[PRELOAD]}:{environment[PRELOAD]}"
    return found


def thread_counts(cores: int) -> list[int]:
    """Return numbers of threads worth trying, the largest first: all, half, a quarter … and 1."""
    counts = [cores]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return counts


def _entries() -> list[dict[str, Any]]:
    return list(yaml.safe_load(_CATALOGUE.read_text(encoding="utf-8"))["knobs"])


def _read(entry: Mapping[str, Any], cores: int, cpu_flags: Collection[str]) -> Knob:
    if "per_core" in entry:
        values: dict[ParamValue, Mapping[str, str]] = {
            count: dict.fromkeys(entry["per_core"], str(count)) for count in thread_counts(cores)
        }
        return Knob(entry["name"], entry["libraries"], values, ordered=True, per_core=True)
    return Knob(entry["name"], entry["libraries"], dict(_offered(entry["values"], cpu_flags)))


def _offered(
    values: Mapping[str, Mapping[str, str]], cpu_flags: Collection[str]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the values that this machine allows, with their variables."""
    for name, needs in values.items():
        variables = dict(needs)
        flag, library = variables.pop("flag", ""), variables.pop("preload", "")
        if library:
            variables[PRELOAD] = _installed(library)
        if (not flag or flag in cpu_flags) and all(variables.values()):
            yield name, variables


def _installed(library: str) -> str:
    """Return the path of a shared library of this machine; empty if there is none."""
    ldconfig = shutil.which("ldconfig", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if ldconfig is None:
        return ""
    listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    found = re.search(rf"^\s*{re.escape(library)} \(.*x86-64.*\) => (\S+)$", listed, re.MULTILINE)
    found = found or re.search(rf"^\s*{re.escape(library)} .* => (\S+)$", listed, re.MULTILINE)
    return found[1] if found else ""
