"""A default for the user's own images is that of a shipped data set, for as many epochs."""

from __future__ import annotations

import pytest

from tests.conftest import SYNTHETIC
from tuner.config.catalogue import find_setting_file, list_frameworks
from tuner.values.errors import ConfigError
from tuner.values.likeness import TRAINING_IMAGES, Likeness
from tuner.values.space import SearchSpace

NAMES = list_frameworks(str(SYNTHETIC))


def load(name: str, likeness: Likeness, model: str = "lenet", **overrides) -> SearchSpace:
    path = find_setting_file("search_spaces", name, str(SYNTHETIC))
    return SearchSpace.load(
        path,
        cores=2,
        cpu_flags=("avx2",),
        dataset=likeness.name,
        model=model,
        overrides=overrides,
        likeness=likeness,
    )


@pytest.mark.parametrize("images", [16, 20, 300, 55_000, 10**6])
@pytest.mark.parametrize("like", sorted(TRAINING_IMAGES))
@pytest.mark.parametrize("name", NAMES)
def test_every_default_is_taken_over_and_lies_in_its_space(name, like, images):
    likeness = Likeness("flowers", like, images)
    shipped = load(name, likeness).defaults
    models = {each.model for each in shipped if like in each.datasets}
    assert models
    for model in models:
        space = load(name, likeness, model)
        own, its = space.default("flowers", model), space.default(like, model)
        assert space.refusal(own.params) == ""
        assert own.params["batch_size"] == min(its.params["batch_size"], images)
        assert own.source.startswith(f"{its.source}; as for {like}")
        assert space.params["batch_size"].high <= images
        epochs = [
            each.params["iterations"] * each.params["batch_size"] / count
            for each, count in ((own, images), (its, TRAINING_IMAGES[like]))
        ]
        if own.params["iterations"] > space.params["iterations"].low:
            half = 0.5 * own.params["batch_size"] / images  # iterations are whole
            assert epochs[0] == pytest.approx(epochs[1], abs=half + 1e-9)
        else:
            assert epochs[0] >= epochs[1]
        kept = {"batch_size", "iterations"}
        assert {k: v for k, v in own.params.items() if k not in kept} == {
            k: v for k, v in its.params.items() if k not in kept
        }


def test_a_copy_of_the_shipped_data_has_its_very_default():
    space = load("torch", Likeness("copy", "mnist", 55_000))
    own = space.default("copy", "lenet")
    assert own.params == space.default("mnist", "lenet").params
    assert own.source.endswith("; as for mnist")


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (
            550,
            "200 iterations, the minimum of the search; as many epochs (11.6) would be 100",
        ),
        (5_500, "for as many epochs (11.6): 1,000 iterations, not 10,000"),
        (40, "with all 40 training images in a batch in place of 64, and 200 iterations"),
        (550_000, "for as many epochs (11.6): 100,000 iterations, not 10,000"),
    ],
)
def test_the_source_says_how_it_follows(images, words):
    assert words in load("caffe", Likeness("a", "mnist", images)).default("a", "lenet").source


def test_what_the_user_narrows_has_the_last_word():
    space = load("caffe", Likeness("a", "mnist", 300), iterations={"low": 1_000})
    assert space.params["iterations"].low == 1_000
    assert space.default("a", "lenet").params["iterations"] == 200, "the default stays its own"


def test_too_few_images_for_any_batch_are_refused():
    with pytest.raises(ConfigError, match=r"a has 15 images to train on, .*searched \(16\)"):
        load("caffe", Likeness("a", "mnist", 15))


def test_a_model_without_a_default_names_the_one_that_has():
    space = load("torch", Likeness("flowers", "cifar10", 300), "default")
    with pytest.raises(ConfigError) as refused:
        space.default("flowers", "default")
    assert str(refused.value).startswith(
        "torch has no default for flowers with model=default; it has: flowers (model=lenet)"
    )
