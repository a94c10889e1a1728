"""Texts as numbers of words: read from their files, and numbered.

A text is one sequence of words, in which every line ends with ``<eos>``. A word's number is its
rank in the training text: the most frequent word is 0, and equally frequent ones are in the order
of their letters, as in ``ptb_word_lm``'s reader (tutorials/rnn/ptb of tensorflow/models). What is
to be learnt is the word that follows, so a split's images are all words but the last, and its
labels all but the first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.values.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int16]

END = "<eos>"
"""The word at the end of a line."""
MAX_WORDS = 2**15
"""Words that the numbers of a prepared text can tell apart."""


def read_text(path: Path) -> list[str]:
    """Return the words of a text file. Raises ``ConfigError`` if it is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"dataset.files: {path} is not a text in UTF-8: {error}") from error
    words = [word for line in lines for word in (*line.split(), END)]
    if len(words) < 2:
        raise ConfigError(f"dataset.files: {path} has no two words to learn from")
    return words


def vocabulary(words: list[str]) -> list[str]:
    """Return the words in the order of their numbers. Raises ``ConfigError`` if too many."""
    counts = Counter(words)
    if len(counts) > MAX_WORDS:
        raise ConfigError(
            f"dataset.files: the training text has {len(counts):,} different words, "
            f"but at most {MAX_WORDS:,} can be told apart"
        )
    return sorted(counts, key=lambda word: (-counts[word], word))


def digest_of(known: list[str]) -> str:
    """Return the SHA-256 of a vocabulary, one word a line in the order of their numbers."""
    return hashlib.sha256("".join(f"{word}\n" for word in known).encode()).hexdigest()


def numbered(path: Path, words: list[str], known: list[str]) -> tuple[Numbers, Numbers]:
    """Return the number of each word and that of the word that follows, each of shape (n - 1,).

    Raises:
        ConfigError: For a word of ``path`` that is not known.
    """
    import numpy as np

    numbers = {word: number for number, word in enumerate(known)}
    if unknown := next((word for word in words if word not in numbers), None):
        raise ConfigError(
            f"dataset.files: {path} has the word {unknown!r}, which the training text lacks"
        )
    text = np.array([numbers[word] for word in words], np.int16)
    return text[:-1], text[1:]
