"""Theano: the networks of its MNIST and CIFAR-10 tutorials, and Caffe's LeNet."""

import itertools
import os

import worker_api

with worker_api.importing("theano"):
    import numpy as np
    import theano
    import theano.tensor as T  # noqa: N812 - as in all of Theano's own code
    from theano.tensor.nnet import categorical_crossentropy, conv2d, relu, softmax
    from theano.tensor.signal.pool import pool_2d

import worker_average
import worker_data
import worker_lenet


def digit_weights(trial):
    """Of convolutional_mlp.py in lisa-lab/DeepLearningTutorials; the last layer begins at 0."""
    random = np.random.RandomState(trial.seed)
    flat = worker_lenet.flat_features(trial)
    shapes = [(20, trial.channels, 5, 5), (50, 20, 5, 5), (500, flat), (trial.classes, 500)]
    for shape, pooled, drawn in zip(shapes, (4, 4, 1, 1), (1, 1, 1, 0)):
        fans = np.prod(shape[1:]) + shape[0] * np.prod(shape[2:]) // pooled
        bound = drawn * (6.0 / fans) ** 0.5
        yield random.uniform(-bound, bound, shape), np.zeros(shape[0])


def colour_weights(trial):
    """Of 6_convnet_color.py in benanne/theano-tutorial."""
    random = np.random.RandomState(trial.seed)
    flat = 8 * np.prod([((side - 2) // 3 - 2) // 2 for side in (trial.height, trial.width)])
    for shape in (4, trial.channels, 3, 3), (8, 4, 3, 3), (100, flat), (trial.classes, 100):
        yield 0.1 * random.randn(*shape), 0.1 * random.randn(shape[0])


# first weights, scale of a pixel's byte (DIGITS: as in the tutorial's mnist.pkl.gz), sides of the
# pools, hidden units, whether kernels are flipped; momentum, weight decay, rate of the biases
DIGITS = (digit_weights, 1 / 256.0, (2, 2), T.tanh, True, 0, 0, 1)
COLOURS = (colour_weights, 1 / 255.0, (3, 2), relu, True, 0.9, 0, 1)
SOLVER = (worker_lenet.MOMENTUM, worker_lenet.WEIGHT_DECAY, worker_lenet.BIAS_RATE)
LENET = (worker_lenet.first_weights, worker_lenet.SCALE, (2, 2), relu, False) + SOLVER


def stage(model, maps, biases, side):
    """Apply what follows a convolution, in the order of each model's authors."""
    biases = biases.dimshuffle("x", 0, "x", "x")
    if model is COLOURS:
        return pool_2d(relu(maps + biases), (side, side), ignore_border=True)
    # LeNet's biases come before its pools, where Theano would count each of several equal values
    pooled = pool_2d(maps, (side, side), ignore_border=True) + biases
    return pooled if model is LENET else T.tanh(pooled)


def descend(cost, layers, rate, momentum, decay, bias_rate):
    """Yield the updates of SGD with momentum and weight decay."""
    for values, factor in (pair for layer in layers for pair in zip(layer, (1, bias_rate))):
        change = rate * factor * (T.grad(cost, values) + decay * values)
        if momentum:
            velocity = theano.shared(np.zeros_like(values.get_value()))
            change += momentum * velocity
            yield velocity, change
        yield values, values - change


class Patience(object):
    """The MNIST tutorial's early stopping: ends when validation has not improved for long."""

    def __init__(self, trial):
        self.stop_file = os.path.join(trial.folder, "stop")
        self.iteration, self.patience, self.best = 0, 10000, float("inf")
        self.every = min(trial.train_count // trial.batch_size, self.patience // 2)

    def look(self, evaluate):
        """After each iteration; evaluates once an epoch, and asks for a stop as the host does."""
        self.iteration += 1
        if self.iteration % self.every == 0:
            error = 1 - evaluate("validation")
            if error < 0.995 * self.best:
                self.patience = max(self.patience, 2 * (self.iteration - 1))
            self.best = min(self.best, error)
        if self.iteration > self.patience:
            open(self.stop_file, "w").close()


def prepare(trial):
    """Build and compile the graph; returns step and evaluate for the training loop."""
    own = COLOURS if trial.channels == 3 else DIGITS
    model = LENET if trial.model == "lenet" else own
    first_weights, scale, pools, hidden, flip = model[:5]
    stream = worker_data.batches(trial, *worker_data.load(trial, "train", scale))
    layers = [
        [theano.shared(np.asarray(values, np.float32)) for values in layer]
        for layer in first_weights(trial)
    ]
    images, labels, rate = T.tensor4(), T.lvector(), T.scalar()
    maps = images
    for (weights, biases), side in zip(layers, pools):
        maps = stage(model, conv2d(maps, weights, filter_flip=flip), biases, side)
    features = hidden(T.dot(maps.flatten(2), layers[2][0].T) + layers[2][1])
    scores = T.dot(features, layers[3][0].T) + layers[3][1]
    cost = categorical_crossentropy(softmax(scores), labels).mean()
    train = theano.function(
        [images, labels, rate], cost, updates=list(descend(cost, layers, rate, *model[5:]))
    )
    predict = theano.function([images], scores)
    patience, iterations = Patience(trial), itertools.count()

    def step(count):
        for iteration in itertools.islice(iterations, count):
            caffe = worker_lenet.learning_rate(trial, iteration)
            now = np.float32(caffe if model is LENET else trial.learning_rate)
            loss = train(*next(stream), now)
            if trial.early_stopping:
                patience.look(evaluate)
        return loss

    def evaluate(split):
        return worker_data.accuracy(predict, *worker_data.load(trial, split, scale))

    read, write = lambda v: v.get_value(borrow=True), lambda v, a: v.set_value(a)
    return worker_average.averaged(trial, step, evaluate, sum(layers, []), read, write)


worker_api.serve(prepare, theano=theano.__version__, numpy=np.__version__)
