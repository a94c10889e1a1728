"""The program that is tuned: its command, what it may see, and how it is started."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import site
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner import measure
from tuner.config.catalogue import tuner_home
from tuner.runtimes.sandbox import interpreter_folders, sandbox_fault, sandbox_prefix
from tuner.trials.worker_folder import WorkerFolder
from tuner.values.errors import ConfigError, RuntimeUnavailable
from tuner.values.params import Params, param_variables
from tuner.values.trial import Trial
from tuner.wrap.goal import Goal
from tuner.wrap.overlay import MERGED, overlay_fault, overlay_prefix
from tuner.wrap.params import SEED, ParamSpace, fill

INJECTED = Path(__file__).parents[1] / "worker_api" / "injected"
REPORTS, STOP, PARAMS = "report.jsonl", "stop", "params.json"
REPORT_VARIABLE, PARAMS_VARIABLE = "TUNER_REPORT", "TUNER_PARAMS"
_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LUA_PATH", "LUA_CPATH")
_NETWORK = ("hosts", "resolv.conf", "ssl", "ca-certificates", "pki")
_OF_THE_TUNER = ("TUNER_", "MLFLOW_")  # where results go, and passwords for it
# variables that say how fast the usual libraries are, or on which device they compute
_OF_LIBRARIES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "LD_", "MALLOC_", "GLIBC_"),
    *("TF_", "TORCH", "PYTORCH_", "JAX_", "XLA_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_"),
)
_ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
_OF_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")  # what is in their folders
_MAX_DIGESTED_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Brought:
    """What a program brings along to another machine.

    Attributes:
        executable: Absolute path of its command.
        environment: The environment that it has without the tuner.
        copy: Where a copy of its folder lies there; ``None`` if the folder itself is there.
    """

    executable: Path
    environment: Mapping[str, str]
    copy: Path | None = None


@dataclass(frozen=True)
class Program:
    """A training program.

    Attributes:
        argv: The command and its arguments.
        folder: Folder that it starts in. What it writes there is discarded, unless it runs without
            a sandbox.
        readable: Further files and folders that it reads; what it writes there is discarded too.
        network: Whether it may use the network.
        gpu: Whether it may use the GPUs of this machine.
        confined: Whether it runs in a sandbox.
        step: Regular expression on its output: each match is a step of the training. Empty for
            none.
        metric: Regular expression on its output whose named groups are figures. Empty for none.
        params: Its params, whose values replace their names in braces in the command.
        goal: The figure that tells how well it has trained.
        brought: What it brings along from another machine; ``None`` if it comes from this one.
    """

    argv: tuple[str, ...]
    folder: Path
    readable: tuple[Path, ...] = ()
    network: bool = False
    gpu: bool = False
    confined: bool = True
    step: str = ""
    metric: str = ""
    params: ParamSpace = field(default_factory=ParamSpace)
    goal: Goal = field(default_factory=Goal)
    brought: Brought | None = None

    @property
    def name(self) -> str:
        """The file or module that is run, else the command's name."""
        return Path(self.argv[self._place]).name

    @property
    def _place(self) -> int:
        """Place of the program in the command: 0, or among the arguments of what runs it.

        A script of Python goes first: it may come after a launcher that is a module itself, while
        other files (``python -m mine --weights w.pt``) are what a module reads.
        """
        if self._is_in_folder:
            return 0
        files = [place for place, each in enumerate(self.argv) if place and self._is_file(each)]
        scripts = [place for place in files if self.argv[place].endswith(".py")]
        modules = [place for place in range(1, len(self.argv)) if self.argv[place - 1] == "-m"]
        return next(iter([*scripts, *modules, *files]), 0)

    @property
    def _is_in_folder(self) -> bool:
        """Whether the command is a program of the folder, and not of an environment there."""
        command = self.folder / self.argv[0]
        prefix = command.parent.parent
        return (
            "/" in self.argv[0]
            and command.resolve().is_relative_to(self.folder.resolve())
            and not any((prefix / each).exists() for each in _OF_ENVIRONMENTS)
        )

    @cached_property
    def executable(self) -> Path:
        """Absolute path of the command. Raises ``ConfigError`` if there is none."""
        if self.brought:
            return self.brought.executable
        command = self.argv[0]
        path = self.folder / command if "/" in command else None
        found = shutil.which(path or command)
        if found is None and path and path.is_file():
            raise ConfigError(f"{command} is no program yet; chmod +x makes it one")
        if found is None:
            raise ConfigError(f"{command} was not found; give the command as you start it here")
        return Path(found).absolute()

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The environment that it has without the tuner."""
        if self.brought:
            return self.brought.environment
        own = {name: value for name, value in os.environ.items() if not _is_ours(name)}
        libraries = Path(site.getuserbase()) / "lib"
        if libraries.is_dir():  # HOME is another folder in the sandbox
            own.setdefault("PYTHONUSERBASE", site.getuserbase())
        return own

    def identity(self) -> dict[str, Any]:
        """Return what determines how it runs, for JSON: its command, its files, its settings."""
        return {
            "argv": self.argv,
            "executable": str(self.executable),
            "folder": str(self.folder),
            "files": [*self.files.values()],
            "environment": {
                name: value
                for name, value in sorted(self.environment.items())
                if name.endswith("_THREADS") or name.startswith(_OF_LIBRARIES)
            },
            "settings": [self.confined, self.network, self.step, self.metric],
            **({"gpu": True} if self.gpu else {}),
            "goal": repr(self.goal),
            "params": repr(self.params),
        }

    @cached_property
    def files(self) -> Mapping[str, str]:
        """Digests of the files that its command names, by their arguments, when first asked."""
        # without a sandbox it may change the others
        words = self.argv if self.confined else self.argv[self._place :][:1]
        return {each: _digest(self.folder / each) for each in words if self._is_file(each)}

    @property
    def may_use_gpu(self) -> bool:
        """Whether it can reach the GPUs of the machine that it runs on."""
        return self.gpu or not self.confined

    def misses_gpu(self, mapped: Collection[str]) -> bool:
        """Return whether its sandbox hides a GPU of this machine that it would use.

        Args:
            mapped: Paths of the files that it has mapped.
        """
        wanted = self.environment.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
        return wanted and not self.may_use_gpu and measure.loads_gpu_library(mapped)

    def here(self, path: Path) -> Path:
        """Return where a file of the program is on this machine."""
        copy = self.brought and self.brought.copy
        within = copy and path.is_relative_to(self.folder)
        return copy / path.relative_to(self.folder) if copy and within else path

    def _is_file(self, argument: str) -> bool:
        return os.path.isfile(self.folder / argument)  # noqa: PTH113 - takes what is no path

    def arguments(self, trial: Trial) -> list[str]:
        """Return the command with the values of a trial's params, and its seed."""
        names = {*self.params.names, SEED}
        values = {**self.params.values_in(trial.params), SEED: trial.seed}
        return fill(self.argv, names, values, self.params.default)

    def values(self, setting: Params) -> Params:
        """Return the values of its params: those of a setting, or its own."""
        return {**self.params.default, **self.params.values_in(setting)}

    def command(self, own: WorkerFolder, trial: Trial) -> list[str]:
        """Return the command line that starts it, sandbox included.

        Args:
            own: Folder for this run; what the program writes goes below it.
            trial: The run.

        Raises:
            RuntimeUnavailable: If it needs a sandbox and none works here.
        """
        argv = [str(self.executable), *self.arguments(trial)[1:]]
        if not self.confined:
            return argv
        (own.path / "home").mkdir(exist_ok=True)
        self._link_home(own.path / "home")
        changes = {}
        for number, folder in enumerate(dict.fromkeys((self.folder, *self._folders()))):
            changes[folder] = own.path / f"changes-{number}"
        mounts = overlay_prefix({self.here(folder): place for folder, place in changes.items()})
        shown = {folder: place / MERGED for folder, place in changes.items()}
        named = {each: shown[each.resolve()] for each in self.readable if each.is_dir()}
        prefix = sandbox_prefix(
            None,
            [*self._shown()],
            [own.path],
            elsewhere={**shown, **named},
            start=self.folder,
            devices=measure.gpu_files() if self.gpu else (),
            options=self._options(),
        )
        return [*mounts, *prefix, *argv]

    def _folders(self) -> Iterator[Path]:
        """Yield the further folders that it reads, without links."""
        yield from (each.resolve() for each in self.readable if each.is_dir())

    def _options(self) -> list[str]:
        user = os.geteuid()
        as_before = ["--uid", str(user), "--gid", str(os.getegid())] if user else []
        return [*as_before, *(["--share-net"] if self.network else [])]

    def check(self) -> None:
        """Raise ``ConfigError`` or ``RuntimeUnavailable`` if it cannot be run here."""
        if not os.access(self.here(self.executable), os.X_OK):
            raise ConfigError(f"{self.executable} is not there, or nothing that can be run")
        self.arguments(Trial(0, {}))
        missing = [each for each in self.readable if not each.exists()]
        if missing:
            raise ConfigError(f"--allow-read {missing[0]}: there is no such file or folder")
        if self.gpu and not measure.gpu_files():
            raise ConfigError("--allow-gpu: there is no GPU here (no /dev/nvidia0, no /dev/kfd)")
        if not self.confined:
            return
        home = Path.home()
        if self.folder in (home, *home.parents):
            raise ConfigError(
                f"{self.folder} holds all your files, which the program could then read; start it "
                "from a folder of its own, or add --no-sandbox"
            )
        fault = sandbox_fault() or overlay_fault(tuner_home())
        if fault:
            raise RuntimeUnavailable(
                f"the program needs a sandbox: {fault}; or add --no-sandbox: it can then read and "
                "write all your files, and the report says so"
            )

    def _link_home(self, home: Path) -> None:
        """Show in its home folder what it may read of the user's."""
        for path in self.readable:
            with_home = path.is_relative_to(Path.home()) and path != Path.home()
            if with_home:
                link = home / path.relative_to(Path.home())
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    link.symlink_to(path.resolve())

    def _shown(self) -> Iterator[Path]:
        """Yield what it may read besides this machine's programs and its own folder."""
        yield INJECTED
        yield from (each for each in self.readable if not each.is_dir())
        executable = self.here(self.executable)
        yield from interpreter_folders(str(executable))
        interpreter = _interpreter_of(executable)
        if interpreter:
            yield from interpreter_folders(interpreter)
        libraries = Path(site.getuserbase()) / "lib"
        if libraries.is_dir():
            yield libraries
        active = [self.environment[each] for each in _ENVIRONMENTS if each in self.environment]
        for prefix in (*active, ".venv"):  # a script, make or uv may run these
            if (python := self.folder / prefix / "bin" / "python").is_file():
                yield from interpreter_folders(str(python))
        for name in _PATHS:
            for entry in self.environment.get(name, "").split(":"):
                path = Path(entry.partition("?")[0])
                home = Path.home()
                open_to_all = len(path.parts) < 3 or path in (home, *home.parents)
                inside = path.is_relative_to(self.folder)
                if path.is_absolute() and path.exists() and not open_to_all and not inside:
                    yield path
        for name in _NETWORK if self.network else _NETWORK[:1]:
            if (path := Path("/etc") / name).exists():
                yield path


def _digest(path: Path) -> str:
    """Return what tells a file's content: its SHA-256, or its size and time if it is large."""
    known = path.stat()
    if known.st_size > _MAX_DIGESTED_BYTES:
        return f"{known.st_size} {known.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_ours(name: str) -> bool:
    return name.startswith(_OF_THE_TUNER)


def _interpreter_of(script: Path) -> str:
    """Return the absolute path of the interpreter in a script's first line; empty for none."""
    try:
        with script.open("rb") as source:
            first = source.readline(512)
    except OSError:
        return ""
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    return words[0] if words and words[0].startswith("/") else ""


def environment_of(
    program: Program, own: WorkerFolder, trial: Trial, variables: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of one run.

    Args:
        program: The program.
        own: Folder of this run; the values of the params are written to a file in it.
        trial: The run.
        variables: What its runtime setting sets.
    """
    base = {**program.environment, **variables}
    values = program.values(trial.params)
    path = f"{INJECTED}:{base.get('PYTHONPATH', '')}".rstrip(":")
    found = {
        **base,
        **param_variables(values),
        "TUNER_SEED": str(trial.seed),
        "PYTHONPATH": path,
        REPORT_VARIABLE: str(own.path / REPORTS),
    }
    if values:
        own.write(PARAMS, json.dumps(dict(values)))
        found[PARAMS_VARIABLE] = str(own.path / PARAMS)
    if program.confined:
        found["HOME"] = str(own.path / "home")
    if program.step or program.metric:
        found["PYTHONUNBUFFERED"] = "1"
    return found
