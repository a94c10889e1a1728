"""A language model that frameworks share: sizes, first weights, parts of a text, perplexity.

The network and its training are the non-regularised LSTM of Zaremba et al. 2014, section 4.1
(doi:10.48550/arXiv.1409.2329), as the small configuration of tutorials/rnn/ptb of
tensorflow/models trains it too. From the bottom up: an embedding of ``UNITS`` a word, ``LAYERS``
layers of an LSTM of as many units, a full layer with a score for every word. The loss is summed
over the ``STEPS`` that the network is unrolled for, and averaged over the texts of a batch.

A split is read as ``batch_size`` texts side by side, each its part of the whole. One iteration
reads the next ``STEPS`` words of each; the state goes on from there until the texts end.

Imports nothing of the host; Python 2.7 to 3.13, NumPy 1.16 to 2.
"""

from __future__ import division

import math

import numpy as np
import worker_api

UNITS, LAYERS, STEPS = 200, 2, 20
INITIAL = 0.1  # all first weights and biases lie between this and its negative, evenly
CLIP = 5.0  # greatest norm of the gradients of all weights together
WHOLE_RATE_EPOCHS, FACTOR = 4, 0.5  # epochs at the whole rate, and the factor of each later one
EVAL_ROWS = 20  # texts side by side that are judged at once
_texts = {}


def load(trial, split):
    """Words and the words that follow them, int32 (n,); read once a session."""
    paths = getattr(trial, split + "_images"), getattr(trial, split + "_labels")
    if paths not in _texts:
        _texts[paths] = [_read(path) for path in paths]
    return _texts[paths]


def _read(path):
    _, _, buffer, offset = worker_api.read_idx(path)
    return np.frombuffer(buffer, ">i2", offset=offset).astype(np.int32)


def side_by_side(text, rows):
    """Divide a text into so many of equal length, (rows, n // rows); the rest is left out."""
    length = len(text) // rows
    return text[: length * rows].reshape(rows, length)


def epoch(trial):
    """Count the iterations of an epoch. Raises ``Impossible`` if the texts are too short."""
    count = trial.train_count // trial.batch_size // STEPS
    if not count:
        raise worker_api.Impossible(
            "batch_size %d leaves texts of fewer than %d words" % (trial.batch_size, STEPS)
        )
    return count


def parts(trial):
    """Words, those that follow, each (batch_size, STEPS), and whether texts begin; without end."""
    words, following = [side_by_side(each, trial.batch_size) for each in load(trial, "train")]
    while True:
        for number in range(epoch(trial)):
            part = slice(number * STEPS, (number + 1) * STEPS)
            yield words[:, part], following[:, part], number == 0


def learning_rate(trial, iteration):
    """Rate of an iteration, counted from 0."""
    later = iteration // epoch(trial) + 1 - WHOLE_RATE_EPOCHS
    return trial.learning_rate * FACTOR ** max(0, later)


def perplexity(trial, split, losses):
    """Perplexity of a split: the exponential of the mean loss over its words.

    ``losses`` returns the negative logarithm of the probability of each word that follows,
    (EVAL_ROWS, STEPS), of words, the words that follow, and whether texts begin. The texts' ends
    are filled up, which does not count.
    """
    words, following = [side_by_side(each, EVAL_ROWS) for each in load(trial, split)]
    total = 0.0
    for start in range(0, words.shape[1], STEPS):
        part = [_filled(each[:, start : start + STEPS]) for each in (words, following)]
        found = np.asarray(losses(part[0], part[1], start == 0), np.float64)
        total += found[:, : words.shape[1] - start].sum()
        worker_api.alive()
    mean = total / words.size
    if not worker_api.is_finite(mean):
        raise worker_api.Diverged("the loss over the %s words is %s" % (split, mean))
    return math.exp(min(mean, 700.0))  # more has no floating-point number


def _filled(part):
    return np.pad(part, ((0, 0), (0, STEPS - part.shape[1])), "constant")


def first_weights(trial):
    """First weights, float32; a seed always gives the same.

    The embedding (words, UNITS), of every layer of the LSTM its weights of what is below
    (4 UNITS, UNITS) and of its own state (4 UNITS, UNITS) and its biases (4 UNITS,), the weights
    (words, UNITS) and biases (words,) of the scores. The gates of a layer are in the order input,
    forget, candidate, output.
    """
    random = np.random.RandomState(trial.seed)

    def draw(*shape):
        return random.uniform(-INITIAL, INITIAL, shape).astype(np.float32)

    embedding = draw(trial.classes, UNITS)
    layers = [
        (draw(4 * UNITS, UNITS), draw(4 * UNITS, UNITS), draw(4 * UNITS)) for _ in range(LAYERS)
    ]
    return embedding, layers, (draw(trial.classes, UNITS), draw(trial.classes))


def trained_values(trial):
    """Count the values that training changes."""
    layer = 4 * UNITS * (2 * UNITS + 1)
    return trial.classes * UNITS + LAYERS * layer + trial.classes * (UNITS + 1)
