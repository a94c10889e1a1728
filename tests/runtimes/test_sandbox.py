"""The sandbox keeps a worker from everything but what it was given."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tuner.runtimes.sandbox import (
    forbids_nesting,
    interpreter_folders,
    sandbox_fault,
    sandbox_prefix,
)

# what runs here is not only Python of ours: slower where neighbours take the CPU
pytestmark = [pytest.mark.slow, pytest.mark.timeout(20)]

DEVICES = ("/dev/fuse", "/dev/kmsg", "/dev/rtc0", "/dev/kvm")
needs_bwrap = pytest.mark.skipif(bool(sandbox_fault()), reason=sandbox_fault())


def run_python(
    statement: str, readable: Sequence[Path] = (), writable: Sequence[Path] = ()
) -> subprocess.CompletedProcess[str]:
    prefix = sandbox_prefix(None, [*interpreter_folders(sys.executable), *readable], writable)
    return subprocess.run(
        [*prefix, sys.executable, "-c", statement], capture_output=True, text=True, timeout=20
    )


@pytest.fixture
def writable(tmp_path: Path) -> Path:
    folder = tmp_path / "writable"
    folder.mkdir()
    return folder


@needs_bwrap
def test_it_starts_in_its_folder_and_may_write_there(writable):
    done = run_python("open('made', 'w').write('x')", writable=[writable])
    assert done.returncode == 0, done.stderr
    assert (writable / "made").read_text() == "x"


@needs_bwrap
def test_what_it_may_read_has_the_same_path_and_is_not_writable(tmp_path, writable):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "given").write_text("given")
    given = tmp_path / "data" / "given"
    done = run_python(
        f"print(open({str(given)!r}).read()); open({str(given)!r}, 'w')",
        [given.parent],
        [writable],
    )
    assert done.stdout == "given\n"
    assert "Read-only" in done.stderr
    assert given.read_text() == "given"


@needs_bwrap
def test_a_folder_inside_a_writable_one_can_stay_read_only(writable):
    (writable / "data").mkdir()
    done = run_python("open('data/made', 'w')", [writable / "data"], [writable])
    assert "Read-only" in done.stderr


@needs_bwrap
@pytest.mark.parametrize("place", ["/usr", "/etc", str(Path(__file__).parent), "/proc/sys"])
def test_nothing_else_can_be_written(place, writable):
    done = run_python(f"open({place + '/sandbox-made-this'!r}, 'w')", writable=[writable])
    assert done.returncode != 0
    assert not Path(place, "sandbox-made-this").exists()


@needs_bwrap
def test_a_device_is_there_if_it_is_shown(writable):
    device = next((each for each in map(Path, DEVICES) if os.access(each, os.R_OK)), None)
    if device is None:
        pytest.skip("this machine has no device that a sandbox does not have")
    code = f"import os; os.open({str(device)!r}, os.O_RDONLY); os.mkdir('/dev/made')"
    hidden, shown = (
        subprocess.run(
            [
                *sandbox_prefix(
                    None, interpreter_folders(sys.executable), [writable], devices=each
                ),
                *(sys.executable, "-c", code),
            ],
            capture_output=True,
            text=True,
            timeout=20,
        )
        for each in ([], [device])
    )
    assert f"No such file or directory: '{device}'" in hidden.stderr
    assert "Read-only file system: '/dev/made'" in shown.stderr, "and nothing can be added"


@needs_bwrap
def test_other_files_below_tmp_are_not_there(tmp_path, writable):
    (tmp_path / "secret").touch()
    done = run_python(
        f"import os; print(os.path.exists({str(tmp_path / 'secret')!r}))", writable=[writable]
    )
    assert done.stdout == "False\n"


@needs_bwrap
def test_a_link_to_a_writable_folder_works(tmp_path, writable):
    link = tmp_path / "link"
    link.symlink_to(writable)
    done = run_python(f"open({str(link / 'made')!r}, 'w')", writable=[link])
    assert done.returncode == 0, done.stderr
    assert (writable / "made").exists()


@needs_bwrap
def test_there_is_no_network(writable):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        connect = f"import socket; socket.create_connection({address!r}, 2)"
        assert run_python(connect, writable=[writable]).returncode != 0
        outside = subprocess.run([sys.executable, "-c", connect], timeout=20)
        assert outside.returncode == 0


@needs_bwrap
def test_what_it_started_dies_with_it(writable):
    statement = (
        "import os, subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True);"
        "open('started', 'w'); time.sleep(60)"
    )
    prefix = sandbox_prefix(None, interpreter_folders(sys.executable), [writable])
    environment = {**os.environ, "SANDBOX_TEST": str(writable)}
    process = subprocess.Popen([*prefix, sys.executable, "-c", statement], env=environment)
    try:
        wait_until((writable / "started").exists)
        assert len(marked(writable)) >= 3
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until(lambda: not marked(writable))


def marked(folder: Path) -> list[str]:
    """Ids of the processes with the folder's mark in their environment."""
    mark = f"SANDBOX_TEST={folder}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes():
                found.append(path.parts[2])
        except OSError:
            continue
    return found


def wait_until(holds) -> None:
    deadline = time.monotonic() + 4
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@needs_bwrap
def test_environment_and_streams_pass_through(writable):
    prefix = sandbox_prefix(None, interpreter_folders(sys.executable), [writable])
    statement = "import os, sys; print(os.environ['GIVEN'], sys.stdin.read())"
    done = subprocess.run(
        [*prefix, sys.executable, "-c", statement],
        input="stdin",
        env={"GIVEN": "environment"},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.stdout == "environment stdin\n"


@needs_bwrap
def test_shared_memory_and_cores_are_those_of_the_machine(writable):
    statement = (
        "import mmap, os; open('/dev/shm/made', 'w');"
        "print(sorted(os.listdir('/sys/devices/system/cpu')) != [], os.cpu_count())"
    )
    done = run_python(statement, writable=[writable])
    assert done.stdout == f"True {os.cpu_count()}\n", done.stderr


def build_suite(root: Path) -> None:
    """A root of its own that borrows the machine's libraries, so that programs run in it."""
    for name in ("usr/share", "usr/local/lib", "etc", "proc", "home"):
        (root / name).mkdir(parents=True)
    (root / "etc" / "suite").write_text("suite")
    (root / "usr" / "local" / "lib" / "own").write_text("own")
    (root / "bin").symlink_to("usr/bin")


@needs_bwrap
def test_a_suite_is_the_root_and_may_hold_folders_of_the_machine(tmp_path):
    """A tuner installed below ``/usr`` is read there although ``/usr`` is the suite's."""
    root = tmp_path / "root"
    build_suite(root)
    foreign = Path("/usr/local/lib/tuner-test")
    prefix = sandbox_prefix(root, [tmp_path], [])
    options = [
        prefix[place + 2]
        for place, word in enumerate(prefix)
        if word in ("--ro-bind", "--symlink", "--bind")
    ]
    assert {"/usr", "/etc", "/bin"} <= set(options)
    assert "/home" not in options
    parts = sandbox_prefix(root, [foreign], [])
    assert parts[parts.index("--dir") + 1] == "/usr"
    assert str(root / "usr/local/lib/own") in parts
    assert str(foreign) in parts


def test_without_bwrap_the_fault_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "bwrap is not on PATH" in sandbox_fault()
    assert "apt-get install -y bubblewrap" in sandbox_fault()


def test_a_bwrap_that_is_forbidden_is_noticed(monkeypatch, tmp_path):
    forbidden = tmp_path / "bwrap"
    forbidden.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create namespace' >&2\nexit 1\n"
    )
    forbidden.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "No permissions to create namespace" in sandbox_fault()
    assert "; " in sandbox_fault()


@needs_bwrap
@pytest.mark.parametrize("place", ["/root", "/home", "/run", "/var", "/srv", "/etc/shadow"])
def test_nothing_of_the_host_is_seen_that_no_program_loads(place, writable):
    done = run_python(f"import os; print(os.path.exists({place!r}))", writable=[writable])
    own = any(Path(place) in each.parents for each in [*interpreter_folders(sys.executable)])
    assert done.stdout == "False\n" or own, done.stderr


@needs_bwrap
@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_what_is_written_to_memory_has_a_limit(place, writable):
    statement = f"import os; s = os.statvfs({place!r}); print(s.f_blocks * s.f_frsize)"
    assert int(run_python(statement, writable=[writable]).stdout) <= 2**30
    assert run_python("open('/dev/made', 'w')", writable=[writable]).returncode != 0


def test_a_fault_that_passes_is_not_remembered(monkeypatch, tmp_path):
    slow = tmp_path / "bwrap"
    slow.write_text("#!/bin/sh\nexit 1\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert sandbox_fault()
    slow.write_text("#!/bin/sh\nexit 0\n")
    assert sandbox_fault() == ""


def _fake_bwrap(folder, monkeypatch, script):
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("script", "forbids"),
    [("exit 0", True), ('case "$*" in *--disable-userns*) exit 1;; esac', False)],
    ids=["new", "old"],
)
def test_it_is_known_whether_workers_can_nest_namespaces(monkeypatch, tmp_path, script, forbids):
    _fake_bwrap(tmp_path, monkeypatch, script)
    assert forbids_nesting() is forbids
    assert ("--disable-userns" in sandbox_prefix(None, [], [tmp_path])) is forbids


def test_a_probe_that_fails_for_now_does_not_weaken_the_sandbox(monkeypatch, tmp_path):
    _fake_bwrap(tmp_path, monkeypatch, 'case "$*" in *--disable-userns*) sleep 60;; esac')
    run = subprocess.run

    def patient_for_a_moment(*args, **given):
        return run(*args, **{**given, "timeout": 0.5})

    monkeypatch.setattr(subprocess, "run", patient_for_a_moment)
    assert "timed out" in sandbox_fault()
    assert not forbids_nesting()


@needs_bwrap
def test_settings_of_the_kernel_are_read_only_even_for_root(writable):
    setting = "/proc/sys/kernel/core_pattern"
    done = run_python(f"open({setting!r}); open({setting!r}, 'r+')", writable=[writable])
    assert re.search("Read-only file system|Permission denied", done.stderr)
    if os.geteuid() == 0:  # whom permissions alone would not stop
        assert "Read-only file system" in done.stderr


def test_a_folder_of_links_to_interpreters_stays_closed(tmp_path):
    real = tmp_path / "opt" / "python" / "bin" / "python3"
    link = tmp_path / "user" / ".local" / "bin" / "python3"
    inner = tmp_path / "venv" / "bin" / "python"
    for path in (real, link, inner):
        path.parent.mkdir(parents=True)
    real.touch()
    link.symlink_to(real)
    inner.symlink_to(link)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    found = interpreter_folders(str(inner))
    assert found == [tmp_path / "venv", link, tmp_path / "opt" / "python"]


@needs_bwrap
@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "relative"])
@pytest.mark.parametrize("place", ["opt/x/bin/python", "links/python"])
def test_a_program_is_started_by_its_link(tmp_path, writable, absolute, place):
    real, link = tmp_path / "opt" / "x" / "bin" / "real", tmp_path / place
    for path in (real, link):
        path.parent.mkdir(parents=True, exist_ok=True)
    real.write_text("#!/bin/sh\nreadlink $0\n")
    real.chmod(0o755)
    link.symlink_to(real if absolute else os.path.relpath(real, link.parent))
    prefix = sandbox_prefix(None, interpreter_folders(str(link)), [writable])
    done = subprocess.run([*prefix, str(link)], capture_output=True, text=True, timeout=20)
    assert done.stdout.strip().endswith("real"), done.stderr


def test_shims_lead_to_the_versions_of_an_interpreter_beside_them(tmp_path):
    shim = tmp_path / ".pyenv" / "shims" / "python"
    shim.parent.mkdir(parents=True)
    shim.touch()
    assert interpreter_folders(str(shim)) == [tmp_path / ".pyenv"]


@pytest.mark.parametrize("folder", ["", "bin", ".local/bin"])
def test_a_program_in_the_home_folder_does_not_open_that_folder(tmp_path, monkeypatch, folder):
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / folder / "th"
    assert interpreter_folders(str(program)) == [program]
