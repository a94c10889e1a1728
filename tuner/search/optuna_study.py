"""The Optuna study of a strategy: its trials by our own numbers, in a database or in memory.

The sampler is told every trial: usable ones by their objectives, others as failed. A trial that
was stopped early is told as failed under the params that were asked. It is also added as finished
under the iterations that it reached, for which its figures are true. If the search space has none
so short, it is told under the params that were asked, with its time projected and the accuracy
that it reached.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence

import optuna
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from tuner.config.schema import Constraint, SamplerConfig
from tuner.search.crew import Crew, Driver, refuse_deletion_if_driven
from tuner.search.samplers import make_sampler
from tuner.storage.databases import connect_args, exclusive, fault_of
from tuner.values.addresses import without_password
from tuner.values.errors import ConfigError, StorageAway, StorageError
from tuner.values.params import Params, ParamValue
from tuner.values.pareto import Objective
from tuner.values.space import SearchSpace
from tuner.values.trial import TrialResult, TrialStatus

_NUMBER = "trial_number"
_DRIVER = "driver"
_RESULT = "result"
_OVER = "over"
_KIND = "machine"
_ORIGIN = "derived_from"
_STREAMS = 10**6
_UNUSABLE = (
    *(SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, OSError, ValueError),
)  # raised by a database that cannot be opened
STORAGE_FAULTS = (optuna.exceptions.StorageInternalError, SQLAlchemyError)
"""Errors that the study's database raises once it can no longer be read or written."""

EndTrial = Callable[[int, optuna.Trial, list[float] | None], None]
"""Ends an Optuna trial, given our number of it; without values, as failed."""


class OptunaStudy:
    """Trials that are asked for, told and resumed, by one driver or several.

    Args:
        space: The search space.
        objectives: Figures that are told, in this order.
        constraints: Limits whose violation the sampler learns to avoid.
        sampler: Configuration of the sampler.
        storage: SQLAlchemy address of the study's database; ``None`` keeps the study in memory.
        name: Name of the study in the database; an existing study is resumed.
        default: Params of trial 0, which is asked for first.
        seed: Seed of the sampler.
        driver: The driver that this process is, if several may drive the study.
        fresh: Delete what an earlier study of this name left.

    Attributes:
        optuna: The study itself.
        crew: All drivers of the study; ``None`` if this process is the only one.
        stream: Which random stream of ``seed`` this driver uses now.
        end_trial: Ends Optuna's trials; replaced where another library asks for them.

    Raises:
        StorageError: If the database cannot be opened.
        ConfigError: If the sampler cannot be made as configured, or the study's other drivers run
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
        self.default, self.seed = default, seed
        self._shared_address = storage if driver else None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._open: dict[int, optuna.Trial] = {}
        self._told: set[int] = set()
        self._foreign: set[int] = set()  # numbers of trials that another driver told
        self._default_outside = bool(space.refusal(default))
        self.end_trial: EndTrial = self._end_trial
        try:
            with self.alone():  # if two drivers begin at once, one creates the study
                self._create(storage, name, driver, fresh)
        except ConfigError:  # tells already what is wrong
            raise
        except _UNUSABLE as error:
            shown = without_password(storage or "")
            passing = (*STORAGE_FAULTS, OSError)
            kind = StorageAway if isinstance(error, passing) else StorageError
            raise kind(f"storage {shown} cannot be opened: {fault_of(error)}") from error
        self.crew = Crew(self.optuna, driver) if driver else None
        self._agree()
        if self.crew:
            self.crew.begin()
        # a resumed study samples from another random stream, and so does each driver
        known = self.optuna.get_trials(deepcopy=False)
        apart = zlib.crc32(driver.name.encode()) % _STREAMS if driver else 0
        self.stream = apart + len(known)
        self._derived_from = {
            each.user_attrs[_ORIGIN] for each in known if _ORIGIN in each.user_attrs
        }
        self.optuna.sampler = make_sampler(sampler, seed + apart + self._earlier)

    def _create(self, storage: str | None, name: str, driver: Driver | None, fresh: bool) -> None:
        """Open the study, or create it and enqueue the default."""
        self._database = None
        if storage:
            patience = {"connect_args": connect_args(storage)}
            self._database = optuna.storages.RDBStorage(storage, engine_kwargs=patience)
        if fresh and self._database:
            refuse_deletion_if_driven(self._database, name, driver)
            with contextlib.suppress(KeyError):  # there was none
                optuna.delete_study(study_name=name, storage=self._database)
        self.optuna = optuna.create_study(
            storage=self._database,
            study_name=name,
            directions=[
                optuna.study.StudyDirection[each.direction.name] for each in self.objectives
            ],
            load_if_exists=True,
        )
        self._earlier = len(self.optuna.trials)
        if not self._earlier:
            self.enqueue(self.default, 0)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other drivers from beginning or noting anything in this study meanwhile."""
        if self._shared_address:
            with exclusive(self._shared_address):
                yield
        else:
            yield

    def _agree(self) -> None:
        if self.crew is None:
            return
        ours = self.crew.driver.fingerprint
        with self.alone():
            theirs = self.optuna.user_attrs.get(_KIND)
            if theirs is None:
                theirs = ours
                self.optuna.set_user_attr(_KIND, theirs)
        if theirs != ours:
            self.close()
            raise ConfigError(
                f"study {self.optuna.study_name} began on machine {theirs}, and this one is "
                f"{ours}: times can only be compared between machines of one kind; "
                "use another storage="
            )

    def close(self) -> None:
        """Stop the heartbeat and close the database's connections."""
        if self.crew:
            self.crew.close()
        if self._database is not None:
            self._database.remove_session()
            self._database.engine.dispose()

    @property
    def shared(self) -> bool:
        """Whether other processes may drive the study too."""
        return self.crew is not None

    @property
    def over(self) -> bool:
        """Whether the leading driver has ended the search for all."""
        return self.shared and bool(self.optuna.user_attrs.get(_OVER))

    def end(self, *, over: bool = True) -> None:
        """Tell the other drivers that the search has ended, or that it continues after all."""
        if self.crew:
            self.optuna.set_user_attr(_OVER, over)
            self.crew.note_report(written=False)

    def unfinished(self) -> list[int]:
        """Return the numbers of this driver's trials that were asked for but not told."""
        return self._running(own=True)

    def unfinished_of_others(self) -> list[int]:
        """Return the numbers of the trials that other drivers are running."""
        return self._running(own=False) if self.shared else []

    def _running(self, *, own: bool) -> list[int]:
        trials = self._of_state(TrialState.RUNNING)
        return [
            each.user_attrs[_NUMBER]
            for each in trials
            if _NUMBER in each.user_attrs and self._is_own(each) is own
        ]

    def _is_own(self, trial: optuna.trial.FrozenTrial) -> bool:
        return self.crew is None or _owner(trial) == self.crew.driver.name

    def hear_of_others(self) -> list[TrialResult]:
        """Return the results that other drivers told and this one has not been told yet."""
        if not self.crew:
            return []
        found = [
            TrialResult.from_json(each.user_attrs[_RESULT])
            for each in self.optuna.get_trials(deepcopy=False)
            if _RESULT in each.user_attrs
            and not self._is_own(each)
            and each.user_attrs[_NUMBER] not in self._told
        ]
        for each in found:
            self._foreign.add(each.trial.number)
        return found

    def release(self) -> list[int]:
        """Enqueue the trials of dead drivers again. Return their numbers.

        A driver holds the lock from when it begins a trial until it has noted its name and the
        trial's number. Seen under the lock, a trial without them is of a driver that died then.
        """
        if not self.crew:
            return []
        dead = {"", *self.crew.dead(_owner(each) for each in self._of_state(TrialState.RUNNING))}
        if not self._run_by(dead):
            return []
        left = []
        with self.alone():
            for each in self._run_by(dead):
                if _NUMBER in each.user_attrs:
                    left.append(each.user_attrs[_NUMBER])
                    self.retry(left[-1])
                else:
                    self.optuna.tell(each.number, state=TrialState.FAIL)
        return left

    def _run_by(self, drivers: Collection[str]) -> list[optuna.trial.FrozenTrial]:
        return [each for each in self._of_state(TrialState.RUNNING) if _owner(each) in drivers]

    def _of_state(self, *states: TrialState) -> list[optuna.trial.FrozenTrial]:
        return self.optuna.get_trials(deepcopy=False, states=states)

    # -- asking ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> list[int]:
        """Numbers of the enqueued trials, which are asked for next: the default, or repeats."""
        trials = self._of_state(TrialState.WAITING)
        return [each.user_attrs[_NUMBER] for each in trials if _NUMBER in each.user_attrs]

    def enqueue(self, params: Params, number: int | None = None) -> int:
        """Enqueue ``params`` under ``number``, or else the next number. Return the number."""
        number = self._next_number() if number is None else number
        outside = number == 0 and self._default_outside
        known = {} if outside else self.space.optuna_params(params)
        self.optuna.enqueue_trial(dict(known), user_attrs={_NUMBER: number})
        return number

    def enqueue_first(self, points: Sequence[Params]) -> None:
        """Enqueue the next of ``points``, which follow the default, one per call."""
        number = self._next_number()
        if number <= len(points) and not self.waiting:
            self.enqueue(points[number - 1], number)

    def ask(self) -> tuple[int, dict[str, ParamValue]]:
        """Begin the enqueued trial, or else a proposed one. Return its number and params.

        Call it within ``alone``. Numbers count from 0, the default.
        """
        return self.begin(self.optuna.ask())

    def begin(self, trial: optuna.Trial) -> tuple[int, dict[str, ParamValue]]:
        """Give a trial that Optuna has just begun its number and params. Return both."""
        if self.crew:
            trial.set_user_attr(_DRIVER, self.crew.driver.name)
        number = trial.user_attrs.get(_NUMBER)
        if number is None:
            number = self._next_number()
            trial.set_user_attr(_NUMBER, number)
        if self.crew and number == 0:
            self.crew.lead()
        outside = number == 0 and self._default_outside
        params = dict(self.default) if outside else self.space.suggest(trial)
        self._open[number] = trial
        return number, params

    def _next_number(self) -> int:
        trials = self.optuna.get_trials(deepcopy=False)
        return max((each.user_attrs.get(_NUMBER, -1) for each in trials), default=-1) + 1

    # -- telling --------------------------------------------------------------------------------

    def tell(self, result: TrialResult) -> bool:
        """Store how a trial ended. Return whether that is new; telling it again does nothing."""
        number = result.trial.number
        if number in self._told:
            return False
        self._told.add(number)
        if number not in self._foreign:
            self._store(result)
        return True

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Resume where an earlier session stopped, which measured ``results``.

        Trials that it asked for and did not measure are asked for again. So are trials that it
        told and that are no longer among the results.
        """
        measured = {each.trial.number: each for each in results}
        self._told |= set(measured)
        self._ask_again_for_lost(measured)
        for number in self.unfinished():
            if number in measured:
                self._store(measured[number])
            else:
                self.retry(number)
        self.release()

    def _ask_again_for_lost(self, measured: Collection[int]) -> None:
        """Enqueue trials that were told and have no result left: their files were damaged.

        Those that another driver took over meanwhile are not lost.
        """
        open_ = {*self.waiting, *self.unfinished(), *measured, *self.unfinished_of_others()}
        open_ |= {
            each.user_attrs[_NUMBER]
            for each in self._of_state(TrialState.COMPLETE, TrialState.FAIL)
            if _RESULT in each.user_attrs and not self._is_own(each)
        }
        ended = self._of_state(TrialState.COMPLETE, TrialState.FAIL)
        for each in ended:
            number = each.user_attrs.get(_NUMBER)
            if number is not None and number not in open_ and self._is_own(each):
                open_.add(number)
                self.optuna.enqueue_trial(dict(each.params), user_attrs={_NUMBER: number})

    def _store(self, result: TrialResult) -> None:
        """Tell Optuna a result, if its trial is still open there."""
        number = result.trial.number
        trial = self._open.pop(number, None) or self._reopen(number)
        if trial is None:
            return
        if self.crew:
            try:
                trial.set_user_attr(_RESULT, result.to_json())
            except optuna.exceptions.UpdateFinishedTrialError:
                return  # another driver took this one for dead, and repeats the trial
        early = result.status is TrialStatus.STOPPED
        if early and result.usable and result.iterations and self.space.refusal(result.params):
            # the sampler must learn that this was bad, or it proposes it again and again
            result, early = result.projected("stopped"), False
        values = self._values(result)
        if values is None or early:
            self.end_trial(number, trial, None)
            if values is not None and not self.space.refusal(result.params):
                self._add_reached(trial, result, values)
            return
        for name, value in self._violations(result).items():
            trial.set_constraint(name, value)
        self.end_trial(number, trial, values)

    def _end_trial(self, number: int, trial: optuna.Trial, values: list[float] | None) -> None:  # noqa: ARG002 - others know it by our number
        self.optuna.tell(trial, values, state=TrialState.FAIL if values is None else None)

    def retry(self, number: int) -> None:
        """Tell a trial that was left running as failed, and enqueue the same params again.

        A trial left running would repel the sampler. Without the repeat the study would miss one.
        """
        trial = self._open.pop(number, None) or self._reopen(number)
        if trial is None:
            return
        if number not in self.waiting:
            # a driver that died may not have asked for all params that were enqueued
            begun = self.optuna.get_trials(deepcopy=False)[trial.number]
            params = {**begun.system_attrs.get("fixed_params", {}), **begun.params}
            self.optuna.enqueue_trial(params, user_attrs={_NUMBER: number})
        self.end_trial(number, trial, None)

    def _reopen(self, number: int) -> optuna.Trial | None:
        """Return the trial of an earlier run that is still open under our number, if any."""
        for each in self._of_state(TrialState.RUNNING):
            if each.user_attrs.get(_NUMBER) == number:
                return optuna.Trial(self.optuna, each._trial_id)
        return None

    def _values(self, result: TrialResult) -> list[float] | None:
        if not result.usable or (result.trial.is_default and self._default_outside):
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
        self.optuna.add_trial(trial)

    def add_derived(self, origin: TrialResult, points: Sequence[TrialResult]) -> None:
        """Tell Optuna once the points derived from a trial; other drivers tell their own.

        Those of a default too short for the space are not told.
        """
        name = origin.trial.name
        if not points or name in self._derived_from or origin.trial.number in self._foreign:
            return
        self._derived_from.add(name)
        for point in points:
            values = self._values(point)
            if values is not None and not self.space.refusal(point.params):
                drawn = optuna.trial.FixedTrial(self.space.optuna_params(point.params))
                self.space.suggest(drawn)  # which notes the distributions that it draws from
                self.optuna.add_trial(
                    optuna.create_trial(
                        params=drawn.params,
                        distributions=drawn.distributions,
                        values=values,
                        user_attrs={_ORIGIN: name},
                    )
                )


def _owner(trial: optuna.trial.FrozenTrial) -> str:
    """Return the name of the driver that runs a trial; empty if none is noted."""
    return str(trial.user_attrs.get(_DRIVER, ""))
