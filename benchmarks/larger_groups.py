"""Whether the model of larger groups (``tuner.values.scaling``) predicts one that is measured.

The model is fitted to groups of 1, 2 and 3 workers of one thread at several batch sizes, and
predicts those of 4, which are measured too. Caffe's LeNet (``model=lenet``) is trained on the
5,000 MNIST images, for every framework whose search space has ``workers``.

Each process of a group, a server of parameters too, has a place to itself, as if it had a host of
its own with one slow core. The places on a CPU are control groups of the same weight (which takes
root, and a CPU controller of cgroups), enough of them for the largest group. Each is always busy:
when its process has nothing to do, another one multiplies matrices there at the lowest priority.
So a place is as fast for a server that works now and then as for a worker that always does, and as
fast for a small group as for the largest. With a quota instead, work that comes in short bursts
would run at the speed of a whole core.

The processes exchange over the machine's own network; a link is not part of the check.

    python benchmarks/larger_groups.py [framework ...] [--rounds 3] [--seconds 2] [--json]

Target: each prediction within 15 % of the measured time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from parallel import DATASET, WARM_UP, Measurements, open_session
from workbench import Workbench, each_framework, workbench

from tuner.measure.processes import SANDBOX
from tuner.values.errors import TunerError
from tuner.values.scaling import Pace, Scaling, paces, read_topology

LARGEST = 4  # workers of the group whose time is predicted
BATCHES = (32, 128, 512)
_CONTROL = Path("/sys/fs/cgroup")
_BUSY = """
import numpy
one = numpy.ones((256, 256), numpy.float32)
while True:
    one @ one
"""


class Places:
    """Places to compute, equally fast and always busy, inside a ``with`` block.

    Args:
        cores: CPUs that the places share.

    Attributes:
        share: Of a CPU, that each place has.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores, self.share = cores, 1.0
        self._left = contextlib.ExitStack()

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    def give(self, groups: Sequence[Sequence[int]]) -> None:
        """Give each process of the groups a place; only one group may compute at a time.

        Args:
            groups: The processes of each group.
        """
        on_each = math.ceil(max(1, *map(len, groups)) / len(self._cores))
        self.share = 1 / on_each
        for place in range(on_each * len(self._cores)):
            folder, core = self._folder(place), self._cores[place % len(self._cores)]
            busy = subprocess.Popen(
                [sys.executable, "-c", _BUSY], env={"OPENBLAS_NUM_THREADS": "1"}
            )
            self._left.callback(busy.wait)
            self._left.callback(busy.kill)
            os.sched_setscheduler(busy.pid, os.SCHED_IDLE, os.sched_param(0))
            for pid in (busy.pid, *(group[place] for group in groups if place < len(group))):
                _put(pid, folder, core)

    def _folder(self, place: int) -> Path:
        """Make the control group of a place, of the same weight as the others."""
        old = (_CONTROL / "cpu").is_dir()  # cgroups of version 1
        root, weight = (_CONTROL / "cpu", "cpu.shares") if old else (_CONTROL, "cpu.weight")
        folder = root / f"tuner-place-{os.getpid()}-{place}"
        try:
            folder.mkdir()
        except OSError as error:
            raise SystemExit(f"this needs root and a CPU controller: {error}") from None
        self._left.callback(_remove, folder)
        if not (folder / weight).exists():
            raise SystemExit(f"this needs a CPU controller: {folder / weight} is missing")
        return folder


def _put(pid: int, folder: Path, core: int) -> None:
    """Put a process with all its threads into a control group, and on a CPU."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it has ended
        (folder / "cgroup.procs").write_text(f"{pid}")
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _processes() -> list[int]:
    """Return the processes that this one has started, without sandboxes, the oldest first."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.name() != SANDBOX:
                found.append((each.create_time(), each.pid))
    return [pid for _, pid in sorted(found)]


def measure(
    bench: Workbench, rounds: int, seconds: float
) -> tuple[list[Pace], float, dict[str, str]]:
    """Measure groups of every size at every batch size, in turns.

    Returns:
        The paces, the share of a CPU that each process had, and the faults.
    """
    runtime = {name: bench.default[name] for name in bench.space.runtime}
    settings = [{**runtime, "workers": count, "threads": 1} for count in range(1, LARGEST + 1)]
    numbers = itertools.count()
    found = [
        Measurements(
            dataclasses.replace(bench, default={**bench.default, "batch_size": batch}),
            seconds,
            _numbers=numbers,
        )
        for batch in BATCHES
    ]

    def failed(group: int) -> bool:
        return any(str(settings[group]) in each.faults for each in found)

    pace_s = dict[tuple[int, int], float]()
    # the sessions end first, as a control group that has processes cannot be removed
    with Places(bench.setup.cores) as places, contextlib.ExitStack() as stack:
        sessions, groups, known = [], list[list[int]](), set[int]()
        for setting in settings:
            session = stack.enter_context(open_session(bench, {**bench.default, **setting}))
            sessions.append(session)
            found[0].train(session, setting, WARM_UP)  # starts its processes
            groups.append([pid for pid in _processes() if pid not in known])
            known.update(groups[-1])
        places.give(groups)
        cases = list(itertools.product(range(len(found)), range(len(settings))))
        for turn in range(rounds + 1):  # the first tells how many iterations fill the seconds
            for place in range(len(cases)):
                case = batch, group = cases[(place + turn) % len(cases)]
                if failed(group):  # its next processes would have no places
                    continue
                if turn:
                    found[batch].add(sessions[group], settings[group], pace_s[case])
                elif first := found[batch].train(sessions[group], settings[group], WARM_UP):
                    pace_s[case] = first.iteration_s
    faults = dict(fault for each in found for fault in each.faults.items())
    measured = [pace for each in found for pace in paces(each.map)]
    measured.sort(key=lambda each: (each.batch_size, each.workers))
    return measured, places.share, faults


def check(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Predict the largest group of one framework by the smaller ones."""
    began_s = time.monotonic()
    with workbench(name, DATASET) as bench:
        if "workers" not in bench.space.runtime:
            raise TunerError("it trains in one process")
        topology = read_topology(bench.setup.framework.topology)
        everything, share, faults = measure(bench, rounds, seconds)
    model = Scaling([each for each in everything if each.workers < LARGEST], topology)
    rows: list[dict[str, Any]] = [
        {
            "workers": each.workers,
            "batch_size": each.batch_size,
            "measured_s": dataclasses.asdict(each.iteration_s),
            "model_s": dataclasses.asdict(guess),
            "error": guess.value / each.iteration_s.value - 1,
            "predicted": each.workers == LARGEST,
        }
        for each in everything
        for guess in [model.iteration_s(each.workers, 1, each.batch_size)]
    ]
    return {
        "framework": name,
        "topology": topology.value,
        "share_of_a_core": share,
        "paces": rows,
        "largest_error": max(
            (abs(each["error"]) for each in rows if each["predicted"]), default=math.nan
        ),
        "took_s": time.monotonic() - began_s,
        "faults": faults,
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the figures of a framework's model for readers."""
    yield f"{found['framework']:11} each process had {found['share_of_a_core']:.2f} of a core"
    for each in found["paces"]:
        yield (
            f"{found['framework']:11} {each['workers']} workers, batch {each['batch_size']:3}: "
            f"{_ms(each['measured_s'])} measured, {_ms(each['model_s'])} "
            f"{'predicted' if each['predicted'] else 'fitted'}: {each['error']:+.0%}"
        )
    yield from (f"{found['framework']:11} {each}: {why}" for each, why in found["faults"].items())


def _ms(interval: dict[str, float]) -> str:
    value, low, high = (1e3 * interval[name] for name in ("value", "low", "high"))
    return f"{value:.1f} ms ({low:.1f}–{high:.1f})"


def main() -> None:
    """Measure and print; see the module's docstring."""
    each_framework(__doc__ or "", "training a group and round", check, lines)


if __name__ == "__main__":
    main()
