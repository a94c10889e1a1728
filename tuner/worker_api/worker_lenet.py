"""Caffe's LeNet as numbers: the network that ``model=lenet`` means in every framework.

conv 5x5 to 20, max-pool 2, conv 5x5 to 50, max-pool 2, fc 500, ReLU, fc 10; softmax
cross-entropy. All workers take their first weights and their learning rates from here, and the
batches in the order of the data, so that they agree after the same iterations. From
examples/mnist/lenet_train_test.prototxt and lenet_solver.prototxt of Caffe 1.0.
"""

from __future__ import division

import numpy as np

SCALE = 1 / 256.0
MOMENTUM = 0.9
WEIGHT_DECAY = 0.0005  # on weights and biases alike
BIAS_RATE = 2  # biases learn this many times faster
GAMMA, POWER = 0.0001, 0.75

FEATURES = (20, 50, 500)
KERNEL = 5


def learning_rate(trial, iteration):
    """Rate of an iteration (from 0): Caffe's policy "inv"."""
    return trial.learning_rate * (1 + GAMMA * iteration) ** -POWER


def flat_features(trial):
    """Values an image has where the second pooling hands over to the first full layer."""
    height, width = [((side - 4) // 2 - 4) // 2 for side in (trial.height, trial.width)]
    return FEATURES[1] * height * width


def first_weights(trial):
    """Return the four layers' (weights, biases), float32; a seed always gives the same.

    Convolutions are (out, in, height, width), full layers (out, in) over features in the order
    channel, height, width. Uniform within sqrt(3 / fan in), Caffe's filler "xavier" (Glorot and
    Bengio 2010, http://proceedings.mlr.press/v9/glorot10a.html, with the fan in alone); biases 0.
    """
    random = np.random.RandomState(trial.seed)
    shapes = [
        (FEATURES[0], trial.channels, KERNEL, KERNEL),
        (FEATURES[1], FEATURES[0], KERNEL, KERNEL),
        (FEATURES[2], flat_features(trial)),
        (trial.classes, FEATURES[2]),
    ]
    layers = []
    for shape in shapes:
        bound = (3.0 / np.prod(shape[1:])) ** 0.5
        weights = random.uniform(-bound, bound, shape).astype(np.float32)
        layers.append((weights, np.zeros(shape[0], np.float32)))
    return layers


def channels_last_weights(trial):
    """Yield the first weights with channels last: (height, width, in, out), and (in, out)."""
    inputs = (trial.channels,) + FEATURES
    for (weights, biases), maps in zip(first_weights(trial), inputs):
        moved = weights.reshape(len(weights), maps, -1).transpose(2, 1, 0)
        yield moved.reshape(weights.shape[2:] + (-1, len(weights))), biases
