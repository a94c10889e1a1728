"""The networks of TensorFlow's MNIST and CIFAR-10 tutorials, and Caffe's LeNet.

Each is a function of the trial that returns its layers (weights and biases), the layers to test,
the scores (of layers, images and, for training, a seed), what applies gradients (to them, at a
rate, after so many iterations), and the learning rate of an iteration. Images are channels-last.
"""

import functools

import tensorflow as tf
import worker_lenet

CROP = 24  # side of what the CIFAR-10 tutorial cuts out of an image
norm = functools.partial(tf.nn.lrn, depth_radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)


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

    rate = lambda iteration: trial.learning_rate * 0.1 ** (iteration // change)  # noqa: E731
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
