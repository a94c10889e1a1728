"""Groups over a link, and the cores of a host: what was measured, and what is modelled of it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.report_samples import DEFAULT_PARAMS, make_factored, make_grouped, make_study
from tuner.recommendation.choice import Limits, recommend
from tuner.recommendation.evidence import Evidence
from tuner.recommendation.hosts import split_host
from tuner.recommendation.layouts import WORKERS, Layouts, over_link
from tuner.recommendation.reading import evidence_of
from tuner.report import front_json
from tuner.tracking import StudyRecord
from tuner.values.errors import DamagedStudy
from tuner.values.scaling import Link, Topology

ONE_S = {"value": 1.0, "low": 0.9, "high": 1.1}
LINK = Link.read("1gbit", 0.25)


def plain(study=None) -> dict:
    return json.loads(json.dumps(front_json(study or make_grouped())))


def evidence(of=None, **changes) -> list[Evidence]:
    record = StudyRecord("sqlite://", "parent", plain(of), {}, ended=1000.0)
    return [dataclasses.replace(each, **changes) for each in evidence_of(record)]


def linked(**params):
    asked = {**DEFAULT_PARAMS, **params}
    return over_link(asked, Layouts.of(plain()), Topology.RING, LINK)


# -- over a link ----------------------------------------------------------------------------


def test_groups_that_were_measured_stay_and_larger_ones_are_modelled():
    found = linked()
    assert [each.workers for each in found.groups] == [1, 2, *WORKERS]
    assert [each.basis for each in found.groups] == ["measured"] * 2 + ["modelled"] * len(WORKERS)
    one, two, *larger = found.groups
    assert one.threads == 2, "the fastest of one process"
    raced = next(each for each in make_grouped().groups if each.workers == 2)
    assert two.samples_s == raced.samples_s
    assert two.train_time_s.value == pytest.approx(10_000 * 64 / two.samples_s.value)
    for each in larger:
        assert each.samples_s.low < each.samples_s.value < each.samples_s.high
        assert each.train_time_s.low < each.train_time_s.value < each.train_time_s.high
    assert found.note.startswith("measured: on one host; modelled: a worker on each host like it")


def test_a_measured_group_is_never_replaced_by_a_prediction():
    front = plain()
    setting = {"blas": "mkl", "workers": 4, "threads": 1}
    four = {"setting": setting, "iteration_s": {"64": ONE_S}}
    front["runtimes"].append(four)
    found = over_link(DEFAULT_PARAMS, Layouts.of(front), Topology.RING, LINK)
    group = next(each for each in found.groups if each.workers == 4)
    assert (group.basis, group.samples_s.value) == ("measured", 64)


def test_an_exchange_that_changes_what_is_learned_does_not_count():
    front = plain()
    fast = {"blas": "mkl", "workers": 2, "threads": 1, "exchange": "fp16"}
    front["runtimes"].append({"setting": fast, "iteration_s": {"64": ONE_S}})
    front["groups"].append({"workers": 2, "sent_bytes": 1.75e6, "exchange": "fp16"})
    assert Layouts.of(front) == Layouts.of(plain())


def test_groups_of_a_configuration_with_a_lossy_exchange_are_not_called_proven():
    assert "not proven" not in linked().note
    found = linked(workers=2, exchange="fp16")
    assert found.groups == linked().groups
    assert found.note.endswith(
        "fp16 exchange of 2 workers changes what is learned, and none of these groups has it: "
        "their accuracy is not proven"
    )


def test_the_bytes_of_the_gradients_follow_from_what_a_group_sent():
    layouts = Layouts.of(plain())
    assert layouts.gradient_bytes(Topology.RING) == pytest.approx(3.5e6 / 2)
    assert layouts.gradient_bytes(Topology.SERVER) == pytest.approx(3.5e6 / 4)
    assert Layouts().gradient_bytes(Topology.RING) == 0


def test_no_more_workers_than_images_train():
    assert [each.workers for each in linked(batch_size=16).groups] == [1, 2, 4, 8, 16]


def test_at_a_batch_size_that_no_group_was_measured_at_all_is_modelled():
    assert {each.basis for each in linked(batch_size=100).groups} == {"modelled"}


@pytest.mark.parametrize(
    ("study", "fact"),
    [
        (make_study(), "nothing is modelled: no race is on record"),
        (make_factored(), "nothing is modelled: too few layouts were measured"),
        (dataclasses.replace(make_grouped(), trials=()), "how many bytes an iteration sends"),
    ],
)
def test_one_line_says_why_nothing_is_modelled(study, fact):
    found = over_link(DEFAULT_PARAMS, Layouts.of(plain(study)), Topology.RING, LINK)
    assert fact in found.note
    assert "\n" not in found.note
    assert all(each.basis == "measured" for each in found.groups)


@pytest.mark.parametrize(
    "change",
    [
        {"runtimes": [{"setting": {"workers": "many"}, "iteration_s": {"64": 1}}]},
        {"runtimes": [{"setting": {"workers": 0}, "iteration_s": {}}, {}]},
        {
            "runtimes": [
                {"setting": {}, "iteration_s": {"64": {"value": -1, "low": -1, "high": 1}}}
            ]
        },
        {"runtimes": [{"setting": {}, "iteration_s": {"64": {"value": 1, "low": 2, "high": 1}}}]},
        {"groups": [{"workers": 2, "sent_bytes": "all"}]},
        {"runtimes": [{"setting": {"threads": []}, "iteration_s": {"64": ONE_S}}]},
    ],
)
def test_garbled_paces_are_a_damaged_study(change):
    with pytest.raises(DamagedStudy):
        evidence_of(StudyRecord("sqlite://", "parent", {**plain(), **change}, {}, ended=1.0))


def test_a_study_before_there_were_groups_has_no_layouts():
    front = {name: each for name, each in plain().items() if name not in ("groups", "runtimes")}
    assert Layouts.of(front) == Layouts()


# -- the cores of a host --------------------------------------------------------------------


def split(known: list[Evidence], **limits):
    asked = Limits(cores=2, **limits)
    return split_host(recommend(known, asked), asked)


def side_by_side(**changes) -> list[Evidence]:
    """The same study, measured with two jobs of one core each."""
    return evidence(**{"cores": 1, "jobs_per_host": 2, "study": "packed", **changes})


def test_without_cores_and_where_the_jobs_are_known_there_is_no_split():
    known = [*evidence(), *side_by_side()]
    assert split_host(recommend(known, Limits()), Limits()) is None
    packed = Limits(cores=1, jobs_per_host=2)
    assert split_host(recommend(known, packed), packed) is None


def test_one_job_ends_soonest_on_all_cores_as_verified():
    soonest = split(evidence())["soonest"]
    assert (soonest.jobs, soonest.cores, soonest.basis) == (1, 2, "measured")
    assert soonest.train_time_s == pytest.approx(58.3)
    assert soonest.jobs_per_hour == pytest.approx(3600 / 58.3)


def test_several_jobs_go_by_the_pace_of_one_alone_and_say_so():
    most = split(evidence())["most_jobs"]
    assert (most.jobs, most.cores, most.workers, most.threads) == (2, 1, 1, 1)
    assert most.basis == "modelled"
    assert most.note.startswith("by the pace of one job alone; side by side they may be slower")
    assert most.train_time_s == pytest.approx(3100 * (1e-3 + 64 * 2e-4))
    assert most.jobs_per_hour == pytest.approx(2 * 3600 / most.train_time_s)
    assert most.memory_mb == pytest.approx(264.2), "the host needs it twice"


def test_jobs_that_were_measured_side_by_side_are_not_modelled():
    known = [*evidence(), *side_by_side()]
    most = split(known)["most_jobs"]
    assert (most.jobs, most.cores, most.basis) == (2, 1, "measured")
    assert most.train_time_s == pytest.approx(58.3)
    assert most.note == "2 jobs side by side"


def test_jobs_that_were_measured_side_by_side_and_break_a_limit_are_not_modelled_either():
    beside = [each for each in side_by_side() if not each.no_loss]
    found = split([*evidence(), *beside])
    assert found["most_jobs"] == found["soonest"]


def test_more_jobs_are_slowed_down_as_those_on_record_were():
    alone_s = 3100 * (1e-3 + 64 * 2e-4)
    quiet = evidence(cores=4)
    beside = [
        dataclasses.replace(
            each,
            params={**each.params, "workers": 1, "threads": 1},
            figures={**each.figures, "train_time_s": dict.fromkeys(
                ("value", "low", "high"),
                1.5 * int(each.params["iterations"]) * alone_s / 3100,
            )},
        )
        for each in side_by_side(cores=1, jobs_per_host=2)
    ]  # fmt: skip
    asked = Limits(cores=4)
    most = split_host(recommend([*quiet, *beside], asked), asked)["most_jobs"]
    assert (most.jobs, most.basis) == (4, "modelled")
    assert most.train_time_s == pytest.approx(1.5 * alone_s)
    assert "taken to be 1.50 times as slow side by side" in most.note


def test_jobs_that_would_be_late_are_not_offered():
    slow = make_grouped()
    slow.runtimes.rescale(2.0)
    assert split(evidence(slow))["most_jobs"].train_time_s > 59
    in_time = split(evidence(slow), max_train_time_s=59)
    assert in_time["most_jobs"] == in_time["soonest"]


def trained_with(known: list[Evidence], **params) -> list[Evidence]:
    """The same evidence, all but the default of it with these params."""
    return [
        each if each.is_default else dataclasses.replace(each, params={**each.params, **params})
        for each in known
    ]


def test_what_a_lossy_group_has_proven_is_not_taken_over_by_one_process():
    assert split(evidence())["most_jobs"].jobs == 2
    found = split(trained_with(evidence(), workers=2, exchange="fp16"))
    assert found["soonest"].workers == 2
    assert found["most_jobs"] == found["soonest"]


def test_a_job_on_several_nodes_is_none_of_one_host():
    known = trained_with(evidence(), nodes=2)
    asked = Limits(cores=2)
    chosen = recommend(known, asked)
    assert chosen.choice.workers > 1
    both_s = chosen.choice.train_time_s
    assert chosen.choice.jobs_per_hour == pytest.approx(3600 / both_s / 2), "of each of two hosts"
    assert split_host(chosen, asked)["soonest"].workers == 1, "the default, on one node"
    fast = Limits(cores=2, max_train_time_s=both_s)
    assert split_host(recommend(known, fast), fast) is None


def test_without_a_race_one_job_is_all_that_is_known():
    found = split(evidence(make_study()))
    assert found["most_jobs"] == found["soonest"]


def test_jobs_of_another_framework_or_data_set_tell_nothing():
    others = [*side_by_side(framework="theano"), *side_by_side(dataset="digits")]
    assert split([*evidence(), *others])["most_jobs"].basis == "modelled"
