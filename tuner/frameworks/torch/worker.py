"""PyTorch: the network of its own MNIST example (mnist/main.py), and the shared ones."""

import worker_api

with worker_api.importing("torch"):
    import networks
    import numpy as np
    import torch
    import words
    from torch.nn import functional

import group
import worker_average
import worker_data
import worker_lenet
import worker_networks

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
_in_effect = {}


# network, scale of a pixel's byte, mean and standard deviation removed, reshuffled every epoch
MODELS = {
    "default": (networks.own_example, 1 / 255, 0.1307, 0.3081, True),
    "lenet": (networks.lenet, worker_lenet.SCALE, 0.0, 1.0, False),
    **{name: (each, 1 / 255, 0.0, 1.0, True) for name, each in networks.SHARED.items()},
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
    if trial.model == "lstm":
        net, step, evaluate = words.prepare(trial)
        _in_effect.update(net=net, blas_is_library=hasattr(trial, "onednn"))
        return averaged(trial, step, evaluate, net)
    network, scale, mean, deviation, shuffle = MODELS[trial.model]
    form = FORMATS[trial.memory_format]
    net, optimizer, schedule = network(trial)
    net = net.to(memory_format=form)
    trained = group.shared(net, trial)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    _in_effect.update(net=net, blas_is_library=hasattr(trial, "onednn"))

    train = worker_data.load(trial, "train", scale)
    stream = worker_data.batches(trial, *train, shuffle=shuffle)
    learnt, judged = worker_networks.views(trial, train[0])

    def tensor(images):
        standard = (images - np.float32(mean)) / np.float32(deviation)
        return torch.from_numpy(standard).contiguous(memory_format=form)

    def step(count):
        trained.train()
        for _ in range(count):
            images, labels = next(stream)
            optimizer.zero_grad()
            answers = trained(tensor(learnt(images)))
            loss = functional.cross_entropy(answers, torch.from_numpy(labels))
            # a part of the batch counts by its images, though all parts' gradients count alike
            (loss * (len(labels) * trial.workers / trial.batch_size)).backward()
            optimizer.step()
            rates.step()
        return loss.item()

    def evaluate(split):
        net.eval()
        with torch.inference_mode():
            return worker_data.accuracy(
                lambda images: net(tensor(judged(images))),
                *worker_data.load(trial, split, scale),
                batch=worker_networks.eval_batch(trial),
            )

    return averaged(trial, step, evaluate, net)


def averaged(trial, step, evaluate, net):
    """Return both with the average of the net's weights, if the trial asks for it."""
    weights = [each.detach().numpy() for each in net.parameters()]
    return worker_average.averaged(trial, step, evaluate, weights)


def report():
    """Return what is in effect according to PyTorch, and to BLAS where that is a library."""
    # of one channel or one pixel both formats are the same
    shapes = [each for each in _in_effect["net"].parameters() if each.dim() == 4]
    telling = [each for each in shapes if each.shape[1] > 1 and each.shape[2] > 1][:1]
    last = any(each.is_contiguous(memory_format=torch.channels_last) for each in telling)
    onednn = torch._C._get_mkldnn_enabled()
    if _in_effect["blas_is_library"]:
        found = dict(worker_api.blas_report(), onednn=onednn)
    else:
        found = {"blas": "onednn" if onednn else "native"}
    form = "channels_last" if last else "contiguous"
    found.update(threads=torch.get_num_threads(), memory_format=form, workers=group.size())
    return dict(found, exchange=group.exchange(), bucket_cap_mb=group.bucket_cap_mb())


worker_api.serve(prepare, report=report, torch=torch.__version__, numpy=np.__version__)
