"""Whether the model of larger groups (``tuner.values.scaling``) predicts one that is measured.

The model is fitted to groups of 1, 2 and 3 workers of one thread at several batch sizes, and
predicts those of 4, which are measured too. Caffe's LeNet (``model=lenet``) is trained on the
5,000 MNIST images, for every framework whose search space has ``workers``.

Every process, a server of parameters too, is held to so small a share of a core that the largest
group with a server fits on the cores, by the kernel's quota (which takes root and a CPU controller
of cgroups): as if each ran in a container with a CPU limit on a host of its own. Processes that
multiply matrices take the place of the workers that a smaller group lacks, so that the cores are
equally busy. With weights instead of quotas, each process would wait for the turns of the others
on its CPU, which hosts of their own do not do. The processes exchange over the machine's own
network; a link is not part of the check.

    python benchmarks/larger_groups.py [framework ...] [--rounds 3] [--seconds 2] [--json]

Target: each prediction within 15 % of the measured time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from parallel import DATASET, WARM_UP, Measurements, open_session
from workbench import Workbench, each_framework, workbench

from tuner.values.errors import TunerError
from tuner.values.params import Params, workers_of
from tuner.values.scaling import Pace, Scaling, paces, read_topology

LARGEST = 4  # workers of the group whose time is predicted
BATCHES = (32, 128, 512)
_PERIOD_US = 10_000  # of a quota: short, beside an iteration
_CPU = Path("/sys/fs/cgroup")
_BUSY = """
import numpy
one = numpy.ones((256, 256), numpy.float32)
while True:
    one @ one
"""


class Shares:
    """Shares out the cores in equal parts, one for each process, inside a ``with`` block.

    Args:
        share: Of a core, for each process.
        most: Processes that compute at any time.
    """

    def __init__(self, share: float, most: int) -> None:
        self._quota_us, self._folders = max(1000, round(share * _PERIOD_US)), dict[int, Path]()
        self._busy = [
            subprocess.Popen([sys.executable, "-c", _BUSY], env={"OPENBLAS_NUM_THREADS": "1"})
            for _ in range(most - 1)
        ]

    def __enter__(self) -> Shares:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._busy:
            each.kill()
            each.wait()
        for folder in self._folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()

    @contextlib.contextmanager
    def beside(self, setting: Params) -> Iterator[None]:
        """Keep the shares busy that the workers of a setting leave free."""
        self._hold()
        free = len(self._busy) + 1 - workers_of(setting)
        for place, each in enumerate(self._busy):
            each.send_signal(signal.SIGCONT if place < free else signal.SIGSTOP)
        yield
        self._hold()

    def _hold(self) -> None:
        """Hold the processes that were started since."""
        old = (_CPU / "cpu").is_dir()  # cgroups of version 1
        for each in psutil.Process().children(recursive=True):
            if each.pid in self._folders:
                continue
            folder = (_CPU / "cpu" if old else _CPU) / f"tuner-parallel-{each.pid}"
            try:
                folder.mkdir()
                self._folders[each.pid] = folder
                if old:
                    (folder / "cpu.cfs_period_us").write_text(f"{_PERIOD_US}")
                    (folder / "cpu.cfs_quota_us").write_text(f"{self._quota_us}")
                else:
                    (folder / "cpu.max").write_text(f"{self._quota_us} {_PERIOD_US}")
                (folder / "cgroup.procs").write_text(f"{each.pid}")
            except ProcessLookupError:
                pass
            except OSError as error:
                raise SystemExit(f"this needs root and a CPU controller: {error}") from None


def measure(
    bench: Workbench, shares: Shares, rounds: int, seconds: float
) -> tuple[list[Pace], dict[str, str]]:
    """Measure groups of every size at every batch size, in turns; return paces and faults."""
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
    pace_s = dict[tuple[int, int], float]()
    with contextlib.ExitStack() as stack:
        sessions = []
        for setting in settings:
            session = stack.enter_context(open_session(bench, {**bench.default, **setting}))
            sessions.append(session)
            found[0].train(session, setting, WARM_UP)  # starts its processes
        cases = list(itertools.product(range(len(found)), range(len(settings))))
        for turn in range(rounds + 1):  # the first tells how many iterations fill the seconds
            for place in range(len(cases)):
                case = batch, group = cases[(place + turn) % len(cases)]
                with shares.beside(settings[group]):
                    if turn:
                        found[batch].add(sessions[group], settings[group], pace_s[case])
                    elif first := found[batch].train(sessions[group], settings[group], WARM_UP):
                        pace_s[case] = first.iteration_s
            cases = [each for each in cases if each in pace_s]
    faults = dict(fault for each in found for fault in each.faults.items())
    measured = [pace for each in found for pace in paces(each.map)]
    return sorted(measured, key=lambda each: (each.batch_size, each.workers)), faults


def check(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Predict the largest group of one framework by the smaller ones."""
    began_s = time.monotonic()
    with workbench(name, DATASET) as bench:
        if "workers" not in bench.space.runtime:
            raise TunerError("it trains in one process")
        topology = read_topology(bench.setup.framework.topology)
        share = len(bench.setup.cores) / (LARGEST + 1)
        with Shares(share, LARGEST) as shares:
            everything, faults = measure(bench, shares, rounds, seconds)
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
