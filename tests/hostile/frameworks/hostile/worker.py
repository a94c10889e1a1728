"""A worker that attacks the host in the way that the param ``attack`` names, then trains on.

``decoy`` is a folder of the host that is none of its business; whatever an attack cannot do, it
leaves undone.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import socket
import time

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


def fork_bomb(trial):
    """Bounded by itself, so that a missing bound cannot take the machine."""
    for _ in range(1200):
        os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    time.sleep(20)


def many_files(trial):
    for number in range(30_000):
        with open(os.path.join(trial.folder, str(number)), "w"):
            pass
    time.sleep(20)


def deep_folders(trial):
    os.chdir(trial.folder)
    for _ in range(3000):
        os.mkdir("deeper")
        os.chdir("deeper")


def large_files(trial):
    for number in range(6):
        with open(os.path.join(trial.folder, str(number)), "w") as target:
            os.posix_fallocate(target.fileno(), 0, 16 * 2**20)
    time.sleep(20)


def sparse_file(trial):
    with open(os.path.join(trial.folder, "sparse"), "w") as target:
        target.truncate(10 * 2**30)


def flood_events(trial):
    text = b'{"event": "progress", "iteration": 1, "train_time_s": 0.001, "x": "%s"}\n'
    lines = (text % (b"x" * 4000)) * 100
    with open(os.path.join(trial.folder, EVENTS), "ab") as target:
        target.writelines([lines] * 200)
    time.sleep(20)


def many_events(trial):
    line = b'{"event": "progress", "iteration": 1, "train_time_s": 0.001}\n'
    with open(os.path.join(trial.folder, EVENTS), "ab") as target:
        target.write(line * 20_000)
    time.sleep(20)


def flood_checkpoints(trial):
    line = b'{"event": "checkpoint", "iteration": 1, "train_time_s": 0.001, "val_accuracy": 0.5}\n'
    with open(os.path.join(trial.folder, EVENTS), "ab") as target:
        target.write(line * 50_000)
    time.sleep(20)


def flood_output(trial):
    for _ in range(100):
        os.write(1, b"x" * 2**20)
    time.sleep(20)


def fill_input(trial):
    own = os.open("/proc/self/fd/0", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(own, b"x" * 2**16)
    os.dup(0)  # open and full, while nothing more is read from it
    os.dup2(os.pipe()[0], 0)


def hide_memory(trial):
    for number in range(4):
        with open(f"/dev/shm/{number}", "wb") as target:
            target.write(bytes(100 * 2**20))
    time.sleep(20)


def hide_in_memfd(trial):
    own = os.memfd_create("hidden")
    for _ in range(4):
        os.write(own, bytes(100 * 2**20))
    time.sleep(20)


def hide_deleted_files(trial):
    for number in range(6):
        path = os.path.join(trial.folder, str(number))
        handle = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(handle, 0, 16 * 2**20)
        os.unlink(path)
    time.sleep(20)


def open_files(trial):
    for _ in range(4):
        if os.fork() == 0:
            with contextlib.suppress(OSError):
                while True:
                    os.open("/dev/null", os.O_RDONLY)
            time.sleep(20)
            os._exit(0)
    time.sleep(20)


def nest_namespace(trial):
    new_user = 0x10000000
    print("nested" if ctypes.CDLL(None).unshare(new_user) == 0 else "kept", flush=True)


def grow_output(trial):
    os.ftruncate(1, 900 * 2**20)


def change_output(trial):
    print("said", flush=True)
    os.fchmod(1, 0o4755)


def forbid_output(trial):
    os.fchmod(1, 0)


def reserve_output(trial):
    keep_size = 1
    size = ctypes.c_long(100 * 2**20)
    ctypes.CDLL(None).fallocate(1, keep_size, ctypes.c_long(0), size)
    time.sleep(20)


def flood_after(trial):
    """Fill the disk once the trial is over: when the worker ends, or waits for the next."""
    atexit.register(large_files, trial)
    signal.signal(signal.SIGALRM, lambda *_: large_files(trial))
    signal.setitimer(signal.ITIMER_REAL, 0.5)


def search_keyring(trial):
    search, session = 10, -3
    key = ctypes.CDLL(None).syscall(250, search, session, b"user", b"tuner-secret", 0)
    print("found" if key >= 0 else "nothing", flush=True)


def say_marker(trial):
    print(os.environ["TUNER_TRIAL"], flush=True)


def fail_slowly(trial):
    with open(os.path.join(trial.folder, EVENTS), "ab") as target:
        target.write(b'{"event": "error", "kind": "crash", "message": "slowly"}\n')
    time.sleep(1)
    os._exit(1)


def name_in_long(trial):
    os.makedirs(os.path.join(trial.folder, "\U0001f600" * 63, "inner", "innermost"))


def survive(trial):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)


def connect(trial):
    """Say what answers: a port of this machine, and a socket in the decoy."""
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", trial.port)),
        (socket.AF_UNIX, os.path.join(trial.decoy, "socket")),
    ):
        with contextlib.suppress(OSError):
            socket.socket(family).connect(address)
            print("connected", flush=True)


def escape_terminal(trial):
    print("\x1b]0;owned\x07\x00 said in the log", flush=True)
    with open(os.path.join(trial.folder, EVENTS), "ab") as target:
        target.write(b'{"event": "error", "kind": "crash", "message": "a\\u0000b\\u001b[2J"}\n')
    os._exit(1)


ATTACKS = {each.__name__: each for each in (
    link_host_files, link_events, pipe_events, folder_events, socket_events, forbid_events,
    forge_earlier, forbid_folders, read_secret, fork_bomb, many_files, deep_folders, large_files,
    sparse_file, flood_events, many_events, flood_checkpoints, flood_output, hide_memory, survive,
    fill_input, connect, escape_terminal, hide_in_memfd, hide_deleted_files, open_files,
    nest_namespace, grow_output, name_in_long, change_output, forbid_output, reserve_output,
    flood_after, search_keyring, say_marker, fail_slowly,
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
