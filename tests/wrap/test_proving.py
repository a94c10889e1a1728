"""The proof: what is claimed of a comparison, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wrap.samples import run
from tuner.storage.study_folder import StudyFolder
from tuner.values.trial import Trial, TrialKind, TrialResult
from tuner.wrap.objective import Objective
from tuner.wrap.program import Program
from tuner.wrap.proving import Proving

SETTING = {"SIZE": "small"}
PLANNED = 5


class Interrupted(Exception):
    """The user presses Ctrl-C."""


@pytest.fixture
def folder(tmp_path):
    folder = StudyFolder(tmp_path / "study")
    yield folder
    folder.close()


def proving(folder: StudyFolder, runs: int) -> Proving:
    """A proof that is interrupted after so many runs."""

    def measure(trial: Trial) -> TrialResult:
        if len(folder.results(TrialKind.VERIFY)) == runs:
            raise Interrupted
        took_s = (1.0 if trial.params else 2.0) + trial.number / 1000
        result = run(took_s, number=trial.number, params=trial.params, kind=TrialKind.VERIFY)
        folder.keep(result)
        return result

    return Proving(folder, Program(("true",), Path("/usr")), Objective.TIME, measure)


def test_a_proof_that_was_interrupted_claims_nothing_until_its_plan_is_carried_out(folder):
    half = proving(folder, 2 * PLANNED - 1)
    with pytest.raises(Interrupted):
        half.run([SETTING], lambda *_: PLANNED)
    assert len(folder.results(TrialKind.VERIFY)) == 9, "four pairs: enough for an interval"
    (tested,) = half.tested
    assert (tested.setting, tested.proof, tested.proven) == (SETTING, None, False)

    whole = proving(folder, 10**6)
    whole.run([SETTING], lambda *_: PLANNED)
    (tested,) = whole.tested
    assert tested.proven
    assert tested.proof.pairs == PLANNED
    assert tested.proof.gain.value == pytest.approx(2.0, rel=0.01)
