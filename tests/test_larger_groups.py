"""The shares of a core to which the benchmark of larger groups holds processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
HELD = """
import json, subprocess, time
from pathlib import Path

import psutil
from larger_groups import Shares

def share(pid):
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        folder = Path("/sys/fs/cgroup", "cpu" if controllers else "") / path[1:]
        if folder.name.startswith("tuner-parallel"):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            texts = [(folder / each).read_text() for each in names]
            quota, period = map(int, " ".join(texts).split())
            return quota / period, folder

found = {}
with Shares(0.25, 2) as shares:
    (busy,) = psutil.Process().children()
    worker = subprocess.Popen(["sleep", "60"])
    for count in (1, 2):
        with shares.beside({"workers": count}):
            deadline = time.monotonic() + 10  # a signal takes a moment
            while (stopped := busy.status() == psutil.STATUS_STOPPED) == (count == 1):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            found[f"busy beside {count}"] = not stopped
    held = [share(each) for each in (worker.pid, busy.pid)]
    found["shares"] = [each for each, _ in held]
    worker.kill()
    worker.wait()
found["left"] = [str(folder) for _, folder in held if folder.exists()]
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes control groups")
def test_each_process_is_held_to_its_share_and_the_free_ones_are_busy():
    # in a process of its own: all children of this one would be held
    done = subprocess.run(
        [sys.executable, "-c", HELD],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if "needs root and a CPU controller" in done.stderr:
        pytest.skip(done.stderr)
    found = json.loads(done.stdout)
    assert found == {
        "busy beside 1": True, "busy beside 2": False, "shares": [0.25, 0.25], "left": []
    }  # fmt: skip
