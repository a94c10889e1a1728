"""Caffe 1.0: networks and solvers of Caffe's own examples, data in memory.

``model=lenet`` is the network of its MNIST example, ``model=default`` too, but in colour, where
Caffe's own example (of CIFAR-10) is "quick". The net reads the training images in their order, as
Caffe's own data layer does; a seed decides the weights.
"""

import os
import string

import worker_api

os.environ["GLOG_minloglevel"] = "2"  # noqa: SIM112 - glog's own spelling; a line a layer otherwise
with worker_api.importing("caffe"):
    import caffe
    import numpy as np

import worker_average

HERE = os.path.dirname(os.path.abspath(__file__))
EVAL_BATCH = 100  # test batch of both examples
LENET = "lenet.prototxt", "solver.prototxt"
QUICK = "cifar10_quick.prototxt", "cifar10_quick_solver.prototxt"
_arrays = {}


def files_of(trial):
    """Return the network and solver of a trial."""
    return QUICK if trial.model == "default" and trial.channels == 3 else LENET


def load(trial, split):
    """Images (n, channels, height, width) as the network takes them, and labels.

    LeNet takes [0, 1), "quick" 0-255 less the mean training image. Read once a session.
    """
    key = files_of(trial), getattr(trial, split + "_images")
    if key not in _arrays:
        images, labels = read(key[1]), read(getattr(trial, split + "_labels"))
        images = images.reshape(-1, trial.channels, trial.height, trial.width)
        if key[0] == QUICK:
            images = images - read(trial.train_images).mean(axis=0, dtype=np.float32)
        else:
            images = images * np.float32(1 / 256)
        _arrays[key] = images, labels.astype(np.float32)
    return _arrays[key]


def read(path):
    """Read an idx file as an array."""
    shape, _, buffer, offset = worker_api.read_idx(path)
    return np.frombuffer(buffer, np.uint8, offset=offset).reshape(shape)


def whole_batches(arrays, batch_size):
    """Memory data must come in whole batches: the incomplete last one is left out."""
    count = len(arrays[0]) // batch_size * batch_size
    if not count:
        raise worker_api.Impossible(
            "batch_size %d is more than the %d training images" % (batch_size, len(arrays[0]))
        )
    return [np.ascontiguousarray(array[:count]) for array in arrays]


def fill(trial, template, target, **values):
    """Write a prototxt of the framework's folder, values filled in, into the trial's folder."""
    with open(os.path.join(HERE, template)) as source:
        text = string.Template(source.read()).substitute(trial.__dict__, **values)
    path = os.path.join(trial.folder, target)
    with open(path, "w") as output:
        output.write(text)
    return path


def prepare(trial):
    """Build solver and nets; returns step and evaluate for the training loop."""
    train = whole_batches(load(trial, "train"), trial.batch_size)
    os.chdir(trial.folder)
    net_file, solver_file = files_of(trial)
    fill(trial, net_file, "train.prototxt")
    values = {"average_weights": getattr(trial, "average_weights", False)}
    values["iterations_80pct"] = trial.iterations * 80 // 100
    solver_path = fill(trial, solver_file, "solver.prototxt", **values)
    with open(solver_path, "a") as output:
        output.write("random_seed: %d\n" % trial.seed)
    caffe.set_mode_cpu()
    solver = caffe.get_solver(solver_path)
    solver.net.set_input_arrays(*train)
    test_net = caffe.Net(fill(trial, net_file, "test.prototxt", batch_size=EVAL_BATCH), caffe.TEST)
    test_net.share_with(solver.net)

    def step(count):
        solver.step(count)
        return solver.net.blobs["loss"].data

    def evaluate(split):
        images, labels = load(trial, split)
        padding = -len(images) % EVAL_BATCH
        padded = [np.concatenate([each, each[:1].repeat(padding, 0)]) for each in (images, labels)]
        test_net.set_input_arrays(*padded)
        answers = [
            test_net.forward() and test_net.blobs["ip2"].data.argmax(1)
            for _ in range(0, len(images), EVAL_BATCH)
        ]
        return float(np.mean(np.concatenate(answers)[: len(images)] == labels))

    weights = [each.data for layer in solver.net.params.values() for each in layer]
    return worker_average.averaged(trial, step, evaluate, weights)


# A NaN in front of max-pooling corrupts Caffe's heap: look at the loss after every iteration.
worker_api.serve(prepare, chunk=1, caffe=caffe.__version__, numpy=np.__version__)
