"""One run of a program: what is measured, how misbehaviour ends, what it may touch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tuner.config.schema import MeasureConfig
from tuner.measure import marked_processes, parse_cores
from tuner.values.errors import ConfigError
from tuner.values.trial import Trial, TrialResult, TrialStatus
from tuner.wrap import limits
from tuner.wrap.aim import Aim
from tuner.wrap.goal import Goal
from tuner.wrap.hope import Hope
from tuner.wrap.knobs import parse_knob
from tuner.wrap.objective import Objective
from tuner.wrap.program import Program
from tuner.wrap.run import Runner
from tuner.wrap.window import Window

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
REPORTER = Path(__file__).parents[2] / "tuner_report" / "tuner_report.py"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "a program, its folder"
    made.mkdir()
    return made


def make(folder: Path, source: str, **options) -> Program:
    (folder / "train.py").write_text(textwrap.dedent(source))
    return Program((sys.executable, "train.py"), folder, **options)


def runner(folder: Path, program: Program, **options) -> Runner:
    options = {"memory_limit_bytes": 2**30, **options}
    return Runner(
        program, folder.parent / "runs", f"test-{os.getpid()}", parse_cores(""),
        limits=MeasureConfig(max_foreign_pct=100, max_steal_pct=100), **options,
    )  # fmt: skip


def run(folder: Path, source: str, aim: Aim | None = None, objective=Objective.TIME, **options):
    program = make(folder, source, **options)
    try:
        return runner(folder, program, objective=objective).run(
            Trial(0, {}), aim or Aim(time_limit_s=30)
        )
    finally:
        assert marked_processes(f"test-{os.getpid()}/") == []


def test_a_whole_run_is_timed_from_start_to_end(folder):
    result, seen = run(
        folder, "import time; x = sum(range(10**7)); time.sleep(0.3); print('done')"
    )
    assert result.status is TrialStatus.COMPLETE
    measured = result.measurement
    assert 0.3 < measured.train_time_s == measured.wall_time_s
    assert measured.cpu_user_s > 0.05
    assert (seen.window, seen.source) == (None, "")
    assert any(each.endswith("libc.so.6") for each in seen.mapped)


STEPS = """
    import sys, time
    sys.path.insert(0, {reporter!r})
    import tuner_report
    step = 0
    while tuner_report.report(step=step, samples=8 * step):
        time.sleep(0.01)
        step += 1
    print("asked to stop")
"""


def reporting() -> str:
    return STEPS.format(reporter=str(REPORTER.parent))


def test_a_program_that_reports_is_cut_short_and_asked_to_stop(folder):
    program = {"readable": (REPORTER.parent,)}
    result, seen = run(folder, reporting(), Aim(measured_s=0.5, time_limit_s=30), **program)
    assert result.status is TrialStatus.COMPLETE, result.reason
    assert seen.source == "reports"
    assert seen.window.steps >= 5
    assert 0.5 <= result.measurement.train_time_s < 5
    assert "asked to stop" in (folder.parent / "runs/search-0000/log.txt").read_text()


def test_a_slower_run_is_given_up(folder):
    aim = Aim(Window(10, 10**6), beaten=1.0, time_limit_s=30)
    result, _ = run(folder, reporting(), aim, readable=(REPORTER.parent,))
    assert (result.status, result.reason) == (
        TrialStatus.STOPPED, "slower than the best so far",
    )  # fmt: skip
    assert result.measurement.wall_time_s < 20


def test_a_whole_run_that_is_slower_is_given_up(folder):
    result, _ = run(folder, "import time; time.sleep(50)", Aim(beaten=0.5))
    assert (result.status, result.reason) == (
        TrialStatus.STOPPED, "slower than the best so far",
    )  # fmt: skip
    assert result.measurement.wall_time_s < 20


def test_steps_are_found_in_the_output(folder):
    source = "import time\nfor i in range(10**6):\n    print('step', i)\n    time.sleep(0.01)"
    result, seen = run(folder, source, Aim(measured_s=0.5, time_limit_s=30), step=r"(?m)^step")
    assert (result.status, seen.source) == (TrialStatus.COMPLETE, "output")


def test_steps_are_counted_by_a_hook_without_a_line_changed(folder):
    """scikit-learn, of which the tuner itself has a copy."""
    source = """
        from sklearn.datasets import load_digits
        from sklearn.neural_network import MLPClassifier
        x, y = load_digits(return_X_y=True)
        MLPClassifier(batch_size=32, max_iter=10**6, n_iter_no_change=10**6).fit(x, y)
    """
    result, seen = run(folder, source, Aim(measured_s=0.5, time_limit_s=50))
    assert result.status is TrialStatus.COMPLETE, (result.reason, result.log_tail)
    assert seen.source == "hook scikit-learn"
    assert any("openblas" in each for each in seen.mapped)


def test_the_hook_hides_no_sitecustomize_of_the_user(folder, monkeypatch):
    (folder / "sitecustomize.py").write_text("import builtins; builtins.MINE = 1")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    result, _ = run(folder, "import sys; assert MINE; assert 'injected' not in str(sys.path)")
    assert result.status is TrialStatus.COMPLETE, result.log_tail


COUNTS = """
    import os, time
    for step in range({steps}):
        with open(os.environ["TUNER_REPORT"], "a") as out:
            out.write('{{"v": 1, "step": %d, "t": %f}}\\n' % (step, time.monotonic()))
        time.sleep(0.05)
    print("accuracy 0.875", end="")
"""


def test_a_run_that_ends_before_the_steps_to_be_measured_counts_for_nothing(folder):
    result, _ = run(folder, COUNTS.format(steps=30), Aim(Window(10, 60), time_limit_s=30))
    assert (result.status, result.reason) == (
        TrialStatus.INVALID, "it ended after 29 steps, before the 60 to be measured",
    )  # fmt: skip


def test_a_short_program_is_measured_by_the_first_part_of_its_steps(folder):
    result, seen = run(folder, COUNTS.format(steps=60), Aim(measured_s=50, time_limit_s=30))
    assert result.status is TrialStatus.COMPLETE
    assert seen.window.last < 59 < 1.5 * seen.window.last
    assert 0.5 < result.measurement.train_time_s < result.measurement.wall_time_s


def test_steps_are_timed_in_a_whole_run_whose_accuracy_is_read(folder):
    aim = Aim(measured_s=0.5, whole=True, time_limit_s=30)
    metric = r"accuracy (?P<accuracy>\S+)"
    result, seen = run(folder, COUNTS.format(steps=60), aim, metric=metric)
    assert (result.status, result.val_accuracy) == (TrialStatus.COMPLETE, 0.875)
    assert seen.window.steps < 50
    assert result.measurement.train_time_s < 2 < result.measurement.wall_time_s


FORKS = """
    import os, time
    block = bytearray(40 * 2**20)
    for _ in range(3):
        os.fork()  # 8 processes, whose blocks of 100 MiB are their own
    more = bytearray(60 * 2**20)
    time.sleep({seconds})
"""


def test_the_peak_of_all_processes_counts_where_memory_is_minimised(folder):
    result, _ = run(folder, FORKS.format(seconds=3), objective=Objective.MEMORY)
    assert result.status is TrialStatus.COMPLETE, result.log_tail
    assert 400 < result.measurement.peak_memory_bytes / 2**20 < 1000


def test_memory_that_processes_share_counts_once_towards_the_limit(folder):
    source = """
        import os, time
        block = bytearray(300 * 2**20)
        for _ in range(3):
            os.fork()  # 8 processes, of 2.4 GiB if each counted the block
        time.sleep(2)
    """
    result, _ = run(folder, source)
    assert result.status is TrialStatus.COMPLETE, result.reason


def test_a_run_ends_once_its_peak_is_above_the_best(folder):
    aim = Aim(whole=True, beaten=300 * 2**20, time_limit_s=30)
    result, _ = run(folder, FORKS.format(seconds=50), aim, Objective.MEMORY)
    assert (result.status, result.reason) == (
        TrialStatus.STOPPED, "uses more memory than the best so far",
    )  # fmt: skip
    assert result.measurement.peak_memory_bytes > 300 * 2**20


def test_memory_is_not_measured_in_steps_by_a_run_that_is_over(folder):
    source = COUNTS.format(steps=60)
    aim = Aim(measured_s=30, time_limit_s=50)
    _, seen = run(folder, source, aim, Objective.MEMORY)
    assert seen.window is None, "a run that ends with the window may have a lower peak"
    assert run(folder, source, aim)[1].window is not None


BURNS = """
    import time
    for step in range(1000):
        print("step", flush=True)
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        time.sleep(0.03)
"""


def test_the_cpu_time_of_steady_steps_is_measured_apart(folder):
    aim = Aim(measured_s=1.0, time_limit_s=50)
    result, seen = run(folder, BURNS, aim, Objective.CPU, step="^step")
    assert result.status is TrialStatus.COMPLETE, result.reason
    used = result.measurement.train_cpu_s / seen.window.steps
    assert 0.015 < used < 0.035
    assert result.measurement.train_cpu_s < result.measurement.train_time_s


def test_steps_that_are_told_at_once_leave_the_whole_run_to_be_measured(folder):
    source = "import time\nwhile time.process_time() < 1: pass\nprint('step\\n' * 60)"
    aim = Aim(measured_s=0.2, time_limit_s=50)
    result, seen = run(folder, source, aim, Objective.CPU, step="^step")
    assert (result.status, seen.window) == (TrialStatus.COMPLETE, None)
    assert 0.5 < result.measurement.train_cpu_s < 2


def test_a_run_ends_once_its_curve_is_hopeless_and_keeps_what_it_showed(folder):
    source = """
        import time
        for epoch in range(1000):
            print("accuracy", 0.1, flush=True)
            time.sleep(0.1)
    """
    best = [(float(each), each / 20) for each in range(1, 20)]
    aim = Aim(whole=True, time_limit_s=50, hope=Hope(Goal(), 0.9, best, 20.0))
    result, _ = run(folder, source, aim, metric=r"accuracy (?P<accuracy>\S+)")
    assert (result.status, result.reason) == (
        TrialStatus.STOPPED, "its curve falls short of what the program reaches",
    )  # fmt: skip
    assert result.val_accuracy == 0.1
    assert {figure for _, figure in result.curve} == {0.1}
    assert len(result.curve) >= 4
    assert TrialResult.from_json(result.to_json()) == result


HANG = "import time\ntime.sleep(1000)"


@pytest.mark.parametrize(
    ("source", "status", "reason"),
    [
        ("raise ValueError('broken')", TrialStatus.CRASHED, "exit code 1"),
        ("import os; os.abort()", TrialStatus.CRASHED, "Aborted"),
        ("import os; os.kill(os.getpid(), 9)", TrialStatus.OUT_OF_MEMORY, "killed"),
        (HANG, TrialStatus.STALLED, "no output, step or work for 2 s"),
        (f"import signal\nsignal.signal(15, signal.SIG_IGN)\n{HANG}", TrialStatus.STALLED, "work"),
        (
            f"import os\nfor _ in range(5):\n    os.fork() or os.setsid()\n{HANG}",
            TrialStatus.STALLED,
            "no output",
        ),
        ("while True: print('x' * 10**6)", TrialStatus.OVER_LIMIT, "wrote more than 16 MiB"),
        ("x = bytearray(2 * 2**30)\n" + HANG, TrialStatus.OUT_OF_MEMORY, "1,024 MiB"),
        (
            "import os\nopen(os.environ['TUNER_REPORT'], 'w').write('garbage\\n')\n" + HANG,
            TrialStatus.INVALID,
            "line 1 of TUNER_REPORT is no report: 'garbage'",
        ),
        (
            "import os\nf = open(os.environ['TUNER_REPORT'], 'w')\n"
            'f.write(\'{"v": 1, "step": 2}\\n{"v": 1, "step": 1}\\n\')\nf.close()\n' + HANG,
            TrialStatus.INVALID,
            "reported after step 2",
        ),
        (
            "import os\nf = open(os.environ['TUNER_REPORT'], 'w')\n"
            'f.write(\'{"v": 1, "metrics": {"accuracy": NaN}}\\n\')\nf.close()\n' + HANG,
            TrialStatus.DIVERGED,
            "the accuracy is nan",
        ),
        (
            "import os\nos.symlink('/etc/passwd', os.environ['TUNER_REPORT'])\n" + HANG,
            TrialStatus.INVALID,
            "cannot be used as a file",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, TrialStatus) else None,
)
def test_misbehaviour_ends_by_name_and_leaves_nothing_alive(
    folder, monkeypatch, source, status, reason
):
    monkeypatch.setattr(limits, "_HUNG_S", 2.0)
    monkeypatch.setattr(limits, "MAX_OUTPUT_BYTES", 16 * 2**20)
    result, _ = run(folder, source)
    assert result.status is status, (result.reason, result.log_tail)
    assert reason in result.reason
    if status is TrialStatus.CRASHED and "broken" in source:
        assert "ValueError: broken" in result.log_tail


def test_a_program_that_prints_a_line_now_and_then_is_not_hung(folder, monkeypatch):
    monkeypatch.setattr(limits, "_HUNG_S", 1.5)
    source = "import time\nfor _ in range(10):\n    print('x', flush=True)\n    time.sleep(0.5)"
    result, _ = run(folder, source)
    assert result.status is TrialStatus.COMPLETE, result.reason


def test_what_a_program_writes_is_discarded(folder):
    (folder / "data.txt").write_text("mine")
    result, _ = run(
        folder,
        """
        from pathlib import Path
        assert Path("data.txt").read_text() == "mine"
        Path("data.txt").write_text("changed"); Path("model.pt").write_bytes(b"x")
        assert Path("data.txt").read_text() == "changed"
        (Path.home() / "cache").mkdir()
        """,
    )
    assert result.status is TrialStatus.COMPLETE, result.log_tail
    assert sorted(each.name for each in folder.iterdir()) == ["data.txt", "train.py"]
    assert (folder / "data.txt").read_text() == "mine"


def test_a_program_sees_its_folder_and_what_it_is_allowed(folder, tmp_path):
    for name in ("secret", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    source = f"""
        import os, socket
        assert not os.path.exists({str(tmp_path / "secret")!r})
        assert open({str(tmp_path / "data" / "file")!r}).read() == "data"
        open({str(tmp_path / "data" / "new")!r}, "w").write("discarded")
        assert [name for _, name in socket.if_nameindex()] == ["lo"]
        assert not [name for name in os.environ if name.startswith("MLFLOW_")]
    """
    os.environ["MLFLOW_TRACKING_PASSWORD"] = "x"
    try:
        result, _ = run(folder, source, readable=(tmp_path / "data",))
    finally:
        del os.environ["MLFLOW_TRACKING_PASSWORD"]
    assert result.status is TrialStatus.COMPLETE, result.log_tail
    assert [each.name for each in (tmp_path / "data").iterdir()] == ["file"]


def test_without_a_sandbox_it_writes_to_its_own_folder(folder):
    result, _ = run(folder, "open('model.pt', 'w')", confined=False)
    assert result.status is TrialStatus.COMPLETE, result.log_tail
    assert (folder / "model.pt").exists()


def test_a_library_that_is_not_loaded_first_counts_for_nothing(folder):
    starts = runner(folder, Program(("sleep", "0.5"), folder))
    preload = parse_knob("LD_PRELOAD=/lib/libnothing.so")
    starts.knobs = [preload]
    result, _ = starts.run(Trial(2, {"LD_PRELOAD": "/lib/libnothing.so"}), Aim(time_limit_s=30))
    assert (result.status, result.reason) == (
        TrialStatus.INVALID, "libnothing.so was not loaded",
    )  # fmt: skip


def test_the_tuner_that_is_killed_takes_the_program_along(folder, tmp_path):
    program = make(folder, HANG, confined=False)
    code = f"""
        from tests.wrap.test_run import *
        runner(Path({str(folder)!r}), make(Path({str(folder)!r}), HANG, confined=False)).run(
            Trial(0, {{}}), Aim())
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    marker = f"test-{process.pid}/"
    deadline = time.monotonic() + 40
    while not marked_processes(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked_processes(marker), program
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while marked_processes(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked_processes(marker) == []


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        (Program(("no-such-command",), Path("/usr")), "no-such-command was not found"),
        (Program(("./train",), Path("/usr")), "./train was not found"),
        (Program(("true",), Path.home()), "holds all your files"),
        (Program(("true",), Path("/")), "holds all your files"),
        (
            Program(("true",), Path("/usr"), readable=(Path("/no/such/data"),)),
            "--allow-read /no/such/data: there is no such",
        ),
    ],
)
def test_a_program_that_cannot_be_run_is_refused_in_one_line(program, fault):
    with pytest.raises(ConfigError, match=fault):
        program.check()


def test_the_reporter_is_silent_when_not_wrapped(tmp_path):
    code = f"import sys; sys.path.insert(0, {str(REPORTER.parent)!r}); import tuner_report as t\n"
    code += "assert t.report(step=1, accuracy=0.5) is True"
    environment = {name: value for name, value in os.environ.items() if name != "TUNER_REPORT"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_reporter_writes_what_its_page_says(tmp_path):
    path = tmp_path / "report.jsonl"
    code = f"import sys; sys.path.insert(0, {str(REPORTER.parent)!r}); import tuner_report as t\n"
    code += "assert t.report(step=4, samples=256, split='val', accuracy=0.97)\n"
    code += f"open({str(tmp_path / 'stop')!r}, 'w').close()\nassert t.report(step=5) is False"
    environment = {**os.environ, "TUNER_REPORT": str(path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    first, second = map(json.loads, path.read_text().splitlines())
    assert first.pop("t") <= second.pop("t")
    assert first.pop("pid") == second.pop("pid")
    expected = {"v": 1, "step": 4, "samples": 256, "split": "val", "metrics": {"accuracy": 0.97}}
    assert (first, second) == (expected, {"v": 1, "step": 5})
