"""Cache of full default runs on this machine: an hour-long default is trained only once."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from tuner.storage.study_folder import RESULT
from tuner.trials.session import TrialSetup
from tuner.values.trial import Trial, TrialResult


class BaselineCache:
    """Cache of finished full runs, keyed by everything that determines their figures.

    Args:
        folder: Folder of the cache, below ``TUNER_HOME``.
        setup: What is trained, on what data and cores.
        trial: Supplies the params and the seed.
        fingerprint: Fingerprint of the machine and the runtime's packages.
    """

    def __init__(self, folder: Path, setup: TrialSetup, trial: Trial, fingerprint: str) -> None:
        identity = {
            **setup.identity(fingerprint),
            "trial": [dict(trial.params), trial.seed],
        }
        text = json.dumps(identity, sort_keys=True, default=str)
        self.folder = folder / hashlib.sha256(text.encode()).hexdigest()[:16]

    def fetch(self, target: Path) -> TrialResult | None:
        """Copy the kept run's files to ``target``, all but its result, and return that.

        A trial with a result counts as finished, so whoever judges it stores it. Return ``None``
        if no run is kept, or the kept one is damaged.
        """
        try:
            result = TrialResult.from_json((self.folder / RESULT).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        shutil.copytree(
            self.folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(RESULT)
        )
        return result

    def keep(self, source: Path, result: TrialResult) -> None:
        """Keep a full run; ignore one that failed or trained only a share of its iterations."""
        if not result.usable or result.trial.projected:
            return
        partial = self.folder.with_name(f".{self.folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial)
        (partial / RESULT).write_text(result.to_json(), encoding="utf-8")
        shutil.rmtree(self.folder, ignore_errors=True)
        partial.rename(self.folder)
