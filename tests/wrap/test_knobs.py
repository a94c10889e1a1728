"""Knobs: found by what a program maps, allowed by the machine, set in the environment."""

from __future__ import annotations

import pytest

from tuner.values.errors import ConfigError
from tuner.wrap.knobs import find_knobs, parse_knob, thread_counts, timed_knobs, variables_of
from tuner.wrap.params import ParamSpace

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
GOMP = "/venv/torch/lib/libgomp.so.1"
OPENBLAS = "/venv/numpy.libs/libscipy_openblas64_-ff651d7f.so"
TENSORFLOW = "/venv/tensorflow/libtensorflow_framework.so.2"


def names(*mapped: str, flags: tuple[str, ...] = ("avx2",), **more) -> list[str]:
    return [each.name for each in find_knobs(mapped, 4, flags, **more)]


@pytest.mark.parametrize(
    ("mapped", "expected"),
    [
        ((), []),
        (("/usr/lib/libgomparator.so",), []),
        ((GOMP,), ["threads", "wait_policy", "binding"]),
        (("/venv/xgboost.libs/libgomp-e985bcbb.so.1.0.0",), ["threads", "wait_policy", "binding"]),
        (("/opt/libiomp5.so",), ["threads", "wait_policy", "binding", "block_time"]),
        ((OPENBLAS,), ["openblas_threads", "openblas_kernel"]),
        ((LIBC,), ["allocator"]),
        (("/venv/jaxlib/libjax_common.so",), ["xla_threads"]),
        (
            (TENSORFLOW,),
            ["tensorflow_threads", "tensorflow_parallel_ops", "tensorflow_onednn"],
        ),
    ],
)
def test_a_program_has_the_knobs_that_its_libraries_read(mapped, expected):
    assert names(*mapped) == expected


def test_what_a_library_computes_with_comes_before_what_numpy_loads():
    assert names(OPENBLAS, "/venv/jaxlib/libjax_common.so")[:2] == [
        "xla_threads",
        "openblas_threads",
    ]
    assert names(OPENBLAS, TENSORFLOW)[0] == "tensorflow_threads"


def test_a_kernel_is_offered_where_the_cpu_has_its_instructions():
    (knob,) = find_knobs([OPENBLAS], 1, ["avx2"], without=["openblas_threads"])
    assert list(knob.values) == ["Haswell", "Zen"]
    (knob,) = find_knobs([OPENBLAS], 1, ["avx2", "avx512f"], without=["openblas_threads"])
    assert list(knob.values) == ["Haswell", "Zen", "SkylakeX"]


def test_knobs_can_be_added_and_left_alone():
    own = parse_knob("MY_SPEED=1,2")
    assert names(GOMP, own=[own], without=["binding", "wait_policy"]) == ["threads", "MY_SPEED"]
    with pytest.raises(
        ConfigError, match="no knob 'thread'; choose from: threads, tensorflow_threads"
    ):
        find_knobs([], 1, [], without=["thread"])


@pytest.mark.parametrize("text", ["", "X", "X=", "X=1,,2", "1X=2", "A B=1"])
def test_a_knob_that_cannot_be_read_is_refused(text):
    with pytest.raises(ConfigError, match="VARIABLE=value,value"):
        parse_knob(text)


def test_a_setting_becomes_variables():
    knobs = find_knobs([GOMP, OPENBLAS], 4, [], own=[parse_knob("X=a,b")])
    assert variables_of(knobs, {}, {}) == {}
    assert variables_of(knobs, {"threads": 2, "X": "b"}, {}) == {
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "X": "b",
    }


def test_workers_first_get_at_most_their_share_of_the_cores():
    own = timed_knobs(ParamSpace(timed={"workers": (1, 2, 3, 8), "fork": (True, "spawn")}))
    *_, workers, fork = find_knobs([GOMP], 4, [], own=own)
    assert workers.along == {2: {"threads": 2}, 3: {"threads": 1}, 8: {"threads": 1}}
    assert (workers.ordered, fork.ordered, fork.along) == (True, False, {})
    assert variables_of([workers, fork], {"workers": 2, "fork": "spawn"}, {}) == {}


def test_what_a_program_loads_first_stays_loaded():
    knobs = [parse_knob("LD_PRELOAD=/lib/new.so")]
    found = variables_of(knobs, {"LD_PRELOAD": "/lib/new.so"}, {"LD_PRELOAD": "/lib/own.so"})
    assert found == {"LD_PRELOAD": "/lib/new.so:/lib/own.so"}


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, [1]), (2, [2, 1]), (6, [6, 3, 1]), (16, [16, 8, 4, 2, 1])]
)
def test_numbers_of_threads_are_halved(cores, counts):
    assert thread_counts(cores) == counts
