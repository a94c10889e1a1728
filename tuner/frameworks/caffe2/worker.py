"""Caffe2: the networks of its MNIST and CIFAR-10 tutorials, and Caffe's LeNet."""

import itertools

import worker_api

with worker_api.importing("caffe2"):
    import numpy as np
    import torch
    from caffe2.python import brew, core, model_helper, optimizer, workspace
    from caffe2.python.modeling import initializers

import worker_average
import worker_data
import worker_lenet

core.GlobalInit(["caffe2", "--caffe2_log_level=2"])
SCOPE = {"order": "NCHW", "use_cudnn": False}
ZERO = initializers.Initializer("ConstantFill")


def lenet(trial, model, engine):
    """AddLeNetModel of tutorials/MNIST: Caffe's LeNet."""
    maps, flat, caffe = "data", worker_lenet.flat_features(trial), trial.model == "lenet"
    for name, inputs, outputs in ("1", trial.channels, 20), ("2", 20, 50):
        options = {"engine": engine, "no_bias": caffe}
        maps = brew.conv(model, maps, "conv" + name, inputs, outputs, 5, **options)
        maps = brew.max_pool(model, maps, "pool" + name, kernel=2, stride=2)
        if caffe:  # biases before the pool count for each of several equal values in Caffe2
            biases = model.create_param("conv%s_b" % name, [outputs], ZERO)
            maps = model.net.Add([maps, biases], "biased" + name, broadcast=1, axis=1)
    hidden = brew.relu(model, brew.fc(model, maps, "fc3", flat, 500), "fc3")
    return brew.fc(model, hidden, "scores", 500, trial.classes)


def quick(trial, model, engine):
    """Add_Original_CIFAR10_Model of tutorials/CIFAR10_Part1, for images of 32x32."""
    maps = brew.conv(model, "data", "conv1", trial.channels, 32, 5, pad=2, engine=engine)
    maps = brew.max_pool(model, maps, "pool1", kernel=3, stride=2)
    maps = brew.relu(model, maps, "relu1")
    for name, inputs, outputs in ("2", 32, 32), ("3", 32, 64):
        maps = brew.conv(model, maps, "conv" + name, inputs, outputs, 5, pad=2, engine=engine)
        maps = brew.relu(model, maps, "relu" + name)
        maps = brew.average_pool(model, maps, "pool" + name, kernel=3, stride=2)
    hidden = brew.fc(model, maps, "fc1", 64 * 3 * 3, 64)
    return brew.fc(model, hidden, "scores", 64, trial.classes)


def own_solver(model, trial, scores):
    """AddTrainingOperators of both tutorials, each with its own schedule."""
    softmax = brew.softmax(model, scores, "softmax")
    loss = model.AveragedLoss(model.LabelCrossEntropy([softmax, "label"], "entropy"), "loss")
    model.AddGradientOperators([loss])
    schedule = {"policy": "step", "stepsize": 1, "gamma": 0.999}
    if trial.channels == 3:
        schedule = {"policy": "fixed", "momentum": 0.9, "weight_decay": 0.004}
    optimizer.build_sgd(model, base_learning_rate=trial.learning_rate, **schedule)
    model.param_init_net.Proto().device_option.random_seed = trial.seed
    workspace.RunNetOnce(model.param_init_net)


def caffe_solver(model, trial, scores):
    """Caffe's SGD, whose two rates are fed before each iteration."""
    _, loss = model.net.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"])
    gradients = model.AddGradientOperators([loss])
    feed(one=1.0, decay=worker_lenet.WEIGHT_DECAY, rate=0.0, bias_rate=0.0)
    layers = itertools.chain.from_iterable(worker_lenet.first_weights(trial))
    for param, values, rate in zip(model.params, layers, itertools.cycle(("rate", "bias_rate"))):
        gradient, velocity = gradients[str(param)], str(param) + "_velocity"
        feed(**{str(param): values, velocity: np.zeros_like(values)})
        model.net.WeightedSum([gradient, "one", param, "decay"], gradient)
        blobs = [gradient, velocity, rate, param], [gradient, velocity, param]
        model.net.MomentumSGDUpdate(*blobs, momentum=worker_lenet.MOMENTUM)


def feed(**blobs):
    """Set blobs; a number becomes a blob of one."""
    for name, values in blobs.items():
        workspace.FeedBlob(name, np.float32([values]) if isinstance(values, float) else values)


def prepare(trial):
    """Build the nets; returns step and evaluate for the training loop."""
    caffe = trial.model == "lenet"
    network = quick if trial.channels == 3 and not caffe else lenet
    engine = "" if trial.engine == "default" else trial.engine

    def load(split):
        return worker_data.load(trial, split, worker_lenet.SCALE)

    stream = worker_data.batches(trial, *load("train"))
    workspace.ResetWorkspace()
    feed(data=load("train")[0][:1], label=np.zeros(1, np.int32))  # a net is made around its inputs
    nets = []
    for training in True, False:
        name = "train" if training else "predict"
        model = model_helper.ModelHelper(name, init_params=training, arg_scope=SCOPE)
        scores = network(trial, model, engine)
        if training:
            (caffe_solver if caffe else own_solver)(model, trial, scores)
            params = list(map(str, model.params))
        workspace.CreateNet(model.net)
        nets.append(model.net)
    iterations = itertools.count()

    def step(count):
        for iteration in itertools.islice(iterations, count):
            images, labels = next(stream)
            feed(data=images, label=labels.astype(np.int32))
            if caffe:
                rate = worker_lenet.learning_rate(trial, iteration)
                feed(rate=rate, bias_rate=rate * worker_lenet.BIAS_RATE)
            workspace.RunNet(nets[0])
        return workspace.FetchBlob("loss")

    def predict(images):
        feed(data=images)
        workspace.RunNet(nets[1])
        return workspace.FetchBlob("scores")

    def evaluate(split):
        return worker_data.accuracy(predict, *load(split))

    access = workspace.FetchBlob, workspace.FeedBlob
    return worker_average.averaged(trial, step, evaluate, params, *access)


def report():
    """Return what is in effect according to Caffe2 and its BLAS."""
    return dict(worker_api.blas_report(), blas=workspace.C.get_build_options()["BLAS_INFO"])


worker_api.serve(prepare, report=report, caffe2=torch.__version__, numpy=np.__version__)
