"""The race on this machine, with real workers; its results are kept for later studies.

A race times short trainings (probes) at different runtime settings. Its result is the runtime map:
the seconds that an iteration takes at each setting.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tuner.config.schema import SearchConfig
from tuner.race.probing import OpenSession
from tuner.race.race import Race
from tuner.storage.study_folder import write_atomically
from tuner.trials.session import TrialSetup, WorkerSession
from tuner.values.errors import NoTrialSucceeded
from tuner.values.params import Params
from tuner.values.runtime_map import RuntimeMap
from tuner.values.space import SearchSpace


class MachineRace:
    """Races runtime settings in workers on this machine, and keeps the map for later studies.

    Args:
        setup: Setup of the workers; the study's own map is kept beside their folder.
        space: Space whose runtime params are raced.
        default: The framework's own default.
        fingerprint: Fingerprint of machine and packages; part of what identifies a shared map.
        maps: Folder of the maps that studies on this machine share.
        config: How long a probe is, and how much of the budget the race may take.
        budget_s: Budget of the whole study, seconds.
        check: Called between probes; an error that it raises ends the race.
        tell: Called with what is being done and the fraction (0–1) of the race's budget used.
        open_session: Starts a worker elsewhere; by default on this machine.
    """

    def __init__(
        self,
        setup: TrialSetup,
        space: SearchSpace,
        default: Params,
        fingerprint: str,
        maps: Path,
        *,
        config: SearchConfig,
        budget_s: float,
        check: Callable[[], None],
        tell: Callable[[str, float], None],
        open_session: OpenSession | None = None,
    ) -> None:
        self._setup = setup
        data = setup.dataset
        identity = {
            **setup.identity(fingerprint),
            "data": [data.channels, data.height, data.width, data.classes, setup.model],
            "params": [sorted(space.runtime.items()), space.params["batch_size"], dict(default)],
        }
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode())
        # a study resumes with its own map, whatever others have learnt meanwhile
        own, shared = (
            setup.folder.parent / "runtimes.json",
            maps / f"{digest.hexdigest()[:16]}.json",
        )
        self._places = own, shared
        known, place = _read(self._places)
        self._race = Race(
            space=space,
            default=default,
            open_session=open_session or self._open,
            budget_s=config.race_share * budget_s,
            check=check,
            tell=tell,
            repeats=setup.measure.repeats,
            probe_s=config.probe_s,
            known=known,
            recorded=place == shared,
        )

    @property
    def known(self) -> RuntimeMap:
        """The map so far; at first the study's own, else an earlier study's, else empty."""
        return self._race.known

    @property
    def recorded(self) -> bool:
        """Whether the map is an earlier study's, and not yet confirmed."""
        return self._race.recorded

    @property
    def over(self) -> bool:
        """Whether nothing is left to try, or no time is left."""
        return self._race.over

    def run(self, max_s: float) -> None:
        """Race on, and begin nothing new after ``max_s`` seconds; save the map.

        The default's setting is measured first, if none is known. An earlier study's map is
        checked first, and forgotten if it no longer holds.

        Raises:
            NoTrialSucceeded: If no setting could be measured.
        """
        try:
            self._race.run(max_s)
        finally:
            if self.known.probes:
                self._write()
        if not self.known.probes:
            setting, reason = self.known.faults[0]
            named = ", ".join(f"{name} {value}" for name, value in setting.items())
            raise NoTrialSucceeded(f"no runtime setting could be raced; with {named}: {reason}")

    @contextlib.contextmanager
    def _open(self, params: Params) -> Iterator[WorkerSession]:
        """Open a worker with a temporary folder of its own."""
        parent = self._setup.folder.parent
        with tempfile.TemporaryDirectory(dir=parent, prefix="race-") as scratch:
            setup = dataclasses.replace(self._setup, folder=Path(scratch))
            with WorkerSession(setup, params) as session:
                yield session

    def _write(self) -> None:
        for path in self._places:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, self.known.to_json())


def _read(places: tuple[Path, ...]) -> tuple[RuntimeMap, Path | None]:
    """Return the first readable map and its path; an empty map and ``None`` without one."""
    for path in places:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return RuntimeMap.from_json(path.read_text(encoding="utf-8")), path
    return RuntimeMap(), None
