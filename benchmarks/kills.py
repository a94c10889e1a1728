"""Whether a study survives ``kill -9`` at any moment: nothing lost, doubled or left alive.

Studies of the synthetic framework run by the command line. Each is killed at random moments, gone
on with by the same command, and let end at last. After every kill the results that were there
before are compared byte for byte, and no worker may live on; at the end MLflow has each trial
once. ``tests/faults`` does the same at chosen writes.

    python benchmarks/kills.py [--kills 200] [--each 4] [--seed 1] [--json]

Exit code 1 if anything was lost, doubled or left alive.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tuner.measure import SCOPE, marked_processes
from tuner.tracking import connect

SYNTHETIC = Path(__file__).parent.parent / "tests" / "synthetic"
LONGEST_S = 300.0  # that a study may take; it takes about ten
DEATH_S = 5.0  # until a worker whose tuner was killed must be gone
WORDS = (
    *(f"framework_path={SYNTHETIC}", "framework=synthetic", "dataset=digits", "search=joint"),
    *("budget.trials=6", "verify.finalists=1", "verify.repeats=2", "progress=none"),
    *("measure.max_foreign_pct=100", "measure.max_steal_pct=100"),
)


class Killed:
    """One study that is killed again and again.

    Args:
        folder: Of its own.
        seed: Of the study, and of the moments.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._random = random.Random(seed)
        self.found: Counter[str] = Counter()

    def _start(self) -> subprocess.Popen[bytes]:
        words = [*WORDS, f"seed={self._seed}", f"output={self._folder}"]
        log = (self._folder / "log").open("ab")
        return subprocess.Popen(
            [sys.executable, "-m", "tuner", *words],
            # two run at once, and what they measure is not what is looked at
            env={
                **os.environ,
                "TUNER_HOME": str(self._folder / "home"),
                SCOPE: f"kills-{self._seed}",
            },
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def _results(self) -> dict[str, bytes]:
        found = (self._folder / "home" / "studies").glob("*/trials/*/result.json")
        return {path.parent.name: path.read_bytes() for path in found}

    def run(self, kills: int) -> Counter[str]:
        """Kill the study so many times at most, then let it end.

        Returns:
            How often each thing was seen: ``kills``, trials ``finished`` at a kill, ``lost``,
            ``doubled``, ``left alive``, ``not ended``.
        """
        begin = time.monotonic()
        whole_s, kept = 12.0, dict[str, bytes]()
        for _ in range(kills):
            process = self._start()
            try:
                process.wait(self._random.uniform(0.0, whole_s))
                break  # it was over before
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
            kept = self._check(kept)
            self.found["kills"] += 1
            self.found["finished"] += len(kept)
        process = self._start()
        try:
            code = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = -1
        self.found["not ended"] += code != 0
        self._check(kept)
        self._compare_with_mlflow()
        self.found["seconds"] += round(time.monotonic() - begin)
        return self.found

    def _check(self, before: dict[str, bytes]) -> dict[str, bytes]:
        """Compare with what there was, and see that no worker lives."""
        now = self._results()
        self.found["lost"] += sum(now.get(name) != text for name, text in before.items())
        until = time.monotonic() + DEATH_S
        markers = [path.name for path in (self._folder / "home" / "studies").glob("*/")]
        while (alive := [each for name in markers for each in marked_processes(f"{name}-")]) and (
            time.monotonic() < until
        ):
            time.sleep(0.1)
        self.found["left alive"] += len(alive)
        return now

    def _compare_with_mlflow(self) -> None:
        client = connect(f"sqlite:///{self._folder}/mlflow.db")
        runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
        tracked = Counter(each.data.tags["trial"] for each in runs if "trial" in each.data.tags)
        studies = sum(each.data.tags.get("kind") == "study" for each in runs)
        self.found["doubled"] += sum(count - 1 for count in tracked.values()) + studies - 1
        self.found["lost"] += len({*self._results()} ^ {*tracked})


def main() -> None:
    """Kill studies until there were enough kills; print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--each", type=int, default=4, help="most kills of one study")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    seed = arguments.seed
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        while (missing := arguments.kills - total["kills"]) > 0:
            studies = []
            for _ in range(max(1, min(20, missing // arguments.each))):
                folder = Path(scratch) / str(seed)
                folder.mkdir()
                studies.append(pool.submit(Killed(folder, seed).run, arguments.each))
                seed += 1
            for each in studies:
                total.update(each.result())
                total["studies"] += 1
    names = (
        "studies",
        "kills",
        "finished",
        "lost",
        "doubled",
        "left alive",
        "not ended",
        "seconds",
    )
    figures = {name: total[name] for name in names}
    print(json.dumps(figures) if arguments.json else figures)
    sys.exit(any(figures[name] for name in ("lost", "doubled", "left alive", "not ended")))


if __name__ == "__main__":
    main()
