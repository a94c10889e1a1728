"""The environment variables that params decide: BLAS, threads, kernel, and a framework's own."""

from __future__ import annotations

from pathlib import Path

from tuner.config.schema import BlasConfig, FrameworkConfig
from tuner.values.errors import ConfigError
from tuner.values.params import UNSET, Params, ParamValue


def blas_environment(framework: FrameworkConfig, folder: Path, params: Params) -> dict[str, str]:
    """Return only the variables that make the framework run as ``params`` say.

    Without ``blas`` in the params, a framework's only BLAS counts as chosen; of several, none.

    Args:
        framework: The framework with its BLAS libraries.
        folder: Folder of the installed runtime, for ``{runtime}`` in a library path.
        params: Only ``blas``, ``threads``, ``blas_kernel`` and those of ``framework.variables``
            are used; each may be missing.

    Raises:
        ConfigError: For a BLAS or kernel the framework does not have, or unusable ``threads``.
    """
    blas = _chosen(framework, params.get("blas"))
    variables = dict(blas.environment)
    if blas.library_path:
        variables["LD_LIBRARY_PATH"] = ":".join(library_path(blas, folder))
    threads = params.get("threads")
    if not _unset(threads):
        variables |= dict.fromkeys(blas.thread_variables, _thread_count(threads))
    kernel = params.get("blas_kernel")
    if not _unset(kernel) and kernel != "auto":
        if not blas.kernel_variable:
            raise ConfigError(
                f"blas_kernel {kernel!r} cannot be set for {framework.name} with BLAS "
                f"{params.get('blas')}, whose kernel cannot be chosen; use auto"
            )
        variables[blas.kernel_variable] = str(kernel)
    for name, own in framework.variables.items():
        if not _unset(params.get(name)):
            variables |= dict.fromkeys(own.split(), str(params[name]))
    return variables


def library_path(blas: BlasConfig, folder: Path) -> list[str]:
    """Return the folders to put first on the loader's path, for the runtime in ``folder``."""
    return [entry.replace("{runtime}", str(folder)) for entry in blas.library_path]


def _chosen(framework: FrameworkConfig, name: ParamValue) -> BlasConfig:
    if _unset(name):
        only = list(framework.blas.values())
        return only[0] if len(only) == 1 else BlasConfig()
    if name not in framework.blas:
        known = ", ".join(framework.blas) or "none"
        raise ConfigError(f"{framework.name} has no BLAS {name!r}; choose from: {known}")
    return framework.blas[str(name)]


def _unset(value: ParamValue) -> bool:
    return value is None or value == UNSET


def _thread_count(threads: ParamValue) -> str:
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ConfigError(f"threads must be a whole number from 1 or {UNSET!r}, got {threads!r}")
    return str(threads)
