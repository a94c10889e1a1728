"""The few lines every Python worker shares: worker protocol, version 1.

Standard library only, Python 2.7 to 3.13; imports nothing of the host. A worker is::

    import worker_api
    with worker_api.importing("caffe"):
        import caffe
    def prepare(trial):            # build net and data; timed as set-up
        return step, evaluate      # step(n) trains n iterations and returns the last loss,
                                   # evaluate(split) returns the accuracy, a fraction 0-1,
                                   # or the perplexity where trial.figure says so
    worker_api.serve(prepare, caffe=caffe.__version__)

The loop below then does the same for all of them: timing, checkpoints, stop file, divergence.
"""

from __future__ import division

import contextlib
import ctypes
import errno
import gc
import json
import math
import mmap
import os
import struct
import sys
import time

import worker_group

PROTOCOL = 1
LOOK_S = 0.1  # the stop file is looked at this often
PROGRESS_S = 0.5  # a sign of life after this much silence
GUESSED = 0.98  # of the loss of blind guessing is no better than that
EXPLODED = 20.0  # a loss this many times that of blind guessing will not come back

RTLD_NOLOAD = 4  # of dlfcn.h: only find what is loaded; the machine may have a BLAS of its own

clock = getattr(time, "monotonic", time.time)
_started = clock()


def is_finite(value):
    """``math.isfinite``, which Python 2.7 lacks."""
    return not (math.isnan(value) or math.isinf(value))


class Impossible(Exception):
    """These params cannot be trained by this framework (exit 2)."""


class Diverged(Exception):
    """The loss is not finite, exploded, or never left that of blind guessing."""


@contextlib.contextmanager
def importing(name):
    """End with exit code 3 and the reason if the framework cannot be imported.

    The other processes of a group start here, so that they import it at the same time.
    """
    try:
        worker_group.start()
    except worker_group.Broken as error:
        _break_off([Trial(sys.stdin.readline().rstrip("\n"))], str(error))
    try:
        yield
    except ImportError as error:
        sys.stderr.write("%s cannot be imported: %s\n" % (name, error))
        sys.exit(3)


class Trial(object):
    """One trial: the entries of ``trial.json`` as attributes, and its event file."""

    judged = None  # the trial whose network is judged now; its last progress is repeated
    every_mark = False  # whether both splits are looked at there, whatever that costs
    figure = "accuracy"  # what is judged
    rank = worker_group.RANK

    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "trial.json")) as source:
            self.__dict__.update(json.load(source))
        self.workers = worker_group.SIZE  # the request has those of one node
        # only the first of a group answers, on each node
        others = self.rank != worker_group.FIRST
        events = os.devnull if others else os.path.join(folder, "events.jsonl")
        self._events = open(events, "a")  # noqa: SIM115 - kept open
        self._last_event = clock()

    def emit(self, event, attested=(), **fields):
        """Append one flat ASCII object to the event file, flushed."""
        fields.update(attested, event=event)
        for key, value in fields.items():
            if isinstance(value, float) and not is_finite(value):
                fields[key] = None
        self._events.write(json.dumps(fields, sort_keys=True) + "\n")
        self._events.flush()
        self._last_event = clock()

    def quiet_s(self):
        """Seconds since the last event."""
        return clock() - self._last_event

    def progress(self, **fields):
        """Give a sign of life after some silence; ``fields`` are kept for the next ones."""
        self._progress = fields
        if self.quiet_s() > PROGRESS_S:
            self.emit("progress", **fields)

    def judge(self, evaluate, split):
        """Return the figure over a split; ``alive`` gives signs of life meanwhile."""
        Trial.judged = self
        try:
            return evaluate(split)
        finally:
            Trial.judged = None

    def figures(self, validated, tested):
        """Return the figures over both splits, by name."""
        return {"val_" + self.figure: validated, "test_" + self.figure: tested}

    def stop_requested(self):
        """Check whether the host has created the stop file."""
        return os.path.exists(os.path.join(self.folder, "stop"))

    def close(self):
        """Close the event file."""
        self._events.close()


def alive():
    """Tell the host that a network is still being judged, which may take minutes."""
    if Trial.judged:
        Trial.judged.progress(**Trial.judged._progress)


def read_idx(path):
    """Map an idx file. Returns (shape, type code, buffer, offset of the first value)."""
    with open(path, "rb") as source:
        buffer = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
    code, rank = struct.unpack(">xxBB", buffer[:4])
    shape = struct.unpack(">%dI" % rank, buffer[4 : 4 + 4 * rank])
    return shape, code, buffer, 4 + 4 * rank


def _loaded_blas():
    try:
        return ctypes.CDLL("libblas.so.3", mode=RTLD_NOLOAD)
    except OSError:
        return ctypes.CDLL(None)  # whatever this process has loaded for all to see


def serial_openblas():
    """Check for a one-thread OpenBLAS, which computes wrongly if several threads call it."""
    library = _loaded_blas()
    return hasattr(library, "openblas_get_parallel") and library.openblas_get_parallel() == 0


def blas_report():
    """Return the thread count and CPU kernel of this process's BLAS, as far as it tells."""
    report, library = {}, _loaded_blas()
    for symbol in (
        "openblas_get_num_threads",
        "MKL_Get_Max_Threads",
        "bli_thread_get_num_threads",
    ):
        if hasattr(library, symbol):
            # BLIS answers -1 for "never set", which it runs as one thread
            report["threads"] = abs(int(getattr(library, symbol)()))
    if hasattr(library, "openblas_get_corename"):
        library.openblas_get_corename.restype = ctypes.c_char_p
        report["blas_kernel"] = library.openblas_get_corename().decode("ascii")
    elif hasattr(library, "bli_arch_query_id"):
        report["blas_kernel"] = str(library.bli_arch_query_id())
    elif hasattr(library, "MKL_Get_Max_Threads"):  # which has loaded the rest of MKL by now
        if not hasattr(library, "mkl_serv_cpu_detect"):  # MKL is linked into some frameworks
            library = ctypes.CDLL("libmkl_core.so", mode=RTLD_NOLOAD)
        report["blas_kernel"] = str(library.mkl_serv_cpu_detect())
    return report


def serve(prepare, chunk=10, report=blas_report, **versions):
    """Train every trial whose folder arrives on stdin, until its end. Never returns.

    ``chunk`` is the most iterations between two looks at the loss. ``report`` returns what is
    really in effect, by the name of the param: the host holds it against what was requested.
    """
    versions["python"] = sys.version.split()[0]
    if worker_group.RANK != worker_group.FIRST:
        sys.exit(_follow(prepare))
    began, now, code = _started, [], 0
    worker_group.watch(lambda why: _break_off(now, why))
    for line in iter(sys.stdin.readline, ""):
        now[:] = [Trial(line.rstrip("\n"))]
        # waiting for a further trial is no part of its set-up
        code = _guarded(now[0], prepare, chunk, report, versions, began or clock())
        now.pop().close()
        if code:
            break
        began = None
    worker_group.end()
    if hasattr(gc, "freeze"):
        gc.freeze()  # else the interpreter looks through all of a framework's objects at its end
    sys.exit(code)


def _follow(prepare):
    """Train with the first of this node; return the exit code. It alone says what went wrong."""
    try:
        worker_group.follow(lambda folder: prepare(Trial(folder))[0])
    except Impossible:
        worker_group.await_end()
        return 2
    return 0


def _break_off(now, why):
    """End the worker, as another process of its group has died, with that as its answer."""
    while not now:  # it died before the first trial, or between two
        time.sleep(LOOK_S)
    for trial in now:
        trial.emit("error", kind="group", message=why)
    os._exit(1)


def _guarded(trial, prepare, chunk, report, versions, began):
    """Run one trial; turn what goes wrong into an ``error`` event and an exit code."""
    try:
        _run(trial, prepare, chunk, report, versions, began)
    except Impossible as error:
        trial.emit("error", kind="impossible", message=str(error))
        return 2
    except Diverged as error:
        trial.emit("error", kind="diverged", message=str(error))
        return 1  # a framework that has seen a NaN is not used again
    except MemoryError as error:
        trial.emit("error", kind="out_of_memory", message=str(error) or "out of memory")
        return 1
    except worker_group.Broken as error:
        worker_group.await_cause()
        trial.emit("error", kind="group", message=str(error))
        return 1
    except Exception as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            trial.emit("error", kind="disk_full", message=str(error))
            return 1
        worker_group.await_cause()
        raise
    return 0


def _run(trial, prepare, chunk, report, versions, began):
    if trial.protocol != PROTOCOL:
        raise Impossible("protocol %r, this worker speaks %r" % (trial.protocol, PROTOCOL))
    _reset_peak_memory()
    worker_group.say("trial", trial.folder)
    step, evaluate = prepare(trial)
    trial.emit("ready", dict(report(), **versions))
    trial.emit("train_begin", setup_time_s=clock() - began)
    led = worker_group.led(step)
    last = _train_along(trial, led) if worker_group.FIRST else _train(trial, led, evaluate, chunk)
    worker_group.say("end")
    trial.emit(
        "train_end",
        report(),
        iteration=last["iteration"],
        train_time_s=last["train_time_s"],
    )
    # every trial reports the time that the test split takes; only some may look at its answers
    tested, test_s = None, last["eval_s"] * trial.test_count / trial.validation_count
    if trial.test:
        start = clock()
        tested = trial.judge(evaluate, "test")
        test_s = clock() - start
    seen = {"iteration": last["iteration"], "train_time_s": last["train_time_s"]}
    worker_group.finish(lambda: trial.progress(**seen))
    trial.emit(
        "result",
        trial.figures(last["validated"], tested),
        iteration=last["iteration"],
        test_time_s=test_s,
    )


def _train(trial, step, evaluate, max_chunk):
    """Train to the last iteration or until the stop file appears.

    Returns the last checkpoint: iteration, train_time_s (evaluation not counted), validated, the
    figure over the validation split, and eval_s, the seconds its evaluation took. Without marks
    nothing is evaluated, the end included: only the time is asked for.
    """
    marks = [int(mark) for mark in str(trial.eval_at).split(",") if mark]
    ends = marks + [trial.iterations]
    iteration, train_s, chunk, looked = 0, 0.0, 1, clock()
    seen_s, eval_s = 0.0, 0.0  # training at the last evaluation, and what that took
    while True:
        count = min(chunk, min(end for end in ends if end > iteration) - iteration)
        start = clock()
        loss = float(step(count))
        now = clock()
        iteration, train_s = iteration + count, train_s + now - start
        chunk = max(1, min(max_chunk, int(count * LOOK_S / max(now - start, 1e-6))))
        _check_loss(trial, iteration, loss)
        stopped = False
        if now - looked > LOOK_S:
            looked, stopped = now, trial.stop_requested()
        over = stopped or iteration >= trial.iterations
        if over and not marks:
            return {
                "iteration": iteration,
                "train_time_s": train_s,
                "validated": None,
                "eval_s": 0.0,
            }
        # on the way, evaluation may not cost more than the training it follows
        due = iteration in marks and (trial.every_mark or train_s - seen_s >= eval_s)
        trial.progress(iteration=iteration, train_time_s=train_s, loss=loss)
        if over or due:
            validated = trial.judge(evaluate, "validation")
            tested = trial.judge(evaluate, "test") if trial.every_mark else None
            trial.emit(
                "checkpoint",
                trial.figures(validated, tested),
                iteration=iteration,
                train_time_s=train_s,
                loss=loss,
            )
            _check_learning(trial, iteration, loss, validated)
            seen_s, eval_s = train_s, clock() - now
            if over:
                return {
                    "iteration": iteration,
                    "train_time_s": train_s,
                    "validated": validated,
                    "eval_s": eval_s,
                }


def _train_along(trial, step):
    """Train what the first of the group says, on another node, where the accuracy is judged too.

    Returns the same as ``_train``.
    """
    last = {"iteration": 0, "train_time_s": 0.0}
    for count in worker_group.steps(lambda: trial.progress(**last)):
        start = clock()
        step(count)
        last["iteration"] += count
        last["train_time_s"] += clock() - start
        trial.progress(**last)
    return dict(last, validated=None, eval_s=0.0)


def _check_loss(trial, iteration, loss):
    if not is_finite(loss):
        raise Diverged("loss is %s after %d iterations" % (loss, iteration))
    if loss > EXPLODED * math.log(trial.classes):
        raise Diverged("loss exploded to %.1f after %d iterations" % (loss, iteration))


def _check_learning(trial, iteration, loss, figure):
    """Raise on hidden divergence: no NaN, the loss stays at that of guessing."""
    if trial.figure == "perplexity":
        guessed, shown = math.log(figure) > GUESSED * math.log(trial.classes), "%.0f" % figure
    else:
        chance = 1.0 / trial.classes
        # of few classes, 5 points are learning
        guessed, shown = figure < min(1.5 * chance, chance + 0.05), "%.1f %%" % (100 * figure)
    if guessed and loss > GUESSED * math.log(trial.classes) and iteration >= 200:
        raise Diverged(
            "still no better than guessing after %d iterations (loss %.3f, %s %s)"
            % (iteration, loss, trial.figure, shown)
        )


def _reset_peak_memory():
    """Let VmHWM start anew, so that a warm session's trials do not inherit each other's peak."""
    try:
        with open("/proc/self/clear_refs", "w") as target:
            target.write("5")
    except EnvironmentError:
        pass  # an old kernel: the peak is then that of the whole session
