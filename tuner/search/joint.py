"""``search=joint``: one Optuna study over all params at once.

The sampler is told every trial: usable ones by their objectives, others as failed. A trial that
was stopped early is told as failed under what was asked, and added as a finished one under the
iterations it reached, for which its figures are true. Where these are too few to be searched, it
is told under what was asked, with its time projected and the accuracy it reached.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import optuna
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from tuner.config import Constraint, SamplerConfig
from tuner.databases import exclusive, without_password
from tuner.errors import ConfigError, StorageError
from tuner.pareto import Objective
from tuner.results import front_of
from tuner.space import SearchSpace
from tuner.trial import Params, ParamValue, TrialResult, TrialStatus

_NUMBER = "trial_number"
_DRIVER = "driver"
_RESULT = "result"
_OVER = "over"
_KIND = "machine"
_STREAMS = 10**6
_UNUSABLE = (
    *(SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, OSError, ValueError),
)  # what a database that cannot be opened raises


@dataclass(frozen=True)
class Driver:
    """One of several processes that drive a study, each with trials of its own.

    Attributes:
        name: No other driver's.
        fingerprint: Of its machine; times compare only among drivers that have the same.
    """

    name: str
    fingerprint: str


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
        driver: Who this is, where several may drive the study.
        fresh: Throw away what an earlier study of this name left.

    Attributes:
        front: Of all that it was told, and of what that stands for.
        derived: What the trials stand for beside themselves.

    Raises:
        StorageError: If the database cannot be opened.
        ConfigError: If the sampler cannot be had as configured, or the study's other drivers run
            on another kind of machine.
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
        driver: Driver | None = None,
        fresh: bool = False,
    ) -> None:
        self.space, self.objectives, self.constraints = space, objectives, constraints
        self._seed, self._driver, self._address = seed, driver, storage
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._open: dict[int, optuna.Trial] = {}
        self._told: set[int] = set()
        self._foreign: set[int] = set()  # those that another driver told
        self.front: list[TrialResult] = []
        self.derived: list[TrialResult] = []
        self.default = default
        self._default_outside = bool(space.contains(default))
        directions = [optuna.study.StudyDirection[each.direction.name] for each in objectives]
        try:
            with self.alone():  # of two drivers that begin at once, one makes tables and study
                self._database = optuna.storages.RDBStorage(storage) if storage else None
                if fresh and self._database:
                    with contextlib.suppress(KeyError):  # there was none
                        optuna.delete_study(study_name=name, storage=self._database)
                self._study = optuna.create_study(
                    storage=self._database,
                    study_name=name,
                    directions=directions,
                    load_if_exists=True,
                )
                earlier = len(self._study.trials)
                if not earlier:
                    for number, params in enumerate(self._first()):
                        self._enqueue(params, number)
        except _UNUSABLE as error:
            first_line = str(error).splitlines()[0]
            shown = without_password(storage or "")
            raise StorageError(f"storage {shown} cannot be opened: {first_line}") from error
        self._agree()
        # sampling goes on from another point of the random sequence after a resume, and drivers
        # that begin at once are at different ones
        self._stream = zlib.crc32(driver.name.encode()) % _STREAMS if driver else 0
        self._study.sampler = make_sampler(sampler, seed + self._stream + earlier)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing of this study is begun or noted by another driver meanwhile."""
        if self._driver and self._address:
            with exclusive(self._address):
                yield
        else:
            yield

    def _agree(self) -> None:
        if self._driver is None:
            return
        with self.alone():
            theirs = self._study.user_attrs.get(_KIND)
            if theirs is None:
                theirs = self._driver.fingerprint
                self._study.set_user_attr(_KIND, theirs)
        if theirs != self._driver.fingerprint:
            self.close()
            raise ConfigError(
                f"study {self._study.study_name} was begun on machine {theirs}, and this one is "
                f"{self._driver.fingerprint}: times compare on machines of one kind only; "
                "give another storage="
            )

    def _first(self) -> list[Params]:
        """What is tried before anything else, the default in front."""
        return [self.default, *self.space.start_points(self.default)]

    def _enqueue(self, params: Params, number: int) -> None:
        outside = number == 0 and self._default_outside
        known = {} if outside else self.space.optuna_params(params)
        self._study.enqueue_trial(dict(known), user_attrs={_NUMBER: number})

    def close(self) -> None:
        """Give the database's connections back."""
        if self._database is not None:
            self._database.remove_session()
            self._database.engine.dispose()

    @property
    def shared(self) -> bool:
        """Whether other processes may drive the study too."""
        return self._driver is not None

    @property
    def over(self) -> bool:
        """Whether the driver that leads has ended the search for all."""
        return self.shared and bool(self._study.user_attrs.get(_OVER))

    def end(self, *, over: bool = True) -> None:
        """Tell the other drivers that the search has ended, or that it goes on after all."""
        if self._driver:
            self._study.set_user_attr(_OVER, over)

    def unfinished(self) -> list[int]:
        """Numbers of the trials that were asked for but never told, from an interrupted run."""
        return self._running(own=True)

    def unfinished_of_others(self) -> list[int]:
        """Numbers of the trials that other drivers are about."""
        return self._running(own=False) if self.shared else []

    def _running(self, *, own: bool) -> list[int]:
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [
            each.user_attrs[_NUMBER]
            for each in trials
            if _NUMBER in each.user_attrs and self._is_own(each) is own
        ]

    def _is_own(self, trial: optuna.trial.FrozenTrial) -> bool:
        return self._driver is None or trial.user_attrs.get(_DRIVER) == self._driver.name

    def hear_of_others(self) -> list[TrialResult]:
        """Learn what other drivers have told since this was last asked, and return it."""
        if not self._driver:
            return []
        found = [
            TrialResult.from_json(each.user_attrs[_RESULT])
            for each in self._study.get_trials(deepcopy=False)
            if _RESULT in each.user_attrs
            and not self._is_own(each)
            and each.user_attrs[_NUMBER] not in self._told
        ]
        for each in found:
            self._foreign.add(each.trial.number)
            self._learn(each)
        return found

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

    def ask(self, limit_s: float = math.inf) -> tuple[int, dict[str, ParamValue]]:
        """The next trial: its number, counted from 0, and its params; number 0 is the default.

        ``limit_s`` is the longest that it may train, which this search has no use for.
        """
        with self.alone():
            return self._ask(limit_s)

    def _ask(self, limit_s: float) -> tuple[int, dict[str, ParamValue]]:  # noqa: ARG002 - for factored
        following = self._next_number()
        return self._begin(self._study.ask(), following)

    def _begin(self, trial: optuna.Trial, following: int) -> tuple[int, dict[str, ParamValue]]:
        """Number and params of a trial that Optuna has just begun."""
        number = trial.user_attrs.get(_NUMBER)
        if number is None:
            number = following
            trial.set_user_attr(_NUMBER, number)
        if self._driver:
            trial.set_user_attr(_DRIVER, self._driver.name)
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
        if self._driver:
            trial.set_user_attr(_RESULT, result.to_json())
        reached = None
        if result.status is TrialStatus.STOPPED:
            if self.space.contains(result.params):
                # the sampler must learn that this was no good, or it comes back again and again
                result = result.projected("stopped")
            else:
                reached = self._values(result)
        values = self._values(result)
        if values is None or reached is not None:
            self._tell(number, trial, None)
            if reached is not None:
                self._add_reached(trial, result, reached)
            return
        for name, value in self._violations(result).items():
            trial.set_constraint(name, value)
        self._tell(number, trial, values)

    def _tell(self, number: int, trial: optuna.Trial, values: list[float] | None) -> None:  # noqa: ARG002 - for raytune
        """End one of Optuna's trials, as failed without values."""
        self._study.tell(trial, values, state=TrialState.FAIL if values is None else None)

    def retry(self, number: int) -> None:
        """Tell a trial that was left running as failed, and ask for the same params again.

        Left running, it would repel the sampler; unrepeated, the study would miss a trial.
        """
        trial = self._open.pop(number, None) or self._reopen(number)
        if trial is None:
            return
        if number not in {each.user_attrs.get(_NUMBER) for each in self._waiting()}:
            self._study.enqueue_trial(dict(trial.params), user_attrs={_NUMBER: number})
        self._tell(number, trial, None)

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
