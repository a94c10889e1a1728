"""What helps a user whose program does not run, or does not show its steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tuner.progress import StudyProgress
from tuner.values.trial import Trial, TrialResult, TrialStatus
from tuner.wrap.params import SEED, holes
from tuner.wrap.program import Program

_UNSEEN_S = 60.0  # in which a program whose steps are seen has done some


def rangeless(program: Program) -> list[str]:
    """Return a warning for each name in braces that is no param, so that it stays as it is."""
    names = sorted(holes(program.argv) - program.params.names - {SEED})
    return [
        f"the program gets {{{name}}} as it is; --{name} 'log(1e-4, 1e-1)' would give it a range"
        for name in names
    ]


def complaint(result: TrialResult, log: Path, program: Program) -> str:
    """Return why a program does not run as it is, and what may help.

    Args:
        result: Its run.
        log: The file that its output is kept in.
        program: The program.
    """
    tail = result.log_tail.splitlines()[-1:] or ["it printed nothing"]
    said = (
        f"the program does not run as it is: {result.status.value}: {result.reason}; "
        f"the end of its output: {tail[0]}"
    )
    if result.log_tail:
        said += f" (all of it: {log})"
    if "No module named" in tail[0]:
        said += (
            f"; {program.executable} ran it: if the module is installed for another interpreter, "
            "write the path of that one"
        )
    if program.confined and result.status is TrialStatus.CRASHED:
        said += (
            "; its sandbox shows its own folder and what --allow-read names, and the network with "
            "--network; --no-sandbox runs it plainly"
        )
    return said


def telling(progress: StudyProgress) -> Callable[[Trial, int, float], None]:
    """Return what shows how far a run is, and says once that the first run shows no steps."""
    said = False

    def tell(trial: Trial, steps: int, took_s: float) -> None:
        nonlocal said
        progress.trial_progress(trial, steps, took_s)
        if not (said or steps) and trial.is_default and took_s > _UNSEEN_S:
            said = True
            progress.message(
                "no steps are seen yet; unless some are, whole runs are compared; --step, or "
                "reports (docs/wrap.md), can show them"
            )

    return tell
