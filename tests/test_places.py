"""The places in which the benchmark of larger groups lets processes compute."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from larger_groups import Places


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes control groups")
def test_each_process_has_a_place_that_is_always_busy():
    core, *_ = sorted(os.sched_getaffinity(0))
    alone, first, second = (subprocess.Popen(["sleep", "60"]) for _ in range(3))
    try:
        with Places([core]) as places, contextlib.ExitStack() as ending:
            for each in (alone, first, second):
                ending.callback(each.wait)
                ending.callback(each.kill)
            try:
                places.give([[alone.pid], [first.pid, second.pid]])
            except SystemExit as error:
                pytest.skip(str(error))
            assert places.share == 0.5
            groups = [control_group(each.pid) for each in (alone, first, second)]
            assert groups[0] == groups[1] != groups[2]
            assert all(os.sched_getaffinity(each.pid) == {core} for each in (alone, second))
            for folder in groups[1:]:
                inside = {*map(int, (folder / "cgroup.procs").read_text().split())}
                (busy,) = inside - {alone.pid, first.pid, second.pid}
                assert os.sched_getscheduler(busy) == os.SCHED_IDLE
    finally:
        for each in (alone, first, second):
            each.kill()
            each.wait()
    deadline = time.monotonic() + 10
    while any(map(Path.exists, groups)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(Path.exists, groups))


def control_group(pid):
    """Folder of the CPU's control group of a process."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "tuner-place" in path:
            return Path(f"/sys/fs/cgroup/cpu{path}" if controllers else f"/sys/fs/cgroup{path}")
    raise AssertionError(f"process {pid} has no place")
