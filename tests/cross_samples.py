"""Studies across frameworks: samples to report on, and frameworks that can really be studied."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from tests.conftest import SYNTHETIC
from tests.report_samples import make_study
from tuner.values.results import CrossResult, Outcome, StudyResult
from tuner.values.trial import Interval
from tuner.values.verified import Comparison, CostRatio

GROUPS = ("frameworks/{}", "conf/framework/{}.yaml", "search_spaces/{}.yaml")


def copy_framework(tree: Path, name: str, **words: str) -> None:
    """Add the synthetic framework to ``tree`` as ``name``, with some words of it replaced."""
    for group in GROUPS:
        source, target = (folder / group.format(each) for folder, each in (
            (SYNTHETIC, "synthetic"), (tree, name)))  # fmt: skip
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for path in (tree / GROUPS[0].format(name) / "worker.py", *(
        tree / group.format(name) for group in GROUPS[1:])):  # fmt: skip
        text = path.read_text(encoding="utf-8").replace("name: synthetic", f"name: {name}")
        for old, new in words.items():
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


def make_tree(tree: Path) -> Path:
    """Four frameworks: two that work, one whose runtime is missing, one without a LeNet."""
    shutil.copytree(SYNTHETIC, tree, ignore=shutil.ignore_patterns("__pycache__"))
    copy_framework(
        tree, "brisk", **{"title: Synthetic": "title: Brisk 2.0", "0.02) ** 2": "0.05) ** 2",
        "(20 + params": "(60 + params", '"slow": 20.0': '"slow": 6.0', "/ 800.0": "/ 500.0"},
    )  # fmt: skip
    copy_framework(tree, "absent", **{"title: Synthetic": "title: Absent", "{python}": "/no/such"})
    copy_framework(
        tree, "other", **{"title: Synthetic": "title: Other", "model: lenet": "model: x"}
    )
    return tree


def with_costs(study: StudyResult) -> StudyResult:
    """The study with CPU and memory compared; memory of its last point without an interval."""

    def priced(versus: Comparison | None, last: bool) -> Comparison | None:
        if versus is None:
            return None
        memory = CostRatio(1.04, 1.02, 1.06, 0.02)
        if last:
            memory = CostRatio(0.9, gap="only one full run of it or of the default")
        return dataclasses.replace(versus, cpu=CostRatio(0.31, 0.3, 0.32, 1e-5), memory=memory)

    points = [
        dataclasses.replace(each, against_default=priced(each.against_default, each is last))
        for last in [study.verified[-1]]
        for each in study.verified
    ]
    return dataclasses.replace(study, verified=tuple(points))


def rival(name: str, title: str, factor: float, shift: float) -> StudyResult:
    """A study whose times are ``factor`` times and accuracies ``shift`` above the sample's."""
    study = with_costs(make_study())

    def scaled(figure: Interval, by: float, plus: float) -> Interval:
        return Interval(*(by * each + plus for each in (figure.value, figure.low, figure.high)))

    trials = [
        dataclasses.replace(
            each,
            val_accuracy=None if each.val_accuracy is None else each.val_accuracy + shift,
            measurement=each.measurement
            and dataclasses.replace(
                each.measurement, train_time_s=factor * each.measurement.train_time_s
            ),
        )
        for each in study.trials
    ]
    verified = [
        dataclasses.replace(
            each,
            train_time_s=scaled(each.train_time_s, factor, 0.0),
            test_accuracy=scaled(each.test_accuracy, 1.0, shift),
        )
        for each in study.verified
    ]
    return dataclasses.replace(
        study, framework=name, title=title, study_id=f"id-{name}", trials=tuple(trials),
        verified=tuple(verified),
    )  # fmt: skip


def make_cross(**changes: Any) -> CrossResult:
    """Two frameworks that can be compared, and two that cannot."""
    studies = [with_costs(make_study()), rival("brisk", "Brisk 2.0", 0.3, -0.001)]
    result = CrossResult(
        cross_id="77aa01bc",
        dataset="mnist",
        model="lenet",
        objectives=studies[0].objectives,
        outcomes=(
            *(Outcome(each.framework, each.title, each) for each in studies),
            Outcome("absent", "Absent", None, "absent: /no/such was not found"),
            Outcome("other", "Other", None, "other has no default for mnist with model=lenet"),
        ),
        machine={"cpu": "AMD EPYC 7B13", "cores": "2 of 2"},
        budget_s=3600.0,
        command="python -m tuner experiment=cross_framework dataset=mnist",
    )
    return dataclasses.replace(result, **changes)
