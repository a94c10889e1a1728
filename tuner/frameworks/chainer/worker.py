"""Chainer: the network of its own MNIST example (train_mnist.py), and Caffe's LeNet."""

import ctypes
import os
import re

import group
import worker_api

with worker_api.importing("chainer"):
    group.start()
    import chainer
    import numpy as np
    from chainer import functions, links

import worker_average
import worker_data
import worker_lenet

PROBE_BYTES = 1 << 26  # more than glibc's malloc ever keeps by itself


class OwnExample(chainer.ChainList):
    """Two hidden layers of 1,000, ReLU; Adam."""

    scale, shuffle = 1 / 255.0, True

    def __init__(self, trial):
        sizes = trial.channels * trial.height * trial.width, 1000, 1000, trial.classes
        super().__init__(*[links.Linear(*pair) for pair in zip(sizes, sizes[1:])])

    def forward(self, images):
        """Scores of the classes."""
        hidden = functions.relu(self[0](images))
        return self[2](functions.relu(self[1](hidden)))

    def optimizer(self, trial):
        """Set up the optimizer; return it and what to do before each iteration."""
        return chainer.optimizers.Adam(trial.learning_rate).setup(self), lambda _: None


class LeNet(chainer.ChainList):
    """Caffe's LeNet and solver."""

    scale, shuffle = worker_lenet.SCALE, False

    def __init__(self, trial):
        first = worker_lenet.first_weights(trial)
        kinds = links.Convolution2D, links.Convolution2D, links.Linear, links.Linear
        layers = []
        for kind, (weights, biases) in zip(kinds, first):
            sizes = weights.shape[1::-1] + weights.shape[2:3]  # in, out, and a kernel's side
            layers.append(kind(*sizes, initialW=weights, initial_bias=biases))
        super().__init__(*layers)

    def forward(self, images):
        """Scores of the classes."""
        for number in (0, 1):
            images = functions.max_pooling_2d(self[number](images), 2, cover_all=False)
        return self[3](functions.relu(self[2](images)))

    def optimizer(self, trial):
        """Set up the optimizer; return it and what to do before each iteration."""
        optimizer = chainer.optimizers.MomentumSGD(momentum=worker_lenet.MOMENTUM).setup(self)
        optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(worker_lenet.WEIGHT_DECAY))
        biases = [layer.b.update_rule.hyperparam for layer in self]

        def schedule(iteration):
            optimizer.lr = worker_lenet.learning_rate(trial, iteration)
            for each in biases:
                each.lr = optimizer.lr * worker_lenet.BIAS_RATE

        return optimizer, schedule


def prepare(trial):
    """Build the net; returns step and evaluate for the training loop."""
    np.random.seed(trial.seed)
    net = {"default": OwnExample, "lenet": LeNet}[trial.model](trial)
    optimizer, schedule = net.optimizer(trial)
    optimizer = group.shared(optimizer, trial)
    train = worker_data.load(trial, "train", net.scale)
    stream = worker_data.batches(trial, train[0], train[1].astype(np.int32), net.shuffle)

    def step(count):
        for _ in range(count):
            images, labels = next(stream)
            schedule(optimizer.t)
            loss = functions.softmax_cross_entropy(net(images), labels)
            net.cleargrads()
            # a part of the batch counts by its images, though all parts' gradients count alike
            (loss * (len(labels) * trial.workers / trial.batch_size)).backward()
            optimizer.update()
        return loss.array

    def evaluate(split):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            return worker_data.accuracy(
                lambda images: net(images).array, *worker_data.load(trial, split, net.scale)
            )

    return worker_average.averaged(trial, step, evaluate, [p.array for p in net.params()])


def keeps(size):
    """Check whether malloc takes a block of this size from what it keeps, not the system."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes, library.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    block = library.malloc(size)
    mapped = ctypes.c_size_t.from_address(block - 8).value & 2  # glibc's note before each block
    library.free(block)
    return not mapped


def report():
    """Return what is in effect according to NumPy's OpenBLAS and the C library's malloc."""
    with open("/proc/self/maps") as maps:
        path = re.search(r"/\S+/numpy\.libs/\S*openblas\S*", maps.read()).group()
    openblas = ctypes.CDLL(path)
    openblas.openblas_get_corename64_.restype = ctypes.c_char_p
    threshold = os.environ.get("MALLOC_TRIM_THRESHOLD_")
    return {
        "threads": openblas.openblas_get_num_threads64_(),
        "workers": group.size(),
        "blas_kernel": openblas.openblas_get_corename64_().decode("ascii"),
        "malloc_threshold": threshold if threshold and keeps(PROBE_BYTES) else "unset",
    }


worker_api.serve(prepare, report=report, chainer=chainer.__version__, numpy=np.__version__)
