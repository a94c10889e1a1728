"""Tests of ``tuner.config.composing``: words are a configuration, or refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tuner.config.composing import compose, run_each
from tuner.config.schema import TuneConfig
from tuner.config.validation import validate
from tuner.values.errors import CompositionError, TunerError


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("+speed=1", "unknown setting 'speed'"),
        ("++budget.tim_s=5", "did you mean budget.time_s"),
        ("framework=null", "must be a string"),
        ("budget.time_s=abc", "^budget.time_s must be a number, got 'abc'$"),
        ("budget.trials=1.5", "^budget.trials must be a whole number, got '1.5'$"),
        ("search.warm_start=maybe", "^search.warm_start must be true or false, got 'maybe'$"),
        ("objectives=accuracy", r"^objectives must be a list such as \[.*, got 'accuracy'$"),
        ("budget=[1", "no viable alternative"),
        ("framework_path=/nowhere", "framework_path=/nowhere has no folder conf/"),
    ],
)
def test_what_is_no_setting_is_refused_in_one_line(word, said):
    with pytest.raises(CompositionError, match=said) as refused:
        compose([word])
    assert "\n" not in str(refused.value)


def test_without_words_a_study_has_the_defaults():
    composed = []
    run_each([], composed.append)
    assert composed == [compose([])]


def test_the_cluster_may_be_named_by_its_variable(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert compose(["executor=ray"]).executor.address == "10.0.0.1:6379"
    own = compose(["executor=ray", "executor.address=10.0.0.9:6379"])
    assert own.executor.address == "10.0.0.9:6379"


def names_of(part: object, prefix: str = "") -> Iterator[str]:
    """Every setting, and every group of them, by its path."""
    for each in fields(part):
        yield prefix + each.name
        inner = getattr(part, each.name)
        if is_dataclass(inner):
            yield from names_of(inner, f"{prefix}{each.name}.")


# a command line holds no NUL, and what it cannot encode are surrogates
TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
)
ODD = """
    null nan inf -inf -1 0 01 0x10 1_000 1e999 1e-999 true off ??? ' " ~ ../.. a=b accuracy caffe
    [] {} [1,2 [null] [[]] {a:1} {a:[1,{b:2}]} [a,a] [<=1] [peak_memory_mb<=] [accuracy<=nan]
    choice(1,2) range(1,9) ${ ${seed} ${nothing} ${oc.env:HOME}
"""
NAMES = [
    *names_of(TuneConfig()),
    *("search_space.iterations", "search_space.iterations.high", "search_space.new.choices"),
    *("framework.blas.mkl.loaded", "hydra.run.dir", "hydra.searchpath", "experiment", "nothing"),
]
VALUES = st.one_of(
    st.sampled_from(["", "9" * 40, *ODD.split()]), TEXT, st.integers().map(str),
    st.floats().map(str),
    st.lists(TEXT, max_size=3).map(lambda inner: f"[{','.join(inner)}]"),
)  # fmt: skip
WORDS = st.one_of(
    st.builds(
        lambda sign, name, value: f"{sign}{name}={value}",
        st.sampled_from(["", "", "", "+", "++", "~"]),
        st.sampled_from(NAMES),
        VALUES,
    ),
    TEXT,
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:provider=hydra.searchpath")  # Hydra's own, of a folder
@pytest.mark.timeout(300 + examples(0))
@settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(WORDS, min_size=1, max_size=3))
def test_words_are_a_configuration_or_one_line(words):
    refusal = "refused"
    try:
        validate(compose(words))
    except TunerError as refused:
        refusal = str(refused)
    assert refusal.strip()
    assert "\n" not in refusal
