"""What is asked of a study of a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tuner.config.schema import ExecutorConfig
from tuner.wrap.knobs import Knob
from tuner.wrap.objective import Objective
from tuner.wrap.program import Program


def option(setting: str) -> str:
    """Return the option of the command for a setting of the executor, for error messages."""
    return f"--{setting.replace('_', '-')}"


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        program: The program.
        objective: What is minimised.
        budget_s: Seconds for the study; 0 for the usual length, see ``Schedule.budget_s``.
        executor: Where it runs, and on which CPUs.
        knobs: Knobs that the user adds.
        without: Names of knobs that are left alone.
        output: Folder of MLflow's artifacts.
        tracking_uri: MLflow's address; empty for a database in ``output``.
        fresh: Whether earlier results of the same command are deleted.
    """

    program: Program
    objective: Objective = Objective.TIME
    budget_s: float = 0.0
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    knobs: tuple[Knob, ...] = ()
    without: tuple[str, ...] = ()
    output: Path = Path()
    tracking_uri: str = ""
    fresh: bool = False
