"""The synthetic framework in groups: exchanges of gradients that are fast, exact or not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.conftest import DEFAULT, SYNTHETIC
from tests.cross_samples import copy_framework
from tuner.config.catalogue import load_framework
from tuner.config.schema import TuneConfig
from tuner.values.ranges import check_cases, read_param
from tuner.values.runtime_map import PaceProbe, RuntimeMap
from tuner.values.space import SearchSpace

CHOICES = {
    "workers": {"type": "categorical", "choices": [1, 2]},
    "exchange": {
        "type": "conditional",
        "given": "workers",
        "cases": {1: ["exact"], "otherwise": ["exact", "rough", "fine"]},
    },
}
ALONE = {"workers": 1, "exchange": "exact"}
GROUP = {"workers": 2, "exchange": "exact"}
ROUGH, FINE = {**GROUP, "exchange": "rough"}, {**GROUP, "exchange": "fine"}
GROUPED = {**DEFAULT, **ALONE}
"""The default of the framework."""
PACES = {"exact": 0.8, "rough": 0.2, "fine": 0.2}
"""Seconds of a group of two over those of one process."""


def grouped_space() -> SearchSpace:
    space = SearchSpace.load(SYNTHETIC / "search_spaces" / "synthetic.yaml", cores=2)
    params = {**space.params, **{name: read_param(name, CHOICES[name], 2) for name in CHOICES}}
    check_cases(params)
    return dataclasses.replace(space, params=params)


def setting(**changes: object) -> dict:
    """A setting of the fast library."""
    own = {"blas": "fast", "threads": 1, "blas_kernel": "auto", "fault": ""}
    return {**own, **ALONE, **changes}


def probes(
    layout: dict, seconds: float, batches: tuple[int, ...] = (8, 64, 256), extra: int = 20
) -> list:
    """Probes of a setting that takes so long for an image, and for ``extra`` more an iteration."""
    return [
        PaceProbe(setting(**layout), batch, seconds * (extra + batch))
        for batch in batches
        for _ in range(3)
    ]


def grouped_map(**paces: float) -> RuntimeMap:
    """One process, and groups of two by their exchange, in ten microseconds for an image."""
    layouts = [(ALONE, 1.0), *(({**GROUP, "exchange": name}, paces[name]) for name in paces)]
    return RuntimeMap(each for layout, pace in layouts for each in probes(layout, 1e-5 * pace))


def grouped_config(config: TuneConfig, tmp_path: Path, exchanges: str) -> TuneConfig:
    """A study of it. ``rough`` never gets beyond 90 %; ``fine`` learns as the exact one does."""
    tree = tmp_path / "tree"
    copy_framework(
        tree,
        "grouped",
        **{
            "  blas_kernel: {": "  workers: {type: categorical, choices: [1, 2]}\n"
            "  exchange: {type: conditional, given: workers,"
            f" cases: {{1: [exact], otherwise: [{exchanges}]}}}}\n  blas_kernel: {{",
            "blas: slow,": "blas: slow, workers: 1, exchange: exact,",
            "* blas * threads": "* blas * threads * pace(params)",
            "def seconds_an_iteration": f"PACES = {PACES}\n\n\ndef pace(params):\n"
            '    return PACES[params["exchange"]] if params["workers"] > 1 else 1.0\n\n\n'
            "def seconds_an_iteration",
            "return 0.99 - 0.89": 'return (0.9 if params["exchange"] == "rough" else 0.99) - 0.8',
            'if __name__ == "__main__":': 'if __name__ == "__main__":\n'
            '    with worker_api.importing("nothing"):\n        pass  # the others start here',
        },
    )
    return dataclasses.replace(
        config, framework=load_framework("grouped", str(tree)), framework_path=str(tree)
    )
