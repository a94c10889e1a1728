"""The processes of a worker's group, which train each batch together.

The worker that the host starts is the first of its group (rank 0). It starts the others before it
imports the framework, so that all of them do that at the same time. They run the same script and
live as long as the first does, which tells them on their stdin what to do:

    trial <folder>   prepare this trial
    step <count>     train so many iterations, together with the first
    end              the trial is over

A framework may need helpers besides, such as a server of parameters. All end with the first.

Standard library only, Python 2.7 to 3.13; imports nothing of the host.
"""

import contextlib
import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time

SIZE = int(os.environ.get("TUNER_WORKERS", "1"))
RANK = int(os.environ.get("TUNER_RANK", "0"))
EXCHANGE = os.environ.get("TUNER_EXCHANGE", "exact")  # how the group shares gradients
MEET_S = 60  # for the group to meet, and for each exchange after that
_LOOK_S = 0.1  # for others that have died
_END_S = 5.0  # for others to end by themselves
_HELPER = -1  # rank of all helpers
_PR_SET_PDEATHSIG = 1  # of prctl.h
_PORTS = "TUNER_PORTS"
_others, _helpers = [], []
_names = {}
_ending = threading.Event()


class Broken(Exception):
    """The group cannot go on: a process died, or they never met."""


def start():
    """Start the others of the group, unless this is one of them or they run."""
    if RANK:
        # one that waits for what the first owes it does not see its stdin end
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    elif SIZE > 1 and not _others:
        os.environ[_PORTS] = ",".join(map(str, _free_ports()))
        _others.extend(
            _started("worker %d of %d" % (rank + 1, SIZE), rank) for rank in range(1, SIZE)
        )


def help_with(name, **environment):
    """Let the first of the group start a helper: this script again, with these variables.

    To be called inside ``worker_api.importing``, and the import must not return in the helper.
    ``name`` is what it is called where it dies.
    """
    if SIZE > 1 and not RANK:
        _helpers.append(_started("the %s of %d workers" % (name, SIZE), _HELPER, **environment))


def ports():
    """Return as many free ports as the group has workers, the same in each of its processes."""
    return [int(port) for port in os.environ[_PORTS].split(",")]


def _free_ports():
    doors = [socket.socket() for _ in range(SIZE)]
    for door in doors:
        door.bind(("127.0.0.1", 0))
    found = [door.getsockname()[1] for door in doors]
    for door in doors:
        door.close()
    return found


def _started(name, rank, **environment):
    process = subprocess.Popen(
        [sys.executable] + ["-B"] * sys.dont_write_bytecode + [sys.argv[0]],
        stdin=subprocess.PIPE,
        env=dict(os.environ, TUNER_RANK=str(rank), **environment),
        close_fds=True,  # else each keeps the pipes of those before it open
    )
    _names[process] = name
    return process


def watch(tell):
    """Call ``tell(why)`` from a thread as soon as another process of the group has died.

    Frameworks notice that late, or wait forever for what it owes them.
    """
    if _others:
        thread = threading.Thread(target=_watch, args=(tell,), name="group")
        thread.daemon = True
        thread.start()


def _watch(tell):
    while not _ending.is_set():
        for other in _others + _helpers:
            code = other.poll()
            if code is not None and not _ending.is_set():
                how = "signal %d" % -code if code < 0 else "exit code %d" % code
                tell("%s died: %s" % (_names[other], how))
                return
        time.sleep(_LOOK_S)


def await_cause():
    """Give ``watch`` the time to tell of a dead process, which explains this one's error."""
    if _others:
        time.sleep(5 * _LOOK_S)


def say(*words):
    """Tell the others what to do."""
    line = (" ".join(str(word) for word in words) + "\n").encode("utf-8")
    for other in _others:
        with _dead_or_alive():
            other.stdin.write(line)
            other.stdin.flush()


@contextlib.contextmanager
def _dead_or_alive():
    """Ignore that a process is dead: ``watch`` tells that."""
    try:
        yield
    except EnvironmentError as error:
        if error.errno != errno.EPIPE:
            raise


def led(step):
    """Return ``step`` for the first of a group: the others train the same iterations."""
    if not _others:
        return step

    def together(count):
        say("step", count)
        return step(count)

    return together


def follow(prepare):
    """Do what the first says, until it ends. ``prepare(folder)`` returns the step function."""
    step = None
    for line in iter(sys.stdin.readline, ""):
        word, _, rest = line.rstrip("\n").partition(" ")
        if word == "trial":
            step = prepare(rest)
        elif word == "step":
            step(int(rest))
        else:
            step = None  # frees its memory


@contextlib.contextmanager
def meeting():
    """Turn what a framework raises when the group cannot meet into ``Broken``."""
    try:
        yield
    except Exception as error:
        last = (str(error).strip().splitlines() or [repr(error)])[-1]
        raise Broken("the %d workers did not meet: %s" % (SIZE, last))  # noqa: B904 - Python 2.7


def end():
    """Let the others end, and end those that do not."""
    _ending.set()
    for other in _others:
        with _dead_or_alive():
            other.stdin.close()
    deadline = time.time() + _END_S
    for other in _others:
        while other.poll() is None and time.time() < deadline:
            time.sleep(0.002)
    for other in _others + _helpers:
        if other.poll() is None:
            other.kill()
            other.wait()
