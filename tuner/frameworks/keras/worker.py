"""Keras 3: the network of its own MNIST example (mnist_convnet), and Caffe's LeNet."""

import os
from pathlib import Path

import worker_api

with worker_api.importing("keras and its back end"):
    import keras
    import numpy as np
    from keras import layers

    if keras.backend.backend() == "torch":
        import torch
    else:
        import tensorflow as tf
        from tensorflow.python.util import _pywrap_util_port as build

import worker_average
import worker_data
import worker_lenet

BACKEND = keras.backend.backend()  # as KERAS_BACKEND says
TASKS = "/proc/self/task"  # a folder a thread
_in_effect = {}


def stage(filters, side, activation=None):
    """Return a convolution and its pooling."""
    return [layers.Conv2D(filters, side, activation=activation), layers.MaxPooling2D(2)]


def own_example(trial):
    """Two convolutions, dropout and a full layer; Adam."""
    stack = [*stage(32, 3, "relu"), *stage(64, 3, "relu"), layers.Flatten(), layers.Dropout(0.5)]
    stack.append(layers.Dense(trial.classes, activation="softmax"))
    return stack, keras.optimizers.Adam(trial.learning_rate)


def lenet(trial):
    """Caffe's LeNet and solver."""
    first, second, hidden = worker_lenet.FEATURES
    stack = [*stage(first, worker_lenet.KERNEL), *stage(second, worker_lenet.KERNEL)]
    stack += [layers.Flatten(), layers.Dense(hidden, "relu"), layers.Dense(trial.classes)]
    return stack, CaffeSGD(trial)


class CaffeSGD(keras.optimizers.SGD):
    """Its rate falls, weight decay is part of the gradient, and biases learn faster."""

    def __init__(self, trial):
        def rate():
            return worker_lenet.learning_rate(trial, keras.ops.cast(self.iterations, "float32"))

        super().__init__(rate, momentum=worker_lenet.MOMENTUM)

    def update_step(self, gradient, variable, learning_rate):
        """Change one variable."""
        gradient = gradient + worker_lenet.WEIGHT_DECAY * variable
        share = worker_lenet.BIAS_RATE if len(variable.shape) == 1 else 1
        super().update_step(gradient, variable, share * learning_rate)


def prepare(trial):
    """Build and compile the model; returns step and evaluate for the training loop."""
    own, last = trial.model == "default", trial.data_format == "channels_last"
    scale = 1 / 255 if own else worker_lenet.SCALE
    keras.utils.clear_session()
    keras.utils.set_random_seed(trial.seed)
    keras.config.set_image_data_format(trial.data_format)
    if BACKEND == "torch":
        torch.backends.mkldnn.set_flags(trial.blas == "onednn")

    def load(split):
        images, labels = worker_data.load(trial, split, scale)
        return (np.moveaxis(images, 1, 3) if last else images), labels

    train = load("train")
    stack, optimizer = own_example(trial) if own else lenet(trial)
    model = keras.Sequential([keras.Input(train[0].shape[1:]), *stack])
    whole = [layer for layer in model.layers if layer.weights]
    for layer, first in zip(whole, [] if own else worker_lenet.channels_last_weights(trial)):
        layer.set_weights(first)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not own)
    model.compile(optimizer, loss, jit_compile=trial.jit_compile)
    optimizer.build(model.trainable_variables)
    _in_effect["model"] = model

    # the first run compiles: afterwards all is put back to where it was
    kept = [(each, each.numpy().copy()) for each in model.variables + optimizer.variables]
    model.train_on_batch(*next(worker_data.batches(trial, *train)))
    model.predict_on_batch(train[0][:1].repeat(worker_data.EVAL_BATCH, 0))
    for variable, value in kept:
        variable.assign(value)
    stream = worker_data.batches(trial, *train, shuffle=own)

    def step(count):
        for _ in range(count):
            loss = model.train_on_batch(*next(stream))
        return loss

    def evaluate(split):
        return worker_data.accuracy(model.predict_on_batch, *load(split))

    read, write = lambda v: v.numpy(), lambda v, a: v.assign(a)
    values = model.trainable_variables
    return worker_average.averaged(trial, step, evaluate, values, read, write)


def report():
    """Return what is in effect according to Keras and its back end.

    TensorFlow's threads within an operation are those of its pools that keep the process's name.
    """
    model = _in_effect["model"]
    if BACKEND == "torch":
        onednn, threads = torch._C._get_mkldnn_enabled(), torch.get_num_threads()
    else:
        own, *names = [
            Path(TASKS, each, "comm").read_text() for each in (str(os.getpid()), *POOLS)
        ]
        onednn, threads = build.IsMklEnabled(), names.count(own)
    said = {"backend": BACKEND, "blas": "onednn" if onednn else "native", "threads": threads}
    return dict(said, jit_compile=model.jit_compile, data_format=model.layers[0].data_format)


before = os.listdir(TASKS)
if BACKEND == "tensorflow":
    tf.config.list_logical_devices()  # starts the pools
POOLS = set(os.listdir(TASKS)) - set(before)
worker_api.serve(prepare, report=report, keras=keras.__version__, numpy=np.__version__)
