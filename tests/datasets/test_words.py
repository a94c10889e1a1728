"""Tests of ``tuner.datasets.words``: texts become numbers of words."""

import dataclasses
import hashlib

import numpy as np
import pytest

from tuner.config.catalogue import load_dataset_config
from tuner.config.schema import DatasetConfig
from tuner.datasets.images import check_source
from tuner.datasets.provide import check_dataset, load_dataset
from tuner.datasets.words import digest_of
from tuner.values.errors import ConfigError
from tuner.values.quality import perplexity

TEXTS = {
    "train.txt": " the cat sat \n the dog sat \n the cat ran \n",
    "valid.txt": " the dog ran \n",
    "test.txt": " the cat sat \n",
}
KNOWN = ["<eos>", "the", "cat", "sat", "dog", "ran"]
"""By frequency, then by letters."""


def made(folder, monkeypatch, **changes: str):
    """The configuration of such texts, and the folder that they can be had from."""
    texts = {**TEXTS, **changes}
    mirror = folder / "mirror" / "tiny"
    mirror.mkdir(parents=True)
    digests = {}
    for name, text in texts.items():
        (mirror / name).write_text(text)
        digests[name] = hashlib.sha256(text.encode()).hexdigest()
    monkeypatch.setenv("TUNER_DATA_MIRROR", str(mirror.parent))
    return DatasetConfig(name="tiny", source="words", folder="tiny", files=digests, validation=0)


def values(path):
    """The 16-bit numbers of an idx file."""
    contents = path.read_bytes()
    assert contents[:4] == b"\0\0\x0b\x01"
    return np.frombuffer(contents, ">i2", offset=8).tolist()


def test_a_text_becomes_numbers_of_words_and_of_those_that_follow(tmp_path, monkeypatch):
    dataset = load_dataset(made(tmp_path, monkeypatch), tmp_path)
    words = " <eos> ".join(["the cat sat", "the dog sat", "the cat ran <eos>"]).split()
    numbers = [KNOWN.index(each) for each in words]
    assert values(dataset.images("train")) == numbers[:-1]
    assert values(dataset.labels("train")) == numbers[1:]
    assert dataset.sizes == {"train": 11, "validation": 3, "test": 3}


def test_the_vocabulary_is_on_record(tmp_path, monkeypatch):
    dataset = load_dataset(made(tmp_path, monkeypatch), tmp_path)
    assert dataset.class_names == tuple(KNOWN)
    assert dataset.classes == 6
    assert dataset.quality == perplexity(6)
    facts = dataset.facts()
    assert facts["words"] == "11 train, 3 validation, 3 test"
    assert facts["vocabulary"] == "6: <eos>, the, cat, sat, dog, ran"
    assert digest_of(KNOWN) in facts["prepared"]
    assert "images" not in facts


def test_a_prepared_text_is_checked_and_read_again(tmp_path, monkeypatch):
    config = made(tmp_path, monkeypatch)
    first = load_dataset(config, tmp_path)
    assert load_dataset(config, tmp_path) == dataclasses.replace(first, source="cache")
    first.labels("test").write_bytes(b"no words")
    assert check_dataset("tiny", tmp_path) == [first.labels("test")]
    assert load_dataset(config, tmp_path).digest == first.digest


def test_a_word_that_was_never_learnt_is_refused(tmp_path, monkeypatch):
    config = made(tmp_path, monkeypatch, **{"valid.txt": "the horse ran\n"})
    with pytest.raises(ConfigError, match=r"valid.txt has the word 'horse', which the training"):
        load_dataset(config, tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path, monkeypatch):
    config = made(tmp_path, monkeypatch, **{"valid.txt": ""})
    with pytest.raises(ConfigError, match=r"valid.txt has no two words"):
        load_dataset(config, tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"files": {"train.txt": "0"}}, "must name three files"),
        ({"validation": 5000}, "brings its own validation text, got 5000"),
    ],
)
def test_an_impossible_configuration_is_refused(change, words):
    config = dataclasses.replace(load_dataset_config("ptb"), **change)
    with pytest.raises(ConfigError, match=words):
        check_source(config)
