"""The papers' experiments as they are declared: each can be understood, traced and run."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tuner.config.catalogue import (
    find_setting_file,
    list_datasets,
    list_frameworks,
    load_framework,
    project_folder,
)
from tuner.config.composing import compose
from tuner.config.papers import experiment_lines, find_paper, load_papers
from tuner.config.schema import TuneConfig
from tuner.measure import cpu_flags
from tuner.report import FIGURES
from tuner.study.paper_rows import check_paper, plan_rows
from tuner.values.errors import CompositionError, ConfigError
from tuner.values.space import SearchSpace

FILES = sorted((project_folder("conf") / "experiment").glob("paper_*.yaml"))
NAMES = [path.stem for path in FILES]
THEIR_OWN = {"threads_per_core"}


EFFICIENT = [
    path.stem
    for path in FILES
    if "efficiency_pct" in yaml.safe_load(path.read_text(encoding="utf-8"))["paper"]["metrics"]
]
"""Those that compare the scaling of workers."""


@cache
def composed(name: str) -> TuneConfig:
    return compose([f"experiment={name}"])


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def space_of(framework: str, dataset: str, model: str) -> SearchSpace:
    path = find_setting_file("search_spaces", framework)
    return SearchSpace.load(path, cores=2, cpu_flags=cpu_flags(), dataset=dataset, model=model)


def test_every_paper_has_experiments_and_there_are_many():
    assert {raw["paper"]["source"] for raw in map(read, FILES)} == set(load_papers())
    assert len(FILES) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_a_declaration_says_what_it_repeats(name):
    config = composed(name)
    paper = config.paper
    assert paper.name == name
    assert name.startswith(f"paper_{paper.source}_")
    source, machine = find_paper(paper)
    assert source.title
    assert source.authors
    assert machine.words
    for text in (paper.where, paper.about, paper.held):
        assert text.strip()
    assert paper.sweeps
    check_paper(paper)
    assert config.dataset.name in list_datasets()
    assert config.budget.time_s > 0
    assert any(each.theirs for each in paper.rows) or paper.claims, "nothing to compare with"
    assert set(paper.why) <= set(paper.metrics)


@pytest.mark.parametrize("name", NAMES)
def test_its_rows_name_frameworks_params_and_figures_that_exist(name):
    config = composed(name)
    paper = config.paper
    assert len(paper.rows) > 1
    for row in paper.rows:
        assert row.of
        assert set(row.theirs) <= set(FIGURES)
        assert all(value > 0 or value == 0 or math.isnan(value) for value in row.theirs.values())
        assert bool(row.framework) != bool(row.absent)
        if not row.framework:
            continue
        assert row.framework in list_frameworks()
        space = space_of(row.framework, config.dataset.name, config.model)
        asked = {*paper.fixed, *row.params, *row.run}
        assert asked <= {*space.params, *THEIR_OWN, "workers"}
        assert set(row.run) <= {*row.params, *paper.fixed}
    varied = {*(param for row in paper.rows for param in row.params), "framework"}
    assert set(paper.sweeps) <= varied
    for claim in paper.claims:
        assert claim.says
        assert len(claim.order) > 1


def spaces_of(config):
    """The search space of each framework that has rows."""
    used = {row.framework for row in config.paper.rows if row.framework}
    return {each: space_of(each, config.dataset.name, config.model) for each in used}


@pytest.mark.parametrize("name", NAMES)
def test_its_rows_can_be_run_or_are_refused_for_a_param_that_no_framework_has(name):
    config = composed(name)
    paper, dataset, spaces = config.paper, config.dataset.name, spaces_of(config)
    if "workers" in paper.sweeps and not any("workers" in each.params for each in spaces.values()):
        with pytest.raises(ConfigError, match="has no param 'workers'"):
            plan_rows(paper, spaces, dataset, config.model, 2)
        return
    for run in plan_rows(paper, spaces, dataset, config.model, 2):
        if run.reason:
            assert run.reason.endswith("has no param 'workers'") or not run.row.framework
        else:
            blas = load_framework(run.row.framework).blas
            assert run.params["blas"] in blas
            asked = {**paper.fixed, **run.row.params, **run.row.run}
            asked.pop("threads_per_core", None)
            assert {name: run.params[name] for name in asked} == asked


@pytest.mark.parametrize("name", EFFICIENT)
def test_an_efficiency_is_over_one_worker_with_as_many_threads(name):
    """By themselves frameworks take different numbers: MXNet half of the CPUs, others all."""
    config = composed(name)
    paper, dataset, spaces = config.paper, config.dataset.name, spaces_of(config)
    runs = plan_rows(paper, spaces, dataset, config.model, 4)
    assert {each.params["threads"] for each in runs if not each.reason} == {1}


def test_the_figures_of_two_tables_are_as_printed():
    rows = composed("paper_wu_table_10").paper.rows
    caffe = {each.params["blas"]: each.theirs for each in rows if each.of == "Caffe"}
    assert caffe["openblas-pthread"]["train_time_s"] == 512.18
    assert caffe["mkl"]["train_time_s"] == 187.33
    smt = composed("paper_shams_table_4").paper.rows
    power8 = [each.theirs["iteration_time_s"] for each in smt if each.of == "Power8"]
    assert power8 == [47.66, 79.28, 106.56]


def test_the_list_has_a_line_for_each_experiment():
    heading, *lines = experiment_lines()
    files = (project_folder("conf") / "experiment").glob("*.yaml")
    assert {line.split()[0] for line in lines} == {path.stem for path in files}
    assert "time here" in heading
    (line,) = (each for each in lines if each.startswith("paper_wu_table_10 "))
    assert line.split("  ")[-1].strip() == "15 min"
    for fact in ("Wu et al.", "table X ", "framework, blas", "tensorflow, caffe, theano"):
        assert fact in line
    assert any(each.startswith("tenancy ") for each in lines)


def test_no_two_experiments_of_a_file_name_say_the_same():
    papers = [read(path)["paper"] for path in FILES]
    places = [(each["source"], each["where"]) for each in papers]
    assert len(places) == len(set(places))


def test_an_unknown_experiment_is_refused_although_hydra_would_run_without():
    with pytest.raises(CompositionError, match=r"did you mean tenancy.*experiment=list"):
        compose(["experiment=tenanci"])


def test_a_source_or_machine_that_is_not_on_record_is_refused():
    paper = composed("paper_wu_table_10").paper
    with pytest.raises(ConfigError, match=r"paper\.source 'nobody' is not in conf/papers\.yaml"):
        find_paper(type(paper)(source="nobody"))
    with pytest.raises(ConfigError, match=r"paper\.machine 'abacus' is none of wu's machines"):
        find_paper(type(paper)(source="wu", machine="abacus"))


def test_workers_share_the_cores_and_more_of_them_are_labelled():
    config, dataset = composed("paper_jaeger_figure_6"), "fashion_mnist"
    space = space_of("mxnet", dataset, config.model)
    runs = plan_rows(config.paper, {"mxnet": space}, dataset, config.model, 2)
    layouts = [(each.params["workers"], each.params["threads"]) for each in runs]
    assert layouts == [(1, 1), (2, 1), (5, 1), (10, 1)]
    assert [each.labels for each in runs[:2]] == [(), ()]
    assert runs[2].labels == ("oversubscribed: 5 workers of 1 thread on 2 cores",)
