"""A study of a program, from the command to the report: proven, resumed, refused."""

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

from tests.command import Done, fixture_tuner  # noqa: F401 - a fixture
from tuner.tracking import connect
from tuner.wrap import knobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

# waits instead of computing, so that other load changes little
PROGRAM = """
    import json, os, sys, time
    wait = {"fast": 0.02, "slow": 0.15}.get(os.environ.get("SPEED"), 0.1)
    report = os.environ.get("TUNER_REPORT")
    stop = os.path.join(os.path.dirname(report), "stop")
    steps = 20 if "short" in sys.argv else 10**6
    for step in range(steps):
        if os.path.exists(stop):
            break
        time.sleep(wait)
        if "short" not in sys.argv:
            with open(report, "a") as out:
                out.write(json.dumps({"v": 1, "step": step, "t": time.monotonic()}) + "\\n")
    print("accuracy", 0.97)
"""
KNOB = ("--knob", "SPEED=slow,fast", "--without", "allocator")


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "program"
    made.mkdir()
    (made / "train.py").write_text(textwrap.dedent(PROGRAM))
    return made


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tuner", "wrap", "--progress", "none", *words]


def environment(folder: Path) -> dict[str, str]:
    home = folder.parent / "home"
    return {**os.environ, "TUNER_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def wrap(tuner, folder):
    def run(*words: str) -> Done:
        return tuner(
            "wrap", "--progress", "none", "--output", str(folder.parent), *words, cwd=folder
        )

    return run


def test_the_fastest_setting_is_found_and_proven_in_steps(folder, tuner, wrap):
    done = wrap("--json", "--budget", "30", *KNOB, "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["proven"] is True
    assert found["environment"] == {"SPEED": "fast"}
    value, low, high = found["speedup"]
    assert 1.5 < low <= value <= high
    assert found["accuracy"] == "speed only; accuracy not checked"
    assert "counted by its own reports" in found["measured"]
    (knob,) = found["knobs"]
    assert (knob["name"], knob["value"]) == ("SPEED", "fast")
    assert sorted(each.name for each in folder.iterdir()) == ["train.py"]

    client = connect(f"sqlite:///{folder.parent}/mlflow.db")
    experiment = client.get_experiment_by_name("programs")
    runs = client.search_runs([experiment.experiment_id])
    (study,) = [each for each in runs if each.data.tags.get("kind") == "study"]
    assert study.info.status == "FINISHED"
    assert study.data.metrics["speedup"] == found["speedup"][0]
    assert study.data.tags["environment.SPEED"] == "fast"
    assert "times" in study.data.tags["mlflow.note.content"]
    assert len(runs) == 1 + len(found["runs"])
    assert {each.path for each in client.list_artifacts(study.info.run_id)} == {
        "wrap.json", "report.txt",
    }  # fmt: skip

    told = tuner("recommend", "program=train.py", "format=env")
    assert "SPEED=fast\n" in told.stdout, told.stderr
    assert f"TUNER_EVIDENCE={study.info.run_id}\n" in told.stdout

    again = wrap("--json", "--budget", "30", *KNOB, "--", sys.executable, "train.py")
    assert again.returncode == 0, again.stderr
    repeated = json.loads(again.stdout)
    assert {**repeated, "elapsed_s": 0} == {**found, "elapsed_s": 0}


@pytest.mark.usefixtures("few_pairs")
def test_whole_runs_show_whether_accuracy_is_kept(folder, wrap):
    metric = ("--metric", r"accuracy (?P<accuracy>\S+)")
    words = (*metric, *KNOB, "--budget", "40")
    done = wrap(*words, "--", sys.executable, "train.py", "short")
    assert done.returncode == 0, done.stderr
    assert "Accuracy 97.00 % against 97.00 %, the same in every run" in done.stdout
    assert "SPEED=fast" in done.stdout
    assert "the wall time of whole runs" in done.stdout


ALLOCATES = """
    import argparse, os, random, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    size = 100 if os.environ.get("SIZE") == "small" else 300
    block = bytearray((size + options.rows) * 2**20)
    time.sleep(1.2 if size == 100 else 0.6)
    random.seed(options.seed)
    print("accuracy", (0.9 if options.rows >= 50 else 0.5) + random.gauss(0, 1e-4))
"""
MEMORY = ("--objective", "memory", "--knob", "SIZE=small,large", "--without", "allocator")


@pytest.mark.usefixtures("few_pairs")
def test_memory_is_minimised_by_setting_and_params(folder, tuner, wrap):
    (folder / "train.py").write_text(textwrap.dedent(ALLOCATES))
    command = (sys.executable, "train.py", "--rows={rows}", "--seed", "{seed}")
    metric = ("--metric", r"accuracy (?P<accuracy>\S+)")
    ranges = ("--rows", "choice(1, 100, 800)")
    done = wrap("--json", *MEMORY, *metric, *ranges, "--budget", "300", "--", *command)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["objective"], found["proven"]) == ("memory", True)
    assert (found["environment"]["SIZE"], found["params"]) == ("small", {"rows": 100})
    assert 2.5 < found["gain"][1] <= found["gain"][2] < 4.5, "about 700 MiB, and 200"
    assert "no loss is proven" in found["accuracy"]
    reasons = {each["reason"] for each in found["runs"] if each["status"] == "STOPPED"}
    assert reasons == {"uses more memory than the best so far"}

    asked = ("recommend", "program=train.py")
    refused = tuner(*asked)
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "one is proven to use less memory: objective=memory" in refused.stderr
    told = json.loads(tuner(*asked, "objective=memory", "format=json").stdout)
    assert told["gain"]["value"] == found["gain"][0]
    assert told["speedup"]["value"] == found["speedup"][0]


@pytest.mark.usefixtures("few_pairs")
def test_a_study_that_was_killed_resumes(folder, wrap):
    words = ["--output", str(folder.parent), "--budget", "30", *KNOB]
    words += ["--", sys.executable, "train.py"]
    first = subprocess.Popen(command(*words), cwd=folder, env=environment(folder))
    trials = folder.parent / "home" / "studies"
    deadline = time.monotonic() + 300
    while len(list(trials.glob("*/trials/*/result.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = {path: path.read_bytes() for path in trials.glob("*/trials/*/result.json")}
    assert len(before) >= 2
    done = wrap("--budget", "30", *KNOB, "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert "SPEED=fast" in done.stdout
    assert {path: path.read_bytes() for path in before} == before


def test_other_values_to_choose_from_make_another_study(wrap, monkeypatch):
    ids = set()
    for value in ("1", "0"):
        entries = [{"name": "x", "libraries": "libc", "values": {"on": {"X": value}}}]
        monkeypatch.setattr(knobs, "_entries", lambda entries=entries: entries)
        done = wrap("--json", "--budget", "0.1", "--", "sleep", "0.3")
        ids.add(json.loads(done.stdout)["study_id"])
    assert len(ids) == 2


def test_an_interrupted_study_tells_what_is_kept(folder):
    words = ["--output", str(folder.parent), *KNOB, "--", sys.executable, "train.py"]
    first = subprocess.Popen(
        command(*words), cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True
    )
    trials = folder.parent / "home" / "studies"
    deadline = time.monotonic() + 300
    while not list(trials.glob("*/trials/default-*/result.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=200)
    assert (first.returncode, said.splitlines()) == (
        130, ["interrupted: all measurements are kept; the same command resumes"],
    )  # fmt: skip


TRAINED = """
    import argparse, json, math, os, random, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    for epoch in range(options.epochs):
        time.sleep(0.1 if os.environ.get("SPEED") == "fast" else 0.15)
    told = {"lr": options.lr} if options.lr != 0.01 else None
    if told:
        assert math.isclose(float(os.environ["TUNER_PARAM_LR"]), told["lr"])
        assert math.isclose(json.load(open(os.environ["TUNER_PARAMS"]))["lr"], told["lr"])
    reached = 1 - 0.1 / (options.epochs * options.lr * 10 + 1)
    print("perplexity", 1 / reached + random.gauss(0, 1e-4))
"""
PERPLEXITY = ("--minimize", "perplexity", "--metric", r"perplexity (?P<perplexity>\S+)")
PARAMS = ("--lr", "log(0.001, 0.1)", "--epochs", "int(1, 10)")


def test_params_are_found_that_are_faster_and_lose_nothing(folder, wrap):
    (folder / "train.py").write_text(textwrap.dedent(TRAINED))
    command = (sys.executable, "train.py", "--lr", "{lr}", "--epochs={epochs}", "--seed", "{seed}")
    words = (*PERPLEXITY, *PARAMS, *KNOB, "--budget", "40", "--", *command)
    done = wrap("--json", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["proven"] is True
    assert found["goal"] == "perplexity"
    assert found["speedup"][1] > 1.2
    assert found["params"]["lr"] > 0.01
    assert found["params"]["epochs"] < 10
    assert "no loss is proven" in found["accuracy"]
    first = found["runs"][0]
    assert (first["setting"], first["status"]) == ({}, "COMPLETE")
    assert 1 < first["figures"]["perplexity"] < 1.2
    said = wrap(*words).stdout
    assert "as fast at no loss of perplexity with" in said
    assert f"--lr {found['params']['lr']} --epochs={found['params']['epochs']} --seed" in said


CURVED = """
    import argparse, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.02)
    options = parser.parse_args()
    for epoch in range(1, 31):
        time.sleep(0.1)
        print("accuracy", 1 - 0.9 / (1 + options.lr * epoch))
"""


def test_a_run_whose_curve_falls_short_is_given_up(folder, wrap):
    (folder / "train.py").write_text(textwrap.dedent(CURVED))
    words = ("--lr", "choice(0.00001, 0.00002)", "--metric", r"accuracy (?P<accuracy>\S+)")
    command = (sys.executable, "train.py", "--lr", "{lr}")
    done = wrap("--json", *words, "--without", "allocator", "--budget", "60", "--", *command)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    own, *others = found["runs"]
    assert own["status"] == "COMPLETE"
    assert {each["reason"] for each in others} == {
        "its curve falls short of what the program reaches"
    }
    assert all(each["accuracy"] < 0.2 for each in others), "what they had reached by then"


def test_without_a_better_choice_no_params_are_claimed(folder, wrap):
    (folder / "train.py").write_text(textwrap.dedent(TRAINED))
    command = (sys.executable, "train.py", "--lr", "{lr}", "--seed", "{seed}")
    words = ("--lr", "log(1e-5, 1e-3)", "--without", "allocator", "--budget", "20")
    done = wrap(*PERPLEXITY, *words, "--", *command)
    assert done.returncode == 0, done.stderr
    assert "nothing was found that is faster at no loss of perplexity, among" in done.stdout


SHARED = """
    import argparse, os, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    workers = parser.parse_args().workers
    assert os.environ.get("TUNER_PARAM_WORKERS", "1") == str(workers)
    report = os.environ["TUNER_REPORT"]
    for step in range(10**6):
        time.sleep(0.1 / workers)
        with open(report, "a") as out:
            out.write('{"v": 1, "step": %d, "t": %f}\\n' % (step, time.monotonic()))
"""


@pytest.mark.usefixtures("few_pairs")
def test_workers_are_a_runtime_setting_that_the_command_is_told(folder, tuner, wrap):
    (folder / "train.py").write_text(textwrap.dedent(SHARED))
    command = (sys.executable, "train.py", "--workers", "{workers}")
    words = ("--workers", "choice(1, 2)", "--without", "allocator", "--budget", "30")
    done = wrap("--json", *words, "--", *command)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["proven"], found["environment"], found["params"]) == (True, {}, {"workers": 2})
    assert "counted by its own reports" in found["measured"], "and not by whole runs"
    assert found["command_line"].endswith("train.py --workers 2")
    assert [each["value"] for each in found["knobs"]] == [2]
    told = json.loads(tuner("recommend", "program=train.py", "format=json").stdout)
    assert told["params"] == {"workers": 2}
    assert told["command"] == found["command_line"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--workers", "int(1, 2)", "--", "true"], 2, "param workers affects the time alone"),
        ([], 2, "the program's command is missing; write it after --"),
        (["--"], 2, "the program's command is missing; write it after --"),
        (["python", "train.py"], 2, "the program's command is missing; write it after --"),
        (["--budget", "x", "--", "true"], 2, "argument --budget: invalid float value: 'x'"),
        (["--budget", "-1", "--", "true"], 2, "--budget must be seconds above 0, got -1"),
        (["--budget", "0", "--", "true"], 2, "--budget must be seconds above 0, got 0"),
        (["--budget", "nan", "--", "true"], 2, "--budget must be seconds above 0, got nan"),
        (["--budget", "inf", "--", "true"], 2, "--budget must be seconds above 0, got inf"),
        (["--knob", "X=1", "--knob", "X=2", "--", "true"], 2, "--knob X is given twice"),
        (["--knob", "threads=1", "--", "true"], 2, "or is the name of a knob"),
        (["--nonsense", "--", "true"], 2, "unrecognized argument: --nonsense"),
        (["--a", "int(1, 2)", "--a", "int(1, 3)", "--", "true"], 2, "param a is given twice"),
        (["--margin", "0.5", "--", "true"], 2, "0.005 for half a point; 0.5 are 50 points"),
        (["--step", "a{99999999999}", "--", "true"], 2, "is no regular expression: the rep"),
        (["--lr", "fast", "--", "true"], 2, "unrecognized argument: --lr"),
        (["--lr", "log(1)", "--", "true"], 2, "--lr 'log(1)' is no range"),
        (["--lr", "log(1e-3, 1)", "--", "true", "{lr}"], 2, "write its own value as {lr=VALUE}"),
        (["--lr", "log(1e-3, 1)", "--", "true"], 2, "the program told no accuracy"),
        (["--minimize", "loss", "--", "true"], 2, "the program told no loss"),
        (["--metric", "a(?P<accuracy>.)", "--", "true"], 2, "matches nothing that was printed"),
        (["--minimize", "loss", "--metric", "(?P<x>.)", "--", "true"], 2, "no group named loss"),
        (["--net", "choice(a, b)", "--", "true"], 2, "worse while its params are searched (net)"),
        (["--step", "int(1, 3)", "--", "true"], 2, "--step is an option of its own"),
        (["--threads", "int(1, 3)", "--", "true"], 2, "the param threads has the name of a knob"),
        (["--margin", "0", "--", "true"], 2, "--margin must be a number above 0, got 0"),
        (["--", "true", "a/" * 300], 2, "loads no library of known settings"),
        (["--", "true", "--"], 2, "loads no library of known settings"),
        (
            ["--knob", "X=1", "--knob", "Y=1", "--without", "X", "--without", "Y", "--", "true"],
            2,
            "--without leaves out every knob of the program: X, Y; --knob VARIABLE=",
        ),
        (["--minimize", "a", "--maximize", "b", "--", "true"], 2, "not allowed with argument"),
        (["--margin", "-1", "--", "true"], 2, "--margin must be a number above 0, got -1"),
        (["--metric", "acc", "--", "true"], 2, "has no group named accuracy"),
        (["--step", "(", "--", "true"], 2, "--step '(' is no regular expression"),
        (["--knob", "X", "--", "true"], 2, "--knob 'X' cannot be read"),
        (
            ["--objective", "speed", "--", "true"],
            2,
            "one of time, cpu, memory, got 'speed'",
        ),
        (["--objective", "memory", "--", "true"], 2, "too little to compare its memory"),
        (["--objective", "cpu", "--", "true"], 2, "s of CPU time, too little to compare its CPU"),
        (["--objective", "int(1, 3)", "--", "true"], 2, "--objective is an option of its own"),
        (["--cores", "0-99", "--", "true"], 2, "error: --cores '0-99' names CPUs beyond"),
        (["--allow-read", "/no/such", "--", "true"], 2, "there is no such file or folder"),
        (["--allow-read", "~no-such-user", "--", "true"], 2, "there is no such file or folder"),
        (["--without", "x", "--", "true"], 2, "there is no knob 'x'; choose from"),
        (["--", "no-such-program"], 2, "no-such-program was not found"),
        (["--", "false"], 4, "the program does not run as it is: CRASHED"),
        (["--", "sh", "-c", "echo because; exit 7"], 4, "exit code 7; the end of its output: bec"),
        (["--", "cat", "../x"], 4, "its sandbox shows its own folder and what --allow-read names"),
        (["--", os.fsdecode(b"\xff")], 2, "'\\udcff' is no text in UTF-8"),
    ],
)
def test_a_wrong_command_gets_one_line(wrap, words, code, said):
    done = wrap(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("words", [(), ("--without", "threads")])
def test_a_param_that_changes_the_time_alone_needs_a_name_that_no_knob_has(folder, wrap, words):
    threads = "{type: categorical, choices: [1, 2], affects: time}"
    (folder / "tuner.yaml").write_text(f"params: {{threads: {threads}}}")
    done = wrap(*words, "--", "true")
    assert done.returncode == 2
    said = "error: the param threads has the name of a knob; give it another one\n"
    assert done.stderr == said


def test_a_first_run_that_cannot_be_read_any_more_gets_one_line(folder, home, wrap):
    words = ("--budget", "5", *KNOB, "--", sys.executable, "train.py")
    assert wrap(*words).returncode == 0
    (kept,) = home.glob("studies/*/trials/default-0000/result.json")
    kept.write_text("{}")
    done = wrap(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be read any more; --restart starts over" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_help_is_the_tuners_before_the_command_and_the_programs_after_it(wrap):
    done = wrap("--help")
    assert done.returncode == 0
    assert "--metric REGEX" in done.stdout
    assert "does not run as it is" in wrap("--", "false", "--help").stderr
