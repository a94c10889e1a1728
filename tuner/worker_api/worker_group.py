"""The processes of a worker's group, which train each batch together.

The worker that the host starts is the first of its group (rank 0). It starts the others before it
imports the framework, so that all of them do that at the same time. They run the same script and
live as long as the first does, which tells them on their stdin what to do:

    trial <folder>   prepare this trial
    step <count>     train so many iterations, together with the first
    end              the trial is over

Of a group that spans nodes, the host starts the first on each node. It starts the others there,
and does what the first of all says by ``worker_link``. No node answers its host before all workers
of all nodes have trained their last step: the host then stops its processes, which another node
may still wait for, such as a server of parameters or a neighbour in a ring.

A framework may need helpers besides, such as a server of parameters. All end with the first.

Standard library only, Python 2.7 to 3.13; imports nothing of the host.
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import worker_link

SIZE = int(os.environ.get("TUNER_WORKERS", "1"))
HERE = int(os.environ.get("TUNER_WORKERS_HERE", SIZE))  # on this node
FIRST = int(os.environ.get("TUNER_FIRST", "0"))  # rank of the first on this node
RANK = int(os.environ.get("TUNER_RANK", FIRST))
EXCHANGE = os.environ.get("TUNER_EXCHANGE", "exact")  # how the group shares gradients
SPAN = worker_link.Span()
MEET_S = 60  # for the group to meet, and for each exchange after that
_LOOK_S = 0.1  # for others that have died
_END_S = 5.0  # for others to end by themselves
_HELPER = -1  # rank of all helpers
_PR_SET_PDEATHSIG = 1  # of prctl.h
_PLACES = "TUNER_PLACES"
_DONE = "done"  # what a node says once all its workers have trained the last step
_others, _helpers, _links = [], [], []
_names, _lines = {}, {}
_ending = threading.Event()


class Broken(Exception):
    """The group cannot go on: a process died, or they never met."""


def start():
    """Start the others of the group on this node, unless this is one of them or they run.

    Raises ``Broken`` if the nodes of a group do not meet.
    """
    if RANK != FIRST:
        # one that waits for what the first owes it does not see its stdin end
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    elif SIZE > 1 and _PLACES not in os.environ:
        os.environ[_PLACES] = " ".join(_meet(worker_link.free_places(SPAN.address, HERE)))
        _others.extend(_started(_name(rank), rank) for rank in range(FIRST + 1, FIRST + HERE))


def _meet(own):
    """Return the places of the workers on all nodes; ``own`` are those of this one."""
    if SPAN.nodes == 1:
        return own
    with meeting():
        if FIRST:
            given = SPAN.control, SPAN.token, FIRST, own, _name, MEET_S
            links, places = worker_link.join(*given)
        else:
            given = SPAN.control, SPAN.token, SPAN.nodes, own, _name, MEET_S
            links, places = worker_link.gather(*given)
    _links.extend(links)
    return places


def _name(rank, place=""):
    name = "worker %d of %d" % (rank + 1, SIZE)
    return "%s on %s" % (name, place.rpartition(":")[0]) if place else name


def help_with(name, **environment):
    """Let the first of the group start a helper: this script again, with these variables.

    To be called inside ``worker_api.importing``, and the import must not return in the helper.
    ``name`` is what it is called where it dies.
    """
    if SIZE > 1 and not RANK:
        _helpers.append(_started("the %s of %d workers" % (name, SIZE), _HELPER, **environment))


def places():
    """Return an address and a free port there for each worker, the same in all of the group."""
    found = [place.rpartition(":") for place in os.environ[_PLACES].split()]
    return [(host, int(port)) for host, _, port in found]


def _started(name, rank, **environment):
    line, its = socket.socketpair()  # not a pipe: it answers by its stdin, see ``finish``
    process = subprocess.Popen(
        [sys.executable] + ["-B"] * sys.dont_write_bytecode + [sys.argv[0]],
        stdin=its,
        env=dict(os.environ, TUNER_RANK=str(rank), **environment),
        close_fds=True,  # else each keeps the lines of those before it open
    )
    its.close()
    _names[process], _lines[process] = name, line
    return process


def watch(tell):
    """Call ``tell(why)`` from a thread as soon as another process of the group has died.

    Frameworks notice that late, or wait forever for what it owes them.
    """
    if _others or _links:
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
        for why in filter(None, [link.fault() for link in _links]):
            if FIRST:
                time.sleep(_END_S)  # the first of all may just have ended
            if not _ending.is_set():
                tell(why)
            return
        time.sleep(_LOOK_S)


def await_cause():
    """Give ``watch`` the time to tell of a dead process, which explains this one's error."""
    if _others or _links:
        time.sleep(5 * _LOOK_S)


def say(*words):
    """Tell the others of this node what to do, and if this is the first of all the other nodes."""
    text = " ".join(str(word) for word in words)
    for link in _links:
        if not FIRST:
            link.say(text)
    line = (text + "\n").encode("utf-8")
    for other in _others:
        with _dead_or_alive():
            _lines[other].sendall(line)


@contextlib.contextmanager
def _dead_or_alive():
    """Ignore that a process is dead: ``watch`` tells that."""
    try:
        yield
    except EnvironmentError as error:
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise


def led(step):
    """Return ``step`` for the first of a node: the others train the same iterations."""
    if SIZE == 1:
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
            if SPAN.nodes > 1:
                os.write(sys.stdin.fileno(), b".")


def await_end():
    """Wait for the first of this node to end, for so long that it can say why it does.

    Others that see that the trial is impossible see it too, and ``watch`` would call them dead.
    """
    deadline = time.time() + _END_S
    while time.time() < deadline:
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, deadline - time.time()))
        if ready and not os.read(sys.stdin.fileno(), 4096):
            return


def steps(idle):
    """Yield the counts of iterations to train that the first of all says, until the trial's end.

    Calls ``idle()`` at times while it says nothing.
    """
    for line in _heard(_links[0], idle):
        word, _, rest = line.partition(" ")
        if word == "end":
            return
        if word == "step":
            yield int(rest)


def _heard(link, idle):
    """Yield what another node says; raise ``Broken`` if it ends."""
    for line in link.lines(idle):
        yield line
    raise Broken(link.fault() or "%s ended" % link.name)


def finish(idle):
    """Wait until all workers of a group that spans nodes have trained the last step.

    To be called by the first of each node after it has said ``end``. Calls ``idle()`` at times
    while another node says nothing, and not while a worker of this node does: that would hide that
    it hangs.
    """
    if not _links:
        return
    for other in _others:
        answer = b""
        with _dead_or_alive():
            answer = _lines[other].recv(1)
        if not answer:
            raise Broken("%s ended" % _names[other])
    if FIRST:
        _links[0].say(_DONE)
    for link in _links:
        next(_heard(link, idle))
    if not FIRST:
        for link in _links:
            link.say(_DONE)


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
    for link in _links:
        link.close()
    for other in _others:
        _lines[other].close()
    deadline = time.time() + _END_S
    for other in _others:
        while other.poll() is None and time.time() < deadline:
            time.sleep(0.002)
    for other in _others + _helpers:
        if other.poll() is None:
            other.kill()
            other.wait()
