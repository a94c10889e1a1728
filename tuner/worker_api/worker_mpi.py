"""Places in an MPI job for the processes of a group, none of which a launcher of MPI has started.

The launcher starts placeholders. Each writes down what it was told in its environment, for the
process of the group that has its rank, and sleeps. MPI asks the launcher for the rest, and that
does not mind who asks.

Standard library only, Python 2.7 to 3.13; imports nothing of the host.
"""

import json
import os
import signal
import sys
import time

import worker_group

_ROLE = "TUNER_MPI"
_TOLD = "PMI", "OMPI_"  # how the names begin that a launcher of MPICH or Open MPI sets
_LOOK_S = 0.01


def start(*launcher):
    """Start the launcher of a group's job, and do not return in what that starts.

    To be called inside ``worker_api.importing``, in all processes of a group. ``launcher`` is its
    command line but for the number of processes and the program.
    """
    role = os.environ.pop(_ROLE, "")
    if role == "launcher":
        os.environ[_ROLE] = "place"
        job = ["-n", str(worker_group.SIZE), sys.executable, "-B", sys.argv[0]]
        os.execv(launcher[0], list(launcher) + job)  # noqa: S606 - in place of this process
    elif role == "place":
        _write_down({name: os.environ[name] for name in os.environ if name.startswith(_TOLD)})
        while True:
            signal.pause()
    worker_group.help_with("launcher", **{_ROLE: "launcher"})


def _write_down(told):
    rank = told.get("PMI_ID", told.get("OMPI_COMM_WORLD_RANK"))
    path = _path(rank)
    with open(path + ".part", "w") as target:
        json.dump(told, target)
    os.rename(path + ".part", path)


def _path(rank):
    return os.path.join(os.environ["HOME"], "place-%s.json" % rank)


def join():
    """Take this process's place in the job, before MPI is loaded; raise if there is none."""
    deadline = time.time() + worker_group.MEET_S
    path = _path(worker_group.RANK)
    while not os.path.exists(path):
        if time.time() > deadline:
            raise EnvironmentError("the launcher gave no place in %d s" % worker_group.MEET_S)
        time.sleep(_LOOK_S)
    with open(path) as source:
        told = json.load(source)
    os.environ.update({str(name): str(value) for name, value in told.items()})
