"""``dataset.path`` alone makes a data set of the user's own, with a name of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.config.composing import compose
from tuner.config.own_data import named, own_overrides
from tuner.config.schema import DatasetConfig, ExecutorConfig, TuneConfig
from tuner.config.validation import validate
from tuner.values.errors import ConfigError


def test_the_path_is_enough_and_nothing_of_a_shipped_data_set_remains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = compose(["framework=torch", "dataset.path=flowers"]).dataset
    assert own == DatasetConfig("flowers", "own", validation=0, path=str(tmp_path / "flowers"))
    shipped = compose(["framework=torch", "dataset.path="]).dataset
    assert (shipped.name, shipped.source, shipped.validation) == ("mnist", "idx", 5000)


@pytest.mark.parametrize(
    "path", ["~/flowers", "/data/two words", "/data/a,b", "/data/x(1)[2]{3}", "../..", "/a=b/c:d"]
)
def test_any_path_is_taken_as_it_is_written(path):
    expected = Path(path).expanduser().absolute()
    found = compose([f"dataset.path={path}", "dataset.name=mine"]).dataset.path
    assert Path(found) == Path(str(expected.resolve()) if ".." in path else expected)


def test_sizes_and_a_name_may_be_set():
    words = ["dataset.path=/a/b", "dataset.validation=7", "dataset.test=9", "dataset.name=pets"]
    own = compose(words).dataset
    assert (own.name, own.validation, own.test) == ("pets", 7, 9)
    assert compose(["dataset=pets", "dataset.path=/a/b"]).dataset.name == "pets"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a/flowers", "flowers"),
        ("/a/Flower Photos-2", "flower_photos_2"),
        ("/a/Blüten.npz", "bluten"),
        ("/a/v1.2", "v1_2"),
        ("/a/2024", "data_2024"),
        ("/a/mnist.npz", "own_mnist"),
        ("/a/" + 60 * "x", 40 * "x"),
    ],
)
def test_a_name_follows_from_the_path(path, name):
    assert named(DatasetConfig("", path=path)).name == name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dataset.name=mnist"], "dataset.name=mnist is a data set that comes with the tuner"),
        (["dataset=digits"], "call your own another name, such as own_digits"),
        (["dataset.name=Two-Words"], "got 'Two-Words'"),
        (["dataset.name=../up"], "dataset.name must be"),
    ],
)
def test_a_name_that_cannot_be_is_refused(words, said):
    with pytest.raises(ConfigError, match=said) as refused:
        compose(["dataset.path=/a/flowers", *words])
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_a_path_without_letters_needs_a_name():
    with pytest.raises(ConfigError, match=r"dataset.path=/a/花 has no letter .*dataset.name="):
        compose(["dataset.path=/a/花"])
    assert compose(["dataset.path=/a/花", "dataset.name=flowers"]).dataset.name == "flowers"


def test_several_paths_are_swept_over_each_in_quotes():
    words = own_overrides(["-m", "seed=1", "dataset.test=9", "dataset.path=~/a,~/b c"])
    own = ["~dataset", "dataset.name=''", "dataset.validation=0"]
    assert words == ["-m", "seed=1", *own, "dataset.test=9", 'dataset.path="~/a","~/b c"']


def test_other_machines_do_not_have_the_users_files():
    own = DatasetConfig("flowers", "own", path="/a/flowers")
    with pytest.raises(ConfigError, match=r"executor must be local with dataset.path"):
        validate(TuneConfig(dataset=own, executor=ExecutorConfig("ray")))
