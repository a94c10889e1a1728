"""Requested is not effective: every way in which a trial can be convicted, and Caffe's marks."""

from __future__ import annotations

import re

import pytest

from tuner.config.catalogue import load_framework
from tuner.config.schema import BlasConfig
from tuner.trials.attestation import Seen, attest, loaded_blas

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
RUNTIME = "/var/cache/tuner/runtimes/caffe-0123abcd"
MAPPED = {
    "openblas-pthread": f"{LIBRARIES}/openblas-pthread/libblas.so.3",
    "openblas-openmp": f"{LIBRARIES}/openblas-openmp/libblas.so.3",
    "blis": f"{LIBRARIES}/blis-pthread/libblas.so.3",
    "atlas": f"{LIBRARIES}/atlas/libblas.so.3.10.3",
    "reference": f"{LIBRARIES}/blas/libblas.so.3.9.0",
    "mkl": f"{RUNTIME}/wheels/libmkl_rt.so.2",
}
BYSTANDERS = {
    # scipy's LAPACK, whatever BLAS is chosen
    f"{LIBRARIES}/openblas-pthread/liblapack.so.3",
    f"{LIBRARIES}/openblas-pthread/libopenblasp-r0.3.13.so",
    f"{LIBRARIES}/libc-2.31.so",
    "/usr/lib/python3/dist-packages/numpy/core/_multiarray_umath.cpython-39-x86_64-linux-gnu.so",
    "[heap]",
}
CAFFE = load_framework("caffe").blas
BLAS = {
    "fast": BlasConfig(loaded=r"/fast/libblas\.so"),
    "plain": BlasConfig(loaded=r"/plain/libblas\.so"),
    "hidden": BlasConfig(),
}


def test_every_blas_of_caffe_has_a_path_here():
    assert set(CAFFE) == set(MAPPED)


@pytest.mark.parametrize("name", sorted(MAPPED))
def test_caffes_blas_is_known_by_its_mapped_file(name):
    assert loaded_blas(CAFFE, {MAPPED[name], *BYSTANDERS}) == name


@pytest.mark.parametrize("name", sorted(MAPPED))
def test_each_mark_matches_its_own_library_alone(name):
    matching = {each for each, path in MAPPED.items() if re.search(CAFFE[name].loaded, path)}
    assert matching == {name}
    assert not any(re.search(CAFFE[name].loaded, path) for path in BYSTANDERS)


def test_bystanders_alone_are_no_blas():
    assert loaded_blas(CAFFE, BYSTANDERS) == ""
    assert loaded_blas(CAFFE, set()) == ""


def test_two_libraries_at_once_are_both_named():
    both = {MAPPED["mkl"], MAPPED["openblas-pthread"]}
    assert loaded_blas(CAFFE, both) == "openblas-pthread+mkl"
    doubt = attest({"blas": "mkl"}, CAFFE, Seen(loaded_blas(CAFFE, both), 1), {})
    assert doubt == "BLAS mkl was requested but openblas-pthread+mkl was mapped"


def test_a_library_without_a_mark_is_never_seen():
    assert loaded_blas(BLAS, {"/hidden/libblas.so", "/plain/libblas.so.3"}) == "plain"


FAST = {"blas": "fast", "threads": 2, "blas_kernel": "auto"}


@pytest.mark.parametrize(
    ("params", "loaded", "seen", "reported"),
    [
        (FAST, "fast", 2, {}),
        (FAST, "fast", 2, {"blas": "fast", "threads": 2, "blas_kernel": "Zen"}),
        (FAST, "fast", 1, {}),  # threads may live for one call only
        (FAST, "fast", 0, {}),  # or training was too short to see any
        ({"blas": "fast"}, "fast", 64, {"threads": 64}),  # not asked for is not held against
        ({"blas": "fast", "threads": "unset"}, "fast", 64, {"threads": 64}),
        ({"blas": "fast", "blas_kernel": "unset"}, "fast", 1, {"blas_kernel": "Zen"}),
        ({"blas": "fast", "blas_kernel": "HASWELL"}, "fast", 1, {"blas_kernel": "Haswell"}),
        ({"blas": "fast", "blas_kernel": "Zen"}, "fast", 1, {}),
        ({"blas": "fast", "blas_kernel": 3}, "fast", 1, {"blas_kernel": "3"}),
        ({"blas": "hidden", "threads": 1}, "", 1, {}),  # cannot be seen, so is believed
        ({"blas": "hidden"}, "plain", 1, {}),
        ({}, "", 3, {}),
        ({"threads": 1}, "fast", 1, {}),
    ],
)
def test_a_trial_that_ran_as_requested_is_acquitted(params, loaded, seen, reported):
    assert attest(params, BLAS, Seen(loaded, seen), reported) == ""


@pytest.mark.parametrize(
    ("params", "loaded", "seen", "reported", "doubt"),
    [
        (FAST, "plain", 2, {}, "BLAS fast was requested but plain was mapped"),
        (FAST, "", 2, {}, "BLAS fast was requested but none that is known was mapped"),
        (FAST, "fast+plain", 2, {}, "BLAS fast was requested but fast+plain was mapped"),
        (
            FAST,
            "fast",
            2,
            {"blas": "plain"},
            "blas fast was requested but the worker reports plain",
        ),
        (
            {"blas": "hidden"},
            "",
            1,
            {"blas": "plain"},
            "blas hidden was requested but the worker reports plain",
        ),
        (
            FAST,
            "fast",
            2,
            {"threads": 1},
            "threads 2 was requested but the worker reports 1",
        ),
        (FAST, "fast", 3, {}, "2 threads were requested but 3 were seen"),
        (
            {"blas": "fast", "threads": 1},
            "fast",
            2,
            {},
            "1 threads were requested but 2 were seen",
        ),
        (
            {"blas": "fast", "blas_kernel": "SkylakeX"},
            "fast",
            1,
            {"blas_kernel": "Haswell"},
            "blas_kernel SkylakeX was requested but the worker reports Haswell",
        ),
    ],
)
def test_a_trial_that_ran_otherwise_is_convicted(params, loaded, seen, reported, doubt):
    assert attest(params, BLAS, Seen(loaded, seen), reported) == doubt


@pytest.mark.parametrize(
    ("extra", "threads", "cores", "doubt"),
    [
        (0, 2, 2.1, ""),
        (0, 2, 2.9, "2 threads were requested but 2.9 cores were used"),
        (3, 5, 2.0, ""),
        (3, 6, 2.0, "2 threads were requested but 6 were seen"),
        (-1, 40, 2.0, ""),
        (-1, 40, 3.5, "2 threads were requested but 3.5 cores were used"),
    ],
)
def test_threads_that_do_not_compute_are_allowed_for(extra, threads, cores, doubt):
    seen = Seen("fast", threads, cores, extra)
    assert attest(FAST, BLAS, seen, {}) == doubt


@pytest.mark.parametrize(
    ("cores", "doubt"),
    [(4.2, ""), (4.9, "2 threads in each of 2 workers were requested but 4.9 cores were used")],
)
def test_processes_of_a_group_have_threads_that_do_not_compute(cores, doubt):
    seen = Seen("fast", threads=5, cores_used=cores, processes=2)
    assert attest({**FAST, "workers": 2}, BLAS, seen, {}) == doubt


@pytest.mark.parametrize(("said", "fits"), [(True, True), ("true", True), (False, False)])
def test_any_param_the_worker_reports_is_held_against_the_request(said, fits):
    doubt = attest({"xla": True}, {}, Seen("", 1), {"xla": said})
    assert (doubt == "") is fits
