"""How the processes of a group train one net: with the sum of their gradients, by MPI.

With the exchange 1bit they send one bit of each value (doi:10.21437/Interspeech.2014-274), and
what these leave out is added to the next gradient. Tensors of up to 1,024 values are sent in full.
"""

import os
import sys

import worker_group
import worker_mpi

BITS = {"exact": 32, "1bit": 1}
"""Of each value of a gradient, that are sent."""
ONE_LEARNER = worker_group.EXCHANGE == "1bit"
"""Whether CNTK refuses more than one learner."""
_members, _exchanges = [], []


def start():
    """Start what CNTK needs besides the workers: Open MPI, which is told where it is."""
    if worker_group.SIZE == 1:
        return
    suite = os.path.join(sys.prefix, "suite", "usr")
    os.environ.update(
        OPAL_PREFIX=suite,
        PMIX_PKGLIBDIR=os.path.join(suite, "lib", "x86_64-linux-gnu", "pmix2", "lib", "pmix"),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_plm="isolated",  # only on this machine
        # the loopback interface is all there is, and what goes past it would not be counted
        OMPI_MCA_pml="ob1",
        OMPI_MCA_btl="self,tcp",
        OMPI_MCA_btl_tcp_if_include="lo",
        OMPI_MCA_oob_tcp_if_include="lo",
        OMPI_MCA_mca_base_component_show_load_errors="0",  # of other networks' plug-ins
    )
    launcher = os.path.join(suite, "bin", "orterun")
    worker_mpi.start(launcher, "--oversubscribe", "--bind-to", "none")


def meet(trial):
    """Connect the processes of the group, once a session."""
    if trial.workers > 1 and not _members:
        from cntk.train import distributed

        with worker_group.meeting():
            worker_mpi.join()
            _members.extend(distributed.mpi_communicator().workers())


def dropout(trial):
    """Return what to tell a layer of dropout: each process drops out others."""
    return {"seed": trial.seed * trial.workers + trial.rank} if trial.workers > 1 else {}


def shared(learners, trial):
    """Return the learners as all processes use them: with the sum of their gradients."""
    if trial.workers == 1:
        return learners
    from cntk.train.distributed import data_parallel_distributed_learner

    bits = BITS[worker_group.EXCHANGE]
    together = [
        data_parallel_distributed_learner(each, num_quantization_bits=bits) for each in learners
    ]
    together[0].set_as_metric_aggregator()  # one of them has to add up the losses
    _exchanges[:] = [worker_group.EXCHANGE]
    return together


def forget(learners):
    """Drop what the exchanges so far have left out of the gradients, as a checkpoint does."""
    if ONE_LEARNER:
        for each in learners:
            each.create_checkpoint()


def size():
    """Return how many processes really train together."""
    return len(_members) or 1


def exchange():
    """Return how they really share gradients, by the learners that CNTK has made."""
    return "+".join(_exchanges) or "exact"
