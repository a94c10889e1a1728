"""What the host measures, held against what the kernel itself counted for the same processes."""

from __future__ import annotations

import dataclasses
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tuner.measure import (
    MARKER,
    ResourceMonitor,
    Usage,
    cores_text,
    cpu_flags,
    fingerprint,
    kill_marked,
    machine,
    machine_facts,
    mapped_files,
    marked_processes,
    parse_cores,
    process_tree,
    processes,
    strangers,
    total_memory_bytes,
)
from tuner.measure import monitor as monitors
from tuner.measure.machine import cpu_quota
from tuner.measure.processes import involuntary_switches
from tuner.values.errors import ConfigError

# processes are started, which takes longer where neighbours take the CPU
pytestmark = pytest.mark.timeout(20)

CORES = parse_cores("")
MIB = 2**20
# the shell forks: over a mere exec, ru_maxrss would carry the peak of this process
SHELL = ["/bin/sh", "-c", '"$0" "$@"; exit $?']
WORK = """
import resource, sys, time
hog = b"x" * (int(sys.argv[2]) << 20)
print("begin", flush=True)
while time.process_time() < float(sys.argv[1]):
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
sys.stdin.read()
"""

Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that are gone after the test."""
    started = []

    def begin(*command: object, **options: object) -> subprocess.Popen:
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def eventually(holds: Callable[[], bool], limit_s: float = 3.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def busy_s(cores=CORES) -> float:
    """Seconds since boot in which these CPUs worked for anybody."""
    times = psutil.cpu_times(percpu=True)
    return sum(times[core].user + times[core].nice + times[core].system for core in cores)


@dataclasses.dataclass
class Watched:
    """One child as the monitor saw it, and as the kernel counted it."""

    usage: Usage
    counted_s: float
    counted_bytes: int
    others_pct: float
    """CPU that neither the child nor this process used."""


def monitored(start: Start, cpu_s: float, memory_mb: int) -> Watched:
    child = start(*SHELL, sys.executable, "-S", "-c", WORK, cpu_s, memory_mb)
    monitor = ResourceMonitor(child.pid, CORES, interval_s=0.02)
    monitor.start()
    assert child.stdout.readline() == "begin\n"
    monitor.begin_training()
    busy, own, began = busy_s(), time.process_time(), time.monotonic()
    counted_bytes = int(child.stdout.readline()) * 1024
    busy, own = busy_s() - busy, time.process_time() - own
    window_s = time.monotonic() - began
    monitor.end_training()
    usage = monitor.finish()
    child.stdin.close()
    _, status, counted = os.wait4(child.pid, 0)  # of the shell and what it waited for
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    counted_s = counted.ru_utime + counted.ru_stime
    others_pct = 100 * (busy - own - counted_s) / window_s / len(CORES)
    return Watched(usage, counted_s, counted_bytes, others_pct)


# -- cores and machine --------------------------------------------------------------------------


@pytest.mark.parametrize("quota", [math.inf, 10_000.0])
def test_no_list_of_cores_means_all_that_may_be_used(monkeypatch, quota):
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert parse_cores("") == parse_cores("  ") == tuple(sorted(os.sched_getaffinity(0)))
    assert "cpu_quota" not in machine_facts(CORES)


@pytest.mark.parametrize(("quota", "paid"), [(0.3, 1), (1.0, 1), (1.5, 2), (2.0, 2)])
def test_of_a_container_they_are_as_many_as_its_quota_pays_for(monkeypatch, quota, paid):
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 5, 11})
    assert parse_cores("") == (3, 5, 7, 11)[:paid]
    assert parse_cores("3,11") == (3, 11), "whoever names them knows"
    assert machine_facts(parse_cores(""))["cpu_quota"] == f"{quota:g}"


MAX, QUOTA, PERIOD = "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/", {MAX: "150000 100000"}, 1.5),
        ("0::/", {MAX: "max 100000"}, math.inf),
        ("0::/", {}, math.inf),
        # version 2 without a namespace: the least of the groups around it
        ("0::/a.slice/b", {f"a.slice/{MAX}": "50000 100000", f"a.slice/b/{MAX}": "max 1"}, 0.5),
        ("0::/a/b", {f"a/{MAX}": "400000 100000", f"a/b/{MAX}": "200000 100000"}, 2.0),
        ("0::/../other", {}, math.inf),
        # version 1, where a container sees its own group alone, under another name
        ("4:cpu,cpuacct:/docker/1", {f"cpu/{QUOTA}": "250000", f"cpu/{PERIOD}": "100000"}, 2.5),
        ("4:cpu,cpuacct:/", {f"cpu/{QUOTA}": "-1", f"cpu/{PERIOD}": "100000"}, math.inf),
        ("2:cpuacct:/\n3:cpuset:/\n0::/", {f"cpu/{QUOTA}": "1", f"cpu/{PERIOD}": "1"}, math.inf),
    ],
)
def test_the_quota_of_a_container_is_read(tmp_path, own, files, quota):
    groups, named = tmp_path / "cgroup", tmp_path / "own"
    groups.mkdir()
    named.write_text(f"{own}\n")
    for name, text in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert cpu_quota(groups, named) == quota
    assert cpu_quota(groups, tmp_path / "none") == math.inf


@pytest.mark.skipif(len(CORES) < 2, reason="needs two CPUs")
def test_cores_are_listed_one_by_one_or_by_ranges():
    one, two = CORES[:2]
    assert parse_cores(f"{one}") == (one,)
    assert parse_cores(f"{two},{one}") == (one, two)
    assert parse_cores(f" {one} , {two} ,{one}") == (one, two)
    assert parse_cores(f"{one}-{two}") == tuple(range(one, two + 1))


@pytest.mark.parametrize("cores", [(), (3,), (0, 1), (0, 1, 2, 5), (1, 3, 4, 7)])
def test_a_list_of_cores_is_written_as_it_is_read(monkeypatch, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    assert parse_cores(cores_text(cores) or "0-7") == (cores or tuple(range(8)))
    assert cores_text((0, 1, 2, 5, 6, 9)) == "0-2,5-6,9"


@pytest.mark.parametrize("text", ["a", "1-", "-1", "0;1", "0,,1", "0-1-2", "1.5", ",", "0x1"])
def test_what_is_no_list_of_cores_is_refused(text):
    with pytest.raises(ConfigError) as refused:
        parse_cores(text)
    assert (
        str(refused.value) == f"executor.cores {text!r} is not a list of CPUs such as 0-3 or 0,2"
    )


@pytest.mark.parametrize("text", ["100000", "0-100000", "3-2", "0-99999999999999"])
def test_cores_that_are_not_there_are_refused_with_those_that_are(text):
    with pytest.raises(ConfigError) as refused:
        parse_cores(text)
    assert repr(text) in str(refused.value)
    assert str(sorted(os.sched_getaffinity(0))) in str(refused.value)


def test_the_machine_is_described_in_printable_words():
    facts = machine_facts(CORES)
    assert facts["cores"] == f"{len(CORES)} of {os.cpu_count()}"
    assert all(isinstance(each, str) for each in facts.values())
    assert facts["cpu"]
    assert set(facts["instruction_sets"].split()) <= cpu_flags()


def test_memory_is_within_that_of_the_machine():
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < total_memory_bytes() <= whole


def test_a_fingerprint_depends_on_what_is_said_and_not_on_its_order():
    one = fingerprint({"cpu": "a", "cores": "2"}, {"caffe": "1.0"})
    assert one == fingerprint({"cores": "2", "cpu": "a"}, {"caffe": "1.0"})
    assert len(one) == 12
    others = [
        fingerprint({"cpu": "b", "cores": "2"}, {"caffe": "1.0"}),
        fingerprint({"cpu": "a", "cores": "2"}, {"caffe": "1.1"}),
        fingerprint({"cpu": "a", "cores": "2"}),
    ]
    assert len({one, *others}) == 4


# -- what a process tree uses -------------------------------------------------------------------


@pytest.mark.slow
def test_cpu_time_is_that_which_the_kernel_counted(start):
    watched = monitored(start, cpu_s=0.8, memory_mb=1)
    usage = watched.usage
    seen = usage.user_s + usage.system_s
    # ticks of 10 ms of user and system, at both ends
    assert seen == pytest.approx(watched.counted_s, rel=0.1, abs=0.03)
    assert usage.train_user_s + usage.train_system_s == pytest.approx(seen, abs=0.15)
    assert usage.wall_s >= 0.7
    share = 100 * seen / usage.wall_s / len(CORES)
    assert usage.user_pct + usage.system_pct == pytest.approx(share)


@pytest.mark.slow
def test_peak_memory_is_that_of_the_child_however_large_the_host_is(start):
    ballast = b"x" * (300 * MIB)
    watched = monitored(start, cpu_s=0.3, memory_mb=100)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > len(ballast)
    assert 100 * MIB < watched.counted_bytes < 150 * MIB
    assert watched.usage.peak_memory_bytes == pytest.approx(watched.counted_bytes, rel=0.05)
    assert 50 * MIB < watched.usage.avg_memory_bytes <= watched.usage.peak_memory_bytes


def test_a_peak_that_was_gone_before_any_sample_is_still_seen(start):
    code = (
        "import sys\nhog = b'x' * (80 << 20)\ndel hog\nprint('end', flush=True)\nsys.stdin.read()"
    )
    child = start(sys.executable, "-S", "-c", code)
    assert child.stdout.readline() == "end\n"
    monitor = ResourceMonitor(child.pid, CORES)
    monitor.start()
    usage = monitor.finish()
    assert usage.peak_memory_bytes > 80 * MIB
    assert usage.avg_memory_bytes < 60 * MIB


def test_the_whole_tree_is_counted(start):
    code = (
        "import subprocess, sys\n"
        "command = [sys.executable, '-S', '-c', sys.argv[1], '0.3', '40']\n"
        "children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "            for _ in range(2)]\n"
        "[(each.stdout.readline(), each.stdout.readline()) for each in children]\n"
        "print('end', flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = start(sys.executable, "-S", "-c", code, WORK)
    monitor = ResourceMonitor(parent.pid, CORES, interval_s=0.02)
    monitor.start()
    assert parent.stdout.readline() == "end\n"
    assert len(process_tree(parent.pid)) == 3
    assert len(strangers(parent.pid)) == 2
    usage = monitor.finish()
    assert usage.user_s + usage.system_s >= 0.5
    assert monitor.memory_bytes > 80 * MIB
    assert monitor.tree[0] == parent.pid


def test_shared_memory_counts_once_also_while_processes_end(start, monkeypatch):
    source = """
import os, sys
hog = b"x" * (200 << 20)
for _ in range(3):
    os.fork()  # 8 processes
print(end="begin\\n", flush=True)
sys.stdin.read()
"""
    child = start(sys.executable, "-u", "-c", source)
    for _ in range(8):
        child.stdout.readline()
    tree = process_tree(child.pid)
    assert 200 < processes.unshared_bytes(tree) / MIB < 300
    read = processes._pss_bytes

    def read_and_end(pid: int) -> int:
        share = read(pid)
        if pid != child.pid:
            os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: processes.read_process(pid) is None)
        return share

    monkeypatch.setattr(processes, "_pss_bytes", read_and_end)
    assert processes.unshared_bytes(tree) / MIB < 300


def test_threads_are_counted_while_training(start):
    code = (
        "import sys, threading, time\n"
        "print('begin', flush=True)\n"
        "threads = [threading.Thread(target=time.sleep, args=(0.4,)) for _ in range(4)]\n"
        "[each.start() for each in threads]\n"
        "[each.join() for each in threads]\n"
        "print('end', flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = start(sys.executable, "-c", code)
    monitor = ResourceMonitor(child.pid, CORES, interval_s=0.02)
    monitor.start()
    child.stdout.readline()
    monitor.begin_training()
    child.stdout.readline()
    monitor.end_training()
    assert monitor.finish().threads == 5


def test_the_threads_of_many_processes_are_not_looked_at_in_every_sample(start, monkeypatch):
    looked = []

    def look(pids):
        looked.append(pids)
        return involuntary_switches(pids)

    monkeypatch.setattr(monitors, "involuntary_switches", look)
    child = start(sys.executable, "-S", "-c", WORK, 0.0, 1)
    monitor = ResourceMonitor(child.pid, CORES, 1000, ends_itself=True, long_every_s=1000)
    monitor.start()
    child.stdout.readline()
    monitor.begin_training()
    before = len(looked)
    for _ in range(20):
        monitor.sample()
        monitor.cpu_s()
    assert len(looked) == before + 1
    monitor.end_training()
    assert monitor.finish().involuntary_switches >= 0
    assert child.pid in looked[-1], "and once more at the end"


def test_a_tree_that_is_gone_is_no_fault(start):
    child = start("true")
    child.wait()
    monitor = ResourceMonitor(child.pid, CORES, interval_s=0.01)
    monitor.start()
    monitor.begin_training()
    time.sleep(0.05)
    monitor.end_training()
    usage = monitor.finish()
    assert (usage.user_s, usage.system_s, usage.peak_memory_bytes) == (0, 0, 0)


def test_mapped_files_are_named_by_their_paths(start):
    child = start(sys.executable, "-S", "-c", WORK, 0, 0)
    child.stdout.readline()
    mapped = mapped_files([child.pid])
    assert any("libc" in path for path in mapped)
    assert all(path.startswith("/") for path in mapped)
    assert mapped_files([]) == set()
    assert mapped_files([2**30]) == set()


# -- interference -------------------------------------------------------------------------------


def burn(start: Start, core: int, seconds: float = 4.0) -> subprocess.Popen:
    code = (
        "import os, sys, time\n"
        "os.sched_setaffinity(0, [int(sys.argv[1])])\n"
        "print('on', flush=True)\n"
        "end = time.monotonic() + float(sys.argv[2])\n"
        "while time.monotonic() < end: pass\n"
    )
    process = start(sys.executable, "-S", "-c", code, core, seconds)
    assert process.stdout.readline() == "on\n"
    return process


def foreign_pct(start: Start, core: int, window_s: float = 0.7) -> float:
    """What others are seen to use of one CPU while a trial of ours only waits."""
    child = start(sys.executable, "-S", "-c", WORK, 0, 0)
    monitor = ResourceMonitor(child.pid, [core])
    monitor.start()
    monitor.begin_training()
    time.sleep(window_s)
    monitor.end_training()
    return monitor.finish().foreign_pct


@pytest.mark.slow
def test_others_on_the_same_core_are_seen(start):
    burn(start, CORES[-1])
    assert foreign_pct(start, CORES[-1]) > 70


@pytest.mark.slow
def test_only_the_trials_own_cores_count(start):
    def apart() -> float:
        busy, began = busy_s([CORES[-1]]), time.monotonic()
        seen = foreign_pct(start, CORES[-1])
        return abs(seen - 100 * (busy_s([CORES[-1]]) - busy) / (time.monotonic() - began))

    # whatever else this machine does there now, and nothing of the other core; what began or ended
    # between the two looks is in only one of them
    burn(start, CORES[0], 10.0)
    assert any(apart() < 15 for _ in range(3))


@pytest.mark.slow
def test_the_trials_own_work_is_not_foreign(start):
    def apart() -> float:
        watched = monitored(start, cpu_s=0.7, memory_mb=0)
        return abs(watched.usage.foreign_pct - max(0, watched.others_pct))

    assert any(apart() < 10 for _ in range(3))


def test_too_short_a_window_says_nothing(start):
    burn(start, CORES[-1])
    assert foreign_pct(start, CORES[-1], 0.1) == 0


# -- what a trial leaves behind -----------------------------------------------------------------

DETACH = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1], "w") as target:
            target.write(str(os.getpid()))
        os.rename(sys.argv[1], sys.argv[2])
        time.sleep(60)
    os._exit(0)
os.wait()
"""


@pytest.fixture
def marker(tmp_path) -> Iterator[str]:
    name = f"{'-'.join(tmp_path.parts[-3:])}/"
    yield name
    kill_marked(name)


def detach(start: Start, folder: Path, mark: str) -> int:
    """Start a process that detaches itself twice. Returns its number."""
    ended = start(
        *(sys.executable, "-S", "-c", DETACH, folder / "new", folder / "pid"),
        env={**os.environ, MARKER: mark},
    )
    assert ended.wait() == 0
    assert eventually((folder / "pid").exists)
    return int((folder / "pid").read_text())


def test_a_process_that_detached_itself_is_found_by_its_mark(start, tmp_path, marker):
    pid = detach(start, tmp_path, f"{marker}search-0001/")
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] != str(os.getpid())
    assert marked_processes(f"{marker}search-0001/") == [pid]
    assert marked_processes(marker) == [pid], "a study's mark is a prefix of its trials'"
    assert marked_processes(f"{marker}search-0002/") == []


def test_what_is_marked_is_killed_and_nothing_else(start, tmp_path, marker):
    other = tmp_path / "other"
    other.mkdir()
    pid = detach(start, tmp_path, f"{marker}search-0001/")
    spared = detach(start, other, f"{marker}search-0010/")
    assert kill_marked(f"{marker}search-0001/") == 1
    assert eventually(lambda: marked_processes(f"{marker}search-0001/") == [])
    assert not Path(f"/proc/{pid}").exists() or pid not in marked_processes(marker)
    assert marked_processes(marker) == [spared]
    assert kill_marked(f"{marker}search-0001/") == 0
    assert kill_marked(marker) == 1


def test_one_does_not_kill_oneself(start, marker):
    code = (
        "import os, sys\n"
        "from tuner.measure import MARKER, kill_marked, marked_processes\n"
        "assert marked_processes(os.environ[MARKER]) == [os.getpid()]\n"
        "assert kill_marked(os.environ[MARKER]) == 0\n"
        "print('alive')\n"
    )
    child = start(sys.executable, "-c", code, env={**os.environ, MARKER: f"{marker}x/"})
    assert child.communicate()[0] == "alive\n"
