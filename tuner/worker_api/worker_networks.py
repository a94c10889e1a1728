"""AlexNet, VGG-16 and ResNet-50 for images of 32x32, as data: the same in every framework.

``layers(trial)`` describes a network as a list. A framework's worker makes it of its own layers,
with ``applied``, or one by one. Kinds, with what follows them:

- ``conv``: channels in, channels out, side of the kernel, stride, whether it has a bias. Padding
  is half the kernel on every side;
- ``full``: features in (in the order channel, height, width), features out;
- ``norm``: channels: batch normalisation, with ``EPSILON`` and ``KEPT``;
- ``residual``: two lists of layers, whose results are added;
- ``relu``; ``pool``: max-pool 2; ``mean``: of each channel; ``flatten``; ``dropout``: of a half.

Imports nothing of the host; Python 2.7 to 3.13, NumPy 1.16 to 2.
"""

from __future__ import division

import numpy as np
import worker_data

EPSILON = 1e-5  # added to a variance
KEPT = 0.9  # of the moving averages at every iteration
DROPPED = 0.5
MARGIN = 4  # pixels of zeros around an image before a part of it is cut out
EVAL_BATCH = 100  # these networks keep megabytes of each image
LAST_DEVIATION = 0.01  # of the first weights before the softmax

RELU, POOL, MEAN, FLATTEN, DROPOUT = ("relu",), ("pool",), ("mean",), ("flatten",), ("dropout",)


def alexnet(trial):
    """Return five convolutions and three full layers with dropout (Krizhevsky et al. 2012).

    Channels are those of arXiv:1404.5997, kernels and strides those that are usual for CIFAR-10:
    3x3 all, stride 2 in the first alone.
    """
    side = lambda size: (size + 1) // 2 // 8
    flat = 256 * side(trial.height) * side(trial.width)
    return (
        [("conv", trial.channels, 64, 3, 2, True), RELU, POOL]
        + [("conv", 64, 192, 3, 1, True), RELU, POOL]
        + [("conv", 192, 384, 3, 1, True), RELU]
        + [("conv", 384, 256, 3, 1, True), RELU]
        + [("conv", 256, 256, 3, 1, True), RELU, POOL, FLATTEN]
        + [DROPOUT, ("full", flat, 4096), RELU]
        + [DROPOUT, ("full", 4096, 4096), RELU]
        + [("full", 4096, trial.classes)]
    )


def vgg(trial):
    """Return configuration D (VGG-16) of arXiv:1409.1556, batch-normalised, with one full layer.

    As ``VGG16`` in models/vgg.py of kuangliu/pytorch-cifar.
    """
    layers, channels = [], trial.channels
    for maps, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [("conv", channels, maps, 3, 1, True), ("norm", maps), RELU]
            channels = maps
        layers.append(POOL)
    flat = channels * (trial.height // 32) * (trial.width // 32)
    return layers + [FLATTEN, ("full", flat, trial.classes)]


def resnet50(trial):
    """Return the 50 layers of table 1 of doi:10.1109/CVPR.2016.90, for small images.

    The first is 3x3 without stride, and no max-pool follows it.
    As ``ResNet50`` in models/resnet.py of kuangliu/pytorch-cifar: a block's stride is in its 3x3
    convolution.
    """
    layers = _normal(trial.channels, 64, 3, 1) + [RELU]
    channels = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        narrow, wide = 64 * 2**stage, 256 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            branch = _normal(channels, narrow, 1, 1) + [RELU]
            branch += _normal(narrow, narrow, 3, stride) + [RELU]
            branch += _normal(narrow, wide, 1, 1)
            shortcut = [] if block else _normal(channels, wide, 1, stride)
            layers += [("residual", branch, shortcut), RELU]
            channels = wide
    return layers + [MEAN, FLATTEN, ("full", channels, trial.classes)]


def _normal(inputs, outputs, kernel, stride):
    return [("conv", inputs, outputs, kernel, stride, False), ("norm", outputs)]


NETWORKS = {"alexnet": alexnet, "vgg": vgg, "resnet50": resnet50}


def layers(trial):
    """Return the layers of ``trial.model``."""
    return NETWORKS[trial.model](trial)


def applied(layers, value, do):
    """Apply layers to a value.

    ``do`` has a function by kind, of the value and of what follows the kind; of a residual, of
    both results.
    """
    for layer in layers:
        if layer[0] == "residual":
            value = do["residual"](*[applied(part, value, do) for part in layer[1:]])
        else:
            value = do[layer[0]](value, *layer[1:])
    return value


def trained(layers):
    """Yield the layers that have weights, in order; of a residual, those of its branch first."""
    for layer in layers:
        if layer[0] == "residual":
            for part in layer[1:]:
                for each in trained(part):
                    yield each
        elif layer[0] in ("conv", "full", "norm"):
            yield layer


def first_weights(trial):
    """Yield each trained layer and its first values, float32; a seed always gives the same.

    They are its weights and biases (``None`` without), or the scale and the shift of a ``norm``.
    Convolutions are (out, in, height, width), full layers (out, in). Normal, of variance 2 over
    the fan in (arXiv:1502.01852); where nothing is normalised of variance 1 over it, as by Caffe's
    filler "xavier", for the first steps explode else. ``LAST_DEVIATION`` in the last layer, as
    AlexNet's and VGG's authors draw it; biases 0.
    """
    random = np.random.RandomState(trial.seed)
    whole = list(trained(layers(trial)))
    gain = 2.0 if any(layer[0] == "norm" for layer in whole) else 1.0
    for layer in whole:
        if layer[0] == "norm":
            yield layer, np.ones(layer[1], np.float32), np.zeros(layer[1], np.float32)
            continue
        shape = (layer[2], layer[1]) + ((layer[3],) * 2 if layer[0] == "conv" else ())
        deviation = LAST_DEVIATION if layer is whole[-1] else (gain / np.prod(shape[1:])) ** 0.5
        weights = random.standard_normal(shape).astype(np.float32) * np.float32(deviation)
        biased = layer[0] == "full" or layer[5]
        yield layer, weights, np.zeros(layer[2], np.float32) if biased else None


def trained_values(trial):
    """Count the values that training changes."""
    count = 0
    for layer in trained(layers(trial)):
        if layer[0] == "norm":
            count += 2 * layer[1]
        elif layer[0] == "full":
            count += (layer[1] + 1) * layer[2]
        else:
            count += (layer[1] * layer[3] ** 2 + layer[5]) * layer[2]
    return count


def views(trial, images):
    """Return how a model sees images to learn from, and to judge: as they are if not one of these.

    ``images`` are those of the training split.
    """
    if trial.model not in NETWORKS:
        return np.asarray, np.asarray
    # each process of a group varies its part of a batch in its own way, as one would all of it
    view = View(images, trial.seed * trial.workers + trial.rank)
    return view.varied, view.standard


def eval_batch(trial):
    """Return how many images are judged at once."""
    return EVAL_BATCH if trial.model in NETWORKS else worker_data.EVAL_BATCH


class View(object):
    """Images as these networks see them: each channel's mean and deviation over all removed.

    For training, a part is cut out at random of each image with zeros around it, and half of them
    are mirrored (section 4.2 of doi:10.1109/CVPR.2016.90).
    """

    def __init__(self, images, seed):
        axes = (0, 2, 3)
        self.mean = images.mean(axes, np.float64, keepdims=True).astype(np.float32)
        # of the first ones: over all the images this would take twice their memory for a moment
        self.deviation = np.maximum(images[:1000].std(axes, keepdims=True), np.float32(1e-3))
        self.random = np.random.RandomState(seed)

    def standard(self, images):
        """Images to judge."""
        return (images - self.mean) / self.deviation

    def varied(self, images):
        """Images to learn from."""
        count, channels, height, width = images.shape
        wide = np.zeros((count, channels, height + 2 * MARGIN, width + 2 * MARGIN), np.float32)
        wide[:, :, MARGIN:-MARGIN, MARGIN:-MARGIN] = self.standard(images)
        parts = np.empty_like(images)
        tops, lefts = self.random.randint(0, 2 * MARGIN + 1, (2, count))
        for number, mirrored in enumerate(self.random.randint(0, 2, count)):
            top, left = tops[number], lefts[number]
            part = wide[number, :, top : top + height, left : left + width]
            parts[number] = part[:, :, ::-1] if mirrored else part
        return parts


def falling(trial, ends, factor=0.1):
    """Return a learning rate by iteration: times ``factor`` at the end of each of these epochs."""
    changes = [end * trial.train_count / trial.batch_size for end in ends]
    return lambda it: trial.learning_rate * factor ** sum(it >= change for change in changes)
