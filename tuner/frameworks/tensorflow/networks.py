"""The networks of TensorFlow's MNIST and CIFAR-10 tutorials, Caffe's LeNet, and the shared ones.

Each is a function of the trial that returns its layers (weights and biases), the layers to test,
the scores (of layers, images and, for training, a seed), what applies gradients (to them, at a
rate, after so many iterations), and the learning rate of an iteration. Images are channels-last.
"""

import functools
import itertools

import numpy as np
import tensorflow as tf
import worker_lenet
import worker_networks

CROP = 24  # side of what the CIFAR-10 tutorial cuts out of an image
norm = functools.partial(tf.nn.lrn, depth_radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)


def channels_last(images, _=None):
    """Images as TensorFlow takes them."""
    return np.moveaxis(images, 1, 3)


def crops(images, random=None):
    """Parts of images, whitened; if ``random``, any part, flipped, lightened, of any contrast."""
    count, room, side = len(images), images.shape[2] - CROP, CROP
    above, left = random.randint(0, room + 1, (2, count)) if random else [[room // 2] * count] * 2
    parts = np.lib.stride_tricks.sliding_window_view(images, (side, side), (2, 3))
    parts = parts[np.arange(count), :, above, left]
    if random:
        flip, light, contrast = random.uniform(size=(3, count, 1, 1, 1)).astype(np.float32)
        parts = np.where(flip < 0.5, parts[..., ::-1], parts) + (126 * light - 63)
        means = parts.mean((2, 3), keepdims=True)
        parts = means + (parts - means) * (0.2 + 1.6 * contrast)
    parts = parts - parts.mean((1, 2, 3), keepdims=True)
    deviations = parts.std((1, 2, 3), keepdims=True)
    return channels_last(parts / np.maximum(deviations, parts[0].size ** -0.5))


def convolve(maps, layer, padding="SAME"):
    """Apply a convolution."""
    return tf.nn.bias_add(tf.nn.conv2d(maps, layer[0], 1, padding), layer[1])


def pool(maps, side=2):
    """Largest values of squares that begin two apart."""
    return tf.nn.max_pool2d(maps, side, 2, "SAME")


def full(features, layer):
    """Apply a full layer."""
    return tf.reshape(features, (features.shape[0], -1)) @ layer[0] + layer[1]


def drawn(trial, shapes, deviations, biases):
    """First layers of both tutorials: truncated normal weights, biases of one value a layer."""
    for number, (shape, deviation, bias) in enumerate(zip(shapes, deviations, biases)):
        seed = trial.seed, number
        weights = tf.random.stateless_truncated_normal(shape, seed, stddev=deviation)
        yield tf.Variable(weights), tf.Variable(tf.fill(shape[-1:], bias))


def adam(values):
    """Return an update like that of TensorFlow 1's Adam."""
    slots = [[tf.Variable(tf.zeros_like(value)) for value in values] for _ in range(2)]

    def update(gradients, rate, iteration):
        settings = {"lr": rate, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
        count = tf.cast(iteration + 1, tf.float32)
        settings.update(beta1_power=0.9**count, beta2_power=0.999**count)
        for value, mean, square, gradient in zip(values, *slots, gradients):
            settings.update(var=value.handle, m=mean.handle, v=square.handle, grad=gradient)
            tf.raw_ops.ResourceApplyAdam(**settings)

    return update


def sgd(values, momentum, rates, decays):
    """Return an update like Caffe's; relative rates and weight decay are given by value."""
    slots = [tf.Variable(tf.zeros_like(value)) for value in values]

    def update(gradients, rate, _):
        for value, slot, gradient, share, decay in zip(values, slots, gradients, rates, decays):
            settings = {"var": value.handle, "accum": slot.handle, "momentum": momentum}
            settings.update(lr=rate * share, grad=gradient + decay * value if decay else gradient)
            tf.raw_ops.ResourceApplyKerasMomentum(**settings)

    return update


def digits(trial):
    """mnist_deep.py."""
    flat = -(-trial.height // 4) * -(-trial.width // 4) * 64
    shapes = (5, 5, trial.channels, 32), (5, 5, 32, 64), (flat, 1024), (1024, trial.classes)
    layers = list(drawn(trial, shapes, [0.1] * 4, [0.1] * 4))

    def scores(layers, maps, seed=None):
        for layer in layers[:2]:
            maps = pool(tf.nn.relu(convolve(maps, layer)))
        hidden = tf.nn.relu(full(maps, layers[2]))
        if seed is not None:
            hidden = tf.nn.experimental.stateless_dropout(hidden, 0.5, seed)
        return full(hidden, layers[3])

    return layers, layers, scores, adam(sum(layers, ())), lambda _: trial.learning_rate


def colours(trial):
    """tutorials/image/cifar10 of tensorflow/models: the rate falls to a tenth every 350 epochs."""
    flat = (CROP // 4) ** 2 * 64
    shapes = (5, 5, 3, 64), (5, 5, 64, 64), (flat, 384), (384, 192), (192, trial.classes)
    deviations, biases = (0.05, 0.05, 0.04, 0.04, 1 / 192), (0.0, 0.1, 0.1, 0.1, 0.0)
    layers = list(drawn(trial, shapes, deviations, biases))
    averages = [tuple(map(tf.Variable, layer)) for layer in layers]
    values = sum(layers, ())
    # on the weights of the first two full layers; the factor of the L2 loss is that of the decay
    descend = sgd(
        values, 0.0, [1] * 10, [0.004 if number in (4, 6) else 0 for number in range(10)]
    )
    change = int(350 * trial.train_count / trial.batch_size)

    def scores(layers, maps, _=None):
        maps = norm(pool(tf.nn.relu(convolve(maps, layers[0])), 3))
        maps = pool(norm(tf.nn.relu(convolve(maps, layers[1]))), 3)
        hidden = tf.nn.relu(full(maps, layers[2]))
        return full(tf.nn.relu(full(hidden, layers[3])), layers[4])

    def update(gradients, rate, iteration):
        descend(gradients, rate, iteration)
        count = tf.cast(iteration, tf.float32)
        kept = tf.minimum(0.9999, (1 + count) / (10 + count))
        for average, value in zip(sum(averages, ()), values):
            average.assign_sub((1 - kept) * (average - value))

    rate = lambda iteration: trial.learning_rate * 0.1 ** (iteration // change)
    return layers, averages, scores, update, rate


def lenet(trial):
    """Caffe's LeNet and solver."""
    first = worker_lenet.channels_last_weights(trial)
    layers = [tuple(map(tf.Variable, layer)) for layer in first]
    rates, decays = [1, worker_lenet.BIAS_RATE] * 4, [worker_lenet.WEIGHT_DECAY] * 8
    update = sgd(sum(layers, ()), worker_lenet.MOMENTUM, rates, decays)

    def scores(layers, maps, _=None):
        for layer in layers[:2]:
            maps = pool(convolve(maps, layer, "VALID"))
        return full(tf.nn.relu(full(maps, layers[2])), layers[3])

    return layers, layers, scores, update, functools.partial(worker_lenet.learning_rate, trial)


def shared(trial, ends, decay):
    """AlexNet, VGG-16 or ResNet-50; the rate falls to a tenth at the end of some epochs."""
    layers, averages = [], []
    for (kind, *given), weights, biases in worker_networks.first_weights(trial):
        if kind == "conv":
            weights = weights.transpose(2, 3, 1, 0)
        elif kind == "full":
            weights = weights.T
        else:
            averages.append((tf.Variable(tf.zeros(given)), tf.Variable(tf.ones(given))))
        layers.append(tuple(tf.Variable(each) for each in (weights, biases) if each is not None))
    values = sum(layers, ())
    update = sgd(values, 0.9, [1] * len(values), [decay] * len(values))

    def scores(layers, maps, seed=None):
        do = kinds(iter(layers), iter(averages), seed)
        return worker_networks.applied(worker_networks.layers(trial), maps, do)

    return layers, layers, scores, update, worker_networks.falling(trial, ends)


def kinds(layers, averages, seed):
    """Return what applies each kind of layer, each with the next weights; trains with a seed."""
    numbers = itertools.count(1)

    def convolution(maps, _, __, kernel, stride, bias):
        weights, *biases = next(layers)
        around = [kernel // 2] * 2
        maps = tf.nn.conv2d(maps, weights, stride, [[0, 0], around, around, [0, 0]])
        return tf.nn.bias_add(maps, *biases) if bias else maps

    def norm(maps, _):
        scale, shift = next(layers)
        moving = next(averages)
        settings = {"epsilon": worker_networks.EPSILON, "is_training": seed is not None}
        if seed is not None:
            settings["exponential_avg_factor"] = 1 - worker_networks.KEPT
        maps, *now = tf.compat.v1.nn.fused_batch_norm(maps, scale, shift, *moving, **settings)
        if seed is not None:
            for average, value in zip(moving, now):
                average.assign(value)
        return maps

    def flatten(maps):
        # features in the order of the other frameworks
        return tf.reshape(tf.transpose(maps, (0, 3, 1, 2)), (maps.shape[0], -1))

    def dropout(flat):
        if seed is None:
            return flat
        own = (seed[0] + next(numbers) * 2**20, seed[1])
        return tf.nn.experimental.stateless_dropout(flat, worker_networks.DROPPED, own)

    return {
        "conv": convolution,
        "norm": norm,
        "full": lambda flat, *_: full(flat, next(layers)),
        "residual": lambda branch, shortcut: branch + shortcut,
        "relu": tf.nn.relu,
        "pool": lambda maps: tf.nn.max_pool2d(maps, 2, 2, "VALID"),
        "mean": lambda maps: tf.reduce_mean(maps, (1, 2), keepdims=True),
        "flatten": flatten,
        "dropout": dropout,
    }


def alexnet(trial):
    """Krizhevsky et al. 2012, section 5: 90 epochs, the rate falls three times, at equal parts."""
    return shared(trial, (22.5, 45, 67.5), 0.0005)


def vgg(trial):
    """arXiv:1409.1556, section 3.1: 74 epochs, the rate falls three times, at equal parts."""
    return shared(trial, (18.5, 37, 55.5), 0.0005)


def resnet50(trial):
    """official/r1/resnet/cifar10_main.py of tensorflow/models: weight decay on all values."""
    return shared(trial, (91, 136), 0.0002)
