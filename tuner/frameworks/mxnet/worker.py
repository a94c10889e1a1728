"""MXNet: the network of its own MNIST example (train_mnist.py), and the shared ones."""

import group
import worker_api

with worker_api.importing("mxnet"):
    group.start()
    import mxnet as mx
    import networks
    import numpy as np
    import words

import worker_average
import worker_data
import worker_lenet
import worker_networks

ACCESS = mx.nd.NDArray.asnumpy, lambda weights, values: weights.__setitem__(slice(None), values)
# network, scale of a pixel's byte, reshuffled every epoch
MODELS = {
    "default": (networks.own_example, 1 / 255.0, True),
    "lenet": (networks.lenet, worker_lenet.SCALE, False),
    **dict.fromkeys(worker_networks.NETWORKS, (networks.cifar10, 1 / 255.0, True)),
}


def prepare(trial):
    """Build the net; returns step and evaluate for the training loop."""
    mx.random.seed(trial.seed)
    if trial.model == "lstm":
        weights, *work = words.prepare(trial)
        return worker_average.averaged(trial, *work, weights, *ACCESS)
    network, scale, shuffle = MODELS[trial.model]
    scores, first, rates, decay = network(trial)
    symbol = mx.sym.SoftmaxOutput(scores, name="softmax")
    train = worker_data.load(trial, "train", scale)
    stream = worker_data.batches(trial, *train, shuffle=shuffle)
    learnt, judged = worker_networks.views(trial, train[0])
    eval_batch = worker_networks.eval_batch(trial)

    def bind(batch, **options):
        shape = batch, trial.channels, trial.height, trial.width
        module = mx.mod.Module(symbol)
        module.bind([("data", shape)], [("softmax_label", (batch,))], **options)
        return module

    # the part of a batch that this process of a group gets
    images, labels = next(worker_data.batches(trial, *train))
    module = bind(len(labels))
    module.init_params(**first)
    # bound for training as well: else oneDNN keeps the weights it has seen first in its own order
    tester = bind(eval_batch, shared_module=module)
    settings = {"momentum": 0.9, "wd": decay, "lr_scheduler": rates}
    settings.update(learning_rate=trial.learning_rate, rescale_grad=1.0 / trial.batch_size)
    module.init_optimizer(kvstore=None, optimizer="sgd", optimizer_params=settings)
    update, end_step = group.join(module, trial)

    def forward(net, images, labels, train):
        batch = mx.io.DataBatch([mx.nd.array(images)], [mx.nd.array(labels)])
        net.forward(batch, is_train=train)

    # the first pass builds what is then kept; weights change only in update()
    forward(module, images, labels, True)
    module.backward()
    mx.nd.waitall()

    def step(count):
        for _ in range(count):
            images, labels = next(stream)
            forward(module, learnt(images), labels, True)
            module.backward()
            update()
        end_step()
        answers = module.get_outputs()[0].asnumpy()
        mx.nd.waitall()  # the engine works behind our back: the update is still to come
        likelihood = answers[np.arange(len(labels)), labels]
        # a NaN stays one; certainty of the wrong answer is no infinity
        return -np.log(np.maximum(likelihood, np.finfo(np.float32).tiny)).mean()

    def evaluate(split):
        def predict(images):
            forward(tester, judged(images), np.zeros(len(images)), False)
            return tester.get_outputs()[0].asnumpy()

        data = worker_data.load(trial, split, scale)
        return worker_data.accuracy(predict, *data, batch=eval_batch)

    weights = [each for (each,) in module._exec_group.param_arrays]
    return worker_average.averaged(trial, step, evaluate, weights, *ACCESS)


def report():
    """Return what is in effect according to MXNet and the OpenMP library it is linked to."""
    onednn = mx.runtime.Features().is_enabled("MKLDNN")
    onednn = onednn and mx.util.getenv("MXNET_MKLDNN_ENABLED") != "0"
    found = {"threads": mx.base._LIB.omp_get_max_threads(), "workers": group.size()}
    found["exchange"] = group.exchange()
    return dict(found, blas="onednn" if onednn else "openblas")


worker_api.serve(prepare, report=report, mxnet=mx.__version__, numpy=np.__version__)
