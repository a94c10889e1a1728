"""What workers with NumPy share: images in memory, batches of them, accuracy over a split.

Imports nothing of the host; Python 2.7 to 3.13, NumPy 1.16 to 2.
"""

from __future__ import division

import numpy as np
import worker_api

EVAL_BATCH = 500
_arrays = {}


def load(trial, split, scale=1 / 255.0):
    """Images, float32 (n, channels, height, width) in 0-1, and labels, int64 (n,).

    Read once a session; ``scale`` is what a pixel's byte is multiplied by.
    """
    paths = getattr(trial, split + "_images"), getattr(trial, split + "_labels"), scale
    if paths not in _arrays:
        images, labels = [_read(path) for path in paths[:2]]
        images = images.reshape(-1, trial.channels, trial.height, trial.width)
        _arrays[paths] = images * np.float32(scale), labels.astype(np.int64)
    return _arrays[paths]


def _read(path):
    shape, _, buffer, offset = worker_api.read_idx(path)
    return np.frombuffer(buffer, np.uint8, offset=offset).reshape(shape)


def batches(trial, images, labels, shuffle=False):
    """Batches of ``trial.batch_size`` without end, in order or reshuffled every epoch.

    The incomplete batch at the end of an epoch is left out. Each process of a group gets its own
    part of every batch, so that together they train on the same batches as one alone.
    """
    size, count = trial.batch_size, len(images)
    if size > count:
        raise worker_api.Impossible(
            "batch_size %d is more than the %d training images" % (size, count)
        )
    if size < trial.workers:
        raise worker_api.Impossible("batch_size %d is less than its workers" % size)
    random = np.random.RandomState(trial.seed)
    while True:
        order = random.permutation(count) if shuffle else None
        for start in range(0, count - size + 1, size):
            part = slice(start + trial.rank, start + size, trial.workers)
            part = part if order is None else order[part]
            yield images[part], labels[part]


def accuracy(predict, images, labels, batch=EVAL_BATCH):
    """Fraction of ``images`` for which ``predict(images)``, the scores, are highest at the label.

    The last batch is filled up with repeated images, so that all have the same shape.
    """
    right = 0
    for start in range(0, len(images), batch):
        part, wanted = images[start : start + batch], labels[start : start + batch]
        if len(part) < batch:
            filling = np.repeat(part[:1], batch - len(part), axis=0)
            part = np.concatenate([part, filling])
        answers = np.asarray(predict(part)).argmax(1)[: len(wanted)]
        right += int((answers == wanted).sum())
        worker_api.alive()
    return right / len(images)
