"""The report: what it says of accuracy, and of what was asked for and not seen."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.wrap.samples import run
from tuner.values.trial import TrialKind
from tuner.wrap import result as results
from tuner.wrap.comparison import compare
from tuner.wrap.descent import Effect
from tuner.wrap.document import document
from tuner.wrap.goal import Goal
from tuner.wrap.objective import Objective
from tuner.wrap.program import Program
from tuner.wrap.report import accuracy, describe
from tuner.wrap.result import WrapResult

OWN = (0.990, 0.9905, 0.9895)
PROGRAM = Program(("true",), Path("/usr"))
MEMORY = Objective.MEMORY
BUSY = "others used 40 % of its cores"


def found(changed: tuple[float, ...], goal: Goal) -> WrapResult:
    pairs = [
        (run(2.0, accuracy=one), run(1.0, accuracy=other))
        for one, other in zip(OWN, changed, strict=True)
    ]
    return WrapResult(
        program=dataclasses.replace(PROGRAM, goal=goal),
        objective=Objective.TIME,
        runs=[run(2.0, kind=TrialKind.DEFAULT, number=0)],
        window=None,
        source="",
        found={},
        knobs=(),
        effects=(),
        tested=[results.Tested({"SIZE": "small"}, compare(pairs, goal))],
        elapsed_s=9.0,
        study_id="0badbee",
    )


@pytest.mark.parametrize(
    ("changed", "goal", "said"),
    [
        (OWN, Goal(), "no loss is proven (0.2 points count as none)"),
        (OWN, Goal(margin=0.05), "no loss is proven (5 points count as none)"),
        ((0.98, 0.981, 0.979), Goal(), "a loss is not ruled out (0.2 points count as none)"),
    ],
)
def test_a_claim_of_no_loss_names_what_counts_as_none(changed, goal, said):
    assert accuracy(found(changed, goal)).endswith(said)


def test_what_was_read_and_not_proven_is_not_called_unchecked():
    read = run(2.0, accuracy=0.99, kind=TrialKind.DEFAULT, number=0)
    told = dataclasses.replace(found(OWN, Goal()), tested=[], runs=[read])
    assert accuracy(told) == "accuracy was read, but nothing is proven of it"
    unread = dataclasses.replace(told, runs=[dataclasses.replace(read, val_accuracy=None)])
    assert accuracy(unread) == "speed only; accuracy not checked"


def test_a_long_name_of_a_knob_stays_apart_from_what_it_changed():
    name = "DNNL_PRIMITIVE_CACHE_CAPACITY"
    told = dataclasses.replace(found(OWN, Goal()), effects=[Effect(name, None, 1.0)])
    assert f"  {name}  no effect\n" in describe(told)


def test_knobs_that_there_was_no_time_for_are_named():
    said = "There was no time to try all of binding, allocator; --budget gives it more seconds."
    own, tried = run(2.0, kind=TrialKind.DEFAULT, number=0), run(1.0, params={"threads": 1})
    told = dataclasses.replace(found(OWN, Goal()), runs=[own, tried])
    assert said not in describe(told)
    assert document(told)["untried"] == []
    left = dataclasses.replace(told, untried=["binding", "allocator"])
    assert said in describe(left).splitlines()
    assert document(left)["untried"] == ["binding", "allocator"]


def test_a_gpu_that_was_hidden_is_told():
    told = found(OWN, Goal())
    assert "GPU" not in describe(told)
    hidden = dataclasses.replace(told, gpu="hidden")
    assert "\nMeasured on the CPU: the sandbox hid this machine's GPU" in describe(hidden)
    assert document(hidden)["gpu"] == "hidden"


def test_memory_is_that_of_the_host():
    said = "Measured: the peak memory of all processes on the host, without that of the GPU, of"
    told = dataclasses.replace(found(OWN, Goal()), objective=MEMORY)
    assert said not in describe(told)
    assert said in describe(dataclasses.replace(told, gpu="used"))


def test_the_files_on_record_are_those_that_were_measured(tmp_path):
    (tmp_path / "train.py").write_text("before")
    program = Program(("python", "train.py"), tmp_path)
    (digest,) = program.identity()["files"]
    (tmp_path / "train.py").write_text("after")
    told = dataclasses.replace(found(OWN, Goal()), program=program)
    assert document(told)["files"] == {"train.py": digest}


def test_settings_have_the_names_that_the_command_takes():
    tried = run(1.0, params={"openblas_threads": 2, "wait_policy": "active"})
    own = run(2.0, kind=TrialKind.DEFAULT, number=0)
    told = describe(dataclasses.replace(found(OWN, Goal()), runs=[own, tried]))
    assert "\nopenblas_threads 2, wait_policy active  " in told


def test_the_command_to_use_says_what_the_seed_is_in_it():
    told = found(OWN, Goal())
    said = "{seed} was filled with 1 in it; any other number will do."
    assert said not in describe(told)
    seeded = dataclasses.replace(PROGRAM, argv=("true", "--seed", "{seed}"))
    asked = dataclasses.replace(told, program=seeded)
    assert f"\n    true --seed 1\n\n{said}\n" in describe(asked)


def test_a_step_that_was_never_seen_is_named():
    told = found(OWN, Goal())
    asked = dataclasses.replace(told, program=dataclasses.replace(PROGRAM, step="epoch"))
    said = "--step epoch matched nothing in the output, so whole runs were compared."
    assert said in describe(asked)
    assert "--step" not in describe(told)
    assert "--step" not in describe(dataclasses.replace(asked, source="output"))


def compared(*disturbed: str) -> WrapResult:
    """A setting that is proven by pairs of runs, each disturbed or not."""
    pairs = [(run(2.0, disturbed=each), run(1.0, disturbed=each)) for each in disturbed]
    tested = results.Tested({"SIZE": "small"}, compare(pairs))
    runs = [each for pair in pairs for each in pair]
    return dataclasses.replace(found(OWN, Goal()), tested=[tested], runs=runs)


def test_a_proof_by_disturbed_runs_alone_says_so():
    told = compared(BUSY, BUSY, BUSY)
    text = describe(told)
    assert text.startswith(
        "true runs 2.00 times (95 % interval 2.00 to 2.00, 3 pairs of runs, all disturbed by "
        "other work) as fast with\n"
    )
    assert "\nThe proof rests on disturbed runs alone: other work took time" in text
    assert "\nOthers disturbed 6 of 6 runs;" in text
    assert document(told)["all_disturbed"] is True
    assert {each["disturbed"] for each in document(told)["runs"]} == {BUSY}


def test_a_proof_by_some_undisturbed_runs_says_no_such_thing():
    told = compared(BUSY, BUSY, "")
    text = describe(told)
    assert "3 pairs of runs) as fast with\n" in text
    assert "rests on disturbed runs" not in text
    assert "\nOthers disturbed 4 of 6 runs;" in text
    assert document(told)["all_disturbed"] is False
    assert document(dataclasses.replace(told, tested=[]))["all_disturbed"] is None


def test_memory_is_not_disturbed_and_its_price_is():
    own, small = (run(each, memory=int(100 * each), disturbed=BUSY) for each in (4.0, 2.0))
    tested = results.Tested({"SIZE": "small"}, compare([(own, small)] * 3, objective=MEMORY))
    told = found(OWN, Goal())
    told = dataclasses.replace(told, objective=MEMORY, tested=[tested], runs=[own, small])
    text = describe(told)
    assert "3 pairs of runs) with\n" in text
    assert "rests on disturbed runs" not in text
    assert (
        "It also runs 2.00 times as fast (95 % interval 2.00 to 2.00, 3 pairs of runs, all "
        "disturbed by other work)."
    ) in text
