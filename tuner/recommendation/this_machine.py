"""Whether a study was measured on this machine, with the libraries that are installed here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from tuner.config.catalogue import load_framework
from tuner.measure import fingerprint, gpu_names, machine_facts, parse_cores
from tuner.runtimes import find_runtime
from tuner.tracking import StudyRecord
from tuner.values.errors import TunerError


class ThisMachine:
    """This machine as it is now.

    Args:
        framework_path: Folder with the user's own frameworks.
    """

    def __init__(self, framework_path: str | None = None) -> None:
        self._framework_path = framework_path
        self._facts = machine_facts(parse_cores(""))
        self._packages: dict[str, dict[str, str]] = {"": {}}  # of a user's program none is known

    def differs_from(self, study: StudyRecord) -> bool:
        """Return whether a study was measured on another machine or with other libraries."""
        then = study.front["machine"]
        # a part of its cores, a shared host, further nodes or no sandbox make it no other one
        kept = ("jobs_per_host", "nodes", "sandbox")
        use = {name: then[name] for name in kept if name in then}
        if _all_cores(then) == _all_cores(self._facts):
            use["cores"] = then["cores"]
        if "gpu" in then:  # the program could use one
            use["gpu"] = self._gpus
        packages = self._installed(str(study.front.get("framework", "")))
        here = fingerprint({**self._facts, **use}, packages)
        return here != fingerprint(then, study.front.get("runtime", {}))

    @cached_property
    def _gpus(self) -> str:
        return gpu_names()

    def _installed(self, framework: str) -> dict[str, str]:
        if framework not in self._packages:
            self._packages[framework] = {}
            with suppress(TunerError):  # one that is unknown here
                found = find_runtime(load_framework(framework, self._framework_path))
                self._packages[framework] = found.packages()
        return self._packages[framework]


def _all_cores(facts: Mapping[str, Any]) -> str:
    """Return the number of cores of a machine, of which trials own a part: ``2 of 4``."""
    return str(facts.get("cores", "")).rpartition(" of ")[2]
