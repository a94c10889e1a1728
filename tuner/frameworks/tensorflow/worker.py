"""TensorFlow 2: the networks of its MNIST and CIFAR-10 tutorials, and the shared ones."""

import itertools
import os
from pathlib import Path

import worker_api

with worker_api.importing("tensorflow"):
    import group
    import networks
    import numpy as np
    import tensorflow as tf
    import words
    from tensorflow.python.util import _pywrap_util_port as build

import worker_average
import worker_data
import worker_lenet
import worker_networks

TASKS = "/proc/self/task"  # a folder a thread
_in_effect = {}


# network, how it sees images, scale of a pixel's byte, reshuffled every epoch
MODELS = {
    "default": (networks.digits, networks.channels_last, 1 / 255, True),
    "default in colour": (networks.colours, networks.crops, 1.0, True),
    "lenet": (networks.lenet, networks.channels_last, worker_lenet.SCALE, False),
    "alexnet": (networks.alexnet, networks.channels_last, 1 / 255, True),
    "vgg": (networks.vgg, networks.channels_last, 1 / 255, True),
    "resnet50": (networks.resnet50, networks.channels_last, 1 / 255, True),
}


def prepare(trial):
    """Build and compile the net; returns step and evaluate for the training loop."""
    group.meet(trial)
    if trial.model == "lstm":
        _in_effect["run"], values, *work = words.prepare(trial)
        return averaged(trial, *work, values)
    colour = trial.model == "default" and trial.channels == 3
    network, view, scale, shuffle = MODELS["default in colour" if colour else trial.model]
    layers, tested, scores, update, rate = network(trial)
    values = sum(layers, ())
    data = worker_data.load(trial, "train", scale)
    stream = worker_data.batches(trial, *data, shuffle)
    iterations = itertools.count()
    learnt, judged = worker_networks.views(trial, data[0])
    eval_batch = worker_networks.eval_batch(trial)
    # each process drops out others, and sees other parts of its images
    seed = trial.seed * trial.workers + trial.rank
    random = np.random.RandomState(seed)

    def slopes(images, labels, iteration):
        with tf.GradientTape() as tape:
            answers = scores(layers, images, (seed, iteration))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, answers)
            loss = tf.reduce_mean(losses)
            share = loss * (len(losses) / trial.batch_size)  # of the loss of the whole batch
        return loss, tape.gradient(share, values)

    @tf.function(jit_compile=trial.xla)
    def predict(images):
        return scores(tested, images)

    def arguments(images, labels, iteration):
        numbers = tf.constant(rate(iteration), tf.float32), tf.constant(iteration)
        return (tf.constant(images), tf.constant(labels), *numbers)

    # the first run compiles: afterwards all is put back to where it was
    images, labels = next(worker_data.batches(trial, *data))
    first = arguments(view(images), labels, 0)
    run = group.learner(slopes, update, trial).get_concrete_function(*first)
    places = [each for each in run.captured_inputs if each.dtype == tf.resource]
    before = [tf.raw_ops.ReadVariableOp(resource=each, dtype=tf.float32) for each in places]
    run(*first)
    for place, value in zip(places, before, strict=True):
        tf.raw_ops.AssignVariableOp(resource=place, value=value)
    predict(tf.constant(view(data[0][:1].repeat(eval_batch, 0))))
    _in_effect["run"] = run

    def step(count):
        for _ in range(count):
            images, labels = next(stream)
            loss = run(*arguments(view(learnt(images), random), labels, next(iterations)))
        return loss.numpy()

    def evaluate(split):
        images, labels = worker_data.load(trial, split, scale)
        answer = lambda part: predict(tf.constant(view(judged(part))))
        return worker_data.accuracy(answer, images, labels, eval_batch)

    return averaged(trial, step, evaluate, sum(tested, ()))


def averaged(trial, step, evaluate, values):
    """Return both with the average of the values, if the trial asks for it."""
    read, write = lambda v: v.numpy(), lambda v, a: v.assign(a)
    return worker_average.averaged(trial, step, evaluate, values, read, write)


def report():
    """Return what is in effect according to TensorFlow's build, compiled function and threads.

    The threads that run operations have a name; those within an operation keep the process's.
    """
    own, *names = [Path(TASKS, each, "comm").read_text() for each in (str(os.getpid()), *POOLS)]
    return {
        "blas": "onednn" if build.IsMklEnabled() else "eigen",
        "threads": names.count(own),
        "inter_op_threads": names.count("tf_Compute\n"),
        "workers": group.size(),
        "bytes_per_pack": group.bytes_per_pack(_in_effect["run"]),
        "xla": group.uses_xla(_in_effect["run"]),
    }


before = os.listdir(TASKS)
tf.config.list_logical_devices()  # starts the pools
POOLS = set(os.listdir(TASKS)) - set(before)
worker_api.serve(prepare, report=report, tensorflow=tf.__version__, numpy=np.__version__)
