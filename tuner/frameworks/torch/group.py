"""How the processes of a group train one net: DistributedDataParallel over gloo."""

import datetime
import os

import torch
import worker_group
from torch import distributed, nn


def shared(net, trial):
    """Return the net as all processes of the group train it: with the mean of their gradients."""
    if trial.workers == 1:
        return net
    with worker_group.meeting():
        if not distributed.is_initialized():
            # in the sandbox there is but the loopback interface
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            distributed.init_process_group(
                "gloo",
                init_method="file://%s/meeting" % trial.folder,
                rank=trial.rank,
                world_size=trial.workers,
                timeout=datetime.timedelta(seconds=worker_group.MEET_S),
            )
        net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    torch.manual_seed(trial.seed * trial.workers + trial.rank)  # each drops out others
    return net


def size():
    """Return how many processes really train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1
