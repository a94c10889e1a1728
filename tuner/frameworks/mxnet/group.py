"""How the processes of a group train one net: with the sum of their gradients, by a KVStore.

A store of type dist_sync is ps-lite's: a server adds up what all workers push, and each pulls the
sum; a scheduler makes them known to each other. Every worker then updates the weights itself, so
that they stay the same everywhere.
"""

import os

import worker_group

_stores, _keys = [], set()


def start():
    """Start what a store needs besides the workers; to be called before MXNet is imported.

    The import of MXNet never returns in a process with one of these roles.
    """
    if worker_group.SIZE == 1:
        return
    # the addresses are given, as ps-lite does not look at the loopback interface by itself
    os.environ.setdefault("DMLC_PS_ROOT_URI", "127.0.0.1")
    os.environ.setdefault("DMLC_PS_ROOT_PORT", str(worker_group.ports()[0]))
    os.environ.setdefault("DMLC_NODE_HOST", "127.0.0.1")
    os.environ.setdefault("DMLC_NUM_WORKER", str(worker_group.SIZE))
    os.environ.setdefault("DMLC_NUM_SERVER", "1")
    for role in ("scheduler", "server"):
        worker_group.help_with(role, DMLC_ROLE=role)
    os.environ.setdefault("DMLC_ROLE", "worker")


def join(module, trial):
    """Let ``module.update()`` of all processes take the sum of their gradients."""
    import mxnet as mx

    if trial.workers == 1:
        return
    with worker_group.meeting():
        if not _stores:
            _stores.append(mx.kv.create("dist_sync"))
            # at their end workers would wait for each other, and the first waits for the others
            mx.base._LIB.MXKVStoreSetBarrierBeforeExit(_stores[0].handle, 0)
        # the sums of a session's trials are of the same sizes, and no values are kept
        gradients = zip(module._exec_group.param_names, module._exec_group.grad_arrays)
        for name, (gradient,) in gradients:
            if gradient is not None and name not in _keys:
                _stores[0].init(name, mx.nd.zeros_like(gradient))
                _keys.add(name)
    # as init_optimizer(kvstore) does, which would also give the store all weights, for each trial
    module._kvstore = _stores[0]
    mx.random.seed(trial.seed * trial.workers + trial.rank)  # each drops out others


def size():
    """Return how many processes really train together."""
    return _stores[0].num_workers if _stores else 1
