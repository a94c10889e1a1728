"""Which configuration to run with: limits, order, and an honest no."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.conftest import SYNTHETIC
from tests.report_samples import (
    DEFAULT_PARAMS,
    MIB,
    make_answered,
    make_part,
    make_part_at_a_faster_setting,
    make_study,
)
from tuner.cli.commands import run_command
from tuner.config.catalogue import framework_folder, load_framework
from tuner.recommendation.answer import answer, configuration
from tuner.recommendation.choice import Limits, recommend, recommend_fresh
from tuner.recommendation.evidence import Evidence
from tuner.recommendation.reading import evidence_of
from tuner.recommendation.settings_file import fill_settings, settings_template
from tuner.recommendation.study_answers import answers_among
from tuner.report import front_json
from tuner.tracking import StudyRecord
from tuner.values.errors import ConfigError, NothingRecommended
from tuner.values.trial import Interval
from tuner.values.verified import Comparison, Role


def interval(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def point(name: str, time_s: float, memory_mb: float, accuracy: float, **comparison) -> Evidence:
    """A point that was compared with a default of 190 s and 99.1 %, or that default."""
    figures = {
        "name": name,
        "train_time_s": interval(time_s, 0.01 * time_s),
        "peak_memory_bytes": memory_mb * MIB,
        "test_accuracy": interval(accuracy, 0.002),
        "full_runs": 3,
        "confidence": 0.95,
        "comparison": {
            "speedup": interval(190 / time_s, 0.02),
            "accuracy_gain": interval(accuracy - 0.991, 0.0015),
            "accuracy_loss_ruled_out": 0.991 - accuracy + 0.0015,
            "no_loss": accuracy - 0.991 > -0.0005,
            **comparison,
        }
        if name != "default"
        else None,
    }
    default = {"test_accuracy": interval(0.991, 0.002), "full_runs": 1}
    return Evidence({"name": name}, figures, ("run",), "study", framework="caffe", default=default)


FAST = point("fast", 10, 300, 0.97)
MIDDLE = point("middle", 40, 250, 0.985)
BEST = point("best", 60, 400, 0.99)
SLOW = point("default", 190, 264, 0.991)
ALL = [SLOW, MIDDLE, BEST, FAST]
LOSSLESS = point("lossless", 80, 280, 0.9908)
PROVEN = [*ALL, LOSSLESS]
ANY = {"max_accuracy_loss": None}


def names(recommendation):
    chosen = (recommendation.choice, *recommendation.alternatives)
    return [each.params["name"] for each in chosen]


@pytest.mark.parametrize(
    ("limits", "objective", "order"),
    [
        (Limits(**ANY), "train_time_s", ["fast", "middle", "best", "default"]),
        (Limits(**ANY), "accuracy", ["default", "best", "middle", "fast"]),
        (Limits(**ANY), "memory_mb", ["middle", "default", "fast", "best"]),
        (Limits(max_train_time_s=60, **ANY), "accuracy", ["best", "middle", "fast"]),
        (Limits(max_train_time_s=59.9, **ANY), "accuracy", ["middle", "fast"]),
        (Limits(max_memory_mb=264, **ANY), "train_time_s", ["middle", "default"]),
        (Limits(min_accuracy=0.983, **ANY), "train_time_s", ["middle", "best", "default"]),
        (Limits(100, 300, 0.98, **ANY), "train_time_s", ["middle"]),
    ],
)
def test_the_best_within_the_limits_comes_first(limits, objective, order):
    assert names(recommend(ALL, limits, objective)) == order


def test_a_job_of_one_process_is_offered_no_group():
    group = dataclasses.replace(FAST, params={"name": "group", "workers": 2})
    alone = dataclasses.replace(MIDDLE, params={"name": "alone", "workers": 1})
    known = [SLOW, group, alone]
    assert names(recommend(known, Limits(**ANY))) == ["group", "alone", "default"]
    assert names(recommend(known, Limits(max_workers=1, **ANY))) == ["alone", "default"]
    message = refusal(Limits(max_workers=1), [group])
    assert message.startswith("no measured configuration meets max_workers=1; the closest takes ")
    with pytest.raises(ConfigError, match="max_workers must be at least 1, got 0"):
        recommend(known, Limits(max_workers=0))


def test_of_own_images_only_the_newest_count():
    older = dataclasses.replace(FAST, dataset="pets", like="mnist", digest="a", measured_at=1.0)
    newer = dataclasses.replace(BEST, dataset="pets", like="mnist", digest="b", measured_at=2.0)
    assert names(recommend([newer, older], Limits(**ANY))) == ["best"]
    # even if what was measured on them is stale
    stale = dataclasses.replace(newer, study="stale")
    assert names(recommend_fresh([older, stale], Limits(**ANY), stale=["stale"])) == ["best"]
    again = dataclasses.replace(older, measured_at=3.0)
    assert names(recommend([newer, again], Limits(**ANY))) == ["fast"]
    shipped = [dataclasses.replace(each, like="") for each in (older, newer)]
    assert names(recommend(shipped, Limits(**ANY))) == ["fast", "best"], "another split is no new"


def test_what_was_measured_before_a_drift_is_no_fresher_than_what_drifted():
    older = dataclasses.replace(FAST, study="older", measured_at=1.0)
    drifted = dataclasses.replace(
        BEST, study="drifted", measured_at=2.0, drift="3 of 3", drift_found=3.0
    )
    elsewhere = dataclasses.replace(MIDDLE, study="elsewhere", fingerprint="f00")
    since = dataclasses.replace(SLOW, study="since", measured_at=4.0)
    limits = Limits(**ANY)
    assert names(recommend_fresh([older, drifted, since], limits)) == ["default"]
    assert names(recommend_fresh([older, drifted, elsewhere], limits)) == ["middle"]
    assert names(recommend_fresh([older, drifted], limits)) == ["fast", "best"]


def test_of_equals_the_more_accurate_comes_first():
    equals = [point("poor", 10, 300, 0.95), point("rich", 10, 300, 0.96)]
    assert names(recommend(equals, Limits(**ANY))) == ["rich", "poor"]


@pytest.mark.parametrize(
    ("limits", "objective", "order"),
    [
        (Limits(), "train_time_s", ["lossless", "default"]),
        # by figures the default is a little more accurate, but that is no difference
        (Limits(), "accuracy", ["lossless", "default"]),
        (Limits(), "memory_mb", ["default", "lossless"]),
        (Limits(max_accuracy_loss=0.003), "train_time_s", ["best", "lossless", "default"]),
        (
            Limits(max_accuracy_loss=0.01),
            "train_time_s",
            ["middle", "best", "lossless", "default"],
        ),
        (Limits(max_accuracy_loss=0.01), "accuracy", ["lossless", "best", "middle", "default"]),
        (Limits(max_accuracy_loss=0.001), "train_time_s", ["default"]),
        (Limits(**ANY), "train_time_s", ["fast", "middle", "best", "lossless", "default"]),
    ],
)
def test_what_may_be_lost_is_nothing_unless_asked_otherwise(limits, objective, order):
    assert names(recommend(PROVEN, limits, objective)) == order


def test_no_loss_is_what_the_study_proved_with_its_own_margin():
    looked_at_often = point("looks", 70, 280, 0.9900, no_loss=True)  # its interval: -0.25 points
    denied = point("denied", 60, 280, 0.9909, no_loss=False)
    assert names(recommend([SLOW, looked_at_often, denied], Limits()))[0] == "looks"
    wide = dataclasses.replace(looked_at_often, margin=0.005)
    lossy = point("lossy", 50, 280, 0.9880, no_loss=True)
    lossy = dataclasses.replace(lossy, margin=0.005)
    found = names(recommend([SLOW, wide, lossy], Limits()))
    assert found[0] == "default", "a study with a wider margin proves less"
    assert names(recommend([SLOW, wide, lossy], Limits(max_accuracy_loss=0.005)))[0] == "lossy"


@given(
    accuracy=st.floats(0.95, 1),
    loss=st.floats(0, 0.05),
    more=st.floats(0, 0.05),
    proof=st.booleans(),
)
def test_allowing_more_loss_never_forbids_what_was_allowed(accuracy, loss, more, proof):
    each = point("any", 50, 280, accuracy, no_loss=proof)
    if each.loses_at_most(loss):
        assert each.loses_at_most(loss + more)
    assert SLOW.loses_at_most(loss), "the default loses nothing against itself"


def test_a_plain_interval_proves_nothing_of_another_margin():
    """It errs at each look and for each configuration; older studies recorded nothing else."""
    figures = {**BEST.figures["comparison"], "accuracy_gain": interval(-0.0001, 0.0001)}
    for bound, limits in ((None, ()), (0.004, (0.004, 0.005)), (0.001, (0.0021, 0.004, 0.005))):
        versus = {**figures, "accuracy_loss_ruled_out": bound}
        each = dataclasses.replace(BEST, figures={**BEST.figures, "comparison": versus})
        asked = (0.0, 0.001, 0.002, 0.0021, 0.004, 0.005)
        assert tuple(loss for loss in asked if each.loses_at_most(loss)) == limits
    del figures["accuracy_loss_ruled_out"]
    proven = {**LOSSLESS.figures, "comparison": {**figures, "no_loss": True}}
    old = dataclasses.replace(LOSSLESS, figures=proven)
    assert [old.loses_at_most(loss) for loss in (0.0019, 0.002, 0.0021)] == [False, True, True]
    alone = dataclasses.replace(old, figures={**old.figures, "role": "runtime only"})
    assert alone.loses_at_most(0.0), "it learns what the default learns"


@pytest.mark.parametrize(
    ("floor", "order"),
    [
        # the default has 99.1 +- 0.2: its interval ends below the floor, and it is kept
        (0.99, ["lossless", "default"]),
        (0.991, ["lossless", "default"]),
        (0.9888, ["lossless", "default"]),
        (0.9, ["lossless", "default"]),
    ],
)
def test_a_floor_near_the_default_is_kept_by_what_is_proven_to_lose_nothing(floor, order):
    assert names(recommend(PROVEN, Limits(min_accuracy=floor))) == order


def test_without_a_proof_the_lower_end_of_the_interval_has_to_keep_the_floor():
    assert "best" not in names(recommend(PROVEN, Limits(min_accuracy=0.99, **ANY)))
    assert names(recommend(PROVEN, Limits(min_accuracy=0.9878, **ANY)))[0] == "best"
    runtime_only = dataclasses.replace(
        LOSSLESS, figures={**LOSSLESS.figures, "role": "runtime only"}
    )
    found = recommend([SLOW, FAST, runtime_only], Limits(min_accuracy=0.991))
    assert (found.choice.role, found.choice.no_loss) == ("runtime only", True)


def test_above_the_default_only_what_is_measured_there_keeps_the_floor():
    message = refusal(Limits(min_accuracy=0.992), PROVEN)
    assert message.startswith(
        "no measured configuration meets min_accuracy=0.992; the closest takes 190.0"
    )
    better = point("better", 150, 280, 0.995)
    assert names(recommend([*PROVEN, better], Limits(min_accuracy=0.992))) == ["better"]


def test_the_untouched_default_is_the_answer_only_without_another_and_says_so():
    found = recommend(ALL, Limits())
    assert names(found) == ["default"]
    assert found.note == (
        "this is the untouched default: no faster configuration is proven to meet "
        "max_accuracy_loss=0.002; max_accuracy_loss=none would give 10.0 s and 300 MiB for "
        "97.00 % (96.80-97.20) with caffe, 2.10 points below the default"
    )
    assert recommend(PROVEN, Limits()).note == ""
    lean = recommend(PROVEN, Limits(max_memory_mb=264))
    assert names(lean) == ["default"]
    assert "max_memory_mb=264, max_accuracy_loss=0.002; max_accuracy_loss=none" in lean.note
    alone = recommend([SLOW], Limits(**ANY))
    assert alone.note.endswith("no faster configuration is proven to meet the limits")


def test_what_is_not_proven_to_be_faster_stands_back_behind_the_default():
    doubtful = point("doubtful", 188, 200, 0.9912)
    found = recommend([SLOW, doubtful], Limits())
    assert names(found) == ["default", "doubtful"]
    assert names(recommend([SLOW, doubtful], Limits(max_memory_mb=250))) == ["doubtful"]
    other = dataclasses.replace(doubtful, framework="torch")
    assert names(recommend([SLOW, other], Limits())) == ["doubtful", "default"]


def test_the_default_of_a_slower_framework_does_not_hide_a_faster_one():
    quick = dataclasses.replace(point("default", 20, 264, 0.989), framework="torch")
    assert names(recommend([*PROVEN, quick], Limits())) == ["default", "lossless", "default"]
    assert recommend([*PROVEN, quick], Limits()).choice.framework == "torch"


def refusal(limits, evidence=ALL) -> str:
    with pytest.raises(NothingRecommended) as refused:
        recommend(evidence, limits)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 4
    return str(refused.value)


@pytest.mark.parametrize(
    ("limits", "binding", "nearest"),
    [
        (Limits(max_train_time_s=5), "max_train_time_s=5", "fast"),
        (Limits(max_memory_mb=200), "max_memory_mb=200", "middle"),
        (Limits(min_accuracy=0.999), "min_accuracy=0.999", "default"),
        # the time alone binds: each of the others keeps the memory limit
        (Limits(max_train_time_s=5, max_memory_mb=1000), "max_train_time_s=5", "fast"),
        (
            Limits(max_train_time_s=9, max_memory_mb=200),
            "max_memory_mb=200, max_train_time_s=9",
            "fast",
        ),
    ],
)
@pytest.mark.parametrize("loss", [None, 0.002])
def test_a_limit_that_nothing_keeps_is_named_with_what_comes_nearest(
    limits, binding, nearest, loss
):
    message = refusal(dataclasses.replace(limits, max_accuracy_loss=loss))
    assert message.startswith(f"no measured configuration meets {binding}; the closest takes ")
    assert message.endswith(f": name {nearest}")


def test_limits_that_bind_only_together_are_told_so():
    message = refusal(Limits(max_train_time_s=30, min_accuracy=0.98))
    assert message.startswith(
        "no measured configuration meets min_accuracy=0.98 together with the other limits; "
        "the closest takes 10.0 s and 300 MiB for 97.00 % (96.80-97.20) with caffe: "
    )


def test_what_may_be_lost_is_named_where_it_binds_with_what_a_loss_would_give():
    with pytest.raises(NothingRecommended) as refused:
        recommend(PROVEN, Limits(max_train_time_s=30))
    assert str(refused.value) == (
        "no measured configuration is proven to meet max_accuracy_loss=0.002 together with "
        "max_train_time_s=30; max_accuracy_loss=none would give 10.0 s and 300 MiB for 97.00 % "
        "(96.80-97.20) with caffe, 2.10 points below the default: {'name': 'fast'}"
    )
    assert refused.value.binding == ("max_accuracy_loss", "max_train_time_s")
    assert refused.value.nearest["no_loss"] is False
    with pytest.raises(NothingRecommended) as refused:
        recommend([FAST], Limits())  # a study whose default is not on record
    assert refused.value.binding == ("max_accuracy_loss",)


def test_a_limit_of_zero_is_a_limit():
    assert "max_train_time_s=0" in refusal(Limits(max_train_time_s=0))
    assert names(recommend(ALL, Limits(min_accuracy=0, **ANY)))[0] == "fast"
    better = point("better", 100, 264, 0.994)
    assert names(recommend([*PROVEN, better], Limits(max_accuracy_loss=0))) == [
        "better", "default"
    ]  # fmt: skip


def test_without_evidence_the_answer_is_to_run_a_study():
    assert "run python -m tuner framework=" in refusal(Limits(), evidence=[])


def test_an_unknown_objective_is_refused():
    with pytest.raises(ConfigError, match="accuracy, memory_mb, perplexity, got 'speed'"):
        recommend(ALL, Limits(), "speed")


@pytest.mark.parametrize(
    ("limits", "fact"),
    [
        (Limits(jobs_per_host=0), "jobs_per_host must be at least 1, got 0"),
        (Limits(max_accuracy_loss=-0.1), "from 0 to 1 .* or none, got -0.1"),
        (Limits(max_accuracy_loss=2), "from 0 to 1 .* or none, got 2"),
        (Limits(max_accuracy_loss=math.nan), "or none, got nan"),
        (Limits(cores=0), "cores must be at least 1, got 0"),
        (
            Limits(max_train_time_s=math.nan),
            "max_train_time_s must be a finite .* at least 0, got nan",
        ),
        (Limits(max_train_time_s=-1), "max_train_time_s must be a finite .* at least 0, got -1"),
        (Limits(max_memory_mb=math.inf), "max_memory_mb must be a finite .* at least 0, got inf"),
        (Limits(min_accuracy=98.5), "min_accuracy must be .*0.985 is 98.5 %.*, got 98.5"),
    ],
)
def test_limits_that_cannot_be_meant_are_refused(limits, fact):
    with pytest.raises(ConfigError, match=fact):
        recommend(ALL, limits)


@pytest.mark.parametrize(
    ("text", "loss"), [("none", None), ("0.01", 0.01), ("0", 0.0), ("some", "or none, got 'some'")]
)
def test_the_command_takes_a_number_or_none(monkeypatch, text, loss):
    asked = {}
    monkeypatch.setattr(
        "tuner.api.recommend", lambda **given: asked.update(given) or {"dataset": "mnist"}
    )
    if isinstance(loss, str):
        with pytest.raises(ConfigError, match=loss):
            run_command("recommend", [f"max_accuracy_loss={text}"])
    else:
        assert run_command("recommend", [f"max_accuracy_loss={text}"]) == 0
        assert asked == {"max_accuracy_loss": loss}


def assured(each: Evidence, **figures) -> str:
    return dataclasses.replace(each, figures={**each.figures, **figures}).assurance


def test_an_answer_says_how_sure_it_is():
    ruled_out = "a loss of more than 0.2 points is ruled out at 95 % confidence, "
    assert LOSSLESS.assurance == f"no loss: {ruled_out}3 runs against the default's (1 run)"
    recorded = dataclasses.replace(LOSSLESS, reference="recorded over 5 seeds")
    assert recorded.assurance.endswith("3 runs against the default's (recorded over 5 seeds)")
    assert assured(recorded, accuracy_from="4 trained elsewhere").endswith(
        ", 4 trained elsewhere against the default's (recorded over 5 seeds)"
    )
    assert assured(LOSSLESS, role="runtime only").startswith(
        f"runtime only: the default's own params at another runtime setting; {ruled_out}"
    )
    source = "the default's (reference of 5 seeds); only its rate was measured"
    assert assured(LOSSLESS, role="runtime only", accuracy_from=source) == (
        f"runtime only: nothing else differs, so its accuracy is {source}"
    )
    group = dataclasses.replace(
        LOSSLESS, params={**LOSSLESS.params, "workers": 2, "exchange": "fp16"}
    )
    changed = "fp16 exchange of 2 workers changes what is learned"
    assert group.assurance == f"{LOSSLESS.assurance}; {changed}"
    assert FAST.assurance == "accuracy 97.00 % (96.80-97.20), 2.10 points below the default"
    assert SLOW.assurance == "the untouched default: accuracy 99.10 % (98.90-99.30)"
    better = point("better", 100, 264, 0.994, no_loss=False)
    assert better.assurance.endswith("0.30 points above the default")


def test_a_default_that_was_trained_in_part_proves_no_loss_of_its_whole_training():
    partly = {**LOSSLESS.default, "projected": True}
    claimed = dataclasses.replace(LOSSLESS, default=partly)
    assert not claimed.no_loss
    assert not claimed.loses_at_most(0.01)
    assert claimed.assurance.endswith("the default, which was trained only in part")
    recorded = dataclasses.replace(claimed, reference="recorded over 5 seeds")
    assert recorded.no_loss
    same = dataclasses.replace(claimed, figures={**claimed.figures, "role": "runtime only"})
    assert same.no_loss, "what trains with the same params is compared with the same part"


def test_the_roles_and_proofs_of_older_studies_are_known_by_what_they_said():
    old = {**LOSSLESS.figures["comparison"], "accuracy_kept": True}
    del old["no_loss"]
    each = dataclasses.replace(LOSSLESS, figures={**LOSSLESS.figures, "comparison": old})
    assert (each.no_loss, each.role) == (True, "no loss")
    assert (FAST.no_loss, FAST.role) == (False, "trade-off")
    assert (SLOW.no_loss, SLOW.role) == (True, "default")
    endless = {**old, "speedup": {"value": 2.0, "low": None, "high": None}}
    each = dataclasses.replace(LOSSLESS, figures={**LOSSLESS.figures, "comparison": endless})
    assert not each.is_faster, "an interval without an end proves nothing"


def seemingly_better(*p_values, role=Role.TRADE_OFF):
    """A study with so many configurations that seem more accurate than the default."""
    default = make_study().verified[0]
    gain, time = Interval(0.003, 0.001, 0.005), Interval(1.0, 0.9, 1.1)
    found = [
        dataclasses.replace(
            default, name=f"trial {number}", role=role,
            against_default=Comparison(time, 0.9, gain, p, no_loss=False),
        )
        for number, p in enumerate(p_values, 1)
    ]  # fmt: skip
    return make_study(verified=(default, *found))


def test_the_answers_of_a_study_are_those_of_its_report():
    once, thrice = seemingly_better(0.02), seemingly_better(0.02, 0.2, 0.3)
    planned = seemingly_better(0.02, role=Role.ACCURACY)
    assert once.answers.most_accurate
    assert (thrice.answers.most_accurate, planned.answers.most_accurate) == (None, None)
    part, faster_part = make_part(), make_part_at_a_faster_setting()
    assert faster_part.answers.runtime_only
    for study in (make_study(), make_answered(), once, thrice, planned, part, faster_part):
        front = json.loads(json.dumps(front_json(study)))
        record = StudyRecord("sqlite://", "parent", front, {}, ended=0.0)
        found = answers_among(evidence_of(record))
        named = {
            each.name: point and point.figures["name"]
            for each in dataclasses.fields(found)
            for point in [getattr(found, each.name)]
        }
        assert named.items() <= front["answers"].items()


@pytest.fixture
def record() -> StudyRecord:
    """A study as it is read back from MLflow."""
    runs = {"verify-0004": "run-4", "verify-0005": "run-5", "verify-0000": "run-0"}
    front = json.loads(json.dumps(front_json(make_study())))
    return StudyRecord("sqlite://", "parent", front, runs, ended=1000.0)


def test_the_verified_points_of_a_study_are_its_evidence(record):
    study = make_study()
    evidence = evidence_of(record)
    assert len(evidence) == len(study.verified)
    for each, verified in zip(evidence, study.verified, strict=True):
        assert dict(each.params) == dict(verified.params)
        assert each.train_time_s == pytest.approx(verified.train_time_s.value)
        assert each.memory_mb == pytest.approx(verified.peak_memory_bytes / MIB)
        assert each.accuracy == pytest.approx(verified.test_accuracy.value)
        assert each.measured_at == 1000.0
        assert each.study == "parent"
    by_time = {round(each.train_time_s, 1): each for each in evidence}
    assert by_time[21.4].run_ids == ("run-4", "run-5")
    assert len({each.fingerprint for each in evidence}) == 1
    assert evidence[0].fingerprint
    assert [each.role for each in evidence] == [each.role.value for each in study.verified]
    assert [each.no_loss for each in evidence] == [each.loses_nothing for each in study.verified]
    assert {each.default_accuracy for each in evidence} == {0.991}
    choice = recommend(evidence, Limits(min_accuracy=0.988)).choice
    assert choice.train_time_s == pytest.approx(58.3)
    traded = recommend(evidence, Limits(min_accuracy=0.986, **ANY)).choice
    assert traded.train_time_s == pytest.approx(40.6)


def test_an_answer_names_the_data_set_that_was_measured_on(record):
    asked = [dataclasses.replace(each, dataset="mnist_5k") for each in evidence_of(record)]
    assert answer(recommend(asked, Limits()), "mnist", {})["dataset"] == "mnist_5k"


def test_an_answer_says_what_is_proven_to_programs_and_to_people(record):
    evidence = evidence_of(record)
    said = answer(recommend(evidence, Limits()), "mnist", {})
    assert said["no_loss"] is True
    assert said["role"] == "no loss"
    assert said["speedup"] == {"value": 3.26, "low": 3.2, "high": 3.32}
    assert said["assurance"].startswith("no loss: a loss of more than 0.2 points is ruled out")
    assert "note" not in said
    lean = answer(recommend(evidence[:1], Limits()), "mnist", {})
    assert (lean["role"], lean["speedup"]) == ("default", None)
    assert lean["note"].startswith("this is the untouched default")


def test_a_study_that_verified_nothing_is_no_evidence(record):
    front = {name: value for name, value in record.front.items() if name != "verified"}
    assert evidence_of(dataclasses.replace(record, front=front)) == []


def test_caffes_own_settings_file_is_filled_in():
    framework = load_framework("caffe")
    template = framework_folder("caffe") / framework.settings_template
    text = fill_settings(template, {**DEFAULT_PARAMS, "iterations": 730, "learning_rate": 0.015})
    assert "base_lr: 0.015\n" in text
    assert "max_iter: 730\n" in text
    assert "$" not in text


def test_a_default_may_have_a_settings_file_of_its_own():
    template = framework_folder("caffe") / "cifar10_quick_solver.prototxt"
    text = fill_settings(template, {**DEFAULT_PARAMS, "iterations": 5000, "learning_rate": 0.001})
    assert "stepvalue: 4000\nmax_iter: 5000\n" in text
    assert "$" not in text


def test_the_settings_file_is_that_of_data_set_and_model():
    framework = load_framework("caffe")
    found = {
        (data, model): settings_template(framework, data, model)
        for data, model in (("cifar10", "default"), ("cifar10", "lenet"), ("mnist", "default"))
    }
    assert {pair: path.name for pair, path in found.items()} == {
        ("cifar10", "default"): "cifar10_quick_solver.prototxt",
        ("cifar10", "lenet"): "solver.prototxt",
        ("mnist", "default"): "solver.prototxt",
    }
    assert (
        settings_template(
            load_framework("synthetic", str(SYNTHETIC)), "digits", "default", str(SYNTHETIC)
        )
        is None
    )


def test_the_settings_file_of_own_images_is_that_of_what_they_are_like():
    params = {"blas": "openblas-pthread", "threads": 1, "blas_kernel": "auto", "iterations": 200}
    own = Evidence(params, {}, (), "study", framework="caffe", like="cifar10")
    settings = configuration(own, "pets")["settings"]
    assert 'lr_policy: "multistep"' in settings
    assert "max_iter: 200" in settings


def test_what_a_template_does_not_know_stays_as_it_is(tmp_path):
    template = tmp_path / "settings.txt"
    template.write_text("rate $learning_rate cost $$5 other $unknown $unknown_80pct $_5 $5pct\n")
    text = fill_settings(template, {"learning_rate": 1})
    assert text == "rate 1 cost $5 other $unknown $unknown_80pct $_5 $5pct\n"


def test_what_one_job_takes_is_less_certain_than_the_mean_of_several():
    times = [10.0, 11.0, 12.5, 9.5]
    logs = np.log(times)
    quantile = stats.t.ppf(0.975, len(logs) - 1)
    half = quantile * logs.std(ddof=1) / math.sqrt(len(logs))
    mean = logs.mean()
    figures = {
        "train_time_s": {
            "value": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)
        },
        "runs": ["verify-0001", "verify-0003", "verify-0005", "verify-0007"],
    }  # fmt: skip
    promised = Evidence({}, figures, (), "study").job_time_s
    # the interval of a prediction, as textbooks have it
    spread = quantile * logs.std(ddof=1) * math.sqrt(1 + 1 / len(logs))
    assert promised.low == pytest.approx(math.exp(mean - spread))
    assert promised.high == pytest.approx(math.exp(mean + spread))


def test_what_a_study_recorded_of_one_job_is_promised():
    figures = {**MIDDLE.figures, "runs": ["verify-0001"], "job_time_s": interval(40, 5)}
    told = dataclasses.replace(MIDDLE, figures={**figures, "job_accuracy": interval(0.985, 0.003)})
    assert dataclasses.asdict(told.job_time_s) == interval(40, 5)
    assert dataclasses.asdict(told.job_figure) == pytest.approx(interval(0.985, 0.003))


def test_a_limit_is_named_as_it_was_given():
    with pytest.raises(NothingRecommended, match=r"meets min_accuracy=0\.9999999;"):
        recommend(ALL, Limits(min_accuracy=0.9999999, **ANY))


def test_a_study_of_the_default_s_first_part_proves_no_loss():
    part = "the first 500 of 10,000 iterations"
    known = [dataclasses.replace(each, default_part=part) for each in PROVEN]
    with pytest.raises(NothingRecommended, match="max_accuracy_loss") as refused:
        recommend(known, Limits())
    assert "max_accuracy_loss" in refused.value.binding
    assert recommend(known, Limits(**ANY)).choice.params["name"] == "fast"
    found = answers_among(known)
    assert (found.no_loss, found.runtime_only, found.most_accurate) == (None, None, None)
    assert "what the default reaches at its end is not known" in known[0].assurance


def test_a_setting_that_speeds_up_the_default_s_first_part_is_named():
    front = json.loads(json.dumps(front_json(make_part_at_a_faster_setting())))
    known = evidence_of(StudyRecord("sqlite://", "parent", front, {}, ended=0.0))
    with pytest.raises(NothingRecommended) as refused:
        recommend(known, Limits())
    assert str(refused.value).endswith(
        "; only the first 1,000 of 10,000 iterations of the default are known, and its own params "
        "train 1.8 times as fast with {'blas': 'mkl', 'threads': 1}"
    )
