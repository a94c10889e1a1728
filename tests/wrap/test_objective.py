"""What is minimised: the figure of a run, and the words for it in the report."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from tests.wrap.samples import run
from tuner.values.errors import ConfigError
from tuner.values.trial import Measurement, TrialKind, TrialResult, TrialStatus
from tuner.wrap import result as results
from tuner.wrap.comparison import compare
from tuner.wrap.descent import Effect
from tuner.wrap.document import document
from tuner.wrap.knobs import Knob, parse_knob
from tuner.wrap.objective import Objective, read_objective
from tuner.wrap.program import Program
from tuner.wrap.report import describe
from tuner.wrap.result import WrapResult
from tuner.wrap.window import Window

MIB = 2**20
SMALL = {"SIZE": "small"}
OWN = run(2.0, cpu_s=3.0, memory=400 * MIB, kind=TrialKind.DEFAULT, number=0)
CHANGED = run(5.0, cpu_s=1.0, memory=100 * MIB, params=SMALL, kind=TrialKind.SEARCH)


@pytest.mark.parametrize(
    ("objective", "figure"),
    [(Objective.TIME, 2.0), (Objective.CPU, 3.0), (Objective.MEMORY, 400 * MIB)],
)
def test_each_objective_has_its_figure(objective, figure):
    assert objective.of(OWN) == figure
    assert objective.of_whole(OWN.measurement) == figure
    given_up = dataclasses.replace(OWN, status=TrialStatus.STOPPED)
    failed = dataclasses.replace(OWN, measurement=None)
    assert objective.of(given_up) == objective.of(failed) == math.inf


def test_cpu_time_that_was_not_followed_is_no_figure_and_none_is_below_a_tick():
    assert Objective.CPU.of(run(2.0)) == math.inf
    assert Objective.CPU.of(run(2.0, cpu_s=0.0)) == 0.01


def test_another_name_is_refused():
    with pytest.raises(ConfigError, match="--objective must be one of time, cpu, memory, got 'x'"):
        read_objective("x", "--objective")


def test_results_that_were_stored_without_the_cpu_time_of_steps_are_read():
    raw = json.loads(OWN.to_json())
    del raw["measurement"]["train_cpu_s"]
    assert TrialResult.from_json(json.dumps(raw)).measurement.train_cpu_s is None


def test_pairs_prove_a_gain_and_tell_its_price():
    proof = compare([(OWN, CHANGED)] * 3, objective=Objective.MEMORY)
    assert proof.better
    assert proof.gain.value == pytest.approx(4.0)
    assert proof.costs == pytest.approx((400 * MIB, 100 * MIB))
    assert proof.speedup.value == pytest.approx(0.4)
    assert not compare([(OWN, CHANGED)] * 3).better
    assert compare([(OWN, CHANGED)] * 3, objective=Objective.CPU).gain.value == pytest.approx(3.0)


def test_a_tick_less_of_cpu_time_is_no_proof():
    own, less, half = (run(2.0, cpu_s=each) for each in (0.11, 0.10, 0.05))
    assert not compare([(own, less)] * 3, objective=Objective.CPU).better
    assert compare([(own, half)] * 10, objective=Objective.CPU).better


def found(objective: Objective, changed: TrialResult = CHANGED, window=None) -> WrapResult:
    proof = compare([(OWN, changed)] * 4, objective=objective)
    return WrapResult(
        program=Program(("true",), Path("/usr")),
        objective=objective,
        runs=[OWN, changed],
        window=window,
        source="reports" if window else "",
        found=SMALL,
        knobs=[parse_knob("SIZE=small")],
        effects=[Effect("SIZE", "small", proof.gain.value)],
        tested=[results.Tested(SMALL, proof)],
        elapsed_s=9.0,
        study_id="0badbee",
    )


def table(text: str) -> list[list[str]]:
    lines = text.rstrip().splitlines()
    return [each.split() for each in lines[lines.index("") :] if "SIZE" in each or "as it" in each]


def test_the_report_speaks_of_memory_and_shows_the_time_as_its_price():
    text = describe(found(Objective.MEMORY))
    assert (
        "true uses 4.00 times less memory (100 MiB instead of 400 MiB; 95 % interval 4.00 to "
        "4.00, 4 pairs of runs) with"
    ) in text
    assert "Measured: the peak memory of all processes of whole runs. Memory only;" in text
    assert "It takes 2.50 times as long (95 % interval 2.50 to 2.50, 4 pairs of runs)." in text
    assert "4.00 times less with small" in text
    assert ["SIZE", "small", "100", "4.00", "5.00"] in table(text)
    assert "as fast" not in text


def test_the_report_speaks_of_cpu_time():
    text = describe(found(Objective.CPU))
    assert "true uses 3.00 times less CPU time (1.00 s instead of 3.00 s; 95 %" in text
    assert "Measured: the CPU time of all processes of whole runs. CPU time only;" in text
    assert ["SIZE", "small", "1.00", "3.00", "5.00"] in table(text)


def test_a_price_that_is_none_is_no_price():
    quick = dataclasses.replace(
        CHANGED, measurement=dataclasses.replace(CHANGED.measurement, train_time_s=1.0)
    )
    assert "It also runs 2.00 times as fast" in describe(found(Objective.MEMORY, quick))
    same = dataclasses.replace(
        CHANGED, measurement=dataclasses.replace(CHANGED.measurement, train_time_s=2.0)
    )
    assert "No difference in time is proven: 1.00 times" in describe(found(Objective.MEMORY, same))


def test_memory_of_a_part_of_a_run_is_named_so():
    text = describe(found(Objective.MEMORY, window=Window(10, 1200)))
    assert "up to step 1,200, counted by its own reports; what comes later was not seen." in text
    text = describe(found(Objective.CPU, window=Window(10, 1200)))
    assert "the CPU time of all processes in 1,190 steps after the first 10, counted by" in text


def test_a_runtime_setting_that_changes_accuracy_is_named():
    told = found(Objective.TIME)
    own = [run(2.0, accuracy=each) for each in (0.970, 0.971, 0.969)]
    low, same = (run(1.0, accuracy=each, params=SMALL) for each in (0.95, 0.97))
    text = describe(dataclasses.replace(told, runs=[OWN, *own, low]))
    assert (
        "The runtime setting SIZE small changes the accuracy by itself: 95.00 % against 97.00 %, "
        "more than seeds explain."
    ) in text
    assert "by itself" not in describe(dataclasses.replace(told, runs=[OWN, *own, same]))


def test_more_threads_than_cores_are_named():
    params = {"workers": 2, "threads": 2}
    knobs = [Knob("threads", "", {2: {}, 1: {}}, ordered=True, per_core=True)]
    told = dataclasses.replace(found(Objective.TIME), knobs=knobs, facts={"cores": "2 of 8"})
    many, as_many = (run(1.0, params={**params, "threads": each}) for each in (2, 1))
    text = describe(dataclasses.replace(told, runs=[OWN, many, as_many]))
    rows = [each for each in text.splitlines() if each.startswith("workers 2")]
    assert [each.endswith("oversubscribed") for each in rows] == [True, False]


def test_what_is_not_proven_is_not_claimed():
    text = describe(found(Objective.MEMORY, dataclasses.replace(OWN, trial=CHANGED.trial)))
    assert "true: no setting is proven to use less memory; the best makes it use 1.00" in text


def test_the_document_tells_objective_gain_and_time():
    told = document(found(Objective.MEMORY))
    assert told["objective"] == "memory"
    assert told["gain"] == pytest.approx([4.0] * 3)
    assert told["costs"] == pytest.approx([400 * MIB, 100 * MIB])
    assert told["speedup"] == pytest.approx([0.4] * 3)
    assert told["knobs"] == [{"name": "SIZE", "value": "small", "gain": pytest.approx(4.0)}]
    figures = [
        (each["seconds"], each["cpu_s"], each["peak_memory_bytes"]) for each in told["runs"]
    ]
    assert figures == [(2.0, 3.0, 400 * MIB), (5.0, 1.0, 100 * MIB)]
    plain = document(found(Objective.TIME))
    assert plain["gain"] == plain["speedup"]


def test_measurements_of_other_trials_have_no_such_figure():
    assert {each.name: each.default for each in dataclasses.fields(Measurement)}[
        "train_cpu_s"
    ] is None
    assert "train_cpu_s" not in run(1.0).metrics
