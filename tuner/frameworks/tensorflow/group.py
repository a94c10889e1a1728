"""How the processes of a group train one net: with the sum of their gradients, by collectives.

The operations and packs are those of MultiWorkerMirroredStrategy: a ring over gRPC.
"""

import itertools

import tensorflow as tf
import worker_group
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.distribute import cross_device_utils
from tensorflow.python.eager import context

_LEADER = "/job:worker/replica:0/task:0"
_keys = itertools.count(1)
_members, _limit = [], [0]

if worker_group.SIZE > 1:  # before anything is computed
    context.context().configure_collective_ops(_LEADER)


def meet(trial):
    """Connect the processes of the group, once a session."""
    if trial.workers == 1 or _members:
        return
    places = ["%s:%d" % place for place in worker_group.places()]
    server = tensorflow_server_pb2.ServerDef(
        job_name="worker",
        task_index=trial.rank,
        protocol="grpc",
        port=worker_group.places()[trial.rank][1],
        default_session_config=context.context().config,
    )
    server.cluster.job.add(name="worker").tasks.update(enumerate(places))
    with worker_group.meeting():
        context.context().enable_collective_ops(server)
        _members.extend(places)
        _total(tf.zeros(1), next(_keys))


def learner(slopes, update, trial):
    """Return the function of an iteration: of images, labels, rate and iteration, to the loss.

    ``slopes`` returns loss and gradients of images, labels and iteration; ``update`` applies
    gradients, summed over all processes, at a rate and an iteration.
    """
    compiled = tf.function(jit_compile=trial.xla)
    together = list
    if trial.workers > 1:
        together = _summing(trial.bytes_per_pack)
        if trial.xla:  # which knows no other processes, but what is before and after a sum
            slopes, update, compiled = compiled(slopes), compiled(update), tf.function

    @compiled
    def learn(images, labels, rate, iteration):
        loss, gradients = slopes(images, labels, iteration)
        update(together(gradients), rate, iteration)
        return loss

    return learn


def _summing(limit):
    """Return what adds up the tensors of all processes, in packs that end beyond a limit."""
    _limit[:] = [limit]

    def packed(tensors):
        flat = _total(tf.concat([tf.reshape(each, [-1]) for each in tensors], 0), next(_keys))
        parts = tf.split(flat, [each.shape.num_elements() for each in tensors])
        return [tf.reshape(part, each.shape) for part, each in zip(parts, tensors)]

    def together(tensors):
        # those of the last layers are known first, and summed while the others are computed
        packs = cross_device_utils.group_by_size(tensors[::-1], limit)
        return list(itertools.chain(*map(packed, packs)))[::-1]

    return together


def _total(vector, key):
    # without timeout_seconds: with one, TensorFlow leaves a thread behind each time
    return tf.raw_ops.CollectiveReduceV2(
        input=vector,
        group_size=worker_group.SIZE,
        group_key=1,
        instance_key=key,
        ordering_token=[],
        merge_op="Add",
        final_op="Id",
        communication_hint="ring",
    )


def size():
    """Return how many processes really train together."""
    return len(_members) or 1


def bytes_per_pack(run):
    """Return the limit of the packs that a function sums; ``None`` if it makes no difference."""
    sums = [each for each in run.graph.get_operations() if each.type == "CollectiveReduceV2"]
    return _limit[0] if (len(sums) > 1) == (_limit[0] > 0) else None


def uses_xla(run):
    """Return whether XLA compiles a function or a part of it."""
    functions = run.function_def, *run.graph.as_graph_def().library.function
    return any(each.attr["_XlaMustCompile"].b for each in functions)
