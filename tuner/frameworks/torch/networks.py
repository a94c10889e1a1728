"""The networks of PyTorch: its own MNIST example's, Caffe's LeNet, and the shared ones.

Each is a function of the trial that returns the network, its optimizer, and the factor of the
learning rate of an iteration.
"""

import math

import torch
import worker_lenet
import worker_networks
from torch import nn

MOMENTUM = 0.9


def own_example(trial):
    """Two convolutions and two full layers with dropout; Adadelta, its rate x0.7 every epoch."""
    side = [(size - 4) // 2 for size in (trial.height, trial.width)]
    net = nn.Sequential(
        *(nn.Conv2d(trial.channels, 32, 3), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
        *(nn.Linear(64 * side[0] * side[1], 128), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(128, trial.classes),
    )
    optimizer = torch.optim.Adadelta(net.parameters(), lr=trial.learning_rate)
    epoch = max(1, trial.train_count // trial.batch_size)
    return net, optimizer, lambda iteration: 0.7 ** (iteration // epoch)


def lenet(trial):
    """Caffe's LeNet and solver."""
    net = nn.Sequential(
        *(nn.Conv2d(trial.channels, 20, 5), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(worker_lenet.flat_features(trial), 500), nn.ReLU()),
        nn.Linear(500, trial.classes),
    )
    layers = [layer for layer in net if hasattr(layer, "weight")]
    for layer, (weights, biases) in zip(layers, worker_lenet.first_weights(trial), strict=True):
        layer.weight.data = torch.from_numpy(weights)
        layer.bias.data = torch.from_numpy(biases)
    rates = ((1, "weight"), (worker_lenet.BIAS_RATE, "bias"))
    groups = [
        {"params": [getattr(layer, kind) for layer in layers], "lr": trial.learning_rate * rate}
        for rate, kind in rates
    ]
    optimizer = torch.optim.SGD(
        groups, momentum=worker_lenet.MOMENTUM, weight_decay=worker_lenet.WEIGHT_DECAY
    )
    factor = 1 / trial.learning_rate
    return net, optimizer, lambda it: factor * worker_lenet.learning_rate(trial, it)


class Residual(nn.Module):
    """Adds what two lists of layers make of the same maps."""

    def __init__(self, branch, shortcut):
        super().__init__()
        self.branch, self.shortcut = made(branch), made(shortcut)

    def forward(self, maps):
        """Return the sum."""
        return self.branch(maps) + self.shortcut(maps)


def convolution(inputs, outputs, kernel, stride, bias):
    """Return a convolution, padded by half its kernel."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias)


KINDS = {
    "conv": convolution,
    "full": nn.Linear,
    "norm": lambda size: nn.BatchNorm2d(size, worker_networks.EPSILON, 1 - worker_networks.KEPT),
    "residual": Residual,
    "relu": nn.ReLU,
    "pool": lambda: nn.MaxPool2d(2),
    "mean": lambda: nn.AdaptiveAvgPool2d(1),
    "flatten": nn.Flatten,
    "dropout": lambda: nn.Dropout(worker_networks.DROPPED),
}


def made(layers):
    """Return PyTorch's module of such layers."""
    return nn.Sequential(*(KINDS[kind](*given) for kind, *given in layers))


def built(trial):
    """Return the network of ``trial.model`` with its first weights."""
    net = made(worker_networks.layers(trial))
    modules = [each for each in net.modules() if hasattr(each, "weight")]
    first = worker_networks.first_weights(trial)
    for module, (_, weights, biases) in zip(modules, first, strict=True):
        module.weight.data = torch.from_numpy(weights)
        if biases is not None:
            module.bias.data = torch.from_numpy(biases)
    return net


def cosine(trial):
    """main.py of kuangliu/pytorch-cifar: the rate falls along a cosine for 200 epochs, to 0."""
    epoch = max(1, trial.train_count // trial.batch_size)
    factor = lambda it: (1 + math.cos(math.pi * min(1, it // epoch / 200))) / 2
    return _trained(trial, 0.0005, factor)


def steps(trial):
    """references/classification/train.py of pytorch/vision: x0.1 every 30 epochs."""
    rate = worker_networks.falling(trial, (30, 60))
    return _trained(trial, 0.0001, lambda it: rate(it) / trial.learning_rate)


def _trained(trial, decay, schedule):
    net = built(trial)
    rate = trial.learning_rate
    optimizer = torch.optim.SGD(net.parameters(), rate, MOMENTUM, weight_decay=decay)
    return net, optimizer, schedule


SHARED = {"alexnet": steps, "vgg": cosine, "resnet50": cosine}
