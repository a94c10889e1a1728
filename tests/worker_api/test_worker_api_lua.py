"""The lines every Lua worker shares do what those of the Python workers do: the same tests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.worker_api.test_worker_api import (  # noqa: F401 - pytest runs the tests among them here as well
    environment,
    events_of,
    heard,
    make_folder,
    test_a_missing_framework_ends_with_3_and_its_name,
    test_a_probe_is_timed_and_never_looked_at,
    test_a_stop_file_ends_the_training_with_a_valid_result,
    test_another_protocol_is_impossible,
    test_events_are_flat_ascii_objects,
    test_no_trial_is_no_fault,
    test_the_test_split_is_opened_when_asked,
    test_two_trials_in_one_session_are_kept_apart,
    test_what_goes_wrong_is_said_and_ends_the_worker,
    train,
)
from tuner.config.catalogue import framework_roots
from tuner.trials.session import WORKER_API

LUAJIT = shutil.which("luajit")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(20),
    pytest.mark.skipif(LUAJIT is None, reason="luajit is not here: apt-get install luajit"),
]
WORKER = """
package.path = os.getenv("PYTHONPATH"):match("[^:]+") .. "/?.lua;" .. package.path
local worker_api = require "worker_api"
if arg[1] == "missing" then worker_api.import("caffe") end

local function wait(seconds)
   local ends = worker_api.clock() + seconds
   while worker_api.clock() < ends do end
end

local function prepare(trial)
   if trial.fault == "impossible" then
      worker_api.impossible("batch_size %d is too large", trial.batch_size)
   end
   local done = 0
   local function step(count)
      done = done + count
      wait(trial.pause)
      if trial.fault == "nan" and done >= 20 then return 0 / 0 end
      if trial.fault == "explode" and done >= 20 then return 1e6 end
      if trial.fault == "blind" or trial.fault == "hard" then return 2.303 end
      if trial.fault == "memory" then error("not enough memory: out of memory") end
      if trial.fault == "disk" then error("No space left on device") end
      if trial.fault == "bug" then return nothing.here end
      return 1 / done
   end
   local function evaluate(split)
      if trial.fault == "blind" then return 0.1 end
      if trial.fault == "hard" then return 0.6 end
      return ({validation = 0.5, test = 0.25})[split]
   end
   return step, evaluate
end

worker_api.serve(prepare, {chunk = 5, versions = {framework = "1.0"}})
"""


@pytest.fixture
def python(tmp_path) -> str:
    """LuaJIT, behind the options that the tests give a Python."""
    script = tmp_path / "interpreter"
    script.write_text(f'#!/bin/sh\nshift\nexec {LUAJIT} "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def worker(tmp_path) -> Path:
    path = tmp_path / "worker.lua"
    path.write_text(WORKER)
    return path


def run(program: str, *words: str) -> str:
    """What a Lua program prints that has ``worker_api`` and ``worker_lenet``."""
    start = (
        "package.path = os.getenv('PYTHONPATH') .. '/?.lua;' .. package.path\n"
        "local worker_api, worker_lenet = require 'worker_api', require 'worker_lenet'\n"
    )
    done = subprocess.run(
        [str(LUAJIT), "-", *words],
        input=start + program,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_trial_is_trained_looked_at_and_answered(python, worker, tmp_path):
    folder = make_folder(tmp_path, pause=0.01)
    assert train(python, worker, folder) == (0, "")
    log = heard(folder)
    assert log.ready["framework"] == "1.0"
    assert log.ready["lua"].startswith("LuaJIT")
    assert [each.iteration for each in log.checkpoints] == [5, 10, 20, 40]
    assert log.checkpoints[-1].loss == pytest.approx(1 / 40)
    times = [each.train_time_s for each in log.checkpoints]
    assert times == sorted(times)
    assert log.ended
    assert log.result["iteration"] == 40
    assert log.result["test_accuracy"] is None
    assert log.result["test_time_s"] >= 0


def test_a_loss_that_stays_at_guessing_is_divergence(python, worker, tmp_path):
    folder = make_folder(tmp_path, fault="blind", iterations=400, eval_at="50,100,200,400")
    assert train(python, worker, folder)[0] == 1
    # a busy machine looks less often
    assert re.search(
        r"still no better than guessing after [24]00 iterations", heard(folder).error["message"]
    )


def test_a_little_better_than_guessing_between_two_classes_is_learning(python, worker, tmp_path):
    folder = make_folder(tmp_path, fault="hard", classes=2, iterations=400, eval_at="200,400")
    assert train(python, worker, folder)[0] == 0
    assert heard(folder).result["val_accuracy"] == 0.6


def test_a_bug_of_the_worker_is_a_traceback(python, worker, tmp_path):
    code, words = train(python, worker, make_folder(tmp_path, fault="bug"))
    assert code == 1
    assert "attempt to index global 'nothing'" in words
    assert "stack traceback" in words


def test_a_long_training_gives_signs_of_life(python, worker, tmp_path):
    folder = make_folder(tmp_path, iterations=12, eval_at="12", pause=0.1)
    assert train(python, worker, folder)[0] == 0
    signs = [event for event in events_of(folder) if event["event"] == "progress"]
    assert signs
    assert all(0 < sign["iteration"] < 12 and sign["train_time_s"] > 0 for sign in signs)


FLAT = {
    "text": 'a "quoted" \\ /\n\t\x01 line, ü, ✓ and 😀',
    "whole": -12,
    "zero": 0,
    "small": 1e-05,
    "share": 0.1,
    "large": 2.5e300,
    "yes": True,
    "no": False,
    "": "empty key",
}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_what_json_holds_arrives_and_comes_back(tmp_path, indent, ascii_only):
    source = tmp_path / "flat.json"
    source.write_text(json.dumps(FLAT | {"none": None}, indent=indent, ensure_ascii=ascii_only))
    back = run(
        "local text = io.open(arg[1]):read('*a')\n"
        "io.write(worker_api.write_json(worker_api.read_json(text)))",
        str(source),
    )
    assert back.isascii()
    # Lua's strings are bytes, so a letter beyond ASCII comes back as its bytes, one escape each
    raw = FLAT["text"].encode().decode("latin-1")
    assert json.loads(back) == FLAT | {"text": raw}


def test_numbers_that_json_does_not_have_become_null():
    assert json.loads(run("io.write(worker_api.write_json({a = 0 / 0, b = -1 / 0}))")) == {
        "a": None,
        "b": None,
    }


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a"}', '{"a": }', '{"a": nul}', '{"a": "', '{"a": 1']
)
def test_what_is_no_flat_object_is_refused(tmp_path, text):
    source = tmp_path / "broken.json"
    source.write_text(text)
    said = run("print(pcall(worker_api.read_json, io.open(arg[1]):read('*a')))", str(source))
    assert said.startswith("false")


def test_an_idx_header_is_read(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(bytes([0, 0, 8, 3]) + b"\0\0\xea\x60" + b"\0\0\0\x1c" * 2 + b"pixels")
    said = run(
        "local shape, code, offset = worker_api.read_idx(arg[1])\n"
        "io.write(table.concat(shape, ' '), ' ', code, ' ', offset)",
        str(path),
    )
    assert said == "60000 28 28 8 16"


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**32 - 1])
def test_random_numbers_are_those_of_numpy(seed):
    said = run(
        f"local draw = worker_lenet.random({seed})\n"
        "for _ = 1, 2000 do print(('%.17g'):format(draw())) end"
    )
    drawn = np.random.RandomState(seed).random_sample(2000)
    assert list(map(float, said.split())) == drawn.tolist()


def test_lenet_begins_as_in_the_python_workers(monkeypatch):
    monkeypatch.syspath_prepend(str(WORKER_API))
    import worker_lenet

    sizes = {"seed": 3, "channels": 3, "height": 32, "width": 32, "classes": 10}
    trial = SimpleNamespace(**sizes, learning_rate=0.02)
    entries = ", ".join(f"{name} = {value}" for name, value in vars(trial).items())
    said = run(
        f"local trial = {{{entries}}}\n"
        "print(('%.17g'):format(worker_lenet.learning_rate(trial, 777)))\n"
        "print(worker_lenet.flat_features(trial))\n"
        "for _, layer in ipairs(worker_lenet.first_weights(trial)) do\n"
        "   local sum = 0\n"
        "   for _, value in ipairs(layer.values) do sum = sum + math.abs(value) end\n"
        "   print(table.concat(layer.shape, 'x'), #layer.values, ('%.9g'):format(sum))\n"
        "end"
    ).splitlines()
    assert float(said[0]) == pytest.approx(worker_lenet.learning_rate(trial, 777), rel=1e-14)
    assert int(said[1]) == worker_lenet.flat_features(trial)
    for line, (weights, _) in zip(said[2:], worker_lenet.first_weights(trial), strict=True):
        shape, count, total = line.split()
        assert shape == "x".join(map(str, weights.shape))
        assert int(count) == weights.size
        assert float(total) == pytest.approx(np.abs(weights.astype(np.float64)).sum(), rel=1e-6)


@pytest.mark.parametrize(
    "source",
    sorted([*WORKER_API.glob("*.lua"), *framework_roots()[0].glob("frameworks/*/*.lua")]),
    ids=lambda path: path.name,
)
def test_every_lua_file_compiles(source):
    done = subprocess.run([str(LUAJIT), "-bl", str(source)], capture_output=True)
    assert done.returncode == 0, done.stderr
