"""A framework that only pretends to train: time and accuracy follow formulas with a known front.

Its clock stands still but for the training, whose time is that of ``seconds_an_iteration``. The
param ``fault`` makes it misbehave in every way a real worker may.
"""

import ctypes
import math
import os
import random
import subprocess
import sys
import time

import worker_api


def seconds_an_iteration(params):
    """A time that grows with the batch and falls with threads; one BLAS is slow."""
    blas = {"fast": 1.0, "slow": 20.0}[params["blas"]]
    threads = {"unset": 1.0, 1: 1.0, 2: 0.6}.get(params["threads"], 0.5)
    return 1e-9 * (20 + params["batch_size"]) * blas * threads


def accuracy_after(params, iterations):
    """Rises with the images seen; a learning rate of 0.02 is best."""
    rate = math.exp(-(math.log(params["learning_rate"] / 0.02) ** 2))
    return 0.99 - 0.89 * math.exp(-iterations * params["batch_size"] ** 0.5 * rate / 800.0)


class Clock:
    """Advances only when told."""

    def __init__(self):
        self.now = time.time()

    def __call__(self):
        return self.now


def hang(trial):
    time.sleep(3600)


def nap(trial):
    time.sleep(1)


def rest(trial):
    time.sleep(10)


def segfault(trial):
    ctypes.string_at(0)


def take_memory(trial):
    hog = []
    while True:
        hog.append(bytearray(b"x" * 2**24))


def fill_disk(trial):
    with open(os.path.join(trial.folder, "big"), "wb") as target:
        target.truncate(2**31)


def leave_children(trial):
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    time.sleep(0.2)


def exit_with_words(trial):
    sys.stderr.write("these are the last words\n")
    os._exit(7)


def write_garbage(trial):
    trial._events.write("this is no event\n")
    trial._events.flush()
    time.sleep(5)


def burn(trial):
    end = time.time() + 1.0
    while time.time() < end:
        pass


def tell_cores(trial):
    sys.stderr.write(f"cores {sorted(os.sched_getaffinity(0))}\n")
    os._exit(7)


def lose_patience(trial):
    open(os.path.join(trial.folder, "stop"), "w").close()
    time.sleep(0.12)  # the stop is looked at this often


def allocate(trial):
    trial.hog = bytearray(b"x" * (200 * 2**20))


# Faults that strike once, at the first iteration.
FAULTS = {
    "hang": hang,
    "nap": nap,
    "rest": rest,
    "segfault": segfault,
    "memory": take_memory,
    "disk": fill_disk,
    "children": leave_children,
    "exit": exit_with_words,
    "garbage": write_garbage,
    "burn": burn,
    "cores": tell_cores,
    "allocate": allocate,
    "patience": lose_patience,
}

REPORTED = {}


def prepare(trial):
    params = trial.__dict__
    REPORTED.clear()
    if trial.fault == "impossible":
        raise worker_api.Impossible("this batch size cannot be")
    if trial.fault == "lie_threads":
        REPORTED["threads"] = 7
    elif trial.fault == "lie_blas":
        REPORTED["blas"] = "another"
    done = [0]
    noise = random.Random(trial.seed)

    def step(count):
        if not done[0] and trial.fault in FAULTS:
            FAULTS[trial.fault](trial)
        done[0] += count
        clock.now += count * seconds_an_iteration(params)
        if trial.fault == "time":
            clock.now += 1000
        if trial.fault == "slow":
            time.sleep(0.02)
            clock.now += 0.01
        return float("nan") if trial.fault == "nan" else 1.0

    def evaluate(split):
        found = min(1.0, max(0.0, accuracy_after(params, done[0]) + noise.gauss(0, 0.0005)))
        # of a text it learns half at best, as scores count
        return trial.classes ** (1 - found / 2) if trial.figure == "perplexity" else found

    return step, evaluate


if __name__ == "__main__":
    clock = worker_api.clock = Clock()
    worker_api._started = clock()
    worker_api.serve(prepare, chunk=1000, report=lambda: REPORTED, synthetic="1.0")
