"""Averaged weights: the same in Python and in Lua, whatever pieces a training comes in."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tuner.trials.session import WORKER_API

LUAJIT = shutil.which("luajit")
AVERAGED, OWN = SimpleNamespace(average_weights=True), SimpleNamespace(average_weights=False)


@pytest.fixture
def worker_average(monkeypatch) -> ModuleType:
    """The module as workers import it."""
    monkeypatch.syspath_prepend(str(WORKER_API))
    yield importlib.import_module("worker_average")
    sys.modules.pop("worker_average", None)


class Net:
    """Two weights that rise by one an iteration; its accuracy is the first of them."""

    def __init__(self) -> None:
        self.weights = [np.zeros(3), np.zeros((2, 2))]

    def step(self, count: int) -> float:
        for each in self.weights:
            each += count
        return float(self.weights[0][0])

    def evaluate(self, split: str) -> float:
        if split == "broken":
            raise ValueError(split)
        assert all((each == self.weights[0][0]).all() for each in self.weights)
        return float(self.weights[0][0])


def expected(last: int) -> float:
    """The weights after each tenth iteration, each counting as its rank to the power of 8 nearly.

    Polynomial-decay averaging in its closed form: weight k of the average has the share
    Gamma(k + eta) / Gamma(k), over their sum.
    """
    ranks = np.arange(1, last // 10 + 1)
    shares = np.array([np.prod(rank + np.arange(8.0)) for rank in ranks])
    return float((10 * ranks * shares).sum() / shares.sum())


@pytest.mark.parametrize("pieces", [[100], [1] * 100, [7, 10, 10, 10, 10, 10, 10, 33]])
def test_the_average_does_not_depend_on_the_pieces_of_a_training(worker_average, pieces):
    net = Net()
    step, evaluate = worker_average.averaged(AVERAGED, net.step, net.evaluate, net.weights)
    losses = [step(count) for count in pieces]
    assert losses[-1] == 100
    assert evaluate("validation") == pytest.approx(expected(100))
    assert net.weights[0][0] == 100, "training goes on from the weights themselves"


def test_the_first_average_is_the_weights(worker_average):
    net = Net()
    step, evaluate = worker_average.averaged(AVERAGED, net.step, net.evaluate, net.weights)
    step(9)
    assert evaluate("validation") == 9
    step(1)
    assert evaluate("validation") == 10


def test_a_fault_leaves_the_weights_as_they_were(worker_average):
    net = Net()
    step, evaluate = worker_average.averaged(AVERAGED, net.step, net.evaluate, net.weights)
    step(50)
    with pytest.raises(ValueError, match="broken"):
        evaluate("broken")
    assert net.weights[0][0] == 50


@pytest.mark.parametrize("trial", [OWN, SimpleNamespace()])
def test_a_trial_that_asks_for_none_is_left_alone(worker_average, trial):
    net = Net()
    assert worker_average.averaged(trial, net.step, net.evaluate, net.weights) == (
        net.step, net.evaluate,
    )  # fmt: skip


def test_variables_of_a_framework_are_read_and_written_by_its_own_functions(worker_average):
    held = {"a": np.zeros(1)}

    def step(count: int) -> float:
        held["a"] = held["a"] + count
        return 0.0

    step, evaluate = worker_average.averaged(
        AVERAGED, step, lambda _: float(held["a"][0]), ["a"], held.get, held.__setitem__
    )
    step(30)
    assert evaluate("test") == pytest.approx(expected(30))
    assert held["a"][0] == 30


LUA = """
package.path = os.getenv("PYTHONPATH") .. "/?.lua;" .. package.path
local average = require "worker_average"
local Tensor = {}
Tensor.__index = Tensor
local function tensor(value) return setmetatable({value = value}, Tensor) end
function Tensor:clone() return tensor(self.value) end
function Tensor:copy(other) self.value = other.value end
function Tensor:mul(factor) self.value = self.value * factor return self end
function Tensor:add(factor, other) self.value = self.value + factor * other.value return self end
local weight, said = tensor(0), {}
local function step(count)
   weight.value = weight.value + count
   return weight.value
end
local function evaluate() return weight.value end
local step, evaluate = average.averaged({average_weights = true}, step, evaluate, {weight})
for _, count in ipairs({7, 2, 1, 23, 67}) do
   step(count)
   said[#said + 1] = ("[%.12g, %.12g]"):format(evaluate("test"), weight.value)
end
print("[" .. table.concat(said, ", ") .. "]")
"""


@pytest.mark.skipif(
    not shutil.which("luajit"), reason="luajit is not here: apt-get install luajit"
)
def test_lua_averages_alike():
    done = subprocess.run(
        [LUAJIT, "-"], input=LUA, capture_output=True, text=True,
        env={"PYTHONPATH": str(WORKER_API), "PATH": "/usr/bin:/bin:/usr/local/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ends = [7, 9, 10, 33, 100]
    averages = [7, 9, expected(10), expected(30), expected(100)]
    assert json.loads(done.stdout) == [
        pytest.approx(pair) for pair in zip(averages, ends, strict=True)
    ]
