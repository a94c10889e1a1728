"""How the processes of a group train one net: with the mean of their gradients, by ChainerMN."""

import os
import sys

import worker_group
import worker_mpi

_members = []


def start():
    """Start what ChainerMN needs besides the workers."""
    if worker_group.SIZE > 1:
        # the loopback interface is all there is, and what goes past it would not be counted
        os.environ.update(MPIR_CVAR_CH4_NETMOD="ofi", FI_PROVIDER="tcp", MPIR_CVAR_NOLOCAL="1")
        options = ["-launcher", "fork", "-localhost", "127.0.0.1", "-iface", "lo", "-pmi-port"]
        worker_mpi.start(os.path.join(sys.prefix, "bin", "mpiexec.hydra"), *options)


def shared(optimizer, trial):
    """Return the optimizer as all processes use it: each update takes the mean of gradients."""
    if trial.workers == 1:
        return optimizer
    with worker_group.meeting():
        if not _members:
            worker_mpi.join()
            import mpi4py

            mpi4py.rc.finalize = False  # at their end all would wait for each other
            import chainermn

            _members.append(chainermn.create_communicator("naive"))
        from chainermn import create_multi_node_optimizer

        together = create_multi_node_optimizer(optimizer, _members[0])
        together.update()  # the first only hands out the weights of rank 0
    return together


def size():
    """Return how many processes really train together."""
    return _members[0].size if _members else 1
