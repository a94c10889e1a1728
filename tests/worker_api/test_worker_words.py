"""The language model that frameworks share: its sizes, its parts of a text, its perplexity."""

from __future__ import annotations

import importlib
import math
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tuner.datasets.images import encode_idx
from tuner.trials.session import WORKER_API


@pytest.fixture
def words(monkeypatch) -> ModuleType:
    """The module as workers import it."""
    monkeypatch.syspath_prepend(str(WORKER_API))
    module = importlib.import_module("worker_words")
    yield module
    for name in ("worker_words", "worker_api"):
        sys.modules.pop(name, None)


@pytest.fixture
def trial(tmp_path) -> SimpleNamespace:
    """A text of 0, 1, 2 …, read as four texts side by side."""
    text = np.arange(203, dtype=np.int16)
    for kind, part in (("images", text[:-1]), ("labels", text[1:])):
        (tmp_path / f"{kind}.idx").write_bytes(encode_idx(part))
    paths = {
        f"{split}_{kind}": str(tmp_path / f"{kind}.idx")
        for split in ("train", "validation")
        for kind in ("images", "labels")
    }
    asked = {"batch_size": 4, "train_count": 202, "classes": 300, "learning_rate": 1.0, "seed": 1}
    return SimpleNamespace(**paths, **asked)


def test_the_number_of_trained_values_is_that_of_the_small_configuration(words):
    penn = SimpleNamespace(classes=10_000, seed=1)
    assert words.trained_values(penn) == 4_651_600
    embedding, layers, scores = words.first_weights(penn)
    every = [embedding, *(each for layer in layers for each in layer), *scores]
    assert sum(each.size for each in every) == 4_651_600
    assert {each.dtype for each in every} == {np.dtype(np.float32)}
    assert max(np.abs(each).max() for each in every) <= words.INITIAL
    again = words.first_weights(penn)[0]
    assert (embedding == again).all()


def test_texts_go_on_from_part_to_part_until_they_end(words, trial):
    stream = words.parts(trial)
    first, second, third = (next(stream) for _ in range(3))
    assert first[0][:, 0].tolist() == [0, 50, 100, 150]
    assert (first[1] == first[0] + 1).all()
    assert second[0][:, 0].tolist() == [20, 70, 120, 170]
    assert [each[2] for each in (first, second, third)] == [True, False, True]
    assert (third[0] == first[0]).all(), "50 words of each hold two parts"


def test_too_many_texts_are_refused(words, trial):
    trial.batch_size = 20
    with pytest.raises(sys.modules["worker_api"].Impossible, match="fewer than 20 words"):
        next(words.parts(trial))


def test_the_rate_is_halved_every_epoch_from_the_fifth_on(words, trial):
    rates = [words.learning_rate(trial, iteration) for iteration in range(0, 14, 2)]
    assert rates == [1, 1, 1, 1, 0.5, 0.25, 0.125]


def test_perplexity_is_that_of_every_word_once(words, trial, monkeypatch):
    monkeypatch.setattr(words, "EVAL_ROWS", 4)
    seen = []

    def losses(part, following, begins):
        seen.append(begins)
        assert part.shape == following.shape == (4, words.STEPS)
        return np.where(following % 2, 1.0, 3.0)

    judged = np.concatenate([1 + np.arange(50) + start for start in (0, 50, 100, 150)])
    mean = np.where(judged % 2, 1.0, 3.0).mean()
    assert words.perplexity(trial, "validation", losses) == pytest.approx(math.exp(mean))
    assert seen == [True, False, False]


def test_equal_odds_for_all_words_are_a_perplexity_of_their_number(words, trial):
    def even(part, *_):
        return np.full(part.shape, math.log(300))

    assert words.perplexity(trial, "validation", even) == pytest.approx(300)


def test_a_loss_that_is_no_number_has_diverged(words, trial):
    with pytest.raises(sys.modules["worker_api"].Diverged):
        words.perplexity(trial, "validation", lambda part, *_: np.full(part.shape, np.nan))
