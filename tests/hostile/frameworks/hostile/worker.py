"""A worker that attacks the host in the way that the param ``attack`` names, then trains on.

``decoy`` is a folder of the host that is none of its business; whatever an attack cannot do, it
leaves undone.
"""

import contextlib
import os
import socket

import worker_api

EVENTS = "events.jsonl"
HOST_FILES = (
    *(".result.json.partial", "result.json", "log.txt", "stop", ".stop", "trial.json"),
    *("study.json", ".study.json.partial"),
)


def replaced(trial, name):
    """The path of a file in the trial's folder, with nothing there any more."""
    path = os.path.join(trial.folder, name)
    with contextlib.suppress(OSError):
        os.unlink(path)
    return path


def link_host_files(trial):
    for folder in (trial.folder, os.path.dirname(trial.folder), os.getcwd()):
        for name in HOST_FILES:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                os.unlink(path)
            with contextlib.suppress(OSError):
                os.symlink(os.path.join(trial.decoy, "precious"), path)


def link_events(trial):
    os.symlink(os.path.join(trial.decoy, "secret"), replaced(trial, EVENTS))


def pipe_events(trial):
    os.mkfifo(replaced(trial, EVENTS))


def folder_events(trial):
    os.mkdir(replaced(trial, EVENTS))


def socket_events(trial):
    os.chdir(trial.folder)
    replaced(trial, EVENTS)
    socket.socket(socket.AF_UNIX).bind(EVENTS)


def forbid_events(trial):
    os.chmod(trial.folder + "/" + EVENTS, 0)
    os.chmod(trial.folder, 0)


def forge_earlier(trial):
    for folder, _, names in os.walk(os.path.dirname(os.path.dirname(trial.folder))):
        for name in names:
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "w") as target:
                target.write("forged")


def forbid_folders(trial):
    path = trial.folder
    for name in "abc":
        path = os.path.join(path, name)
        os.mkdir(path)
    while path != trial.folder:
        os.chmod(path, 0)
        path = os.path.dirname(path)


def read_secret(trial):
    for folder in (trial.decoy, os.path.join(trial.decoy, "..")):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with open(os.path.join(folder, name)) as source:
                    print(source.read(), flush=True)


ATTACKS = {each.__name__: each for each in (
    link_host_files, link_events, pipe_events, folder_events, socket_events, forbid_events,
    forge_earlier, forbid_folders, read_secret,
)}  # fmt: skip


def prepare(trial):
    """Train ten accuracies; attack before the first iteration."""
    done = [0]

    def step(count):
        if not done[0] and trial.attack:
            ATTACKS[trial.attack](trial)
        done[0] += count
        return 1.0

    return step, lambda _split: 0.5


worker_api.serve(prepare, report=lambda: {"threads": 1}, hostile="1.0")
