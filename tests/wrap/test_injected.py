"""The hook counts the steps of each process apart, and in order."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

from tuner.wrap.program import INJECTED

LIBRARY = """
    class Optimizer:
        def zero_grad(self):
            pass
"""
TRAIN = """
    import os, sys, threading, time
    from torch.optim.optimizer import Optimizer

    def train(steps, each_s):
        for _ in range(steps):
            Optimizer().zero_grad()
            time.sleep(each_s)
"""
FORKS_AND_EXITS = """
    train(4, 0.06)
    if not os.fork():
        time.sleep(0.3)
        sys.exit()
    train(9, 0.06)
    os.wait()
"""
TWO_TRAIN = """
    train(2, 0.06)
    mine = os.fork() == 0
    train(5, 0.06 if mine else 0.15)
    mine or os.wait()
"""
# the first thread is held up between counting its step and reporting it
THREADS = """
    plain, held = os.open, []

    def slow(*words):
        if not held:
            held.append(True)
            time.sleep(0.4)
        return plain(*words)

    os.open = slow
    threads = [threading.Thread(target=train, args=(5, 0.06)) for _ in range(2)]
    for each in threads:
        each.start()
        time.sleep(0.1)
    for each in threads:
        each.join()
"""

# as PyTorch's: work is queued, and done one after the other
GPU = """
    import time
    _free_s = [0.0]

    def work(seconds):
        _free_s[0] = max(_free_s[0], time.monotonic()) + seconds

    def synchronize():
        time.sleep(max(0.0, _free_s[0] - time.monotonic()))

    def is_initialized():
        return True

    def is_current_stream_capturing():
        return False

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = max(_free_s[0], time.monotonic())

        def query(self):
            return time.monotonic() >= self.at

        def synchronize(self):
            time.sleep(max(0.0, self.at - time.monotonic()))

        def elapsed_time(self, end):
            return 1000 * (end.at - self.at)
"""
ON_GPU = """
    from torch import cuda
    for step in range(1, 201):
        cuda.work(0.01)
        Optimizer().zero_grad()
        time.sleep(0.002)
        if step % 50 == 0:
            cuda.synchronize()
"""


@pytest.mark.parametrize(
    ("source", "counts"),
    [(FORKS_AND_EXITS, [13]), (TWO_TRAIN, [5, 7]), (THREADS, [10])],
    ids=["a child that exits", "a child that trains", "threads"],
)
def test_steps_of_a_process_never_go_back(tmp_path, source, counts):
    steps = defaultdict(list)
    for report in reports(tmp_path, source):
        steps[report["pid"]].append(report["step"])
    assert all(each == sorted(each) for each in steps.values()), dict(steps)
    assert sorted(each[-1] for each in steps.values()) == counts


def reports(folder: Path, source: str) -> list[dict]:
    """What the hook reports of a program that trains with a library named like PyTorch."""
    (folder / "torch" / "optim").mkdir(parents=True)
    (folder / "torch" / "optim" / "optimizer.py").write_text(textwrap.dedent(LIBRARY))
    (folder / "torch" / "cuda.py").write_text(textwrap.dedent(GPU))
    (folder / "train.py").write_text(textwrap.dedent(TRAIN) + textwrap.dedent(source))
    environment = {
        **os.environ,
        "PYTHONPATH": str(INJECTED),
        "TUNER_REPORT": str(folder / "report.jsonl"),
    }
    subprocess.run([sys.executable, "train.py"], cwd=folder, env=environment, check=True)
    return [json.loads(line) for line in (folder / "report.jsonl").read_text().splitlines()]


def test_a_step_on_a_gpu_is_reported_when_it_is_done(tmp_path):
    found = reports(tmp_path, ON_GPU)
    assert (found[0]["step"], found[-1]["step"]) == (1, 200)
    assert len(found) > 5
    for before, after in itertools.pairwise(found[:-1]):  # the last is told at the exit
        steps = after["step"] - before["step"]
        assert after["t"] - before["t"] > 0.01 * steps - 1e-6, "each step takes 10 ms there"


@pytest.mark.parametrize("fault", ["record", "query", "elapsed_time"])
def test_a_gpu_that_tells_no_time_leaves_the_hosts_clock(tmp_path, fault):
    breaks = f"""
    from torch import cuda
    def fail(*_):
        raise RuntimeError
    cuda.Event.{fault} = fail
    train(9, 0.06)
    """
    found = reports(tmp_path, breaks)
    assert found[-1]["step"] == 9
    assert len(found) > 5
    assert [each["t"] for each in found] == sorted(each["t"] for each in found)
