"""The networks as symbols of MXNet: its own MNIST example's, Caffe's LeNet, and the shared ones.

Each is a function of the trial that returns the scores, the arguments of ``init_params``, the
learning rates and the weight decay.
"""

import itertools

import mxnet as mx
import worker_lenet
import worker_networks

LAYERS = ("conv1", "conv2", "fc1", "fc2")
CHANGES = 200, 250  # epochs after which the CIFAR-10 example's rate falls to a tenth


class InversePolicy(mx.lr_scheduler.LRScheduler):
    """The learning rates of Caffe's solver."""

    def __init__(self, trial):
        super().__init__(trial.learning_rate)
        self.trial = trial

    def __call__(self, update):
        """Rate of an update, which MXNet counts from one."""
        return worker_lenet.learning_rate(self.trial, update - 1)


def full(data, name, units, **attributes):
    """Return a full layer; ``attributes`` are those of its bias."""
    bias = mx.sym.Variable(name + "_bias", **attributes)
    return mx.sym.FullyConnected(data, bias=bias, num_hidden=units, name=name)


def own_example(trial):
    """Two hidden full layers, ReLU; SGD with momentum, its rate x0.1 after ten epochs."""
    layer = mx.sym.Flatten(mx.sym.Variable("data"))
    for number, units in enumerate((128, 64), 1):
        layer = mx.sym.Activation(full(layer, "fc%d" % number, units), act_type="relu")
    change = 10 * max(1, trial.train_count // trial.batch_size)
    rates = mx.lr_scheduler.MultiFactorScheduler([change], 0.1, trial.learning_rate)
    first = mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2)
    return full(layer, "fc3", trial.classes), {"initializer": first}, rates, 0.0001


def lenet(trial):
    """Caffe's LeNet and solver."""
    # MXNet spares biases the weight decay unless told otherwise
    bias = {"lr_mult": worker_lenet.BIAS_RATE, "wd_mult": 1}
    layer = mx.sym.Variable("data")
    for name, features in zip(LAYERS[:2], worker_lenet.FEATURES[:2], strict=True):
        size = {"kernel": (worker_lenet.KERNEL,) * 2, "num_filter": features, "name": name}
        own_bias = mx.sym.Variable(name + "_bias", **bias)
        layer = mx.sym.Convolution(layer, bias=own_bias, **size)
        layer = mx.sym.Pooling(layer, kernel=(2, 2), stride=(2, 2), pool_type="max")
    layer = full(mx.sym.Flatten(layer), "fc1", worker_lenet.FEATURES[2], **bias)
    layer = mx.sym.Activation(layer, act_type="relu")
    first = {}
    for name, (weights, biases) in zip(LAYERS, worker_lenet.first_weights(trial), strict=True):
        first.update({name + "_weight": mx.nd.array(weights), name + "_bias": mx.nd.array(biases)})
    layer = full(layer, "fc2", trial.classes, **bias)
    return layer, {"arg_params": first}, InversePolicy(trial), worker_lenet.WEIGHT_DECAY


def kinds():
    """Return what makes a symbol of each kind of layer; trained ones have numbers for names."""
    numbers = itertools.count()
    name = lambda: {"name": "layer%d" % next(numbers)}

    def convolution(maps, _, outputs, kernel, stride, bias):
        size = {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "pad": (kernel // 2,) * 2}
        return mx.sym.Convolution(maps, num_filter=outputs, no_bias=not bias, **size, **name())

    def norm(maps, _):
        settings = {"eps": worker_networks.EPSILON, "momentum": worker_networks.KEPT}
        return mx.sym.BatchNorm(maps, fix_gamma=False, **settings, **name())

    half = {"kernel": (2, 2), "stride": (2, 2)}
    return {
        "conv": convolution,
        "norm": norm,
        "full": lambda flat, _, units: mx.sym.FullyConnected(flat, num_hidden=units, **name()),
        "residual": lambda branch, shortcut: branch + shortcut,
        "relu": lambda maps: mx.sym.Activation(maps, act_type="relu"),
        "pool": lambda maps: mx.sym.Pooling(maps, pool_type="max", **half),
        "mean": lambda maps: mx.sym.Pooling(maps, global_pool=True, pool_type="avg"),
        "flatten": mx.sym.Flatten,
        "dropout": lambda flat: mx.sym.Dropout(flat, p=worker_networks.DROPPED),
    }


def cifar10(trial):
    """AlexNet, VGG-16 or ResNet-50, trained as train_cifar10.py and common/fit.py do."""
    data = mx.sym.Variable("data")
    scores = worker_networks.applied(worker_networks.layers(trial), data, kinds())
    first, averages = {}, {}
    for number, (layer, weights, biases) in enumerate(worker_networks.first_weights(trial)):
        name = "layer%d_" % number
        if layer[0] == "norm":
            first.update(
                {name + "gamma": mx.nd.array(weights), name + "beta": mx.nd.array(biases)}
            )
            averages[name + "moving_mean"] = mx.nd.zeros(layer[1])
            averages[name + "moving_var"] = mx.nd.ones(layer[1])
            continue
        first[name + "weight"] = mx.nd.array(weights)
        if biases is not None:
            first[name + "bias"] = mx.nd.array(biases)
    epoch = max(1, trial.train_count // trial.batch_size)
    rates = mx.lr_scheduler.MultiFactorScheduler(
        [epoch * each for each in CHANGES], 0.1, trial.learning_rate
    )
    return scores, {"arg_params": first, "aux_params": averages}, rates, 0.0001
