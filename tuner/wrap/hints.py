"""What helps a user whose program does not run, or does not show its steps."""

from __future__ import annotations

from collections.abc import Callable, Collection
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
            "; its sandbox shows its own folder and what --allow-read names, the network with "
            "--network and a GPU with --allow-gpu; --no-sandbox runs it plainly"
        )
    return said


def telling(
    progress: StudyProgress, program: Program
) -> Callable[[Trial, int, float, Collection[str]], None]:
    """Return what shows how far a run is.

    Of the first run it says once that no steps are seen, or that the program misses a GPU.
    """
    waits, looked_at = True, 0

    def tell(trial: Trial, steps: int, took_s: float, mapped: Collection[str]) -> None:
        nonlocal waits, looked_at
        progress.trial_progress(trial, steps, took_s)
        if not trial.is_default:
            return
        if waits and not steps and took_s > _UNSEEN_S:
            waits = False
            progress.message(
                "no steps are seen yet; unless some are, whole runs are compared; --step, or "
                "reports (docs/wrap.md), can show them"
            )
        if 0 <= looked_at < len(mapped):
            looked_at = len(mapped)
            if program.misses_gpu(mapped):
                looked_at = -1  # that is said once
                progress.warn(
                    "the sandbox hides this machine's GPU from the program, which then trains on "
                    "the CPU; --allow-gpu shows it the GPU"
                )

    return tell
