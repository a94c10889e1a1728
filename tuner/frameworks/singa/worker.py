"""SINGA: the network of its own MNIST example (examples/cnn), and Caffe's LeNet."""

import collections.abc

import worker_api

with worker_api.importing("singa"):
    import numpy as np

    # SINGA 5 uses names that Python 3.10 and NumPy 1.24 have dropped
    collections.Iterable = collections.abc.Iterable
    np.int, np.float = int, float
    import singa
    from singa import device, layer, model, opt, tensor

import worker_average
import worker_data
import worker_lenet

_in_effect = {}  # what the last trial uses


class Net(model.Model):
    """LeNet; SINGA's own example has a ReLU after each convolution, Caffe's has none."""

    def __init__(self, trial):
        super(Net, self).__init__()
        after = {"activation": "RELU"} if trial.model == "default" else {}
        self.conv1 = layer.Conv2d(trial.channels, 20, 5, padding=0, **after)
        self.conv2 = layer.Conv2d(20, 50, 5, padding=0, **after)
        self.pool1, self.pool2 = [layer.MaxPool2d(2, 2, padding=0) for _ in range(2)]
        self.linear1, self.linear2 = layer.Linear(500), layer.Linear(trial.classes)
        self.flatten, self.relu = layer.Flatten(), layer.ReLU()
        self.cross_entropy = layer.SoftMaxCrossEntropy()

    def forward(self, images):
        """Scores of the images."""
        maps = self.pool2(self.conv2(self.pool1(self.conv1(images))))
        return self.linear2(self.relu(self.linear1(self.flatten(maps))))

    def train_one_batch(self, images, labels):
        """One iteration."""
        scores = self.forward(images)
        loss = self.cross_entropy(scores, labels)
        self.optimizer(loss)
        return scores, loss


class CaffeSGD(opt.SGD):
    """Caffe's SGD: weight decay, and biases that learn faster."""

    def apply(self, param_name, param_value, param_grad):
        """Change a param in place."""
        param_grad += param_value * worker_lenet.WEIGHT_DECAY
        if len(param_value.shape) == 1:
            param_grad *= float(worker_lenet.BIAS_RATE)
        super(CaffeSGD, self).apply(param_name, param_value, param_grad)


def set_caffe_weights(net, trial):
    """Set the first weights that all frameworks share; full layers are (in, out) here."""
    layers = (net.conv1, net.conv2, net.linear1, net.linear2)
    for each, (weights, _) in zip(layers, worker_lenet.first_weights(trial)):
        values = weights.T if weights.ndim == 2 else weights
        each.W.copy_from_numpy(np.ascontiguousarray(values))


def record(net, images, labels):
    """Train once, by which graph mode records its graph, and undo it."""
    params = [(each, tensor.to_numpy(each)) for each in net.get_params().values()]
    net(images, labels)
    for param, values in params:
        param.copy_from_numpy(values)
    for velocity in net.optimizer.moments.values():
        velocity.set_value(0.0)


def prepare(trial):
    """Build the net and, in graph mode, its graph; returns step and evaluate."""
    caffe, size = trial.model == "lenet", trial.batch_size
    device.create_cpu_device().SetRandSeed(trial.seed)
    scale = worker_lenet.SCALE if caffe else 1 / 255.0
    train = worker_data.load(trial, "train", scale)
    stream = worker_data.batches(trial, *train, shuffle=not caffe)
    first = next(worker_data.batches(trial, *train))
    images, labels = [tensor.from_numpy(each) for each in (first[0], first[1].astype(np.int32))]
    net = Net(trial)
    if caffe:
        solver = CaffeSGD(lr=trial.learning_rate, momentum=worker_lenet.MOMENTUM)
    else:
        solver = opt.SGD(lr=trial.learning_rate, momentum=0.9, weight_decay=1e-5)
    net.optimizer = solver
    net.compile([images], is_train=True, use_graph=trial.graph, sequential=False)
    if caffe:
        set_caffe_weights(net, trial)
    record(net, images, labels)
    _in_effect["graph"] = net.graph_mode
    done = [0]

    def step(count):
        net.train()
        for _ in range(count):
            pictures, answers = next(stream)
            images.copy_from_numpy(pictures)
            labels.copy_from_numpy(answers.astype(np.int32))
            if caffe:
                solver.lr_value.set_value(worker_lenet.learning_rate(trial, done[0]))
            _, loss = net(images, labels)
            done[0] += 1
        return tensor.to_numpy(loss).mean()

    def predict(pictures):
        images.copy_from_numpy(pictures)
        return tensor.to_numpy(net(images))

    def evaluate(split):
        net.eval()
        # a convolution is made for one size of batch
        return worker_data.accuracy(predict, *worker_data.load(trial, split, scale), batch=size)

    read, write = tensor.to_numpy, tensor.Tensor.copy_from_numpy
    values = net.get_params().values()
    return worker_average.averaged(trial, step, evaluate, values, read, write)


def report():
    """Return what is in effect according to SINGA and its BLAS."""
    return dict(worker_api.blas_report(), **_in_effect)


version = getattr(singa, "__version__", "5")
worker_api.serve(prepare, report=report, singa=version, numpy=np.__version__)
