"""A search by one figure under a constraint, which keeps no state but the runs so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import optuna

from tuner.values.params import Params, ParamValue
from tuner.values.space import SearchSpace

_AT_RANDOM = 6  # runs before the sampler learns from them


@dataclass(frozen=True)
class Told:
    """A run that a sampler learns from.

    Attributes:
        params: Its params, a member of the search space.
        cost: The figure to minimise.
        violation: By how much it violates the constraint; 0 or less if it does not.
        complete: Whether it was run to its end. The cost of one that was not is what it had cost
            by then: it counts as worse than any run that was complete and kept the constraint.
    """

    params: Params
    cost: float
    violation: float
    complete: bool = True


def propose(space: SearchSpace, runs: Sequence[Told]) -> Iterator[dict[str, ParamValue]]:
    """Yield params to try next, without end; the same runs always lead to the same params.

    They come from a tree-structured Parzen estimator that learns constraints (Watanabe and Hutter
    2023, doi:10.24963/ijcai.2023/486).
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(n_startup_trials=_AT_RANDOM, seed=len(runs))
    )
    for run in runs:
        study.enqueue_trial(space.optuna_params(run.params))
        trial = study.ask()
        space.suggest(trial)
        trial.set_constraint("loss", run.violation)
        if run.complete:
            study.tell(trial, run.cost)
        else:
            trial.report(run.cost, step=0)
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    while True:
        yield space.suggest(study.ask())
