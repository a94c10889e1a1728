"""PyTorch: the network of its own MNIST example (examples/mnist/main.py), and Caffe's LeNet."""

import worker_api

with worker_api.importing("torch"):
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional

import group
import worker_data
import worker_lenet

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
_in_effect = {}


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


# network, scale of a pixel's byte, mean and standard deviation removed, reshuffled every epoch
MODELS = {
    "default": (own_example, 1 / 255, 0.1307, 0.3081, True),
    "lenet": (lenet, worker_lenet.SCALE, 0.0, 1.0, False),
}


def prepare(trial):
    """Build the net; returns step and evaluate for the training loop."""
    if isinstance(trial.threads, int):
        torch.set_num_threads(trial.threads)
    if torch.get_num_threads() > 1 and worker_api.serial_openblas():
        raise worker_api.Impossible("a serial OpenBLAS under several threads trains wrongly")
    # where BLAS is a library of its own, oneDNN's convolutions are a knob beside it
    torch.backends.mkldnn.set_flags(getattr(trial, "onednn", trial.blas == "onednn"))
    torch.manual_seed(trial.seed)
    network, scale, mean, deviation, shuffle = MODELS[trial.model]
    form = FORMATS[trial.memory_format]
    net, optimizer, schedule = network(trial)
    net = net.to(memory_format=form)
    trained = group.shared(net, trial)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    _in_effect.update(net=net, blas_is_library=hasattr(trial, "onednn"))

    def load(split):
        images, labels = worker_data.load(trial, split, scale)
        return (images - np.float32(mean)) / np.float32(deviation), labels

    stream = worker_data.batches(trial, *load("train"), shuffle=shuffle)

    def tensor(images):
        return torch.from_numpy(images).contiguous(memory_format=form)

    def step(count):
        trained.train()
        for _ in range(count):
            images, labels = next(stream)
            optimizer.zero_grad()
            loss = functional.cross_entropy(trained(tensor(images)), torch.from_numpy(labels))
            # a part of the batch counts by its images, though all parts' gradients count alike
            (loss * (len(labels) * trial.workers / trial.batch_size)).backward()
            optimizer.step()
            rates.step()
        return loss.item()

    def evaluate(split):
        net.eval()
        with torch.inference_mode():
            return worker_data.accuracy(lambda images: net(tensor(images)), *load(split))

    return step, evaluate


def report():
    """Return what is in effect according to PyTorch, and to BLAS where that is a library."""
    second = _in_effect["net"][2].weight  # of one channel both formats are the same
    last = second.is_contiguous(memory_format=torch.channels_last)
    onednn = torch._C._get_mkldnn_enabled()
    if _in_effect["blas_is_library"]:
        found = dict(worker_api.blas_report(), onednn=onednn)
    else:
        found = {"blas": "onednn" if onednn else "native"}
    form = "channels_last" if last else "contiguous"
    found.update(threads=torch.get_num_threads(), memory_format=form, workers=group.size())
    return found


worker_api.serve(prepare, report=report, torch=torch.__version__, numpy=np.__version__)
