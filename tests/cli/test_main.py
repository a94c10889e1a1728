"""The command line as a user types it: one clear line and the right exit code for wrong input."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys

import pytest
import yaml

from tests.command import fixture_tuner  # noqa: F401 - a fixture
from tests.conftest import SYNTHETIC
from tests.cross_samples import make_tree
from tuner.__main__ import main
from tuner.cli.commands import COMMANDS
from tuner.config.composing import prepare_overrides
from tuner.tracking import Tracker, connect, default_tracking_uri

pytestmark = pytest.mark.timeout(30)
TREE = [
    f"framework_path={SYNTHETIC}",
    "framework=synthetic",
    "dataset=digits",
    "search.probe_s=0.0005",  # its clock only reckons, and reported time must really pass
]


@pytest.fixture
def shell(home, tmp_path):
    """The tuner in a process of its own."""

    def run(*words: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "TUNER_HOME": str(home)}
        environment.pop("TUNER_DATA_MIRROR", None)
        return subprocess.run(
            [sys.executable, "-m", "tuner", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["framework=cafe"], 1, r"unknown framework 'cafe'; choose from: .*did you mean caffe"),
        (["budget.tim_s=3"], 1, r"unknown setting 'budget.tim_s' .did you mean budget.time_s"),
        (["--cfg"], 1, "--cfg must be one of job, hydra, all, got ''"),
        (["bogus=3"], 1, r"unknown setting 'bogus'; python -m tuner config lists all"),
        (["constraints=memory"], 2, "constraint 'memory' cannot be read; write name<=number"),
        (["dataset=mnsit"], 1, r"unknown dataset 'mnsit'; choose from: .*did you mean mnist"),
        (["budget=fast"], 1, "unknown budget 'fast'"),
        (["budget.trialz=3"], 1, "trialz"),
        (["budget.trials=abc"], 1, "abc"),
        (["budget.trials=-1"], 2, "budget.trials must be at least 0, got -1"),
        (["budget.time_s=0"], 2, "budget.time_s must be above 0 and finite, got 0"),
        (["objectives=[speed]"], 2, "unknown objective 'speed'"),
        (["constraints=memory<3"], 2, "write name<=number"),
        (["executor.cores=99"], 2, "executor.cores '99'"),
        (["search=joint", "sampler=gp", "budget.time_s=1"], 2, "torch|no default"),
        (["sampler=nsga2"], 2, "sampler=nsga2 is for search=joint"),
        (["search_space.batch_size.low=300", "search_space.batch_size.high=30"], 2, "low <= high"),
        (["search_space.batch=3"], 2, "search_space.batch is not a param"),
        (["model=vg"], 2, "one of default, lenet, alexnet, vgg, resnet50, lstm, got 'vg'"),
        (["framework.runtime.interpreter=no-such-python"], 3, "no-such-python"),
        (["output=/proc/nowhere"], 2, "cannot hold results"),
        (["frobnicate"], 2, "unknown command 'frobnicate'"),
        (["recommend", "speed=3"], 2, "unknown word 'speed=3'"),
        (["recommend", "max_train_time_s=soon"], 2, "must be a number"),
        (["recommend", "cores=1.5"], 2, "cores must be a whole number, got '1.5'"),
        (["recommend", "program=train.py", "cores=2"], 2, "only objective=, format=, output="),
        (["recommend", "bandwidth=fast"], 2, "must be such as 100mbit or 10gbit, got 'fast'"),
        (["recommend", "latency_ms=5"], 2, "latency_ms=5 needs a bandwidth"),
        (["recommend"], 4, "no verified study"),
        (["report"], 4, "no cross-framework study of mnist .* experiment=cross_framework"),
        (["report", "framework=caffe"], 4, "no caffe study of mnist"),
        (["frameworks=[synthetic,cafe]"], 2, r"unknown framework 'cafe'; choose from: .*\[all\]"),
        (["runtimes", "explode"], 2, "unknown action"),
        (["runtimes", "install"], 2, "install needs a name"),
        (["runtimes", "install", "cafe"], 2, "unknown framework 'cafe'"),
        (["datasets", "get", "mnsit"], 2, "mnsit"),
        (["datasets", "remove"], 2, "remove needs a name"),
        (["datasets", "remove", "mnsit"], 2, "unknown dataset 'mnsit'"),
    ],
)
def test_wrong_input_gets_one_line(home, tmp_path, monkeypatch, capsys, words, code, said):
    monkeypatch.chdir(tmp_path)
    tuning = "=" in words[0]
    named = {word.partition("=")[0] for word in words}
    tree = [word for word in TREE if word.partition("=")[0] not in named] if tuning else []
    given = main([*tree, *words])
    out, errors = capsys.readouterr()
    lines = [line for line in errors.splitlines() if not re.match(r"\[ +\d+ s\]", line)]
    assert given == code, errors
    assert len(lines) == 1, errors
    assert lines[0].startswith("error: ")
    assert re.search(said, lines[0])
    assert out == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        "framework=cafe",
        "budget.trials=-1",
        "frobnicate",
        "budget.time_s=${oc.env:HOME}",
        "+fast=1",
    ],
)
def test_wrong_input_gets_one_line_from_a_shell_too(shell, wrong):
    done = shell(wrong)
    assert done.returncode in (1, 2)
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("words", [[], ["help"], ["--help"], ["-h"]])
def test_the_overview_fits_one_screen(capsys, words):
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    starts = {line.split()[0] for line in lines if line.strip()}
    assert set(COMMANDS) <= starts
    assert {"framework=caffe", "dataset=mnist", "budget=default", "resume=auto"} <= starts


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(capsys, name):
    texts = set()
    for words in (["help", name], [name, "--help"], [name, "-h"]):
        assert main(words) == 0
        texts.add(capsys.readouterr().out)
    (text,) = texts
    assert f"tuner {name}" in text.replace("[", "").replace("]", "")


def test_a_setting_before_the_request_for_help_explains_tuning(capsys):
    assert main(["framework=caffe", "--help"]) == 0
    assert "python -m tuner [tune]" in capsys.readouterr().out


@pytest.mark.slow
def test_config_shows_all_settings_with_their_values(tuner):
    shown = tuner("config", "budget.time_s=77", "framework=torch")
    assert shown.returncode == 0
    assert "budget: default, quick, thorough" in shown.stdout
    assert "time_s: 77.0" in shown.stdout
    settings = yaml.safe_load(tuner("config", "--cfg", "job", "seed=9").stdout)
    assert (settings["seed"], settings["framework"]["name"]) == (9, "caffe")


@pytest.mark.slow
def test_a_reader_that_closes_early_is_no_error():
    program = f"set -o pipefail; {sys.executable} -m tuner config | true"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_broken_pipe_is_an_error(monkeypatch, capsys):
    def broken(_name, _words):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("tuner.cli.commands.run_command", broken)
    assert main(["doctor"]) == 2
    assert "Broken pipe" in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_of_mlflow_needs_no_ui_of_ours(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@mlflow:5000")
    monkeypatch.setattr("os.execve", lambda *_: pytest.fail("MLflow was started"))
    assert main(["ui", f"output={tmp_path}"]) == 2
    assert "open http://me:***@mlflow:5000" in capsys.readouterr().err


def test_the_ui_names_the_newest_study_s_experiment(tmp_path, monkeypatch, capsys):
    called = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.execve", lambda _, words, __: called.append(words))
    main(["ui", f"output={tmp_path}"])
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.iterdir())
    uri = default_tracking_uri(tmp_path)
    for name, study in (("older", "1"), ("newer", "2"), ("older", "3")):
        words = {"experiment": name, "study_id": study, "name": study, "params": {}}
        Tracker(uri, tmp_path, tags={"fingerprint": "x"}, **words)
    newest = connect(uri).get_experiment_by_name("older").experiment_id
    main(["ui", f"output={tmp_path}", "port=5001"])
    assert capsys.readouterr().out == (
        "the newest study's experiment: "
        f"http://127.0.0.1:5001/#/experiments/{newest}?workflowType=machine_learning\n"
    )
    assert "5001" in called[-1]


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.match(r"tuner \d", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_study_leaves_nothing_but_mlflow_behind_and_can_be_asked(tuner, tmp_path):
    done = tuner(*TREE, "budget.time_s=30", "budget.trials=4", "measure.max_foreign_pct=100")
    assert done.returncode == 0, done.stderr
    assert "default" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"home", "mlflow.db", "mlruns"}

    asked = ["framework=synthetic", "dataset=digits", f"framework_path={SYNTHETIC}"]
    found = tuner("recommend", *asked, "min_accuracy=0.5")
    assert found.returncode == 0, found.stderr
    assert "&id" not in found.stdout, "every value in full"
    answer = yaml.safe_load(found.stdout)
    assert answer["measured"]["test_accuracy"]["value"] >= 0.5
    assert answer["evidence"]["run_ids"]
    assert set(answer["params"]) >= {"batch_size", "blas", "threads"}

    refused = tuner("recommend", *asked, "min_accuracy=0.9999999")
    assert refused.returncode == 4
    assert "min_accuracy" in refused.stderr
    copied = tuner("report", "framework=synthetic", "dataset=digits", "to=here")
    assert copied.returncode == 0
    assert (tmp_path / "here" / "report.html").stat().st_size > 10**6


def test_a_missing_sandbox_is_named_with_its_remedy(tuner, tmp_path):
    bare = tmp_path / "bin"
    bare.mkdir()
    done = tuner("runtimes", "install", "caffe", PATH=str(bare))
    assert done.returncode == 3
    assert "bwrap" in done.stderr
    assert "apt-get install" in done.stderr


@pytest.mark.slow
def test_a_full_disk_is_one_line(home, tmp_path):
    # no file may grow beyond 64 KiB: neither data set nor database can be written
    done = subprocess.run(
        ["prlimit", "--fsize=65536", "--", sys.executable, "-m", "tuner", *TREE],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TUNER_HOME": str(home)},
        check=False,
    )
    assert done.returncode in (2, 3), done.stderr
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_overrides_are_made_fit_for_hydra():
    words = prepare_overrides(["constraints=a<=1,b>=2", "search_space.x.low=3", "seed=2"])
    assert words == ['constraints=["a<=1","b>=2"]', "++search_space.x.low=3", "seed=2"]
    assert prepare_overrides(["constraints=[]"]) == ["constraints=[]"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_multirun_runs_a_study_each(tuner, tmp_path):
    quick = ["budget.time_s=20", "budget.trials=2", "verify.finalists=0"]
    done = tuner("-m", *TREE, *quick, "seed=1,2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Synthetic · digits") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"home", "mlflow.db", "mlruns"}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_multirun_runs_a_framework_after_the_other_and_ends_as_the_first_that_failed(
    tuner, tmp_path
):
    tree = make_tree(tmp_path / "tree")
    words = [f"framework_path={tree}", "dataset=digits", "model=lenet", "budget.time_s=20"]
    words += ["budget.trials=2", "verify.finalists=0", "measure.max_foreign_pct=100"]
    words += ["search.probe_s=0.0005"]
    done = tuner("-m", *words, "framework=synthetic,absent,other,brisk")
    assert done.returncode == 3, done.stderr  # absent's, and not 2, which other ends with
    for title in ("Synthetic · digits", "Brisk 2.0 · digits"):
        assert done.stdout.count(title) == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        line for line in done.stderr.splitlines() if "no/such" in line or "no default" in line
    ]
    assert "no default for digits" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"home", "mlflow.db", "mlruns", "tree"}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_frameworks_are_compared_and_the_best_of_all_is_recommended(tuner, tmp_path):
    tree = make_tree(tmp_path / "tree")
    done = tuner(
        *("experiment=cross_framework", "dataset=digits", "frameworks=[synthetic,absent,brisk]"),
        *(f"framework_path={tree}", "framework=synthetic", "budget.time_s=60", "budget.trials=4"),
        "search.probe_s=0.0005",
        *("measure.max_foreign_pct=100", "verify.finalists=1", "verify.repeats=2"),
    )
    assert done.returncode == 0, done.stderr
    assert "Frameworks compared · digits · model lenet" in done.stdout
    assert "/no/such was not found" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"home", "mlflow.db", "mlruns", "tree"}
    asked = ["dataset=digits", f"framework_path={tree}"]
    found = tuner("recommend", *asked)
    assert found.returncode == 0, found.stderr
    assert "&id" not in found.stdout, "every value in full"
    answer = yaml.safe_load(found.stdout)
    assert answer["framework"] in ("synthetic", "brisk")
    assert answer["model"] == "lenet"
    assert answer["evidence"]["run_ids"]
    others = {answer["framework"], *(each["framework"] for each in answer["alternatives"])}
    assert others == {"synthetic", "brisk"}
    copied = tuner("report", "dataset=digits", "to=here")
    assert copied.returncode == 0, copied.stderr
    assert "Frameworks compared" in (tmp_path / "here" / "report.html").read_text()


def test_data_sets_are_removed_by_name_alone(home, capsys):
    assert main(["datasets", "get", "digits"]) == 0
    assert main(["datasets", "remove"]) == 2
    assert main(["datasets", "remove", "digits", "mnsit"]) == 2
    assert main(["datasets", "check"]) == 0
    assert "digits: ok" in capsys.readouterr().out
    (labels,) = home.rglob("test-labels.idx")
    labels.write_bytes(labels.read_bytes()[:-1])
    assert main(["datasets", "check"]) == 3
    assert capsys.readouterr().out == f"digits: {labels} corrupt\n"
    assert main(["datasets", "remove", "all"]) == 0
    assert capsys.readouterr().out.startswith("digits: ")
    assert main(["datasets", "check"]) == 0
    assert capsys.readouterr().out == ""
