"""``search=joint``: one Optuna study over all params at once.

The sampler is told every trial: usable ones by their objectives, others as failed. A trial that
was stopped early is told as failed under what was asked, and added as a finished one under the
iterations it reached, for which its figures are true. Where these are too few to be searched, it
is told under what was asked, with its time projected and the accuracy it reached.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Mapping, Sequence

import optuna
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from tuner.config import Constraint, SamplerConfig
from tuner.errors import ConfigError, StorageError
from tuner.pareto import Objective
from tuner.results import front_of
from tuner.space import SearchSpace
from tuner.trial import Params, ParamValue, TrialResult, TrialStatus

_NUMBER = "trial_number"


class JointSearch:
    """Ask and tell over one persistent study.

    Args:
        space: What may be asked.
        objectives: What is told, in this order.
        constraints: Limits whose violation the sampler learns to avoid.
        sampler: Which sampler.
        storage: SQLAlchemy address of the study's database; without one it is kept in memory.
        name: Name of the study in it; an existing study is gone on with.
        default: Params of trial 0.
        seed: Of the sampler.

    Attributes:
        front: Of all that it was told, and of what that stands for.
        derived: What the trials stand for beside themselves.

    Raises:
        StorageError: If the database cannot be opened.
        ConfigError: If the sampler cannot be had as configured.
    """

    def __init__(
        self,
        space: SearchSpace,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
        *,
        sampler: SamplerConfig,
        storage: str | None,
        name: str,
        default: Params,
        seed: int,
    ) -> None:
        self.space, self.objectives, self.constraints = space, objectives, constraints
        self._seed = seed
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        directions = [optuna.study.StudyDirection[each.direction.name] for each in objectives]
        try:
            self._study = optuna.create_study(
                storage=storage, study_name=name, directions=directions, load_if_exists=True
            )
        except (SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, ValueError) as error:
            first_line = str(error).splitlines()[0]
            raise StorageError(f"storage {storage} cannot be opened: {first_line}") from error
        # sampling goes on from another point of the random sequence after a resume
        self._study.sampler = make_sampler(sampler, seed + len(self._study.trials))
        self._open: dict[int, optuna.Trial] = {}
        self._told: set[int] = set()
        self.front: list[TrialResult] = []
        self.derived: list[TrialResult] = []
        self.default = default
        self._default_outside = bool(space.contains(default))
        if not self._study.trials:
            for number, params in enumerate(self._first()):
                self._enqueue(number, params)

    def _first(self) -> list[Params]:
        """What is tried before anything else, the default in front."""
        return [self.default, *self.space.start_points(self.default)]

    def _enqueue(self, number: int, params: Params) -> None:
        outside = number == 0 and self._default_outside
        known = {} if outside else self.space.optuna_params(params)
        self._study.enqueue_trial(dict(known), user_attrs={_NUMBER: number})

    def unfinished(self) -> list[int]:
        """Numbers of the trials that were asked for but never told, from an interrupted run."""
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [each.user_attrs[_NUMBER] for each in trials if _NUMBER in each.user_attrs]

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Go on where an earlier session stopped, which measured ``results``.

        What it asked for and did not measure will be asked for again.
        """
        for each in results:
            self._learn(each)
        measured = {each.trial.number: each for each in results}
        for number in self.unfinished():
            if number in measured:
                self._store(measured[number])
            else:
                self.retry(number)

    def ask(self, limit_s: float = math.inf) -> tuple[int, dict[str, ParamValue]]:  # noqa: ARG002
        """The next trial: its number, counted from 0, and its params; number 0 is the default.

        ``limit_s`` is the longest that it may train, which this search has no use for.
        """
        following = self._next_number()
        trial = self._study.ask()
        number = trial.user_attrs.get(_NUMBER)
        if number is None:
            number = following
            trial.set_user_attr(_NUMBER, number)
        outside = number == 0 and self._default_outside
        params = dict(self.default) if outside else self.space.suggest(trial)
        self._open[number] = trial
        return number, params

    def _next_number(self) -> int:
        trials = self._study.get_trials(deepcopy=False)
        return max((each.user_attrs.get(_NUMBER, -1) for each in trials), default=-1) + 1

    def _waiting(self) -> list[optuna.trial.FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))

    def tell(self, result: TrialResult) -> None:
        """Learn how a trial ended; telling the same trial again changes nothing."""
        if result.trial.number not in self._told:
            self._learn(result)
            self._store(result)

    def _learn(self, result: TrialResult) -> None:
        self._told.add(result.trial.number)
        self._extend_front([result])

    def _extend_front(self, points: Sequence[TrialResult]) -> None:
        self.front = front_of([*self.front, *points], self.objectives)

    def _store(self, result: TrialResult) -> None:
        """Tell Optuna, if the trial is still open there."""
        number = result.trial.number
        trial = self._open.pop(number, None) or self._reopen(number)
        if trial is None:
            return
        reached = None
        if result.status is TrialStatus.STOPPED:
            if self.space.contains(result.params):
                # the sampler must learn that this was no good, or it comes back again and again
                result = result.projected("stopped")
            else:
                reached = self._values(result)
        values = self._values(result)
        if values is None or reached is not None:
            self._study.tell(trial, state=TrialState.FAIL)
            if reached is not None:
                self._add_reached(trial, result, reached)
            return
        for name, value in self._violations(result).items():
            trial.set_constraint(name, value)
        self._study.tell(trial, values)

    def retry(self, number: int) -> None:
        """Tell a trial that was left running as failed, and ask for the same params again.

        Left running, it would repel the sampler; unrepeated, the study would miss a trial.
        """
        trial = self._open.pop(number, None) or self._reopen(number)
        if trial is None:
            return
        if number not in {each.user_attrs.get(_NUMBER) for each in self._waiting()}:
            self._study.enqueue_trial(dict(trial.params), user_attrs={_NUMBER: number})
        self._study.tell(trial, state=TrialState.FAIL)

    def _reopen(self, number: int) -> optuna.Trial | None:
        """A trial of an earlier run that is still open, by our number."""
        for each in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if each.user_attrs.get(_NUMBER) == number:
                return optuna.Trial(self._study, each._trial_id)
        return None

    def _values(self, result: TrialResult) -> list[float] | None:
        if not result.usable or (result.trial.number == 0 and self._default_outside):
            return None
        try:
            return [each.value(result.metrics) for each in self.objectives]
        except KeyError:
            return None

    def _violations(self, result: TrialResult) -> dict[str, float]:
        return {str(each): each.violation(result.metrics) for each in self.constraints}

    def _add_reached(self, asked: optuna.Trial, result: TrialResult, values: list[float]) -> None:
        params = self.space.optuna_params(result.params)
        trial = optuna.create_trial(
            params=dict(params), distributions=dict(asked.distributions), values=values
        )
        self._study.add_trial(trial)


_SAMPLERS: Mapping[str, Callable[..., optuna.samplers.BaseSampler]] = {
    "tpe": optuna.samplers.TPESampler,
    "nsga2": optuna.samplers.NSGAIISampler,
    "gp": optuna.samplers.GPSampler,
    "random": optuna.samplers.RandomSampler,
}


def make_sampler(config: SamplerConfig, seed: int) -> optuna.samplers.BaseSampler:
    """The Optuna sampler that a configuration names.

    Raises:
        ConfigError: If it needs a package that is missing, or does not take its options.
    """
    if config.name == "gp" and not importlib.util.find_spec("torch"):
        raise ConfigError("sampler=gp needs the package torch: pip install 'tuner[gp]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            return _SAMPLERS[config.name](seed=seed, **config.options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"sampler.options do not fit {config.name}: {error}") from error
