"""MXNet: the network of its own MNIST example (train_mnist.py), and Caffe's LeNet, as Modules."""

import worker_api

with worker_api.importing("mxnet"):
    import mxnet as mx
    import numpy as np

import worker_data
import worker_lenet

LAYERS = ("conv1", "conv2", "fc1", "fc2")


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


# network, scale of a pixel's byte, reshuffled every epoch
MODELS = {"default": (own_example, 1 / 255.0, True), "lenet": (lenet, worker_lenet.SCALE, False)}


def prepare(trial):
    """Build the net; returns step and evaluate for the training loop."""
    mx.random.seed(trial.seed)
    network, scale, shuffle = MODELS[trial.model]
    scores, first, rates, decay = network(trial)
    symbol = mx.sym.SoftmaxOutput(scores, name="softmax")
    train = worker_data.load(trial, "train", scale)
    stream = worker_data.batches(trial, *train, shuffle=shuffle)

    def bind(batch, **options):
        shape = batch, trial.channels, trial.height, trial.width
        module = mx.mod.Module(symbol)
        module.bind([("data", shape)], [("softmax_label", (batch,))], **options)
        return module

    module = bind(trial.batch_size)
    module.init_params(**first)
    # bound for training as well: else oneDNN keeps the weights it has seen first in its own order
    tester = bind(worker_data.EVAL_BATCH, shared_module=module)
    settings = {"momentum": 0.9, "wd": decay, "lr_scheduler": rates}
    settings["learning_rate"] = trial.learning_rate
    module.init_optimizer(kvstore=None, optimizer="sgd", optimizer_params=settings)

    def forward(net, images, labels, train):
        batch = mx.io.DataBatch([mx.nd.array(images)], [mx.nd.array(labels)])
        net.forward(batch, is_train=train)

    # the first pass builds what is then kept; weights change only in update()
    forward(module, *next(worker_data.batches(trial, *train)), True)
    module.backward()
    mx.nd.waitall()

    def step(count):
        for _ in range(count):
            images, labels = next(stream)
            forward(module, images, labels, True)
            module.backward()
            module.update()
        answers = module.get_outputs()[0].asnumpy()
        mx.nd.waitall()  # the engine works behind our back: the update is still to come
        likelihood = answers[np.arange(len(labels)), labels]
        # a NaN stays one; certainty of the wrong answer is no infinity
        return -np.log(np.maximum(likelihood, np.finfo(np.float32).tiny)).mean()

    def evaluate(split):
        def predict(images):
            forward(tester, images, np.zeros(len(images)), False)
            return tester.get_outputs()[0].asnumpy()

        return worker_data.accuracy(predict, *worker_data.load(trial, split, scale))

    return step, evaluate


def report():
    """Return what is in effect according to MXNet and the OpenMP library it is linked to."""
    onednn = mx.runtime.Features().is_enabled("MKLDNN")
    onednn = onednn and mx.util.getenv("MXNET_MKLDNN_ENABLED") != "0"
    threads = mx.base._LIB.omp_get_max_threads()
    return {"blas": "onednn" if onednn else "openblas", "threads": threads}


worker_api.serve(prepare, report=report, mxnet=mx.__version__, numpy=np.__version__)
