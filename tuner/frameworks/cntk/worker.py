"""CNTK: the network of its own MNIST example (ConvNet_MNIST.py), and Caffe's LeNet."""

import ctypes
import math
import re

import group
import worker_api

with worker_api.importing("cntk"):
    group.start()
    import cntk
    import numpy as np

import worker_average
import worker_data
import worker_lenet


def own_example(trial, images):
    """Three convolutions and two full layers with dropout; SGD, later with momentum."""
    layers = cntk.layers
    with layers.default_options(activation=cntk.relu, pad=False):
        net = layers.Sequential(
            [
                *(layers.Convolution2D((5, 5), 32, pad=True), layers.MaxPooling((3, 3), (2, 2))),
                *(layers.Convolution2D((3, 3), 48), layers.MaxPooling((3, 3), (2, 2))),
                *(layers.Convolution2D((3, 3), 64), layers.Dense(96)),
                layers.Dropout(0.5, **group.dropout(trial)),
                layers.Dense(trial.classes, activation=None),
            ]
        )(images)
    rates = (
        [trial.learning_rate] * 10 + [trial.learning_rate / 2] * 10 + [trial.learning_rate / 10]
    )
    momenta = [0.0] * 5 + [math.exp(-1 / 1024.0)]
    idle = cntk.learning_parameter_schedule_per_sample(0.0)
    momentum = cntk.momentum_schedule_per_sample(momenta, trial.train_count)
    learner = cntk.momentum_sgd(net.parameters, idle, momentum)
    return net, [learner], [cntk.learning_parameter_schedule_per_sample(rates, trial.train_count)]


def more(value):
    """Return zero, whose gradient adds to that of ``value`` what biases learn faster."""
    return (worker_lenet.BIAS_RATE - 1) * (value - cntk.stop_gradient(value))


def lenet(trial, images):
    """Caffe's LeNet and solver."""
    net, parameters, decays = images, [], []
    for number, (weights, biases) in enumerate(worker_lenet.first_weights(trial)):
        convolution = weights.ndim == 4
        shape = (-1, 1, 1) if convolution else (-1,)
        weights = cntk.parameter(init=weights if convolution else weights.T.copy())
        biases = cntk.parameter(init=biases.reshape(shape))
        parameters.append((weights, biases))
        if group.ONE_LEARNER:  # of one rate
            decays.append(more(worker_lenet.WEIGHT_DECAY / 2 * cntk.reduce_sum_square(biases)))
            biases += more(biases)
        if convolution:
            net = cntk.convolution(weights, net, auto_padding=[False]) + biases
            net = cntk.pooling(net, cntk.MAX_POOLING, (2, 2), (2, 2))
        else:
            net = cntk.times(cntk.reshape(net, weights.shape[:1]), weights) + biases
            net = cntk.relu(net) if number == 2 else net
    rates = [worker_lenet.learning_rate(trial, number) for number in range(trial.iterations)]
    schedules = [
        cntk.learning_parameter_schedule([rate * factor for rate in rates], 0, trial.batch_size)
        for factor in (1, worker_lenet.BIAS_RATE)
    ]
    momentum = cntk.momentum_schedule(worker_lenet.MOMENTUM)
    idle = cntk.learning_parameter_schedule(0.0)
    settings = {"unit_gain": False, "l2_regularization_weight": worker_lenet.WEIGHT_DECAY}
    sets = [sum(parameters, ())] if group.ONE_LEARNER else zip(*parameters)
    learners = [cntk.momentum_sgd(each, idle, momentum, **settings) for each in sets]
    return (net, learners, schedules[: len(learners)], *decays)


# network, reshuffled every epoch; both take 1/256 of a pixel's byte
MODELS = {"default": (own_example, True), "lenet": (lenet, False)}


def prepare(trial):
    """Build the net; returns step and evaluate for the training loop."""
    if isinstance(trial.threads, int):
        cntk.cntk_py.set_max_num_cputhreads(trial.threads)
    cntk.cntk_py.set_fixed_random_seed(trial.seed)
    group.meet(trial)
    network, shuffle = MODELS[trial.model]
    images = cntk.input_variable((trial.channels, trial.height, trial.width))
    labels = cntk.input_variable(trial.classes)
    net, learners, schedules, *decays = network(trial, images)
    loss = sum(decays, cntk.cross_entropy_with_softmax(net, labels))
    trainer = cntk.Trainer(net, (loss, None), group.shared(learners, trial))
    train = worker_data.load(trial, "train", worker_lenet.SCALE)
    stream = worker_data.batches(trial, *train, shuffle=shuffle)
    one_hot = np.eye(trial.classes, dtype=np.float32)

    def learn(part, answers):
        trainer.train_minibatch({images: part, labels: one_hot[answers]})

    # the first iteration builds what is then kept; at a rate of zero a learner does not even count
    learn(*next(worker_data.batches(trial, *train)))
    group.forget(trainer.parameter_learners)
    for learner, schedule in zip(learners, schedules):
        learner.reset_learning_rate(schedule)

    def step(count):
        for _ in range(count):
            learn(*next(stream))
        return trainer.previous_minibatch_loss_average

    def evaluate(split):
        return worker_data.accuracy(
            lambda part: net.eval({images: part}),
            *worker_data.load(trial, split, worker_lenet.SCALE),
        )

    read, write = lambda p: p.value, lambda p, a: setattr(p, "value", a)
    return worker_average.averaged(trial, step, evaluate, net.parameters, read, write)


def report():
    """Return what is in effect according to CNTK and its MKL."""
    with open("/proc/self/maps") as maps:
        mkl = ctypes.CDLL(re.search(r"/\S+/libmklml_intel\.so", maps.read()).group())
    threads = cntk.cntk_py.get_max_num_cputhreads()
    found = {"threads": threads, "blas_kernel": str(mkl.mkl_serv_cpu_detect())}
    return dict(found, workers=group.size(), exchange=group.exchange())


worker_api.serve(prepare, report=report, cntk=cntk.__version__, numpy=np.__version__)
