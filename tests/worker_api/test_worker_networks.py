"""The networks that all frameworks share: their sizes, their first weights, what they see."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tuner.config.validation import CHOICES
from tuner.trials.session import WORKER_API

TRAINED = {"alexnet": 23_272_266, "vgg": 14_728_266, "resnet50": 23_520_842}
"""Weights, biases, scales and shifts of the models in docs/frameworks.md, of ten classes."""


@pytest.fixture
def shared(monkeypatch) -> ModuleType:
    """The module as workers import it."""
    monkeypatch.syspath_prepend(str(WORKER_API))
    module = importlib.import_module("worker_networks")
    yield module
    for name in ("worker_networks", "worker_data", "worker_api"):
        sys.modules.pop(name, None)


def trial(model: str, **changes: object) -> SimpleNamespace:
    """Ten classes of colour images of 32x32, as CIFAR-10 has them."""
    size = {"channels": 3, "height": 32, "width": 32, "classes": 10}
    alone = {"workers": 1, "rank": 0}
    return SimpleNamespace(**{"model": model, "seed": 1, **size, **alone, **changes})


def test_settings_offer_them_all(shared):
    assert {"default", "lenet", "lstm", *shared.NETWORKS} == set(CHOICES["model"])


@pytest.mark.parametrize("model", TRAINED)
def test_the_number_of_trained_values_is_that_of_the_source(shared, model):
    assert shared.trained_values(trial(model)) == TRAINED[model]
    values = [each for layer in shared.first_weights(trial(model)) for each in layer[1:]]
    assert sum(each.size for each in values if each is not None) == TRAINED[model]
    assert {each.dtype for each in values if each is not None} == {np.dtype(np.float32)}


@pytest.mark.parametrize("model", TRAINED)
def test_layers_fit_together(shared, model):
    """Each takes the channels or features that the one before it gives, 10 scores at the end."""

    def convolution(shape, inputs, outputs, kernel, stride, _):
        assert shape[0] == inputs
        return (
            outputs,
            *((side + 2 * (kernel // 2) - kernel) // stride + 1 for side in shape[1:]),
        )

    def full(shape, inputs, outputs):
        assert shape == (inputs,)
        return (outputs,)

    def norm(shape, channels):
        assert shape[0] == channels
        return shape

    def residual(branch, shortcut):
        assert branch == shortcut
        return branch

    def same(shape):
        return shape

    do = {
        "conv": convolution,
        "full": full,
        "norm": norm,
        "residual": residual,
        "relu": same,
        "dropout": same,
        "pool": lambda shape: (shape[0], *(side // 2 for side in shape[1:])),
        "mean": lambda shape: (shape[0], 1, 1),
        "flatten": lambda shape: (int(np.prod(shape)),),
    }
    for side in (32, 64):
        layers = shared.layers(trial(model, height=side, width=side))
        assert shared.applied(layers, (3, side, side), do) == (10,)


def test_depths_are_those_in_the_names(shared):
    deep = {"alexnet": 8, "vgg": 14, "resnet50": 50}  # VGG-16 less two of its full layers
    for model, depth in deep.items():
        layers = shared.layers(trial(model))
        plain = [each[1] if each[0] == "residual" else [each] for each in layers]
        weighted = [each for part in plain for each in part if each[0] in ("conv", "full")]
        assert len(weighted) == depth


def test_a_seed_decides_the_first_weights(shared):
    first = [next(iter(shared.first_weights(trial("vgg", seed=seed))))[1] for seed in (1, 1, 2)]
    assert np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], first[2])
    assert first[0].std() == pytest.approx((2 / 27) ** 0.5, rel=0.05)


def test_processes_of_a_group_vary_their_images_each_in_its_own_way(shared):
    images = np.random.default_rng(1).random((50, 3, 32, 32), np.float32)
    one, again, two = (
        shared.views(trial("alexnet", workers=2, rank=rank), images)[0](images)
        for rank in (0, 0, 1)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, two)


def test_images_are_standard_to_judge_and_varied_to_learn_from(shared):
    images = np.random.default_rng(1).random((2000, 3, 32, 32), np.float32) + 1
    learnt, judged = shared.views(trial("vgg"), images)
    standard = judged(images)
    assert standard.mean((0, 2, 3)) == pytest.approx(np.zeros(3), abs=1e-3)
    assert standard.std((0, 2, 3)) == pytest.approx(np.ones(3), abs=1e-2)
    assert np.array_equal(judged(images[:5]), standard[:5])
    varied = learnt(images[:200])
    assert varied.shape == (200, 3, 32, 32)
    assert varied.dtype == np.float32
    same = [np.array_equal(*pair) for pair in zip(varied, standard, strict=False)]
    assert sum(same) < 20
    # each is a part of its image with four pixels of zeros around it, mirrored or not
    wide = np.pad(standard[0], ((0, 0), (4, 4), (4, 4)))
    parts = [wide[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
    parts += [part[:, :, ::-1] for part in parts]
    assert any(np.array_equal(varied[0], part) for part in parts)


def test_other_models_see_images_as_they_are(shared):
    images = np.ones((2, 3, 8, 8), np.float32)
    learnt, judged = shared.views(trial("lenet"), images)
    assert learnt(images) is images
    assert judged(images) is images


def test_a_rate_falls_at_the_end_of_epochs(shared):
    rate = shared.falling(
        trial("vgg", learning_rate=1.0, train_count=1000, batch_size=100), (1, 2.5)
    )
    assert [rate(each) for each in (0, 9, 10, 24, 25)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
