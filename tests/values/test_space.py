"""Search spaces: what is suggested is a member, what is no member is told why."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import FixedTrial

from tests.conftest import DEFAULT as SYNTHETIC_DEFAULT
from tests.conftest import SYNTHETIC
from tuner.config.catalogue import find_setting_file, list_frameworks
from tuner.values.errors import ConfigError
from tuner.values.ranges import Choices
from tuner.values.space import SearchSpace

ALL_FLAGS = ("avx", "avx2", "avx512f")
SPACES = {
    name: find_setting_file("search_spaces", name, str(SYNTHETIC))
    for name in list_frameworks(str(SYNTHETIC))
}
SMALL = """
params:
  batch_size: {type: int, low: 8, high: 64, log: true}
  momentum: {type: float, low: 0, high: 0.9}
  blas: {type: categorical, choices: [fast, plain]}
  threads: {type: conditional, given: blas, cases: {fast: per_core, plain: [1]}}
  blas_kernel: {type: conditional, given: blas, cases: {fast: [auto, {Zen: avx2}], plain: [auto]}}
defaults:
  - model: default
    datasets: [digits]
    params: {batch_size: 32, momentum: 0.5, blas: fast, threads: unset, blas_kernel: auto}
    source: made up
    start:
      - {batch_size: 16, blas_kernel: Zen}
      - {batch_size: 7}
  - model: lenet
    datasets: [digits]
    params: {batch_size: 64, momentum: 0.9, blas: fast, threads: unset, blas_kernel: auto}
    source: made up
    ranges: {batch_size: {low: 64, high: 128}}
"""
MEMBER = {"batch_size": 32, "momentum": 0.5, "blas": "fast", "threads": 2, "blas_kernel": "auto"}


@pytest.fixture
def small(tmp_path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def load(path, *, cores=2, flags=ALL_FLAGS, model="default", **overrides) -> SearchSpace:
    return SearchSpace.load(
        path, cores=cores, cpu_flags=flags, dataset="digits", model=model, overrides=overrides
    )


def test_trials_that_may_have_several_nodes_have_a_param_for_it(small):
    assert "nodes" not in load(small).params
    space = SearchSpace.load(
        small, cores=2, dataset="digits", model="default", nodes=3, overrides={}
    )
    assert space.params["nodes"].values({}) == (1, 2, 3)
    assert "nodes" in space.runtime
    assert all(each.params["nodes"] == 1 for each in space.defaults)
    assert space.refusal(space.defaults[0].params) == ""
    both = {"nodes": {"choices": [2]}}
    forced = SearchSpace.load(small, cores=2, nodes=2, overrides=both)
    assert forced.params["nodes"].values({}) == (2,)


def test_what_is_learned_depends_on_all_params_that_do_not_change_time_alone(small):
    assert load(small).learns_by == ["batch_size", "momentum"]
    theano = SearchSpace.load(find_setting_file("search_spaces", "theano"), cores=1)
    assert theano.learns_by == [
        "batch_size", "learning_rate", "average_weights", "early_stopping",
    ]  # fmt: skip


def test_an_exchange_with_a_loss_is_for_several_nodes_where_there_may_be_some():
    space = SearchSpace.load(find_setting_file("search_spaces", "torch"), cores=1, nodes=2)
    exchange = space.params["exchange"]
    assert exchange.values({"nodes": 1, "workers": 1}) == ("exact",)
    assert set(exchange.values({"nodes": 2, "workers": 1})) > {"exact", "fp16"}
    buckets = space.runtime["bucket_cap_mb"]
    assert buckets.values({"nodes": 1, "workers": 1}) == ("unset",)
    assert buckets.values({"nodes": 2, "workers": 1}) == ("unset", 1, 1000)


def test_what_a_group_sums_at_once_is_a_choice_of_groups_alone():
    space = SearchSpace.load(find_setting_file("search_spaces", "tensorflow"), cores=2)
    packs = space.runtime["bytes_per_pack"]
    assert packs.values({"workers": 1}) == (0,)
    assert packs.values({"workers": 2}) == (0, 2**20)


@pytest.mark.parametrize(("cores", "flags"), [(1, ()), (2, ALL_FLAGS), (6, ALL_FLAGS)])
@pytest.mark.parametrize("name", sorted(SPACES))
def test_what_is_suggested_is_a_member(name, cores, flags):
    space = load(SPACES[name], cores=cores, flags=flags)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=cores))
    for _ in range(60):
        trial = study.ask()
        params = space.suggest(trial)
        assert space.refusal(params) == ""
        assert list(params) == list(space.params)
        assert space.optuna_params(params) == trial.params


@pytest.mark.parametrize("name", sorted(SPACES))
def test_optuna_params_lead_back_to_the_same_params(name):
    space = load(SPACES[name])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
    for _ in range(40):
        params = space.suggest(study.ask())
        assert space.suggest(FixedTrial(space.optuna_params(params))) == params


def test_each_case_of_a_choice_is_a_param_of_its_own_to_the_sampler(small):
    space = load(small, cores=4)
    fast = {**MEMBER, "threads": 4, "blas_kernel": "Zen"}
    assert space.optuna_params(fast) == {
        "batch_size": 32,
        "momentum": 0.5,
        "blas": "fast",
        "threads[fast]": 4,
        "blas_kernel[fast]": "Zen",
    }
    plain = {**MEMBER, "blas": "plain", "threads": 1}
    assert space.optuna_params(plain) == {"batch_size": 32, "momentum": 0.5, "blas": "plain"}


def test_ranges_reach_their_ends_and_keep_their_scale(small):
    space = load(small)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    seen = set()
    for _ in range(80):
        trial = study.ask()
        seen.add(space.suggest(trial)["batch_size"])
    distribution = trial.distributions["batch_size"]
    assert (distribution.low, distribution.high, distribution.log) == (8, 64, True)
    assert not trial.distributions["momentum"].log
    assert isinstance(trial.distributions["blas"], CategoricalDistribution)
    assert all(type(each) is int and 8 <= each <= 64 for each in seen)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"batch_size": 8}, ""),
        ({"batch_size": 64}, ""),
        ({"batch_size": 32.0}, ""),
        ({"batch_size": 7}, "batch_size must be a whole number from 8 to 64, got 7"),
        ({"batch_size": 65}, "batch_size must be a whole number from 8 to 64, got 65"),
        ({"batch_size": 8.5}, "batch_size must be a whole number from 8 to 64, got 8.5"),
        ({"batch_size": True}, "batch_size must be a whole number from 8 to 64, got True"),
        ({"batch_size": "32"}, "batch_size must be a whole number from 8 to 64, got '32'"),
        ({"batch_size": None}, "batch_size must be a whole number from 8 to 64, got None"),
        ({"momentum": 0}, ""),
        ({"momentum": 0.91}, "momentum must be a number from 0 to 0.9, got 0.91"),
        ({"momentum": float("nan")}, "momentum must be a number from 0 to 0.9, got nan"),
        ({"blas": "mkl"}, "blas must be one of fast, plain, got 'mkl'"),
        ({"threads": "unset"}, ""),
        ({"threads": 3}, "threads must be one of unset, 1, 2 with blas=fast, got 3"),
        ({"blas": "plain"}, "threads must be one of 1 with blas=plain, got 2"),
        ({"blas_kernel": "Zen"}, ""),
        ({"speed": 1, "age": 2}, "age, speed is not a param of small"),
    ],
)
def test_what_is_no_member_is_told_why(small, changes, reason):
    assert load(small).refusal({**MEMBER, **changes}) == reason


@pytest.mark.parametrize("name", sorted(MEMBER))
def test_a_member_has_every_param(small, name):
    params = {key: value for key, value in MEMBER.items() if key != name}
    assert load(small).refusal(params).startswith(f"{name} must be ")


@pytest.mark.parametrize(
    ("cores", "threads"),
    [
        (1, ("unset", 1)),
        (2, ("unset", 1, 2)),
        (3, ("unset", 1, 2, 3)),
        (4, ("unset", 1, 2, 4)),
        (6, ("unset", 1, 2, 4, 6)),
        (64, ("unset", 1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_threads_go_up_to_the_cores_of_a_trial(small, cores, threads):
    assert load(small, cores=cores).params["threads"].values({"blas": "fast"}) == threads
    assert load(small, cores=cores).params["threads"].values({"blas": "plain"}) == (1,)


def test_kernels_are_offered_where_the_cpu_has_them(small):
    with_avx2 = load(small, flags=["avx2"]).params["blas_kernel"]
    without = load(small, flags=["sse4_2"]).params["blas_kernel"]
    assert with_avx2.values({"blas": "fast"}) == ("auto", "Zen")
    assert without.values({"blas": "fast"}) == ("auto",)


def test_start_points_are_the_default_changed_where_the_machine_allows(small):
    space = load(small)
    default = space.default("digits", "default").params
    # the second lies outside of the range of batch_size
    assert space.start_points(default) == [{**default, "batch_size": 16, "blas_kernel": "Zen"}]
    assert load(small, flags=()).start_points(default) == []


GROUPS = """
params:
  batch_size: {type: int, low: 16, high: 256, log: true}
  iterations: {type: int, low: 200, high: 2000, log: true}
  learning_rate: {type: float, low: 0.001, high: 0.03, log: true}
  workers: {type: categorical, choices: up_to_cores}
  threads: {type: conditional, given: workers, cases: per_worker}
defaults:
  - model: default
    datasets: [digits]
    params: {batch_size: 32, iterations: 1600, learning_rate: 0.01, workers: 1, threads: unset}
    source: made up
"""


def space_with(tmp_path, rule="", cores=8, nodes=1) -> SearchSpace:
    """A space with groups, whose default names this rule for its rate."""
    path = tmp_path / "groups.yaml"
    path.write_text(GROUPS + (f"    rate_rule: {rule}\n" if rule else ""))
    return SearchSpace.load(path, cores=cores, dataset="digits", model="default", nodes=nodes)


def groups_of(tmp_path, *asked, **options) -> list[tuple]:
    """Workers, batch size, iterations and rate of the start points of groups."""
    space = space_with(tmp_path, *asked, **options)
    points = space.group_points(space.default("digits", "default").params)
    assert all(space.refusal(each) == "" for each in points)
    names = [each for each in ("nodes", "workers") if each in space.params]
    sizes = "batch_size", "iterations", "learning_rate"
    return [tuple(each[name] for name in (*names, *sizes)) for each in points]


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("linear", [(2, 64, 800, 0.02)]),  # four would need a rate beyond the range
        ("square_root", [(8, 256, 200, 0.02828), (4, 128, 400, 0.02), (2, 64, 800, 0.01414)]),
        ("constant", [(8, 256, 200, 0.01), (4, 128, 400, 0.01), (2, 64, 800, 0.01)]),
    ],
)
def test_the_batch_grows_with_the_group_and_the_rate_by_its_rule(tmp_path, rule, wanted):
    found = groups_of(tmp_path, rule)
    assert found == [(*sizes, pytest.approx(rate, rel=1e-3)) for *sizes, rate in wanted]


@pytest.mark.parametrize(
    ("rule", "low", "high"),
    [
        ("linear", 0.00707, 0.03),  # as high as it may be
        ("square_root", 0.00707, 0.02),
        ("constant", 0.01, 0.01),
    ],
)
@pytest.mark.parametrize("averaged", [False, True])
def test_start_points_train_on_fewer_images_or_in_other_batches(
    tmp_path, rule, low, high, averaged
):
    space = space_with(tmp_path, rule)
    default = space.default("digits", "default").params
    if averaged:
        average = {"average_weights": Choices({"": (False, True)}, runtime=False)}
        space = dataclasses.replace(space, params={**space.params, **average})
        default = {**default, "average_weights": False}
    points = space.start_points(default)
    found = [(each["batch_size"], each["iterations"], each["learning_rate"]) for each in points]
    fewer = 2 if averaged else 1
    assert found == [
        (32, 800 // fewer, 0.03),
        (16, 1600 // fewer, pytest.approx(low, rel=1e-3)),
        (128, 400 // fewer, pytest.approx(high)),
    ]
    assert all(each.get("average_weights", False) is averaged for each in points)


def test_a_sixteenth_of_the_batch_keeps_the_rate(tmp_path):
    space = space_with(tmp_path)
    sizes = dataclasses.replace(space.params["batch_size"], low=8.0)
    space = dataclasses.replace(space, params={**space.params, "batch_size": sizes})
    default = space.default("digits", "default").params
    for batch, smaller in ((128, [32, 8]), (64, [16])):
        points = space.start_points({**default, "batch_size": batch})
        found = [each for each in points if each["batch_size"] < batch]
        assert [each["batch_size"] for each in found] == smaller
    smallest = space.start_points({**default, "batch_size": 128})[2]
    assert (smallest["iterations"], smallest["learning_rate"]) == (1600, 0.01)


def test_start_points_take_the_first_setting_that_the_machine_allows(tmp_path):
    space = space_with(tmp_path, "linear")
    default = space.default("digits", "default").params
    start = ({"threads": 64}, {"threads": 2})
    points = dataclasses.replace(space, start=start).start_points(default)
    assert len(points) > 1
    assert {each["threads"] for each in points} == {2}


def test_no_start_point_is_the_default_itself(tmp_path):
    space = space_with(tmp_path)
    default = {**space.default("digits", "default").params, "batch_size": 16}
    assert [each["batch_size"] for each in space.start_points(default)] == [16, 64]


def test_start_points_begin_at_the_recommended_rate_if_the_default_is_below_it(tmp_path):
    path = tmp_path / "groups.yaml"
    path.write_text(f"{GROUPS}    recommended_rate: 0.002\n")
    space = SearchSpace.load(path, cores=1, dataset="digits", model="default")
    default = space.default("digits", "default").params
    for own, rates in ((0.001, [0.003, 0.001414, 0.004]), (0.01, [0.03, 0.00707, 0.02])):
        points = space.start_points({**default, "learning_rate": own})
        assert [each["learning_rate"] for each in points] == pytest.approx(rates, rel=1e-3)


def test_a_rate_whose_rule_nobody_names_grows_with_the_square_root(tmp_path):
    assert groups_of(tmp_path) == groups_of(tmp_path, "square_root")


def test_a_batch_grows_with_the_workers_on_all_nodes(tmp_path):
    found = groups_of(tmp_path, "linear", cores=2, nodes=2)
    assert found == [(1, 2, 64, 800, 0.02), (2, 1, 64, 800, 0.02)]


def test_one_process_has_no_batch_of_a_group(small, tmp_path):
    assert groups_of(tmp_path, cores=1) == []
    assert load(small).group_points(MEMBER) == []


def test_an_unknown_rate_rule_is_refused(tmp_path):
    with pytest.raises(ConfigError) as refused:
        groups_of(tmp_path, "cubic")
    wanted = "rate_rule of default must be one of linear, square_root, constant, got 'cubic'"
    assert str(refused.value).endswith(f"groups.yaml is not a search space: {wanted}")


def test_a_model_may_have_ranges_of_its_own_and_overrides_come_last(small):
    assert load(small).refusal({**MEMBER, "batch_size": 16}) == ""
    assert "from 64 to 128" in load(small, model="lenet").refusal(MEMBER)
    assert load(small, model="lenet", batch_size={"low": 32}).refusal(MEMBER) == ""
    assert load(small, model="lenet").start_points(MEMBER) == []


def test_trainings_may_be_longer_where_accuracy_is_sought():
    space = SearchSpace.load(SYNTHETIC / "search_spaces/synthetic.yaml", cores=2, cpu_flags=())
    assert space.params["iterations"].high == 2000
    assert space.with_longer(4000).params["iterations"].high == 4000
    assert space.with_longer(10).params["iterations"].high == 2000


def test_overrides_replace_entries(small):
    space = load(small, batch_size={"high": 16}, blas={"choices": ["fast"]})
    assert space.refusal({**MEMBER, "batch_size": 16}) == ""
    assert space.refusal(MEMBER) == "batch_size must be a whole number from 8 to 16, got 32"
    assert "blas" not in space.optuna_params({**MEMBER, "batch_size": 16})
    narrowed = load(small, threads={"choices": [1, 2]}).params["threads"]
    assert [narrowed.values({"blas": each}) for each in ("fast", "plain")] == [(1, 2), (1,)]
    changed = load(small, momentum={"type": "categorical", "choices": [0.5, 0.9]})
    assert changed.params["momentum"].values({}) == (0.5, 0.9)
    own = {"cases": {"third": [1]}}
    third = {"type": "categorical", "choices": ["third"]}
    others = load(small, blas=third, threads=own, blas_kernel=own).params["blas"]
    assert others.values({}) == ("third",), "with the type, not only what is offered"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"batch_size": {"low": 65}},
            "search_space.batch_size needs low <= high, got low=65 high=64",
        ),
        (
            {"momentum": {"high": float("inf")}},
            "search_space.momentum needs low <= high, got low=0 high=inf",
        ),
        ({"batch_size": {"low": 0}}, "search_space.batch_size.low must be above 0, got 0"),
        ({"momentum": {"log": True}}, "search_space.momentum.low must be above 0, got 0"),
        (
            {"batch_size": {"low": 8.5}},
            "search_space.batch_size needs whole numbers, got low=8.5 high=64",
        ),
        (
            {"batch_size": {"type": "range"}},
            "search_space.batch_size.type must be int, float, categorical or conditional, "
            "got 'range'",
        ),
        (
            {"speed": {"low": 1}},
            "search_space.speed is not a param of small: "
            "batch_size, momentum, blas, threads, blas_kernel",
        ),
        (
            {"batch_size": {"choices": [32]}},
            "search_space.batch_size.choices changes nothing, as batch_size is of type int; "
            "it has low, high, log",
        ),
        (
            {"threads": {"choices": [2]}},
            "search_space.threads has no value for this CPU with blas=plain; "
            "search_space.blas.choices can leave that out",
        ),
        (
            {"blas": {"choices": ["fast", "maybe"]}},
            "search_space.blas.choices must be among fast, plain on this machine, got maybe",
        ),
        (
            {"batch_size": 32},
            "search_space.batch_size is not a param of small: "
            "batch_size, momentum, blas, threads, blas_kernel",
        ),
    ],
)
def test_an_override_that_cannot_be_is_refused(small, overrides, message):
    with pytest.raises(ConfigError) as refused:
        load(small, **overrides)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "overrides",
    [
        {"batch_size": {"low": "small"}},
        {"batch_size": {"low": None}},
        {"blas": {"choices": []}},
        {"blas": {"choices": "fast"}},
        {"blas": {"type": "categorical", "choices": None}},
        {"threads": {"cases": ["fast"]}},
        {"threads": {"cases": {"fast": 3}}},
        # nothing would be left to choose from
        {"blas": {"choices": ["fast", "unknown"]}},
        {"blas": {"choices": [{"fast": "sve"}]}},
        {"threads": {"cases": {"fast": [1]}}},
        {"threads": {"cases": {"fast": [1], "plain": [{"4": "sve"}]}}},
        {"threads": {"given": "nothing"}},
        {"threads": {"given": "blas_kernel"}},
        {"threads": {"given": "batch_size"}},
    ],
)
def test_an_override_that_leaves_no_choice_is_refused_by_name(small, overrides):
    with pytest.raises(ConfigError) as refused:
        load(small, **overrides)
    message = str(refused.value)
    assert "search_space." in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "just words",
        "params: {}",
        "params: {a: words}\ndefaults: []",
        "params: {a: 3}\ndefaults: []",
        "params: {}\ndefaults: [{model: default}]",
        "params: {}\ndefaults: [{model: a, datasets: [], params: {}, source: b, start: 3}]",
        "params: [",
    ],
)
def test_a_file_that_is_no_search_space_is_refused(tmp_path, text):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.yaml is not a search space: "):
        load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a search space"):
        load(tmp_path / "nothing.yaml")


def test_a_default_is_found_by_data_set_and_model():
    space = load(SPACES["synthetic"])
    default = space.default("digits", "lenet")
    assert default.params == SYNTHETIC_DEFAULT
    assert default.source
    with pytest.raises(ConfigError) as refused:
        space.default("digits", "resnet")
    assert str(refused.value).startswith(
        "synthetic has no default for digits with model=resnet; it has: digits (model=default)"
    )


def test_the_same_file_gives_an_equal_space(small):
    assert repr(load(small)) == repr(load(small))
    assert repr(load(small)) != repr(load(small, batch_size={"high": 63}))
