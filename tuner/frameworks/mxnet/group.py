"""How the processes of a group train one net: by a KVStore of ps-lite.

A scheduler makes the workers and one server known to each other. With the exact exchange, a store
of type dist_sync, the server adds up what all workers push, and each pulls the sum; with 2bit they
push two bits a value, and what these leave out is added to the next gradient. Every worker then
updates the weights itself, so that they stay the same everywhere. With async, a store of type
dist_async, the server updates the weights as soon as one worker has pushed its part of a gradient,
and each worker pulls the weights as they are then. At the end of a step, at most ten iterations,
all wait for each other, or the first would be judged by what the others have not done yet.
"""

import os

import worker_group

TYPES = {"async": "dist_async"}
_stores, _keys, _compressed = [], set(), []


def start():
    """Start what a store needs besides the workers; to be called before MXNet is imported.

    The import of MXNet never returns in a process with one of these roles.
    """
    if worker_group.SIZE == 1:
        return
    # the addresses are given, as ps-lite does not look at the loopback interface by itself
    address, port = worker_group.places()[0]
    os.environ.setdefault("DMLC_PS_ROOT_URI", address)
    os.environ.setdefault("DMLC_PS_ROOT_PORT", str(port))
    os.environ.setdefault("DMLC_NODE_HOST", worker_group.SPAN.address)
    os.environ.setdefault("DMLC_NUM_WORKER", str(worker_group.SIZE))
    os.environ.setdefault("DMLC_NUM_SERVER", "1")
    for role in ("scheduler", "server"):
        worker_group.help_with(role, DMLC_ROLE=role)
    os.environ.setdefault("DMLC_ROLE", "worker")


class Rates:
    """Learning rates by pushes: plain numbers, as the server cannot import what computes them."""

    def __init__(self, rates, trial):
        self.base_lr, self.workers = rates.base_lr, trial.workers
        self.by_iteration = [rates(each) for each in range(1, trial.iterations + 1)]

    def __call__(self, push):
        """Rate of a push, counted from one."""
        return self.by_iteration[min((push - 1) // self.workers, len(self.by_iteration) - 1)]


def join(module, trial):
    """Let all processes train ``module`` together.

    Returns what updates its weights by its gradients, and what ends a step.
    """
    import mxnet as mx

    if trial.workers == 1:
        return module.update, lambda: None
    with worker_group.meeting():
        if not _stores:
            _stores.append(_store(mx))
        asynchronous = _stores[0].type == TYPES["async"]
        # a store keeps weights, and what a compression left out, for ever: trials of a session
        # share the keys of exact sums alone, which are of the same sizes
        first = len(_keys) if asynchronous or _compressed else 0
        trained = dict(enumerate(_trained(module), first))
        update, end = (_by_server if asynchronous else _by_workers)(mx, module, trained, trial)
        _keys.update(trained)
    mx.random.seed(trial.seed * trial.workers + trial.rank)  # each drops out others
    return update, end


def _store(mx):
    store = mx.kv.create(TYPES.get(worker_group.EXCHANGE, "dist_sync"))
    # at their end workers would wait for each other, and the first waits for the others
    mx.base._LIB.MXKVStoreSetBarrierBeforeExit(store.handle, 0)
    if worker_group.EXCHANGE == "2bit":
        store.set_gradient_compression({"type": "2bit"})
        _compressed.append("2bit")
    return store


def _trained(module):
    """Return name, weights and gradient of each parameter that is trained."""
    group = module._exec_group
    rows = zip(group.param_names, group.param_arrays, group.grad_arrays, strict=True)
    return [
        (name, weights, gradient) for name, (weights,), (gradient,) in rows if gradient is not None
    ]


def _by_workers(mx, module, trained, _trial):
    """Let every worker update its weights by the sum of all gradients; returns as ``join``."""
    store = _stores[0]
    for key in sorted(trained.keys() - _keys):
        store.init(key, mx.nd.zeros_like(trained[key][2]))

    def update():
        for key, (_, _, gradient) in trained.items():
            if _compressed:  # which MXNet refuses in one call
                store.push(key, gradient, priority=-key)
                store.pull(key, out=gradient, priority=-key)
            else:
                store.pushpull(key, gradient, priority=-key)
        module.update()

    return update, lambda: None


def _by_server(mx, module, trained, trial):
    """Let the server update the weights by the optimizer of this trial; returns as ``join``."""
    store, own = _stores[0], module._optimizer
    own.idx2name = {key: name for key, (name, _, _) in trained.items()}
    # each part of a batch is an update of its own, so the decay is shared out and the rates wait
    own.lr_scheduler = Rates(own.lr_scheduler, trial)
    own.wd /= trial.workers
    if not trial.rank:
        store.set_optimizer(own)
    for key, (_, weights, _) in trained.items():
        store.init(key, weights)  # all wait here for the first, which gave the optimizer before

    def update():
        for key, (_, _, gradient) in trained.items():
            store.push(key, gradient, priority=-key)
        pull()

    def pull():
        for key, (_, weights, _) in trained.items():
            store.pull(key, out=weights, priority=-key)

    def end():
        mx.nd.waitall()
        store._barrier()
        if not trial.rank:  # the weights that are judged
            pull()

    return update, end


def size():
    """Return how many processes really train together."""
    return _stores[0].num_workers if _stores else 1


def exchange():
    """Return how they really share gradients, by the type of the store and its compression."""
    types = {kind: name for name, kind in TYPES.items()}
    found = [types[each.type] for each in _stores if each.type in types]
    return "+".join([*found, *_compressed]) or "exact"
