"""What a user's own program is recommended: what the newest study proved, or nothing."""

from __future__ import annotations

import pytest

from tuner.measure import machine_facts, parse_cores
from tuner.recommendation.placement import FORMS, render
from tuner.recommendation.programs import recommend_program
from tuner.tracking import StudyRecord
from tuner.values.errors import NothingRecommended
from tuner.wrap.objective import Objective

FRONT = {
    "proven": True,
    "command_line": "OMP_NUM_THREADS=1 python train.py --lr 0.03",
    "no_loss": None,
    "accuracy": "speed only; accuracy not checked",
    "params": {"lr": 0.03},
    "environment": {"OMP_NUM_THREADS": "1"},
    "speedup": [1.5, 1.2, 1.8],
    "fingerprint": "f00",
    "machine": machine_facts(parse_cores("")),
    "files": {"train.py": "v1"},
}


def record(**changes) -> StudyRecord:
    return StudyRecord("uri", "run", {**FRONT, **changes}, {"verify-0000": "a"}, 1e9)


def test_the_newest_study_with_a_proof_answers():
    found = recommend_program(
        "train.py", [record(proven=False), record(), record(speedup=[9, 8, 9])]
    )
    assert found["command"] == FRONT["command_line"]
    assert found["environment"] == {"OMP_NUM_THREADS": "1"}
    assert found["speedup"] == {"value": 1.5, "low": 1.2, "high": 1.8}
    assert (found["objective"], found["gain"]) == ("time", found["speedup"])
    assert found["evidence"]["run_ids"] == ["a"]
    assert found["evidence"]["expires"] == 1e9 + 90 * 86400
    assert (found["stale"], found["note"]) == (False, None)


@pytest.mark.parametrize("disturbed", [True, False, None])
def test_whether_other_work_disturbed_the_whole_proof_is_told(disturbed):
    found = recommend_program("train.py", [record(all_disturbed=disturbed)])
    assert found["all_disturbed"] is disturbed
    assert recommend_program("train.py", [record()])["all_disturbed"] is None, "of older studies"


EDITED = {"files": {"train.py": "v2"}}
ELSEWHERE = {"machine": {**FRONT["machine"], "kernel": "another"}}


@pytest.mark.parametrize(
    ("newest", "proven", "note"),
    [
        (EDITED, {}, "a newer study was of another version of train.py"),
        (EDITED, {"objective": "time", **EDITED}, None),
        ({"files": {"train.py": "v1", "b.yaml": "x"}}, {"files": {"train.py": "v1"}}, None),
        ({}, ELSEWHERE, "measured on another machine, or with another kernel"),
        (ELSEWHERE, {}, None),
        ({}, {"files": None}, "which version of its files was measured is not on record"),
        ({"files": {}}, {"files": None}, None),
        ({}, {"gpu": "hidden"}, "measured on the CPU: the sandbox hid the GPU"),
        ({}, {"machine": {**FRONT["machine"], "gpu": "H100, 580.1"}}, "measured on another"),
        ({}, {"gpu": "used"}, None),
    ],
)
def test_what_is_no_more_as_it_was_measured_is_stale(newest, proven, note):
    found = recommend_program("train.py", [record(proven=False, **newest), record(**proven)])
    assert found["stale"] is (note is not None)
    assert (found["note"] or "").startswith(note or "")


def test_what_is_as_it_was_measured_goes_before_what_is_not():
    records = [record(proven=False, **EDITED), record(), record(speedup=[9, 8, 9], **EDITED)]
    found = recommend_program("train.py", records)
    assert (found["speedup"]["value"], found["stale"]) == (9, False)
    found = recommend_program("train.py", [record(**ELSEWHERE), record(speedup=[9, 8, 9])])
    assert (found["speedup"]["value"], found["stale"]) == (9, False)


@pytest.mark.parametrize("form", FORMS)
def test_a_job_takes_it_in_every_form(form):
    assert "0.03" in render(form, recommend_program("train.py", [record()]), {})


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "no study of train.py is on record here; run python -m tuner wrap"),
        ([record(proven=False)], "no setting of train.py is proven to be faster"),
        (
            [StudyRecord("uri", "run", {"proven": True}, {}, 1e9)],
            "no setting of train.py is proven",
        ),
    ],
)
def test_otherwise_nothing_is_recommended(records, said):
    with pytest.raises(NothingRecommended, match=said):
        recommend_program("train.py", records)


LESS_MEMORY = {"objective": "memory", "gain": [4.0, 3.9, 4.1], "speedup": [0.4, 0.3, 0.5]}


def test_a_study_of_another_objective_answers_only_if_that_is_asked_for():
    records = [record(**LESS_MEMORY), record()]
    assert recommend_program("train.py", records)["speedup"]["value"] == 1.5
    found = recommend_program("train.py", records, Objective.MEMORY)
    assert found["objective"] == "memory"
    assert found["gain"] == {"value": 4.0, "low": 3.9, "high": 4.1}
    assert found["speedup"] == {"value": 0.4, "low": 0.3, "high": 0.5}


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        (Objective.TIME, "to be faster; one is proven to use less memory: objective=memory"),
        (Objective.CPU, "to use less CPU time; one is proven to use less memory: objective=memo"),
    ],
)
def test_else_the_objective_that_something_is_proven_of_is_named(objective, said):
    with pytest.raises(NothingRecommended, match=f"no setting of train.py is proven {said}"):
        recommend_program("train.py", [record(**LESS_MEMORY)], objective)
