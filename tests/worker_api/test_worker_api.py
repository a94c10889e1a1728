"""The lines every worker shares, run for real in the interpreters that are here."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tuner.measure.processes import read_process
from tuner.trials.protocol import EVENTS, EventLog
from tuner.trials.session import WORKER_API
from tuner.trials.worker_folder import WorkerFolder

# processes are started, which takes longer where neighbours take the CPU
pytestmark = [pytest.mark.slow, pytest.mark.timeout(20)]

VERSIONS = ("2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
WORKER = """
import sys
import time
import worker_api

if "missing" in sys.argv:
    with worker_api.importing("caffe"):
        import a_framework_that_is_not_here


def prepare(trial):
    if trial.fault == "impossible":
        raise worker_api.Impossible("batch_size %d is too large" % trial.batch_size)
    done = [0]

    def step(count):
        done[0] += count
        time.sleep(trial.pause)
        if trial.fault == "nan" and done[0] >= 20:
            return float("nan")
        if trial.fault == "explode" and done[0] >= 20:
            return 1e6
        if trial.fault in ("blind", "hard"):
            return 2.303
        if trial.fault == "memory":
            raise MemoryError()
        if trial.fault == "disk":
            raise EnvironmentError(28, "No space left on device")
        if trial.fault == "bug":
            raise KeyError("bug")
        return 1.0 / done[0]

    def evaluate(split):
        if trial.fault == "blind":
            return 0.1
        if trial.fault == "hard":
            return 0.6
        return {"validation": 0.5, "test": 0.25}[split]

    return step, evaluate


worker_api.serve(prepare, chunk=5, framework="1.0")
"""


def find_interpreter(version: str) -> str | None:
    """A Python of this version: pyenv's, or one on PATH that really is of that version."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [*map(str, root.glob(f"{version}.*/bin/python"))]
    candidates.append(shutil.which(f"python{version}") or "")
    for each in filter(None, candidates):
        asked = subprocess.run(
            [each, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
        )
        if asked.returncode == 0 and asked.stdout.strip() == version:
            return each
    return None


@pytest.fixture(params=["2.7", "current"])
def python(request) -> str:
    if request.param == "current":
        return sys.executable
    found = find_interpreter(request.param)
    if found is None:
        pytest.skip(f"no Python {request.param} on this machine")
    return found


@pytest.fixture
def worker(tmp_path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    return path


def make_folder(root: Path, name: str = "trial", **changes: object) -> Path:
    """A trial folder as the host makes it."""
    folder = root / name
    folder.mkdir()
    request = {
        "protocol": 1,
        "iterations": 40,
        "eval_at": "5,10,20,40",
        "batch_size": 64,
        "classes": 10,
        "test": False,
        "validation_count": 100,
        "test_count": 200,
        "fault": "",
        "pause": 0.0,
        **changes,
    }
    (folder / "trial.json").write_text(json.dumps(request))
    return folder


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(WORKER_API), "LANG": "C.UTF-8"}


def train(python: str, worker: Path, *folders: Path, options: tuple[str, ...] = ()):
    """Run the worker on these folders. Returns exit code and what it wrote on stderr."""
    ended = subprocess.run(
        [python, "-B", str(worker), *options],
        input="".join(f"{folder}\n" for folder in folders),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=20,
    )
    return ended.returncode, ended.stderr


def events_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def heard(folder: Path) -> EventLog:
    """What the host makes of the events."""
    text = (folder / EVENTS).read_bytes()
    with WorkerFolder(folder / "copied") as own:
        own.write(EVENTS, text.decode())
        log = EventLog(own)
        while log.read():
            pass
    return log


@pytest.mark.parametrize("version", VERSIONS)
def test_it_compiles_under_every_python(version, tmp_path):
    interpreter = find_interpreter(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} on this machine")
    sources = sorted(WORKER_API.glob("*.py"))
    assert sources
    for source in sources:
        shutil.copy(source, tmp_path)
    for source in sources:
        code = f"compile(open('{source.name}').read(), '{source.name}', 'exec')"
        if source.stem == "worker_api":  # the others need NumPy
            code = "import worker_api as module; assert module.PROTOCOL == 1"
        ended = subprocess.run(
            [interpreter, "-Werror", "-c", code], cwd=tmp_path, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr


def test_a_trial_is_trained_looked_at_and_answered(python, worker, tmp_path):
    # a look is skipped where it would cost more than the training it follows
    folder = make_folder(tmp_path, pause=0.01)
    assert train(python, worker, folder) == (0, "")
    log = heard(folder)
    assert log.ready["framework"] == "1.0"
    assert log.ready["python"].count(".") == 2
    assert log.setup_time_s >= 0
    assert [each.iteration for each in log.checkpoints] == [5, 10, 20, 40]
    assert [each.val_accuracy for each in log.checkpoints] == [0.5] * 4
    assert log.checkpoints[-1].loss == pytest.approx(1 / 40)
    times = [each.train_time_s for each in log.checkpoints]
    assert times == sorted(times)
    assert log.ended
    assert log.result["iteration"] == 40
    assert log.result["val_accuracy"] == 0.5
    assert log.result["test_accuracy"] is None, "the test split is closed unless asked for"
    assert log.result["test_time_s"] >= 0


def test_the_test_split_is_opened_when_asked(python, worker, tmp_path):
    folder = make_folder(tmp_path, test=True)
    assert train(python, worker, folder)[0] == 0
    assert heard(folder).result["test_accuracy"] == 0.25


def test_a_reference_looks_at_both_splits_at_every_mark(python, worker, tmp_path):
    folder = make_folder(tmp_path, test=True, every_mark=True)
    assert train(python, worker, folder) == (0, "")
    log = heard(folder)
    assert [each.iteration for each in log.checkpoints] == [5, 10, 20, 40]
    assert [each.test_accuracy for each in log.checkpoints] == [0.25] * 4


def test_a_probe_is_timed_and_never_looked_at(python, worker, tmp_path):
    folder = make_folder(tmp_path, eval_at="")
    assert train(python, worker, folder) == (0, "")
    log = heard(folder)
    assert log.checkpoints == []
    assert log.ended
    assert log.result["iteration"] == 40
    assert log.result["val_accuracy"] is None
    assert log.result["test_time_s"] == 0
    assert log.train_time_s > 0


def test_events_are_flat_ascii_objects(python, worker, tmp_path):
    folder = make_folder(tmp_path)
    train(python, worker, folder)
    assert (folder / "events.jsonl").read_bytes().isascii()
    for event in events_of(folder):
        assert not any(isinstance(value, list | dict) for value in event.values())


@pytest.mark.parametrize(
    ("fault", "code", "kind", "words"),
    [
        ("nan", 1, "diverged", "loss is nan after 20 iterations"),
        ("explode", 1, "diverged", "loss exploded to 1000000.0 after 20 iterations"),
        ("impossible", 2, "impossible", "batch_size 64 is too large"),
        ("memory", 1, "out_of_memory", "out of memory"),
        ("disk", 1, "disk_full", "No space left"),
    ],
)
def test_what_goes_wrong_is_said_and_ends_the_worker(
    python, worker, tmp_path, fault, code, kind, words
):
    folder, never = make_folder(tmp_path, fault=fault), make_folder(tmp_path, "next")
    assert train(python, worker, folder, never) == (code, "")
    log = heard(folder)
    assert log.error["kind"] == kind
    assert words in log.error["message"]
    assert log.result is None
    assert not (never / "events.jsonl").exists()


def test_a_loss_that_stays_at_guessing_is_divergence(worker, tmp_path):
    folder = make_folder(tmp_path, fault="blind", iterations=400, eval_at="50,100,200,400")
    assert train(sys.executable, worker, folder)[0] == 1
    log = heard(folder)
    # a busy machine looks less often
    assert re.search(r"no better than guessing after [24]00 iterations", log.error["message"])
    assert [each.iteration for each in log.checkpoints] == [50, 100, 200]


def test_a_little_better_than_guessing_between_two_classes_is_learning(worker, tmp_path):
    folder = make_folder(tmp_path, fault="hard", classes=2, iterations=400, eval_at="200,400")
    assert train(sys.executable, worker, folder)[0] == 0
    assert heard(folder).result["val_accuracy"] == 0.6


def test_a_bug_of_the_worker_is_a_traceback(worker, tmp_path):
    code, words = train(sys.executable, worker, make_folder(tmp_path, fault="bug"))
    assert code == 1
    assert "KeyError: 'bug'" in words


def test_another_protocol_is_impossible(python, worker, tmp_path):
    folder = make_folder(tmp_path, protocol=99)
    assert train(python, worker, folder) == (2, "")
    assert heard(folder).error["message"] == "protocol 99, this worker speaks 1"


def test_a_missing_framework_ends_with_3_and_its_name(python, worker, tmp_path):
    code, words = train(python, worker, make_folder(tmp_path), options=("missing",))
    assert code == 3
    assert words.startswith("caffe cannot be imported: ")
    assert len(words.splitlines()) == 1


def test_two_trials_in_one_session_are_kept_apart(python, worker, tmp_path):
    one = make_folder(tmp_path, "one")
    two = make_folder(tmp_path, "two", iterations=10, eval_at="10", test=True)
    assert train(python, worker, one, two) == (0, "")
    first, second = heard(one), heard(two)
    assert (first.result["iteration"], second.result["iteration"]) == (40, 10)
    assert first.result["test_accuracy"] is None
    assert second.result["test_accuracy"] == 0.25
    assert [each.iteration for each in second.checkpoints] == [10]


def test_only_the_first_trial_of_a_session_pays_for_the_imports(worker, tmp_path):
    late = "clock = worker_api.clock\nworker_api.clock = lambda: clock() + 100\nworker_api.serve("
    worker.write_text(WORKER.replace("worker_api.serve(", late))
    folders = make_folder(tmp_path, "one"), make_folder(tmp_path, "two")
    assert train(sys.executable, worker, *folders) == (0, "")
    first, second = map(heard, folders)
    assert first.setup_time_s > 100 > second.setup_time_s


WAITING = """
import sys

stdin, clock, waited = sys.stdin, worker_api.clock, []


class Waiting:
    def readline(self):
        waited.append(100)
        return stdin.readline()


sys.stdin = Waiting()
worker_api.clock = lambda: clock() + sum(waited)
worker_api.serve("""


def test_the_wait_for_a_further_trial_is_no_part_of_its_set_up(python, worker, tmp_path):
    worker.write_text(WORKER.replace("worker_api.serve(", WAITING))
    folders = make_folder(tmp_path, "one"), make_folder(tmp_path, "two")
    assert train(python, worker, *folders) == (0, "")
    assert heard(folders[1]).setup_time_s < 100


def test_no_trial_is_no_fault(python, worker):
    assert train(python, worker) == (0, "")


def test_a_stop_file_ends_the_training_with_a_valid_result(python, worker, tmp_path):
    folder = make_folder(tmp_path, iterations=100_000, eval_at="100000", pause=0.01)
    process = subprocess.Popen(
        [python, "-B", str(worker)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
    )
    try:
        process.stdin.write(f"{folder}\n".encode())
        process.stdin.flush()
        while not (folder / "events.jsonl").exists():
            time.sleep(0.01)
        (folder / "stop").touch()
        words, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, words) == (0, b"")
    log = heard(folder)
    assert 0 < log.result["iteration"] < 1000
    assert log.result["val_accuracy"] == 0.5
    assert log.checkpoints[-1].iteration == log.iteration == log.result["iteration"]
    assert log.ended


def test_a_long_training_gives_signs_of_life(worker, tmp_path):
    folder = make_folder(tmp_path, iterations=12, eval_at="12", pause=0.1)
    assert train(sys.executable, worker, folder)[0] == 0
    signs = [event for event in events_of(folder) if event["event"] == "progress"]
    assert signs
    assert all(0 < sign["iteration"] < 12 and sign["train_time_s"] > 0 for sign in signs)


def test_training_time_leaves_evaluation_out(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import worker_api\n"
        "now = [worker_api.clock()]\n"
        "worker_api.clock = lambda: now[0]\n"
        "def spend(seconds, answer):\n"
        "    now[0] += seconds\n"
        "    return answer\n"
        "def prepare(trial):\n"
        "    tools = lambda count: spend(count, 1.0), lambda split: spend(40.0, 0.5)\n"
        "    return spend(30.0, tools)\n"
        "worker_api.serve(prepare)\n"
    )
    folder = make_folder(tmp_path, iterations=20, eval_at="20")
    assert train(sys.executable, worker, folder) == (0, "")
    log = heard(folder)
    assert log.train_time_s == pytest.approx(20.0)
    assert log.setup_time_s == pytest.approx(30.0, abs=5.0)
    # the test split is twice the validation split, so its time is reckoned as twice as long
    assert log.result["test_time_s"] == pytest.approx(80.0)


def test_evaluation_on_the_way_costs_no_more_than_training(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import time, worker_api\n"
        "def prepare(trial):\n"
        "    return lambda count: 1.0, lambda split: time.sleep(0.2) or 0.5\n"
        "worker_api.serve(prepare)\n"
    )
    folder = make_folder(tmp_path)
    assert train(sys.executable, worker, folder)[0] == 0
    # the first costs nothing that is known before; the others are skipped but for the last
    assert [each.iteration for each in heard(folder).checkpoints] == [5, 40]


@pytest.mark.parametrize(
    ("shape", "code", "values"),
    [((3,), 8, b"\x01\x02\x03"), ((2, 2, 2), 8, bytes(range(8))), ((1, 2), 13, b"\0" * 8)],
)
def test_idx_files_are_mapped(python, tmp_path, shape, code, values):
    path = tmp_path / "data.idx"
    header = struct.pack(f">xxBB{len(shape)}I", code, len(shape), *shape)
    path.write_bytes(header + values)
    script = (
        "import json, sys, worker_api\n"
        "shape, code, data, offset = worker_api.read_idx(sys.argv[1])\n"
        "values = [each for each in bytearray(data[offset:])]\n"
        "print(json.dumps([list(shape), code, values]))\n"
    )
    ended = subprocess.run(
        [python, "-B", "-c", script, str(path)], capture_output=True, env=environment(), check=True
    )
    assert json.loads(ended.stdout) == [list(shape), code, list(values)]


def test_real_data_are_read_as_the_host_wrote_them(digits):
    script = (
        "import json, sys, worker_api\n"
        "print(json.dumps([worker_api.read_idx(path)[0] for path in sys.argv[1:]]))\n"
    )
    paths = [str(digits.images("test")), str(digits.labels("test"))]
    ended = subprocess.run(
        [sys.executable, "-c", script, *paths], capture_output=True, env=environment(), check=True
    )
    count = digits.sizes["test"]
    assert json.loads(ended.stdout) == [[count, 28, 28], [count]]


JUDGE = """
import time
import numpy
import worker_api
import worker_data


def prepare(trial):
    def predict(images):
        time.sleep(0.2)
        return numpy.eye(2)[numpy.zeros(len(images), int)]

    def evaluate(split):
        return worker_data.accuracy(predict, numpy.zeros(40), numpy.zeros(40), batch=5)

    return lambda count: 0.5, evaluate


worker_api.serve(prepare, framework="1.0")
"""


def test_a_network_that_is_long_judged_gives_signs_of_life(tmp_path):
    """Of the same iterations, before and after the end of training."""
    script = tmp_path / "judge.py"
    script.write_text(JUDGE)
    folder = make_folder(tmp_path, eval_at="40", test=True, workers=1, rank=0)
    done = subprocess.run(
        [sys.executable, str(script)],
        input=f"{folder}\n",
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(WORKER_API)},
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    names = [each["event"] for each in events]
    assert names.index("progress") < names.index("checkpoint")
    assert "progress" in names[names.index("train_end") :]
    assert {each["iteration"] for each in events if each["event"] == "progress"} == {40}
    assert events[-1]["val_accuracy"] == events[-1]["test_accuracy"] == 1


GROUP = """
import os
import sys
import time
import worker_api
import worker_group

with worker_api.importing("nothing"):
    worker_group.help_with("server", ROLE="server")
    sys.stdout.write("%d\\n" % os.getpid())
    sys.stdout.flush()
    time.sleep(60)  # hears nothing of its stdin
"""


def test_a_group_and_its_helpers_end_with_the_first(python, tmp_path):
    script = tmp_path / "group.py"
    script.write_text(GROUP)
    first = subprocess.Popen(
        [python, "-B", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment() | {"TUNER_WORKERS": "3"},
    )
    with first:
        pids = {int(first.stdout.readline()) for _ in range(4)}
        others = pids - {first.pid}
        assert all(map(read_process, pids))
        first.kill()
        first.wait()
        deadline = time.monotonic() + 10
        while any(map(read_process, others)) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(others) == 3
    assert not any(map(read_process, others))
