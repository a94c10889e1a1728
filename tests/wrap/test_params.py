"""Params: their ranges are read, and their values reach the command line."""

from __future__ import annotations

import pytest

from tests.command import fixture_tuner  # noqa: F401 - a fixture
from tuner.measure import parse_cores
from tuner.values.errors import ConfigError
from tuner.values.ranges import Choices, Range
from tuner.wrap.params import fill, is_spec, read_params

FILE = """
params:
  lr: {type: float, low: 1e-4, high: 0.1, log: true}
  net: {type: categorical, choices: [small, large]}
default: {lr: 0.5}
start: [{lr: 3e-2, net: small}]
"""


def test_ranges_come_from_the_command_line():
    params = read_params(
        {
            "lr": "log(1e-4, 1e-1)",
            "momentum": " uniform(0, 0.99) ",
            "epochs": "int(1, 10)",
            "hidden": "logint(8, 512)",
            "batch": "choice(32, 64)",
            "nesterov": "choice(true, false)",
            "net": "choice(small, large)",
        },
        None,
        2,
    ).params
    assert params == {
        "lr": Range(1e-4, 0.1, integer=False, log=True),
        "momentum": Range(0, 0.99, integer=False),
        "epochs": Range(1, 10, integer=True),
        "hidden": Range(8, 512, integer=True, log=True),
        "batch": Choices({"": (32, 64)}, runtime=False),
        "nesterov": Choices({"": (True, False)}, runtime=False),
        "net": Choices({"": ("small", "large")}, runtime=False),
    }


def test_a_file_has_the_keys_of_a_search_space_and_the_command_line_replaces_them(tmp_path):
    file = tmp_path / "tuner.yaml"
    file.write_text(FILE)
    space = read_params({"lr": "log(1e-3, 1)"}, file, 2)
    assert space.params["lr"] == Range(1e-3, 1.0, integer=False, log=True)
    assert space.params["net"] == Choices({"": ("small", "large")}, runtime=False)
    assert (space.default, space.start) == ({"lr": 0.5}, ({"lr": 0.03, "net": "small"},))


def test_params_that_change_the_time_alone_are_apart(tmp_path):
    file = tmp_path / "tuner.yaml"
    file.write_text(
        "params:\n"
        "  lr: {type: float, low: 1e-4, high: 0.1}\n"
        "  loaders: {type: categorical, choices: [0, 2], affects: time}\n"
        "default: {loaders: 2, lr: 0.01}\n"
        "start: [{lr: 0.02}]"
    )
    space = read_params({"workers": "choice(1, 2)"}, file, 2)
    assert {*space.params} == {"lr"}
    assert space.timed == {"loaders": (0, 2), "workers": (1, 2)}
    assert space.start == ({"lr": 0.02},)
    setting = {"workers": 2, "lr": 0.1, "threads": 1}
    assert space.part_of(setting) == {"lr": 0.1}
    assert space.values_in(setting) == {"workers": 2, "lr": 0.1}
    assert not read_params({"workers": "choice(1, 2)"}, None, 2)
    own = space.with_own(("--workers", "{workers=4}")).default
    assert own == {"workers": 4, "loaders": 2, "lr": 0.01}


def test_workers_can_change_more_than_the_time(tmp_path):
    file = tmp_path / "tuner.yaml"
    file.write_text("params: {workers: {type: int, low: 1, high: 4, affects: accuracy}}")
    space = read_params({}, file, 2)
    assert ({*space.params}, space.timed) == ({"workers"}, {})


@pytest.mark.parametrize(
    ("name", "spec"), [("workers", "int(1, 4)"), ("workers", "uniform(1, 4)")]
)
def test_what_changes_the_time_alone_is_a_list(name, spec):
    with pytest.raises(ConfigError, match="affects the time alone; list its values"):
        read_params({name: spec}, None, 2)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("log(1)", "--lr 'log(1)' is no range; write log(1e-4, 1e-1)"),
        ("log(a, b)", "is no range"),
        ("choice()", "is no range"),
        ("log(0, 1)", "param lr.low must be above 0, got 0"),
        ("log(1, 0.1)", "param lr needs low <= high"),
        ("int(1.5, 3)", "param lr needs whole numbers"),
        ("uniform(0, inf)", "param lr needs low <= high"),
    ],
)
def test_a_wrong_range_gets_one_line(spec, said):
    with pytest.raises(ConfigError) as told:
        read_params({"lr": spec}, None, 2)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "cannot be read"),
        ("- 1", "cannot be read"),
        ("nonsense: 1", "must have these entries alone: params, default, start"),
        ("start: {lr: 3}", "start is a list of tables"),
        ("params: {lr: 3}", "param lr must be a table"),
        ("params: {lr: {type: x}}", "param lr.type must be int"),
        ("params: {seed: {type: int, low: 1, high: 2}}", "'seed' is no name of a param"),
        ("params: {'a b': {type: int, low: 1, high: 2}}", "'a b' is no name of a param"),
        ("default: {lr: 3}", "lr is no param"),
        ("params: {on: {type: int, low: 1, high: 2}}", "True is no name of a param"),
        ("params: {é: {type: int, low: 1, high: 2}}", "is no name of a param"),
        ("params: {a: {type: int, low: 1, high: 2}, A: {type: int, low: 1, high: 2}}", "capital"),
        ("params: {a: {type: categorical, choices: [[1], [2]]}}", "neither a number nor a text"),
        ("params: {a: {type: conditional, given: b, cases: {c: [1]}}}", "param a.given must be"),
        (
            "params: {a: {type: int, low: 1, high: 2}, b: {type: int, low: 1, high: 2}}\n"
            "start: [{a: 1}]",
            "b must be a whole number from 1 to 2, got None",
        ),
        ("start: [{lr: 3}]", "lr is no param"),
        (
            "params: {lr: {type: int, low: 1, high: 2}}\nstart: [{lr: 3}]",
            "lr must be a whole number from 1 to 2, got 3",
        ),
    ],
)
def test_a_wrong_file_gets_one_line(tmp_path, text, said):
    file = tmp_path / "tuner.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as told:
        read_params({}, file, 2)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("argument", "is_one"),
    [("log(1e-4, 1)", True), ("choice(a)", True), ("train.py", False), ("log", False)],
)
def test_ranges_are_told_from_other_words(argument, is_one):
    assert is_spec(argument) is is_one


@pytest.mark.parametrize(
    ("argv", "filled", "own"),
    [
        ("run --lr {lr} --verbose", "run --lr 0.1 --verbose", "run --verbose"),
        ("run --lr={lr} data", "run --lr=0.1 data", "run data"),
        ("run -l{lr}", "run -l0.1", "run"),
        ("run optimizer.lr={lr}", "run optimizer.lr=0.1", "run"),
        ("run {lr=0.5}", "run 0.1", "run 0.5"),
        ("run --lr {lr=0.5} {other} {}", "run --lr 0.1 {other} {}", "run --lr 0.5 {other} {}"),
        ("run x-{lr=1}-{lr=1}", "run x-0.1-0.1", "run x-1-1"),
        ("run", "run", "run"),
    ],
)
def test_an_option_without_a_value_is_left_out(argv, filled, own):
    assert fill(argv.split(), {"lr": None}, {"lr": 0.1}, {"lr": 9}) == filled.split()
    assert fill(argv.split(), {"lr": None}, {}, {}) == own.split()


def test_an_argument_that_cannot_be_left_out_needs_a_value():
    with pytest.raises(ConfigError, match=r"write its own value as \{lr=VALUE\}"):
        fill(["run", "{lr}"], {"lr": None}, {}, {})


def test_the_programs_own_values_are_written_as_they_stand():
    names = {"x": None, "y": None}
    argv = ["run", "--x={x=True}", "--y", "{y}", "--z={x=1e-2},{y}"]
    assert fill(argv, names, {}, {"y": 1e-05}) == [
        "run", "--x=True", "--y", "1e-05", "--z=1e-2,1e-05",
    ]  # fmt: skip
    assert fill(["run", "--betas", "{x=0.9},{y}", "a"], names, {}, {}) == ["run", "a"]


def test_the_commands_own_values_are_known():
    space = read_params({"lr": "log(1e-3, 1)", "net": "choice(a, b)"}, None, 2)
    assert space.with_own(["run", "{lr=5e-1}", "{net}", "{x=1}"]).default == {"lr": 0.5}


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("choice(1e-4, 1e-3)", (1e-4, 1e-3)),
        ("choice(on, off)", ("on", "off")),
        ("choice(010, 1:30)", (10, "1:30")),
        ("choice(2024-01-01, nan)", ("2024-01-01", "nan")),
        ("choice([1, 2], [3])", ("[1", "2]", "[3]")),
    ],
)
def test_what_stands_on_the_command_line_is_no_yaml(spec, values):
    assert read_params({"x": spec}, None, 2).params["x"] == Choices({"": values}, runtime=False)


def test_conditional_params_are_as_in_a_search_space(tmp_path):
    file = tmp_path / "tuner.yaml"
    file.write_text("""
params:
  net: {type: categorical, choices: [small, large]}
  width: {type: conditional, given: net, cases: {small: [8, 16], large: [64]}}
default: {net: small, width: 8}
start: [{net: large, width: 64}, {width: 16}]
""")
    space = read_params({}, file, 2)
    assert space.start == ({"net": "large", "width": 64}, {"net": "small", "width": 16})


def test_no_more_than_the_cpus_of_a_run_are_offered(tmp_path, tuner):
    parts = "{type: categorical, choices: up_to_cores}"
    (tmp_path / "tuner.yaml").write_text(f"params: {{parts: {parts}}}\nstart: [{{parts: 2}}]")
    core, *_ = parse_cores("")
    done = tuner("wrap", "--cores", str(core), "--", "true")
    assert done.returncode == 2
    assert done.stderr.endswith("tuner.yaml: start: parts must be one of 1, got 2\n"), done.stderr


def test_values_are_rounded_unless_that_leaves_the_range():
    space = read_params({"lr": "uniform(0.12345, 0.5)"}, None, 2)
    assert space.rounded({"lr": 0.234567}) == {"lr": 0.235}
    assert space.rounded({"lr": 0.123456}) == {"lr": 0.123456}
    narrow = read_params({"x": "uniform(1000, 1001)", "y": "log(1e-5, 1)"}, None, 2)
    assert narrow.rounded({"x": 1000.12345, "y": 1.23456e-05}) == {"x": 1000.12, "y": 1.23e-05}
