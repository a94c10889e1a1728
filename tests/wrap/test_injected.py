"""The hook counts the steps of each process apart, and in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections import defaultdict

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


@pytest.mark.parametrize(
    ("source", "counts"),
    [(FORKS_AND_EXITS, [13]), (TWO_TRAIN, [5, 7]), (THREADS, [10])],
    ids=["a child that exits", "a child that trains", "threads"],
)
def test_steps_of_a_process_never_go_back(tmp_path, source, counts):
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text(textwrap.dedent(LIBRARY))
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN) + textwrap.dedent(source))
    environment = {
        **os.environ,
        "PYTHONPATH": str(INJECTED),
        "TUNER_REPORT": str(tmp_path / "report.jsonl"),
    }
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=environment, check=True)
    steps = defaultdict(list)
    for line in (tmp_path / "report.jsonl").read_text().splitlines():
        report = json.loads(line)
        steps[report["pid"]].append(report["step"])
    assert all(each == sorted(each) for each in steps.values()), dict(steps)
    assert sorted(each[-1] for each in steps.values()) == counts
