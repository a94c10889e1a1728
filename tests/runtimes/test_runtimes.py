"""Runtimes are installed whole or not at all, and start a worker as its params say."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tuner.config.catalogue import load_framework
from tuner.config.schema import BlasConfig, FrameworkConfig, RuntimeConfig
from tuner.runtimes import (
    Runtime,
    ensure_installed,
    find_runtime,
    sandbox_fault,
    with_cache,
)
from tuner.runtimes.debian import gather_libraries, keep_paths, own_mirror
from tuner.runtimes.logged import end_commands_of, last_words, run_logged
from tuner.runtimes.venv import find_python
from tuner.runtimes.wheels import fetch_wheels, pip_arguments, unpack_libraries
from tuner.values.errors import ConfigError, RuntimeUnavailable

# what runs here is not only Python of ours: slower where neighbours take the CPU
pytestmark = pytest.mark.timeout(20)

THIS_VERSION = ".".join(map(str, sys.version_info[:2]))
PATH = "/usr/local/bin:/usr/bin:/bin"


def framework(kind: str = "system", **settings) -> FrameworkConfig:
    settings = {"interpreter": "{python}", "check": "print('example 1.0')"} | settings
    return FrameworkConfig(name="example", runtime=RuntimeConfig(kind=kind, **settings))


def start(runtime: Runtime, script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = runtime.command(script, readable=[script.parent], writable=[folder])
    return subprocess.run(
        command, cwd=folder, env={"PATH": PATH}, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "worker" / "worker.py"
    path.parent.mkdir()
    path.write_text("import sys\nopen('made', 'w').write(sys.executable)\nprint('trained')\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "trial"
    path.mkdir()
    return path


def test_finding_a_runtime_installs_nothing(tmp_path):
    runtime = find_runtime(framework(), tmp_path / "home")
    assert not runtime.installed()
    assert runtime.missing() == []
    assert runtime.packages() == {}
    runtime.remove()
    assert not (tmp_path / "home").exists()


def test_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="debian, venv, system, got 'conda'"):
        find_runtime(framework("conda"), tmp_path)


def test_the_folder_is_named_by_what_is_in_it(tmp_path):
    caffe = load_framework("caffe")
    changed = copy.deepcopy(caffe)
    changed.runtime.wheels = changed.runtime.wheels[1:]
    moved = copy.deepcopy(caffe)
    moved.runtime.mirror = "elsewhere"
    name = find_runtime(caffe, tmp_path).folder.name
    assert name.startswith("caffe-")
    assert find_runtime(changed, tmp_path).folder.name != name
    assert find_runtime(moved, tmp_path).folder.name == name


def test_a_command_of_the_machine_is_checked_once_and_runs_a_worker(tmp_path, script, folder):
    runtime = find_runtime(framework(), tmp_path / "home")
    seen = []
    ensure_installed(runtime, lambda task, fraction: seen.append(fraction))
    assert seen[-1] == 1.0
    assert runtime.installed()
    assert runtime.verify() == "example 1.0"
    assert runtime.packages() == {"example": "example 1.0"}
    ensure_installed(runtime, lambda *_: pytest.fail("it was installed"))
    assert start(runtime, script, folder).stdout == "trained\n"
    assert (folder / "made").read_text() == sys.executable


def test_what_workers_compile_is_kept_for_later_ones_and_no_other_has_it_meanwhile(
    tmp_path, script, folder
):
    config = framework(cache=True)
    config.blas = {"own": BlasConfig(environment={"WHERE": "{cache}/compiled"})}
    runtime = find_runtime(config, tmp_path / "home")
    script.write_text(
        "import os\nwhere = os.environ['WHERE']\nprint(os.path.exists(where))\n"
        "os.makedirs(where, exist_ok=True)\n"
    )
    ensure_installed(runtime)

    def compiled_before(cache):
        (own,) = cache
        environment = with_cache({"PATH": PATH, **runtime.environment({})}, cache)
        assert environment["WHERE"] == f"{own}/compiled"
        command = runtime.command(script, readable=[script.parent], writable=[folder, own])
        return subprocess.check_output(command, cwd=folder, env=environment, text=True, timeout=60)

    another = find_runtime(config, tmp_path / "home")
    with runtime.own_cache() as first, another.own_cache() as other:
        found = [compiled_before(each) for each in (first, other, first)]
    assert found == ["False\n", "False\n", "True\n"]
    with runtime.own_cache() as again:
        assert (again, compiled_before(again)) == (first, "True\n")
    without = find_runtime(framework(), tmp_path / "other")
    with without.own_cache() as cache:
        assert cache == []
    assert not without.cache.exists()


def test_no_job_is_told_to_compile_into_the_cache_of_workers(tmp_path):
    config = framework(cache=True)
    config.blas = {"own": BlasConfig(environment={"WHERE": "{cache}/compiled", "KEPT": "a,b"})}
    assert find_runtime(config, tmp_path).job_environment({}) == {"KEPT": "a,b"}
    theano = find_runtime(load_framework("theano"), tmp_path)
    params = {"blas": "openblas-pthread", "threads": 2}
    own, told = theano.environment(params), theano.job_environment(params)
    where = "base_compiledir={cache},"
    assert where in own["THEANO_FLAGS"]
    assert told == own | {"THEANO_FLAGS": own["THEANO_FLAGS"].replace(where, "")}


def test_what_other_code_compiled_is_not_loaded(tmp_path):
    caches = []
    for code in ("one", "one", "two"):
        runtime = find_runtime(framework(cache=True), tmp_path)
        runtime.divide_cache({"worker.py": code})
        caches.append(runtime.cache)
    assert caches[0] == caches[1] != caches[2]


def test_a_command_that_went_away_is_not_installed(tmp_path, monkeypatch):
    command = tmp_path / "bin" / "example-python"
    command.parent.mkdir()
    command.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    runtime = find_runtime(framework(interpreter="example-python"), tmp_path / "home")
    runtime.install()
    command.unlink()
    assert not runtime.installed()
    with pytest.raises(RuntimeUnavailable, match="example-python was not found; install"):
        ensure_installed(runtime)
    with pytest.raises(RuntimeUnavailable, match="PATH"):
        runtime.verify()


def test_a_check_that_prints_nothing_has_failed(tmp_path):
    """Torch7's th ends with 0 after an error."""
    runtime = find_runtime(
        framework(check="import sys; print('no torch', file=sys.stderr)"), tmp_path
    )
    with pytest.raises(RuntimeUnavailable, match="does not run: no torch"):
        runtime.install()


def test_the_paths_of_a_build_are_inherited_seen_and_checked_anew(
    tmp_path, script, folder, monkeypatch
):
    build = tmp_path / "build"
    build.mkdir()
    (build / "own_build.py").write_text("version = '7'\n")
    config = framework(check="import own_build; print(own_build.version)", inherit=["PYTHONPATH"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    runtime = find_runtime(config, tmp_path / "home")
    with pytest.raises(RuntimeUnavailable, match="of a build are taken from PYTHONPATH"):
        runtime.install()
    monkeypatch.setenv("PYTHONPATH", f"relative:{build}")
    runtime.install()
    assert runtime.installed()
    assert runtime.inherited() == {"PYTHONPATH": f"relative:{build}"}
    assert runtime.environment({}) == {}, "it is no part of what is recommended"
    script.write_text(f"print(open({str(build / 'own_build.py')!r}).read().strip())\n")
    assert start(runtime, script, folder).stdout == "version = '7'\n"
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert not runtime.installed(), "it is checked anew with the new paths"


def test_a_check_that_fails_leaves_nothing_and_says_why(tmp_path):
    config = framework(check="import no_such_framework")
    runtime = find_runtime(config, tmp_path)
    with pytest.raises(RuntimeUnavailable, match="No module named 'no_such_framework'") as caught:
        runtime.install()
    assert "framework.runtime.interpreter=" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not runtime.installed()
    assert not [path for path in runtime.folder.parent.iterdir() if path.is_dir()]


def test_install_never_names_the_command(tmp_path):
    runtime = find_runtime(framework("venv", interpreter=THIS_VERSION, install="never"), tmp_path)
    with pytest.raises(RuntimeUnavailable, match="python -m tuner runtimes install example"):
        ensure_installed(runtime)


def test_a_command_of_the_machine_needs_no_leave_to_be_checked(tmp_path):
    ensure_installed(find_runtime(framework(install="never"), tmp_path))


def test_too_little_disk_is_found_before_anything_is_fetched(tmp_path):
    runtime = find_runtime(framework("venv", interpreter=THIS_VERSION, size_mb=10**9), tmp_path)
    with pytest.raises(RuntimeUnavailable, match=r"needs 1000000000 MB of disk, .* has \d+ MB"):
        ensure_installed(runtime)
    with pytest.raises(RuntimeUnavailable, match="TUNER_HOME"):
        ensure_installed(runtime)
    assert not list(tmp_path.iterdir())


def test_a_home_that_is_a_file_is_explained(tmp_path):
    (tmp_path / "home").touch()
    runtime = find_runtime(framework(), tmp_path / "home")
    with pytest.raises(RuntimeUnavailable, match="set TUNER_HOME"):
        runtime.install()


def test_leftovers_of_dead_processes_are_removed(tmp_path):
    runtime = find_runtime(framework(), tmp_path)
    ended = subprocess.Popen(["true"])
    ended.wait()
    own = Path(f"{runtime.folder}.partial-{ended.pid}")
    outdated = runtime.folder.with_name(f"example-00000000.partial-{ended.pid}")
    busy = runtime.folder.with_name(f"example-11111111.partial-{os.getppid()}")
    for each in (own, outdated, busy):
        (each / "inside").mkdir(parents=True)
    runtime.install()
    assert not own.exists()
    assert not outdated.exists()
    assert busy.exists()


def test_removing_takes_outdated_definitions_and_downloads_along(tmp_path):
    runtime = find_runtime(framework(), tmp_path)
    runtime.install()
    outdated = runtime.folder.with_name("example-00000000")
    other = runtime.folder.with_name("example-two-00000000")
    compiled = runtime.cache.parent.with_name(outdated.name)
    for each in (outdated, other, compiled, runtime.downloads):
        each.mkdir(parents=True)
    runtime.remove()
    assert not runtime.installed()
    assert not outdated.exists()
    assert not compiled.exists()
    assert not runtime.downloads.exists()
    assert other.exists()


CAFFE_LIBRARIES = "/usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("blas", "first", "threads", "kernel"),
    [
        ("openblas-pthread", "openblas-pthread", ["OPENBLAS"], "OPENBLAS_CORETYPE"),
        ("openblas-openmp", "openblas-openmp", ["OMP", "OPENBLAS"], "OPENBLAS_CORETYPE"),
        ("mkl", None, ["MKL", "OMP"], "MKL_DEBUG_CPU_TYPE"),
        ("blis", "blis-pthread", ["BLIS"], "BLIS_ARCH_TYPE"),
        ("atlas", "atlas", [], ""),
        ("reference", "blas", [], ""),
    ],
)
def test_params_decide_the_environment(blas, first, threads, kernel, tmp_path):
    runtime = find_runtime(load_framework("caffe"), tmp_path)
    own = f"{CAFFE_LIBRARIES}/{first}" if first else f"{runtime.folder}/wheels"
    libraries = f"{own}:{CAFFE_LIBRARIES}/openblas-pthread"
    expected = {"LD_LIBRARY_PATH": own if own.endswith("openblas-pthread") else libraries}
    if "OPENBLAS" not in threads:  # LAPACK's own OpenBLAS must not have any idle
        expected["OPENBLAS_NUM_THREADS"] = "1"
    assert runtime.environment({"blas": blas, "batch_size": 64}) == expected
    assert runtime.environment({"blas": blas, "threads": "unset"}) == expected
    assert runtime.environment({"blas": blas, "blas_kernel": "auto"}) == expected
    variables = {f"{name}_NUM_THREADS": "2" for name in threads}
    assert runtime.environment({"blas": blas, "threads": 2}) == expected | variables
    params = {"blas": blas, "blas_kernel": "Zen"}
    if kernel:
        assert runtime.environment(params) == expected | {kernel: "Zen"}
    else:
        with pytest.raises(ConfigError, match=f"BLAS {blas}, whose kernel cannot be chosen"):
            runtime.environment(params)


def test_every_blas_of_caffe_is_in_the_table():
    assert len(load_framework("caffe").blas) == 6


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"blas": "veclib"},
            "no BLAS 'veclib'; choose from: openblas-pthread, .*, reference",
        ),
        ({"blas": "blis", "threads": 0}, "threads must be .* got 0"),
        ({"blas": "blis", "threads": 2.5}, "threads must be .* got 2.5"),
        ({"blas": "blis", "threads": True}, "threads must be .* got True"),
    ],
)
def test_impossible_params_are_refused(params, message, tmp_path):
    runtime = find_runtime(load_framework("caffe"), tmp_path)
    with pytest.raises(ConfigError, match=message):
        runtime.environment(params)


def test_an_only_blas_need_not_be_named(tmp_path):
    config = framework()
    assert find_runtime(config, tmp_path).environment({"threads": 2}) == {}
    caffe = load_framework("caffe")
    config.blas = {"blis": dataclasses.replace(caffe.blas["blis"], environment={"A": "b"})}
    variables = find_runtime(config, tmp_path).environment({"threads": 2})
    assert variables.items() >= {"A": "b", "BLIS_NUM_THREADS": "2"}.items()


def test_a_param_may_be_the_value_of_a_variable(tmp_path):
    config = framework()
    config.blas = load_framework("caffe").blas
    config.variables = {"backend": "BACKEND OTHER", "pool": "BLIS_NUM_THREADS"}
    environment = find_runtime(config, tmp_path).environment
    plain = environment({"blas": "blis", "threads": 2})
    assert environment({"blas": "blis", "threads": 2, "pool": "unset", "backend": None}) == plain
    given = {"blas": "blis", "threads": 2, "pool": 1, "backend": "fast"}
    changed = {"BACKEND": "fast", "OTHER": "fast", "BLIS_NUM_THREADS": "1"}
    assert environment(given) == plain | changed


def test_a_suite_without_bwrap_or_mmdebstrap_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    runtime = find_runtime(load_framework("caffe"), tmp_path)
    with pytest.raises(RuntimeUnavailable, match=r"bwrap .*; .*apt-get install -y bubblewrap"):
        ensure_installed(runtime)
    assert "apt-get install -y mmdebstrap bubblewrap" in runtime.missing()[1].remedy
    with pytest.raises(RuntimeUnavailable, match="needs a sandbox"):
        runtime.command(tmp_path, readable=[], writable=[])
    monkeypatch.undo()
    unconfined = find_runtime(load_framework("caffe"), tmp_path, sandbox=False)
    with pytest.raises(RuntimeUnavailable, match="leave out sandbox=off"):
        unconfined.command(tmp_path, readable=[], writable=[])


def test_other_kinds_run_without_a_sandbox_only_where_that_was_said(
    tmp_path, monkeypatch, script, folder
):
    monkeypatch.setenv("PATH", str(tmp_path))
    runtime = find_runtime(framework(), tmp_path / "home")
    with pytest.raises(RuntimeUnavailable, match=r"bwrap is not on PATH.* or set sandbox=off"):
        runtime.command(script, readable=[], writable=[folder])
    runtime = find_runtime(framework(), tmp_path / "home", sandbox=False)
    assert not runtime.sandboxed
    command = runtime.command(script, readable=[], writable=[folder])
    assert command == [sys.executable, str(script)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sources.list", "# deb MIRROR2 trixie main\ndeb [arch=amd64] MIRROR trixie main # x\n"),
        ("sources.list.d/a.list", "deb OTHER trixie contrib\ndeb MIRROR/ trixie main contrib\n"),
        (
            "sources.list.d/debian.sources",
            "Types: deb\nURIs: OTHER\nSuites: trixie-security\nComponents: main\n\n"
            "Types: deb\n# MIRROR2\nURIs: MIRROR MIRROR3\nSuites: trixie trixie-updates\n"
            "Components: main\nSigned-By: KEY\n",
        ),
    ],
)
def test_the_mirror_is_the_one_this_machine_uses(name, content, tmp_path):
    (tmp_path / "apt" / "sources.list.d").mkdir(parents=True)
    (tmp_path / "apt" / name).write_text(content)
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_CODENAME="trixie"\n')
    assert own_mirror(tmp_path).rstrip("/") == "MIRROR"
    (tmp_path / "os-release").write_text("ID=ubuntu\nVERSION_CODENAME=trixie\n")
    assert own_mirror(tmp_path) == ""
    assert own_mirror(tmp_path / "none") == ""


def test_of_wheels_only_libraries_a_cpu_run_can_need_are_unpacked(tmp_path):
    kept = ["libmkl_rt.so", "libmkl_intel_lp64.so", "libmkl_vml_avx512.so.2", "libiomp5.so"]
    dropped = ["libmkl_blacs_intelmpi_lp64.so", "libmkl_tbb_thread.so.2", "libomptarget.so"]
    dropped += ["libmkl_intel_ilp64.so", "libmkl_vml_avx512_mic.so", "libiompstubs5.so"]
    dropped += ["libiomp5.dbg", "libiomp5.a", "module.so", "README"]
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        for name in (*kept, *dropped):
            archive.writestr(f"a-1.data/data/lib/{name}", name)
        archive.writestr("package/.libs/libown-1234.so.3.1", "own")
    unpack_libraries([tmp_path / "a.whl"], tmp_path / "wheels")
    found = sorted(path.name for path in (tmp_path / "wheels").iterdir())
    assert found == sorted([*kept, "libown-1234.so.3.1"])


def offered_wheel(folder: Path) -> Path:
    """A wheel that pip can get from a folder."""
    wheel = folder / "example-1.0-py3-none-any.whl"
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: example\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in about.items():
            archive.writestr(f"example-1.0.dist-info/{name}", text)
    return wheel


@pytest.mark.slow
def test_a_file_whose_hash_is_not_the_known_one_is_refused(folder, tmp_path):
    wheel = offered_wheel(folder)
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}

    def run(command: list[str], remedy: str) -> None:
        done = subprocess.run(command, env=offline, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeUnavailable(f"{done.stderr}; {remedy}")

    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wrong = hashlib.sha256(b"another file").hexdigest()
    pins, line = ["example==1.0"], f"example==1.0 --hash=sha256:{wrong}"
    with pytest.raises(RuntimeUnavailable, match=f"Got +{right}"):
        fetch_wheels(pins, tmp_path / "a", run, [line])
    assert fetch_wheels(pins, tmp_path / "b", run, [f"{line} --hash=sha256:{right}"])
    assert fetch_wheels(pins, tmp_path / "c", run)


def test_hashes_are_used_where_all_pins_have_some(tmp_path):
    hashed = ["a==1 --hash=sha256:00", "b==2 --hash=sha256:11"]
    assert pip_arguments(["a==1", "c==3"], hashed, tmp_path) == ["a==1", "c==3"]
    *options, path = pip_arguments(["a==1"], hashed, tmp_path)
    assert options == ["--no-deps", "--require-hashes", "-r"]
    assert Path(path).read_text().splitlines() == hashed


def test_of_a_suite_all_libraries_but_glibcs_are_gathered(tmp_path):
    for name in ("libmpi.so.40.1", "libcap.so.2", "libc.so.6", "libdl.so.2", "libnss_dns.so.2"):
        library = tmp_path / "root/usr/lib/x86_64-linux-gnu" / name
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_text(name)
    (library.parent / "libmpi.so.40").symlink_to("libmpi.so.40.1")
    (library.parent / "libgone.so.1").symlink_to("/etc/alternatives/libgone.so.1")
    (tmp_path / "root/lib").symlink_to("usr/lib")
    gather_libraries(tmp_path / "root", tmp_path / "flat")
    found = {path.name: path.read_text() for path in (tmp_path / "flat").iterdir()}
    mpi = "libmpi.so.40.1"
    assert found == {mpi: mpi, "libmpi.so.40": mpi, "libcap.so.2": "libcap.so.2"}


def test_what_libraries_load_by_its_path_is_kept_there(tmp_path):
    for name in ("usr/bin/run", "usr/lib/plug/mca_one.so", "usr/lib/plug/more/two.so", "usr/x"):
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(name)
    keep_paths(tmp_path / "root", ["usr/bin/run", "usr/lib/plug"], tmp_path / "suite")
    found = [path for path in (tmp_path / "suite").rglob("*") if path.is_file()]
    names = {str(path.relative_to(tmp_path / "suite")) for path in found}
    assert names == {"usr/bin/run", "usr/lib/plug/mca_one.so", "usr/lib/plug/more/two.so"}
    assert all(path.read_text() == str(path.relative_to(tmp_path / "suite")) for path in found)


def test_libraries_beside_a_virtual_environment_need_mmdebstrap(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    config = framework("venv", interpreter=THIS_VERSION, suite="bullseye", libraries=["liba1"])
    runtime = find_runtime(config, tmp_path)
    assert [problem.fact for problem in runtime.missing()] == ["mmdebstrap is not on PATH"]
    plain = framework("venv", interpreter=THIS_VERSION)
    assert find_runtime(plain, tmp_path).folder != runtime.folder


def test_a_command_that_fails_is_one_line_with_its_log(tmp_path):
    log = tmp_path / "log"
    command = ["sh", "-c", "echo first; echo 'E: the fault' >&2; echo last; exit 3"]
    with pytest.raises(RuntimeUnavailable, match=r"\(3\): E: the fault; do this; ") as caught:
        run_logged(command, log, tmp_path, remedy="do this")
    assert str(caught.value).endswith(f"full log: {log}")
    assert log.read_text() == "first\nE: the fault\nlast\n"
    with pytest.raises(RuntimeUnavailable, match="no-such-command"):
        run_logged(["no-such-command"], log, tmp_path)


def test_what_installs_inherits_proxies_and_no_secret(tmp_path, monkeypatch):
    secrets = ("TUNER_STORAGE", "DATABASE_URL", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY")
    for name in ("HTTPS_PROXY", *secrets):
        monkeypatch.setenv(name, f"value of {name}")
    run_logged(["env"], tmp_path / "log", tmp_path)
    said = (tmp_path / "log").read_text()
    assert re.findall("value of (.*)", said) == ["HTTPS_PROXY"]


def test_last_words_are_short():
    assert last_words("Traceback:\n  x\nImportError: no caffe\n\n") == "ImportError: no caffe"
    assert last_words("") == "no output"
    lua = "lua: no torch:\n\tno file 'x'\nstack traceback:\n\t[C]: in 'require'\n\t[C]: at 0x1"
    assert last_words(lua) == "lua: no torch:"
    assert len(last_words("x" * 1000)) == 200


def test_an_interrupted_command_ends_with_all_it_started(tmp_path):
    pid = tmp_path / "pid"

    def interrupt() -> None:
        if pid.exists() and pid.read_text():
            raise KeyboardInterrupt

    command = ["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"]
    with pytest.raises(KeyboardInterrupt):
        run_logged(command, tmp_path / "log", tmp_path, tick=interrupt)
    assert ends(int(pid.read_text()))


def test_commands_that_outlived_their_installer_are_ended(tmp_path):
    installer = (
        "from pathlib import Path; import sys; from tuner.runtimes.logged import run_logged;"
        "place = Path(sys.argv[1]);"
        "script = f'cd {place}; trap : TERM; echo $$ > pid; while :; do sleep 0.1; done';"
        "run_logged(['sh', '-c', script], place / 'log', place)"
    )
    process = subprocess.Popen([sys.executable, "-c", installer, str(tmp_path)])
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert alive(int(pid.read_text()))
    end_commands_of(tmp_path)
    assert ends(int(pid.read_text()))


def ends(pid: int) -> bool:
    """Whether it ends, if not at once: what is killed may have to be given a CPU to die."""
    until = time.monotonic() + 10
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def alive(pid: int) -> bool:
    """Whether it runs; a process that ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_interpreter_of_a_version_is_one_that_runs(tmp_path, monkeypatch):
    assert find_python(THIS_VERSION)
    assert find_python("1.4") == ""
    shims, real = tmp_path / "shims", tmp_path / "pyenv" / "versions" / "1.4.2" / "bin"
    for place, text in ((shims / "python1.4", "exit 127"), (real / "python", "echo 1.4.2. REAL")):
        place.parent.mkdir(parents=True)
        place.write_text(f"#!/bin/sh\n{text}\n")
        place.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}:{os.environ['PATH']}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert find_python("1.4") == "REAL"
    assert find_python("1.40") == ""


def test_uv_beside_the_interpreter_fetches_what_is_missing(tmp_path, monkeypatch):
    called, interpreter = tmp_path / "called", tmp_path / "venv" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)
    uv = interpreter.with_name("uv")
    uv.write_text(f'#!/bin/sh\necho "$@" >> {called}\n[ "$2" = install ] || echo /found/python\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", PATH)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    runtime = find_runtime(framework("venv", interpreter="1.4"), tmp_path / "home")
    runtime.folder.mkdir(parents=True)
    assert runtime.missing() == []
    assert runtime._base_python() == "/found/python"
    assert called.read_text().splitlines() == [
        "python install 1.4",
        "python find --no-project 1.4",
    ]


def test_a_version_that_cannot_be_had_names_three_ways(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", PATH)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    runtime = find_runtime(framework("venv", interpreter="1.4"), tmp_path)
    with pytest.raises(
        RuntimeUnavailable, match=r"python1\.4 on PATH, or pyenv .*, or install uv"
    ):
        ensure_installed(runtime)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_virtual_environment_is_made_moved_and_run(tmp_path, script, folder):
    runtime = find_runtime(framework("venv", interpreter=THIS_VERSION), tmp_path / "home")
    ensure_installed(runtime)
    assert runtime.verify() == "example 1.0"
    assert "pip" in runtime.packages()
    assert start(runtime, script, folder).stdout == "trained\n"
    assert (folder / "made").read_text() == str(runtime.folder / "bin" / "python")
    said = re.fullmatch(r"(.*) \((\d+) MB, installed in \d+ s\)", runtime.describe())
    assert said
    assert said[1] == str(runtime.folder)
    assert 1 <= int(said[2]) < 100, "a bare virtual environment holds little but pip"
    runtime.remove()
    assert not runtime.folder.exists()


INSTALL = """
import sys
from pathlib import Path
from tuner.config.schema import FrameworkConfig, RuntimeConfig
from tuner.runtimes import find_runtime
config = RuntimeConfig(kind="venv", interpreter=sys.argv[2], check="print('ok')")
runtime = find_runtime(FrameworkConfig(name="example", runtime=config), Path(sys.argv[1]))
print("start", flush=True)
runtime.install(lambda task, fraction: print(task, flush=True))
"""


def install_elsewhere(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", INSTALL, str(home), THIS_VERSION],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_of_two_processes_at_once_one_installs_and_one_waits(tmp_path):
    processes = [install_elsewhere(tmp_path) for _ in range(2)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    made = ["making a virtual environment" in output for output in outputs]
    waited = ["waiting for the process" in output for output in outputs]
    assert sorted(made) == [False, True]
    assert waited == [not each for each in made]


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_an_interrupted_installation_leaves_nothing_and_a_killed_one_is_cleared(tmp_path):
    for number, left in ((signal.SIGINT, 0), (signal.SIGKILL, 1)):
        process = install_elsewhere(tmp_path)
        assert process.stdout is not None
        while "making" not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.3)
        process.send_signal(number)
        process.communicate()
        assert len(list((tmp_path / "runtimes").glob("*.partial-*"))) == left
    runtime = find_runtime(framework("venv", interpreter=THIS_VERSION), tmp_path)
    assert not runtime.installed()
    runtime.install()
    assert not list((tmp_path / "runtimes").glob("*.partial-*"))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.skipif(bool(sandbox_fault()), reason=sandbox_fault())
def test_a_suite_that_no_mirror_has_names_the_setting(tmp_path):
    caffe = load_framework("caffe")
    caffe.runtime = dataclasses.replace(
        caffe.runtime, suite="bullseye", mirror=f"copy://{tmp_path}/no-mirror", wheels=[]
    )
    runtime = find_runtime(caffe, tmp_path / "home")
    if runtime.missing():
        pytest.skip(str(runtime.missing()[0]))
    with pytest.raises(RuntimeUnavailable, match=r"framework\.runtime\.mirror=") as caught:
        runtime.install()
    assert "\n" not in str(caught.value)
    assert runtime.log.is_file()
    assert not list((tmp_path / "home" / "runtimes").glob("*.partial-*"))


@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_was_fetched_is_not_fetched_again(tmp_path):
    config = framework(
        "debian", suite="bullseye", interpreter="/usr/bin/python3.9", packages=["python3-minimal"]
    )
    runtime = find_runtime(config, tmp_path)
    if runtime.missing():
        pytest.skip(str(runtime.missing()[0]))
    fractions: list[float | None] = []
    runtime.install(lambda task, fraction: fractions.append(fraction))
    assert fractions == sorted(fractions)
    fetched = {path: path.stat().st_ino for path in runtime.downloads.glob("debs/*.deb")}
    assert len(fetched) == len(runtime.packages())
    runtime.folder.rename(f"{runtime.folder}.partial-0")
    runtime.install()
    assert {path: path.stat().st_ino for path in fetched} == fetched
    assert runtime.verify() == "example 1.0"


@pytest.fixture
def caffe() -> Runtime:
    """The real one, in the user's own cache; installed there by the first test that needs it."""
    runtime = find_runtime(load_framework("caffe"))
    if runtime.missing():
        pytest.skip(str(runtime.missing()[0]))
    ensure_installed(runtime)
    return runtime


@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_caffe_runs_from_an_unpacked_suite(caffe):
    assert caffe.verify().startswith("caffe 1.0.0")
    packages = caffe.packages()
    assert packages["python3-caffe"].startswith("1.0.0")
    assert packages["mkl"] == "2019.0"


@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("blas", load_framework("caffe").blas)
def test_each_blas_of_caffe_is_the_one_that_is_mapped(caffe, blas, folder):
    script = folder / "mapped.py"
    script.write_text("import caffe\nprint(open('/proc/self/maps').read())\n")
    command = caffe.command(script, readable=[], writable=[folder])
    environment = {"PATH": PATH, "HOME": str(folder), **caffe.environment({"blas": blas})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    mapped = {line.split()[-1] for line in done.stdout.splitlines() if "/" in line}
    mapped_blas = {path for path in mapped if "libblas.so" in path or "libmkl_rt" in path}
    (path,) = mapped_blas
    configs = caffe.framework.blas
    assert [name for name in configs if re.search(configs[name].loaded, path)] == [blas]
