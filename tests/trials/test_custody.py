"""The bounds that the kernel keeps for a worker."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tuner.trials.custody import custody, memory_fault

_MIB = 2**20


def run_in_custody(*command: str, memory: int = 512 * _MIB) -> subprocess.CompletedProcess[str]:
    prefix = custody((0,), memory)
    return subprocess.run(
        [*prefix, *command], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_worker_has_bounds_on_cores_files_and_dumps():
    done = run_in_custody("sh", "-c", "ulimit -Hn; ulimit -Hc; ulimit -Hf; nproc")
    open_files, dump, blocks, cores = map(int, done.stdout.split())
    assert open_files <= 16_384
    assert dump == 0
    assert blocks * 512 == 2**30
    assert cores == 1


def test_a_worker_does_not_learn_where_systemd_is():
    done = run_in_custody("env")
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    if not memory_fault():
        assert "DBUS_SESSION_BUS_ADDRESS" not in names
    assert "PATH" in names


@pytest.mark.skipif(bool(memory_fault()), reason=memory_fault() or "-")
def test_the_kernel_ends_a_worker_that_takes_more_memory():
    take = f"import os; own = os.memfd_create('x'); os.write(own, bytes({96 * _MIB}))"
    assert run_in_custody(sys.executable, "-c", take).returncode == 0
    assert run_in_custody(sys.executable, "-c", take, memory=64 * _MIB).returncode == -9
