"""The program: its name, what tells it from others, and what its sandbox shows it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.measure import gpus
from tuner.trials.worker_folder import WorkerFolder
from tuner.values.errors import ConfigError
from tuner.values.trial import Trial
from tuner.wrap import overlay, program
from tuner.wrap.program import Program


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "project"
    for name in ("train", "train.py", "job.sh", "data.csv", "venv/bin/run", "venv/pyvenv.cfg"):
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    for name in ("train", "venv/bin/run"):
        (made / name).chmod(0o755)
    return made


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --data data.csv", "train.py"),
        ("python --data data.csv train.py", "train.py"),
        ("./train data.csv", "train"),
        ("sh job.sh data.csv", "job.sh"),
        ("python -m mine.train --data data.csv", "mine.train"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "train.py"),
        ("venv/bin/run train.py", "train.py"),
        ("venv/bin/run -v", "run"),
        ("/usr/bin/make all", "make"),
    ],
)
def test_a_program_has_the_name_of_what_is_run(folder, command, name):
    assert Program(tuple(command.split()), folder).name == name


def test_another_interpreter_makes_another_study(folder, monkeypatch, tmp_path):
    identities = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "python").write_text("")
        (tmp_path / name / "python").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / name))
        identities.append(Program(("python", "train.py"), folder).identity())
    assert identities[0] != identities[1]


@pytest.mark.parametrize(
    ("name", "another"),
    [
        ("CUDA_VISIBLE_DEVICES", True),
        ("OPENBLAS_CORETYPE", True),
        ("JAX_PLATFORMS", True),
        ("GLIBC_TUNABLES", True),
        ("WINDOWID", False),
    ],
)
def test_a_variable_that_libraries_read_makes_another_study(folder, monkeypatch, name, another):
    monkeypatch.delenv(name, raising=False)
    before = Program(("sh", "job.sh"), folder).identity()
    monkeypatch.setenv(name, "0")
    assert (Program(("sh", "job.sh"), folder).identity() != before) is another


@pytest.mark.parametrize("confined", [True, False])
def test_what_a_program_writes_without_a_sandbox_makes_no_other_study(folder, confined):
    def identity():
        argv = ("sh", "job.sh", "--save", "data.csv")
        return Program(argv, folder, confined=confined).identity()

    before = identity()
    (folder / "data.csv").write_text("of a run")
    assert (identity() == before) is not confined
    (folder / "job.sh").write_text("changed")
    assert identity() != before


@pytest.mark.parametrize("name", ["venv", ".venv"])
def test_a_script_finds_the_interpreter_of_its_environment(folder, monkeypatch, tmp_path, name):
    real = tmp_path / "opt" / "python" / "bin" / "python3"
    real.parent.mkdir(parents=True)
    real.write_text("")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    if name == "venv":
        monkeypatch.setenv("VIRTUAL_ENV", str(folder / name))
    (folder / name / "bin").mkdir(parents=True, exist_ok=True)
    (folder / name / "bin" / "python").symlink_to(real)
    with WorkerFolder(tmp_path / "runs" / "own") as own:
        command = Program(("sh", "job.sh"), folder).command(own, Trial(0, {}))
    assert str(tmp_path / "opt" / "python") in command


def test_a_setting_of_the_network_that_is_a_link_is_found_by_its_name(
    folder, monkeypatch, tmp_path
):
    """As /etc/resolv.conf is one where systemd-resolved runs; this file is one everywhere."""
    assert Path("/etc/os-release").is_symlink()
    monkeypatch.setattr(program, "_NETWORK", ("hosts", "os-release"))
    with WorkerFolder(tmp_path / "runs" / "own") as own:
        command = Program(("sh", "job.sh"), folder, network=True).command(own, Trial(0, {}))
    assert "/etc/os-release" in command


def test_a_program_may_use_a_gpu_if_that_is_said(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "_DEV", tmp_path / "dev")
    hidden = Program(("sh", "job.sh"), folder)
    shown = dataclasses.replace(hidden, gpu=True)
    with pytest.raises(ConfigError, match=r"^--allow-gpu: there is no GPU here"):
        shown.check()
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    commands = []
    for each in (hidden, shown):
        with WorkerFolder(tmp_path / "runs" / "own") as own:
            commands.append(each.command(own, Trial(0, {})))
    devices = [word for word in commands[1] if word not in commands[0]]
    assert {Path(each).name for each in devices} == {"--dev-bind", "nvidia0", "nvidiactl"}
    assert hidden.identity() != shown.identity()


# a folder on an overlay, as in a container, where no second one can keep its changes
NESTED = """
    mkdir lower upper work merged
    layers=lowerdir=lower,upperdir=upper,workdir=work
    mount -t overlay overlay -o "userxattr,$layers" merged || exit 9
    exec "$0" -c "$1"
"""


def test_where_changes_cannot_be_kept_another_folder_is_named(tmp_path):
    code = "from pathlib import Path; from tuner.wrap import overlay; "
    code += "print(overlay.overlay_fault(Path('merged/home').absolute()))"
    command = [*overlay._NAMESPACE, "sh", "-c", NESTED, sys.executable, code]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=20
    )
    if done.returncode == 9:
        pytest.skip(done.stderr)
    assert f"cannot be kept apart in {tmp_path}/merged/home" in done.stdout, done.stderr
    assert "; TUNER_HOME= may name a folder on ext4, xfs or tmpfs" in done.stdout


def test_a_command_that_may_not_be_run_is_told_from_one_that_is_not_there(folder):
    with pytest.raises(ConfigError, match=r"^\./job\.sh is no program yet; chmod \+x"):
        Program(("./job.sh",), folder).check()
    with pytest.raises(ConfigError, match=r"^\./jobs was not found"):
        Program(("./jobs",), folder).check()


def test_names_of_any_kind_lead_to_no_error(folder):
    assert Program((os.fsdecode(b"\xff"), "a\nb", ""), folder).name == os.fsdecode(b"\xff")
    assert Program(("sh", "-m"), folder).name == "sh"
