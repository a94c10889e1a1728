"""How the processes of a group train one net: DistributedDataParallel over gloo."""

import datetime
import os

import torch
import worker_group
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

HOOKS = {"fp16": default_hooks.fp16_compress_hook, "powersgd": powerSGD_hook.powerSGD_hook}
OWN = "unset"
"""``bucket_cap_mb`` that leaves the size of buckets to PyTorch: 25 MiB, the first 1 MiB."""
_MIB = 2**20
_ANY_MIB = 2**20  # more than any net has
_registered, _caps = [], []


def shared(net, trial):
    """Return the net as all processes of the group train it: with the mean of their gradients."""
    if trial.workers == 1:
        return net
    with worker_group.meeting():
        if not distributed.is_initialized():
            # on one node there is but the loopback interface in the sandbox
            os.environ.setdefault("GLOO_SOCKET_IFNAME", worker_group.SPAN.interface)
            distributed.init_process_group(
                "gloo",
                init_method="tcp://%s:%d" % worker_group.places()[0],
                rank=trial.rank,
                world_size=trial.workers,
                timeout=datetime.timedelta(seconds=worker_group.MEET_S),
            )
        buckets = _buckets(getattr(trial, "bucket_cap_mb", OWN))
        net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, **buckets)
        if worker_group.EXCHANGE in HOOKS:
            net.register_comm_hook(_state(), HOOKS[worker_group.EXCHANGE])
    _registered[:] = [hook for hook, _ in net._comm_hooks]
    _caps[:] = [OWN if net.bucket_bytes_cap_default else net.bucket_bytes_cap // _MIB]
    torch.manual_seed(trial.seed * trial.workers + trial.rank)  # each drops out others
    return net


def _buckets(asked):
    """Return how large the buckets are in which gradients are sent while others are computed."""
    if worker_group.EXCHANGE == "powersgd":
        # gloo needs the same order in all, and this hook sends twice for each bucket: one alone
        return {"bucket_cap_mb": _ANY_MIB}
    return {} if asked == OWN else {"bucket_cap_mb": asked}


def _state():
    """Return what the hook keeps between iterations."""
    if worker_group.EXCHANGE != "powersgd":
        return None
    # it begins as soon as it may: after the first iterations, in which the buckets are arranged
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)


def size():
    """Return how many processes really train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def exchange():
    """Return how they really share gradients, by the hooks that PyTorch calls."""
    names = {hook: name for name, hook in HOOKS.items()}
    return "+".join(names[each] for each in _registered) or "exact"


def bucket_cap_mb():
    """Return the size of buckets that PyTorch has, MiB; ``None`` where the exchange decides it."""
    if worker_group.EXCHANGE == "powersgd":
        return None
    return _caps[0] if _caps else OWN
