"""The files of conf/ and search_spaces/: each composes, is valid, and fits the others.

A file added to a group, or a framework added to the folders, is tested without a line here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import cache

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf

from tests.conftest import SYNTHETIC
from tuner.config.catalogue import (
    find_setting_file,
    framework_folder,
    framework_roots,
    list_datasets,
    list_frameworks,
    load_dataset_config,
    load_framework,
    project_folder,
)
from tuner.config.composing import prepare_overrides
from tuner.config.schema import TuneConfig
from tuner.config.validation import CHOICES, validate
from tuner.measure import cpu_flags
from tuner.search.samplers import make_sampler
from tuner.values.params import AVERAGE_WEIGHTS
from tuner.values.space import Default, SearchSpace

CONF = project_folder("conf")
OWN_TREE = str(SYNTHETIC)
GROUP_FILES = sorted(
    (path.parent.name, path.stem) for path in CONF.glob("*/*.yaml") if path.parent.name != "hydra"
)
FRAMEWORKS = list_frameworks(OWN_TREE)
KNOWN_FLAGS = frozenset(
    ["sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile"]
)


@pytest.fixture
def hydra() -> Iterator[None]:
    """Hydra at work on the project's own conf/, gone again afterwards."""
    ConfigStore.instance().store(name="tune_config", node=TuneConfig)
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield


def composed(*words: str) -> TuneConfig:
    config = compose("config", overrides=prepare_overrides(words))
    made = OmegaConf.to_object(config)
    assert isinstance(made, TuneConfig)
    return made


NEEDED = {"gp": "torch", "ray": "ray", "raytune": "ray"}
"""Packages that a file's group needs, from an extra."""


@pytest.mark.parametrize(("group", "name"), GROUP_FILES)
def test_every_file_of_every_group_composes_and_is_valid(hydra, group, name):
    words = ["search=joint"] if group == "sampler" else []
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    config = validate(composed(f"{group}={name}", *words))
    if group != "experiment":  # a whole study has no name in the configuration
        assert getattr(config, group).name == name


def test_every_group_is_a_group_of_the_configuration():
    groups = {group for group, _ in GROUP_FILES} - {"experiment"}
    assert groups == {"framework", "dataset", "search", "sampler", "executor", "budget"}


def test_the_plain_command_gives_the_defaults_of_the_dataclasses(hydra):
    """conf/config.yaml and TuneConfig say the same, so that the library behaves as the command."""
    config = composed()
    expected = TuneConfig(
        framework=load_framework("caffe"),
        dataset=load_dataset_config("mnist"),
        sampler=config.sampler,
    )
    assert config == expected
    assert config.sampler.name == TuneConfig().sampler.name


@pytest.mark.parametrize(
    "word",
    ["speed=1", "budget.tim_s=5", "seed=soon", "framework=cafe", "budget.trials=many"],
)
def test_what_the_schema_does_not_know_is_refused(hydra, word):
    with pytest.raises(HydraException):
        composed(word)


def test_constraints_and_search_spaces_are_taken_as_users_write_them(hydra):
    config = composed(
        "constraints=peak_memory_mb<=2048,accuracy>=0.985", "search_space.batch_size.high=64"
    )
    assert config.constraints == ["peak_memory_mb<=2048", "accuracy>=0.985"]
    assert config.search_space == {"batch_size": {"high": 64}}


def test_a_framework_of_the_users_own_tree_composes(hydra):
    config = composed(f"framework_path={SYNTHETIC}", "framework=synthetic", "dataset=digits")
    assert config.framework == load_framework("synthetic", OWN_TREE)
    assert validate(config).framework_path == OWN_TREE


@pytest.mark.parametrize("name", sorted(each for group, each in GROUP_FILES if group == "sampler"))
def test_every_sampler_takes_its_options(hydra, name):
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    assert make_sampler(composed(f"sampler={name}").sampler, seed=1)


@pytest.mark.parametrize("root", framework_roots(OWN_TREE), ids=lambda root: root.name)
def test_each_framework_has_folder_conf_and_search_space(root):
    own = root != framework_roots()[0]
    conf = root / "conf" if own else CONF
    spaces = root / "search_spaces" if own else project_folder("search_spaces")
    folders = {path.name for path in (root / "frameworks").iterdir() if path.name[0] not in "._"}
    assert folders
    assert {path.stem for path in (conf / "framework").glob("*.yaml")} == folders
    assert {path.stem for path in spaces.glob("*.yaml")} == folders


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_file_fits_its_folder(name):
    framework = load_framework(name, OWN_TREE)
    folder = framework_folder(name, OWN_TREE)
    assert framework.name == name
    assert framework.title
    assert (folder / framework.worker).is_file()
    templates = {each.settings_template for each in space_of(name, 2).defaults}
    for template in filter(None, {framework.settings_template, *templates}):
        assert (folder / template).is_file()
    assert framework.runtime.check, "a runtime must be able to prove that it works"
    for blas in framework.blas.values():
        re.compile(blas.loaded)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_hashes_go_with_every_pin_or_with_none(name):
    runtime = load_framework(name, OWN_TREE).runtime
    pins = runtime.packages if runtime.kind == "venv" else runtime.wheels
    hashed = [each.split() for each in runtime.hashed]
    assert not hashed or {line[0] for line in hashed} >= set(pins)
    for line in hashed:
        assert line[1:], f"{line[0]} has no hash"
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", each) for each in line[1:])


@cache
def space_of(
    name: str, cores: int, flags: frozenset[str] = KNOWN_FLAGS, dataset: str = "", model: str = ""
) -> SearchSpace:
    path = find_setting_file("search_spaces", name, OWN_TREE)
    return SearchSpace.load(path, cores=cores, cpu_flags=flags, dataset=dataset, model=model)


def spaces_of(
    name: str, cores: int, flags: frozenset[str] = KNOWN_FLAGS
) -> Iterator[tuple[Default, SearchSpace]]:
    """Every default with the space that it is the default of: it may have ranges of its own."""
    for default in space_of(name, cores, flags).defaults:
        for dataset in default.datasets:
            yield default, space_of(name, cores, flags, dataset, default.model)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_blas_that_may_be_searched_is_configured(name):
    space, framework = space_of(name, 2), load_framework(name, OWN_TREE)
    if "blas" in space.params:
        assert set(space.params["blas"].values({})) <= set(framework.blas)
    kernels = space.params.get("blas_kernel")
    for blas, config in framework.blas.items():
        if kernels and not config.kernel_variable:
            assert set(kernels.values({"blas": blas})) <= {"auto", "unset"}
        threads = space.params["threads"].values({"blas": blas})
        if any(isinstance(each, int) and each > 1 for each in threads):
            assert config.thread_variables, f"nothing would set the threads of {blas}"


@pytest.mark.parametrize("cores", [1, 2, 64])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_default_lies_in_its_own_space(name, cores):
    assert space_of(name, cores).defaults
    for default, space in spaces_of(name, cores):
        assert space.refusal(default.params) == ""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_default_says_where_it_is_written(name):
    for default in space_of(name, 2).defaults:
        assert default.source.strip()
        assert set(default.datasets) <= set(list_datasets())
        assert default.model in CHOICES["model"]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_data_set_has_one_default_a_model(name):
    pairs = [(each.model, data) for each in space_of(name, 2).defaults for data in each.datasets]
    assert len(pairs) == len(set(pairs))
    for dataset in list_datasets():
        if load_dataset_config(dataset).figure == "perplexity":
            continue  # no framework ships a language model as its default
        assert {("default", dataset), ("lenet", dataset)} & set(pairs)
    for model, dataset in pairs:
        fallback = load_dataset_config(dataset).fallback
        assert not fallback or (model, fallback) in pairs


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_start_points_are_members_where_the_machine_has_it_all(name):
    for default, space in spaces_of(name, 2):
        points = space.start_points(default.params)
        count = len(space.start)
        listed, (bolder, *batches) = points[:count], points[count:]  # those for all come last
        assert len(listed) == len(default.start)
        learnt = [name for name in space.params if name not in space.runtime]
        assert all(each[name] == default.params[name] for each in listed for name in learnt)
        assert bolder["learning_rate"] > default.params["learning_rate"]
        assert bolder["iterations"] < default.params["iterations"]
        choice = space.params.get(AVERAGE_WEIGHTS)
        averages = choice is not None and True in choice.values(default.params)
        assert all(each.get(AVERAGE_WEIGHTS, False) is averages for each in (bolder, *batches))
        assert not default.params.get(AVERAGE_WEIGHTS)
        for each in batches:
            larger = each["batch_size"] / default.params["batch_size"]
            usual = max(default.params["learning_rate"], space.recommended_rate)
            faster = each["learning_rate"] / usual
            assert larger == 4 or larger < 1
            assert faster == 1 if space.rate_rule == "constant" else (faster > 1) == (larger > 1)
            shortest = each["iterations"] == space.params["iterations"].low
            assert shortest or each["iterations"] * larger <= default.params["iterations"]
        assert all(space.refusal(point) == "" for point in points)
        assert default.params not in points
        for start in space.start:
            assert set(start) <= set(space.params)


MOMENTUM = {("mxnet", "default"), *itertools.product(FRAMEWORKS, ("lenet", "alexnet"))}
"""What is trained by SGD with momentum, and a rate that is not of a single sample."""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_rate_of_a_group_grows_as_its_optimizer_asks(name):
    for default, space in spaces_of(name, 2):
        for point in space.group_points(default.params):
            assert point["batch_size"] == 2 * default.params["batch_size"]
            growth = point["learning_rate"] / default.params["learning_rate"]
            linear, constant = (name, default.model) in MOMENTUM, name == "cntk"
            assert growth == pytest.approx(2 if linear else 1 if constant else 2**0.5)


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("flags", [frozenset(), cpu_flags()], ids=["no_flags", "this_cpu"])
def test_start_points_load_on_any_cpu(name, flags):
    for default, space in spaces_of(name, 1, flags):
        assert all(not space.refusal(each) for each in space.start_points(default.params))
