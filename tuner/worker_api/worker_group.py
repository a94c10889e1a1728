"""The processes of a worker's group, which train each batch together.

The worker that the host starts is the first of its group (rank 0). It starts the others before it
imports the framework, so that all of them do that at the same time. They run the same script and
live as long as the first does, which tells them on their stdin what to do:

    trial <folder>   prepare this trial
    step <count>     train so many iterations, together with the first
    end              the trial is over

Standard library only, Python 2.7 to 3.13; imports nothing of the host.
"""

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time

SIZE = int(os.environ.get("TUNER_WORKERS", "1"))
RANK = int(os.environ.get("TUNER_RANK", "0"))
MEET_S = 60  # for the group to meet, and for each exchange after that
_LOOK_S = 0.1  # for others that have died
_END_S = 5.0  # for others to end by themselves
_others = []
_ending = threading.Event()


class Broken(Exception):
    """The group cannot go on: a process died, or they never met."""


def start():
    """Start the others of the group, unless this is one of them or they run."""
    if RANK or _others:
        return
    _others.extend(
        subprocess.Popen(
            [sys.executable, sys.argv[0]],
            stdin=subprocess.PIPE,
            env=dict(os.environ, TUNER_RANK=str(rank)),
            close_fds=True,  # else each keeps the pipes of those before it open
        )
        for rank in range(1, SIZE)
    )


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
        for rank, other in enumerate(_others, 1):
            code = other.poll()
            if code is not None and not _ending.is_set():
                how = "signal %d" % -code if code < 0 else "exit code %d" % code
                tell("worker %d of %d died: %s" % (rank + 1, SIZE, how))
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
        if other.poll() is None:
            other.kill()
            other.wait()
