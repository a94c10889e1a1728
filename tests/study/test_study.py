"""Whole studies of the synthetic framework, whose true front is known."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import SYNTHETIC
from tests.cross_samples import copy_framework
from tuner.config.catalogue import load_framework
from tuner.config.schema import BlasConfig, BudgetConfig, SamplerConfig, SearchConfig, VerifyConfig
from tuner.executors import LocalExecutor
from tuner.measure import Claim, marked_processes, parse_cores
from tuner.progress import StudyProgress
from tuner.recommendation.reading import evidence_of
from tuner.report.wording import footnotes
from tuner.study.preparation import results_place
from tuner.study.study import tune
from tuner.study.trial_runs import TrialRuns
from tuner.tracking import TRIAL_TAG, connect, default_tracking_uri, load_results
from tuner.trials.setup import claims_folder
from tuner.values.errors import (
    ConfigError,
    NoTrialSucceeded,
    RuntimeUnavailable,
    StorageAway,
    StorageError,
)
from tuner.values.pareto import OBJECTIVES, hypervolume
from tuner.values.trial import TrialKind, TrialStatus
from tuner.values.verified import Role
from tuner.verification.rounds import Verification

pytestmark = pytest.mark.timeout(60)
GOALS = [OBJECTIVES["accuracy"], OBJECTIVES["train_time_s"]]


def _formulas():
    """The synthetic worker's own formulas, read from its file without running it as a worker."""
    source = (SYNTHETIC / "frameworks/synthetic/worker.py").read_text()
    names: dict = {}
    kept = source[source.index("def seconds_an_iteration") : source.index("class Clock")]
    exec("import math\n" + kept, names)
    return names["seconds_an_iteration"], names["accuracy_after"]


def _true_front():
    seconds, accuracy = _formulas()
    points = []
    grid = itertools.product(
        np.geomspace(8, 256, 12).astype(int), np.geomspace(10, 2000, 25).astype(int)
    )
    for batch_size, iterations in grid:
        params = {"batch_size": batch_size, "learning_rate": 0.02, "blas": "fast", "threads": 2}
        points.append((accuracy(params, iterations), iterations * seconds(params)))
    return points


@pytest.mark.slow
def test_trial_0_is_the_default_and_everything_is_numbered_once(config):
    result = tune(config)
    assert [each.trial.number for each in result.trials] == list(range(12))
    assert result.trials[0].trial.kind is TrialKind.DEFAULT
    assert result.trials[0].params["blas"] == "slow"
    assert {each.status for each in result.trials} == {TrialStatus.COMPLETE}
    assert result.complete


@pytest.mark.slow
def test_a_default_that_ended_before_its_time_could_be_read_ends_no_study(config, monkeypatch):
    monkeypatch.setattr(Verification, "sure_s", lambda *_: 0.0)
    assert tune(config).complete


def test_a_disk_that_is_full_from_the_start_is_a_fault_that_may_pass(config, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "study.json")

    monkeypatch.setattr("tuner.study.study.prepare", full)
    with pytest.raises(StorageAway, match=r"study.json cannot be written \(No space left"):
        tune(config)


@pytest.mark.slow
def test_without_a_sandbox_every_answer_says_so(config, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tuner.runtimes.base.sandbox_fault", lambda: "bwrap is not on PATH; get it"
    )
    with pytest.raises(RuntimeUnavailable, match="not on PATH; get it; or set sandbox=off"):
        tune(config)
    brief = dataclasses.replace(config, sandbox=False, budget=BudgetConfig(time_s=30, trials=4))
    result = tune(brief)
    assert any("without a sandbox" in each for each in result.warnings)
    assert result.machine["sandbox"] == "off"
    (record,) = load_results(default_tracking_uri(tmp_path), "synthetic", "digits")
    found = evidence_of(record)
    assert found
    assert all("without a sandbox" in each.assurance for each in found)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_search_finds_the_known_front(config):
    config = dataclasses.replace(config, budget=BudgetConfig(time_s=90, trials=80))
    result = tune(config)
    default = result.trials[0]
    reference = (0.0, GOALS[1].value(default.metrics))
    best = hypervolume(_true_front(), reference, GOALS)
    found = [[goal.value(each.metrics) for goal in GOALS] for each in result.trials if each.usable]
    assert hypervolume(found, reference, GOALS) > 0.95 * best
    fastest = result.verified[1]
    assert fastest.params["blas"] == "fast"
    assert fastest.against_default.speedup.low > 5


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_every_sampler_runs(config, sampler):
    config = dataclasses.replace(
        config, sampler=SamplerConfig(sampler), budget=BudgetConfig(time_s=30, trials=5)
    )
    assert len(tune(config).trials) == 5


@pytest.mark.slow
def test_the_display_counts_what_was_measured_before(config):
    class Shown(StudyProgress):
        counts: tuple[int, ...] = ()

        def budget(self, elapsed_s, total_s, trials, max_trials) -> None:
            self.counts += (trials,)

    tune(dataclasses.replace(config, budget=BudgetConfig(time_s=30, trials=3)))
    shown = Shown()
    tune(dataclasses.replace(config, budget=BudgetConfig(time_s=30, trials=5)), shown)
    assert shown.counts[0] == 3
    assert shown.counts[-1] == 5


@pytest.mark.slow
def test_ray_tunes_search_runs_and_goes_on(config):
    pytest.importorskip("ray", reason="pip install 'tuner[ray]'")
    config.search = SearchConfig("raytune", warm_start=False)
    for trials in (4, 6):
        result = tune(dataclasses.replace(config, budget=BudgetConfig(time_s=30, trials=trials)))
        assert [each.trial.number for each in result.trials] == list(range(trials))


@pytest.mark.slow
def test_constraints_keep_finalists_inside(config):
    config = dataclasses.replace(config, constraints=["accuracy>=0.9"])
    result = tune(config)
    numbers = {each.trial_number for each in result.verified} - {0}
    assert all(result.trials[number].val_accuracy >= 0.9 for number in numbers)


@pytest.mark.slow
def test_other_objectives(config):
    config = dataclasses.replace(
        config,
        objectives=["accuracy", "train_time_s", "peak_memory_mb"],
        budget=BudgetConfig(time_s=30, trials=4),
    )
    assert [each.name for each in tune(config).objectives][-1] == "peak_memory_mb"


@pytest.mark.slow
def test_the_default_may_lie_outside_the_space(config):
    config = dataclasses.replace(
        config,
        search_space={"batch_size": {"low": 100, "high": 200}},
        budget=BudgetConfig(time_s=30, trials=4),
    )
    result = tune(config)
    assert result.trials[0].params["batch_size"] == 64
    assert all(100 <= each.params["batch_size"] <= 200 for each in result.trials[1:])


@pytest.mark.slow
def test_a_complete_study_is_shown_again_and_a_larger_budget_goes_on(config):
    first = tune(config)
    again = tune(config)
    assert again.trials == first.trials, "with all their figures: nothing was measured again"
    assert again.verified == first.verified
    uri, _ = results_place(config)
    (record,) = load_results(uri, "synthetic", "digits")
    assert connect(uri).get_run(record.run_id).info.status == "FINISHED"
    more = tune(dataclasses.replace(config, budget=BudgetConfig(time_s=60, trials=15)))
    assert more.trials[:12] == first.trials
    assert len(more.trials) == 15
    assert more.verifications[: len(first.verifications)] == first.verifications


@pytest.mark.slow
def test_a_full_baseline_is_paid_once_a_machine(config):
    config = dataclasses.replace(
        config, baseline="full", budget=BudgetConfig(time_s=30, trials=3, default_share=0.5)
    )
    first = tune(config).trials[0]
    assert not first.trial.projected
    assert first.iterations == 1000
    again = tune(dataclasses.replace(config, constraints=["accuracy>=0.1"])).trials[0]
    assert again == first
    other = tune(dataclasses.replace(config, seed=2)).trials[0]
    assert other.measurement != first.measurement


@pytest.mark.slow
@pytest.mark.parametrize("database", ["", "shared.db"])
def test_resume_never_starts_anew(config, tmp_path, database):
    config.storage = config.storage or (database and f"sqlite:///{tmp_path}/{database}")
    first = tune(dataclasses.replace(config, budget=BudgetConfig(time_s=30, trials=3)))
    anew = tune(
        dataclasses.replace(config, budget=BudgetConfig(time_s=30, trials=3), resume="restart")
    )
    assert anew.started >= first.started
    assert [each.trial.number for each in anew.trials] == [0, 1, 2]
    (record,) = load_results(results_place(config)[0], "synthetic", "digits")
    logged = connect(record.uri).get_run(record.run_ids["default-0000"]).data.metrics
    assert logged["train_time_s"] == anew.trials[0].metrics["train_time_s"]


@pytest.mark.slow
def test_mlflow_has_every_run_once_with_its_files(config, tmp_path):
    result = tune(config)
    (record,) = load_results(results_place(config)[0], "synthetic", "digits")
    names = [each.trial.name for each in (*result.trials, *result.verifications)]
    assert sorted(record.run_ids) == sorted(names)
    client = connect(record.uri)
    run = client.get_run(record.run_ids["default-0000"])
    assert run.data.params["batch_size"] == "64"
    assert run.data.tags["kind"] == "default"
    assert run.data.metrics["val_accuracy"] == pytest.approx(result.trials[0].val_accuracy)
    curve = client.get_metric_history(run.info.run_id, "val_accuracy")
    assert len(curve) == len(result.trials[0].checkpoints) > 4
    assert {each.path for each in client.list_artifacts(run.info.run_id)} == {
        "trial.json",
        "events.jsonl",
        "log.txt",
    }
    assert {each.path for each in client.list_artifacts(record.run_id)} == {
        "report.html",
        "front.png",
        "front.json",
        "config.yaml",
    }
    assert run.data.tags["fingerprint"] == client.get_run(record.run_id).data.tags["fingerprint"]
    assert record.front["study_id"] == result.study_id


@pytest.mark.slow
def test_nothing_to_report_is_an_error(config):
    nowhere = {name: BlasConfig(loaded="/no-such") for name in ("fast", "slow")}
    config = dataclasses.replace(
        config,
        framework=dataclasses.replace(config.framework, blas=nowhere),
        budget=BudgetConfig(time_s=30, trials=2),
    )
    with pytest.raises(NoTrialSucceeded, match="INVALID"):
        tune(config)


@pytest.mark.slow
def test_a_default_that_crashed_is_measured_again_once_what_broke_it_is_mended(config, tmp_path):
    tree = tmp_path / "tree"
    copy_framework(tree, "mended")
    worker = tree / "frameworks" / "mended" / "worker.py"
    whole = worker.read_text(encoding="utf-8")
    config = dataclasses.replace(
        config,
        framework=load_framework("mended", str(tree)),
        framework_path=str(tree),
        budget=BudgetConfig(time_s=30, trials=2),
    )
    worker.write_text("raise SystemExit(1)", encoding="utf-8")
    with pytest.raises(NoTrialSucceeded, match="CRASHED"):
        tune(config)
    worker.write_text(whole, encoding="utf-8")
    result = tune(config)
    assert result.trials[0].status is TrialStatus.COMPLETE
    (record,) = load_results(default_tracking_uri(tmp_path), "mended", "digits")
    run = connect(record.uri).get_run(record.run_ids["default-0000"])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["train_time_s"] > 0


@pytest.mark.slow
def test_what_is_measured_again_after_damage_is_what_mlflow_shows(config, home):
    config = dataclasses.replace(config, budget=BudgetConfig(time_s=30, trials=3))
    first = tune(config)
    spoilt = [first.trials[1], first.verifications[0]]
    for each in spoilt:
        name = f"studies/{first.study_id}/trials/{each.trial.name}/result.json"
        (home / name).write_text("{", encoding="utf-8")
    again = tune(dataclasses.replace(config, budget=BudgetConfig(time_s=60, trials=4)))
    assert len(again.trials) == 4
    (record,) = load_results(results_place(config)[0], "synthetic", "digits")
    for result in (*again.trials, *again.verifications):
        logged = connect(record.uri).get_run(record.run_ids[result.trial.name]).data.metrics
        assert logged["wall_time_s"] == result.metrics["wall_time_s"]


@pytest.mark.slow
def test_an_interruption_loses_no_trial_that_had_ended(config, home, monkeypatch):
    submit, begun = LocalExecutor.submit, []

    def noted(executor, trial):
        begun.append(submit(executor, trial))
        return begun[-1]

    def interrupted(*_):
        if len(begun) == 3:  # the default, and two trials side by side
            wait(begun)
            raise KeyboardInterrupt

    monkeypatch.setattr(LocalExecutor, "slots", 2)
    monkeypatch.setattr(LocalExecutor, "submit", noted)
    monkeypatch.setattr(TrialRuns, "tell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(config)
    kept = [each.parent.name for each in (home / "studies").glob("*/trials/*/result.json")]
    assert sorted(kept) == ["default-0000", "search-0001", "search-0002"]


def test_a_study_that_cannot_be_prepared_can_be_tried_again(config, monkeypatch):
    def refuse(*_, **__):
        raise ConfigError("no such setup")

    monkeypatch.setattr("tuner.study.preparation.make_setup", refuse)
    with pytest.raises(ConfigError, match="no such setup") as kept:  # with all its frames
        tune(config)
    with pytest.raises(ConfigError, match="no such setup"):
        tune(config)
    assert kept.value


def test_a_study_too_short_for_its_network_is_refused(config, tmp_path):
    tree = tmp_path / "tree"
    copy_framework(tree, "large", **{"source: made up": "source: made up, least_budget_s: 7200"})
    space = tree / "search_spaces" / "large.yaml"
    text = space.read_text().replace("made up, least", "made up\n    least", 1)
    space.write_text(text)
    large = dataclasses.replace(
        config, framework=load_framework("large", str(tree)), framework_path=str(tree)
    )
    with pytest.raises(ConfigError) as refused:
        tune(large)
    assert str(refused.value) == (
        "model=default is too large for a study of 60 s; it needs budget.time_s=7200 or more"
    )


def test_an_unreadable_mlruns_is_refused_before_anything_runs(config, tmp_path):
    (tmp_path / "mlruns").write_text("a file where a folder should be")
    with pytest.raises(StorageError, match="mlruns"):
        tune(config)


@pytest.mark.parametrize("address", ["mysql://me:secret@host/db", "results"])
def test_a_storage_that_cannot_be_locked_is_refused_before_anything_runs(config, address):
    config.storage = address
    with pytest.raises(
        StorageError, match="must be an address of SQLite or PostgreSQL"
    ) as refused:
        tune(config)
    assert "secret" not in str(refused.value)


class _Interrupts(StudyProgress):
    """Presses Ctrl-C after some trials."""

    def __init__(self, after: int) -> None:
        self.left = after

    def trial_started(self, trial):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_the_study_goes_on(config):
    with pytest.raises(KeyboardInterrupt):
        tune(config, _Interrupts(5))
    result = tune(config)
    assert [each.trial.number for each in result.trials] == list(range(12))
    assert result.complete


@pytest.mark.slow
def test_one_study_is_run_by_one_process(config):
    class Nested(StudyProgress):
        def trial_started(self, trial):
            with pytest.raises(ConfigError, match="another process"):
                tune(config)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(config, Nested())


@pytest.mark.slow
class _Waiter(StudyProgress):
    """Does something as soon as a study waits for its CPUs."""

    def __init__(self, act) -> None:
        self.act, self.waited_for = act, ""

    def phase(self, name: str, detail: str = "") -> None:
        if name == "waiting":
            self.waited_for = detail
            self.act()


@pytest.mark.slow
def test_a_study_waits_for_its_cpus_and_its_time_does_not_run_meanwhile(config):
    taken = Claim(parse_cores(""), claims_folder())
    shown = _Waiter(lambda: (time.sleep(3), taken.close()))
    config = dataclasses.replace(config, budget=BudgetConfig(time_s=60, trials=2))
    begun = time.monotonic()
    result = tune(config, shown)
    assert f"process {os.getpid()}" in shown.waited_for
    assert len(result.trials) == 2
    assert result.elapsed_s < time.monotonic() - begun - 3
    Claim(parse_cores(""), claims_folder()).close()  # it was given back


@pytest.mark.slow
def test_ctrl_c_ends_the_waiting_and_the_same_command_goes_on(config):
    shown = _Waiter(lambda: os.kill(os.getpid(), signal.SIGINT))
    with Claim(parse_cores(""), claims_folder()), pytest.raises(KeyboardInterrupt):
        tune(config, shown)
    assert tune(dataclasses.replace(config, budget=BudgetConfig(time_s=60, trials=2))).trials


@pytest.mark.slow
def test_no_verification_when_none_is_asked_for(config):
    result = tune(dataclasses.replace(config, verify=VerifyConfig(finalists=0)))
    assert result.verified == ()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_9_at_random_moments_loses_and_doubles_nothing(home, tmp_path):
    command = [
        *(sys.executable, "-m", "tuner", f"framework_path={SYNTHETIC}", "framework=synthetic"),
        *("dataset=digits", "budget.time_s=120", "budget.trials=16", "verify.finalists=1"),
        "search.probe_s=0.0005",
        *("verify.repeats=2", "measure.max_foreign_pct=100", f"output={tmp_path}"),
    ]
    environment = {**os.environ, "TUNER_HOME": str(home)}
    chance = random.Random(7)
    kept: dict[str, str] = {}
    for _ in range(4):  # benchmarks/kills.py kills hundreds of times
        begun = len(_begun(home))
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while len(_begun(home)) == begun and process.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 1.0))
        process.kill()
        process.wait()
        time.sleep(0.3)
        assert not _workers(home), "a worker outlived the tuner"
        now = _results(home)
        assert {name: now.get(name) for name in kept} == kept, "a finished trial was changed"
        kept = now
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [*home.glob("studies/*/trials/workers/*")], "killed workers left something"
    names = [name for name in _results(home) if not name.startswith("verify")]
    assert sorted(int(name[-4:]) for name in names) == list(range(16))
    (record,) = load_results(f"sqlite:///{tmp_path}/mlflow.db", "synthetic", "digits")
    client = connect(record.uri)
    runs = client.search_runs(
        [client.get_experiment_by_name("synthetic-digits").experiment_id],
        f"tags.`mlflow.parentRunId` = '{record.run_id}'",
    )
    logged = Counter(run.data.tags[TRIAL_TAG] for run in runs)
    assert set(logged) == set(_results(home))
    assert set(logged.values()) == {1}


def _begun(home: Path) -> list[Path]:
    return list(home.glob("studies/*/trials/*-*"))


def _results(home: Path) -> dict[str, str]:
    paths = home.glob("studies/*/trials/*/result.json")
    return {
        path.parent.name: json.loads(path.read_text())["status"] + path.read_text()
        for path in paths
    }


def _workers(home: Path) -> list[int]:
    """Living processes of the studies below ``home``."""
    return [
        pid for folder in home.glob("studies/*") for pid in marked_processes(f"{folder.name}-")
    ]


@pytest.mark.slow
def test_sigterm_is_as_gentle_as_ctrl_c(home, tmp_path):
    command = [
        *(sys.executable, "-m", "tuner", f"framework_path={SYNTHETIC}", "framework=synthetic"),
        *("dataset=digits", "budget.time_s=120", "search.probe_s=0.0005", f"output={tmp_path}"),
    ]
    process = subprocess.Popen(
        command,
        env={**os.environ, "TUNER_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process.stderr:
        for line in process.stderr:
            if "trial 2" in line:
                break
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read()
    assert process.wait(timeout=20) == 130
    assert "the same command resumes" in errors
    assert "Traceback" not in errors
    assert not _workers(home)


@pytest.fixture
def factored(config):
    config.search = SearchConfig("factored", probe_s=0.0005)
    return config


@pytest.mark.slow
def test_factored_search_composes_a_front_near_the_truth(factored, home):
    result = tune(factored)
    assert result.trials[0].params["blas"] == "slow"
    assert {each.params["blas"] for each in result.trials[-4:]} == {"fast"}
    assert result.runtimes.fastest(64)["blas"] == "fast"
    assert result.derived
    assert {each.trial.kind for each in result.derived} == {TrialKind.DERIVED}
    corner = (0.0, 1e-4)
    truth = hypervolume(_true_front(), corner, GOALS)
    found = hypervolume(
        [[goal.value(each.metrics) for goal in GOALS] for each in result.front], corner, GOALS
    )
    assert found >= 0.9 * truth
    assert len(list((home / "runtime-maps").glob("*.json"))) == 1
    (record,) = load_results(results_place(factored)[0], "synthetic", "digits")
    assert record.front["runtimes"][0]["setting"] == result.runtimes.fastest(64)
    assert record.front["runtimes"][0]["iteration_s"]["64"]["value"] > 0


@pytest.mark.slow
def test_a_derived_finalist_is_verified_by_runs_of_its_own(factored):
    result = tune(factored)
    derived = [each for each in result.verified if each.composed is not None]
    assert derived, "the front of a dozen curves is mostly derived"
    for each in derived:
        assert " at " in each.name or each.role is Role.RUNTIME_ONLY
        assert not each.refuted
        runs = [run for run in result.verifications if run.trial.name in each.runs]
        assert {run.params["iterations"] for run in runs} == {each.params["iterations"]}
    with_map = dataclasses.replace(factored, seed=2)
    again = tune(with_map)
    known = len(result.runtimes.probes)
    assert again.runtimes.probes[:known] == result.runtimes.probes, "kept for the machine"


@pytest.mark.slow
def test_a_factored_study_goes_on_where_it_was(factored):
    first = tune(dataclasses.replace(factored, budget=BudgetConfig(time_s=60, trials=6)))
    done = tune(dataclasses.replace(factored, budget=BudgetConfig(time_s=60, trials=9)))
    assert [each.trial.number for each in done.trials] == list(range(9))
    assert done.trials[:6] == first.trials
    same = tune(dataclasses.replace(factored, budget=BudgetConfig(time_s=60, trials=9)))
    assert same.verified == done.verified
    assert [each.trial.name for each in same.front] == [each.trial.name for each in done.front]


@pytest.mark.slow
def test_what_was_verified_stands_though_it_would_be_composed_otherwise_now(factored, home):
    done = tune(factored)
    assert any(each.composed for each in done.verified)
    for path in (*home.glob("runtime-maps/*.json"), *home.glob("studies/*/runtimes.json")):
        path.unlink()
    assert tune(factored).verified == done.verified


def _changed(config, tmp_path, **words):
    """The same study of a framework whose formulas are others."""
    tree = tmp_path / "tree"
    copy_framework(tree, "twisted", **words)
    return dataclasses.replace(
        config,
        framework=load_framework("twisted", str(tree)),
        framework_path=str(tree),
        verify=VerifyConfig(finalists=3, repeats=2),
    )


@pytest.mark.slow
def test_time_that_is_not_linear_in_iterations_is_found_out(factored, tmp_path):
    curved = "clock.now += count * seconds_an_iteration(params) * (1 + done[0] / 60.0)"
    twisted = _changed(
        factored, tmp_path, **{"clock.now += count * seconds_an_iteration(params)": curved}
    )
    twisted.search = SearchConfig("factored", probe_s=2e-5)  # far from a trial's
    result = tune(twisted)
    assert np.median(result.pace_ratios) > 1.25
    assert any("time does not factor here" in note for note in footnotes(result))
    for each in (one for one in result.verified if one.composed):
        assert each.refuted or each.train_time_s.value < 1.1 * each.composed[0]
    assert not any("does not factor" in note for note in footnotes(tune(factored)))


@pytest.mark.slow
def test_accuracy_that_depends_on_the_runtime_is_found_out(factored, tmp_path):
    worse = 'return (0.8 if params["blas"] == "fast" else 0.99) - 0.7 * math.exp('
    twisted = _changed(factored, tmp_path, **{"return 0.99 - 0.89 * math.exp(": worse})
    result = tune(twisted)
    assert "accuracy" in {each.refuted for each in result.verified}
    assert max(each.test_accuracy.value for each in result.verified[1:]) < 0.9
    assert any(
        "learns differently at the fastest runtime setting" in each for each in result.notes
    )
    assert result.answers.no_loss is None


@pytest.mark.slow
def test_a_prior_is_tried_before_all_else_and_one_outside_is_refused(config):
    config.prior = [{"batch_size": 17}, {"learning_rate": 0.02}]
    config.budget = BudgetConfig(time_s=60, trials=3)
    result = tune(config)
    assert result.trials[1].params["batch_size"] == 17
    assert result.trials[2].params["learning_rate"] == 0.02
    with pytest.raises(ConfigError, match=r"prior .*batch_size.* is outside the search space"):
        tune(dataclasses.replace(config, prior=[{"batch_size": 10**6}]))


@pytest.mark.slow
def test_a_warm_start_begins_with_what_an_earlier_study_verified(factored, home):
    first = tune(factored)
    verified = [each.params["batch_size"] for each in first.verified[1:]]
    warm = dataclasses.replace(factored.search, warm_start=True)
    again = tune(dataclasses.replace(factored, seed=7, search=warm))
    facts = json.loads((home / "studies" / again.study_id / "study.json").read_text())
    assert facts["hints"]
    assert {each["batch_size"] for each in facts["hints"]} <= set(verified)
    # what an earlier study verified may be the default at another runtime setting
    own = {name: again.trials[0].params[name] for name in ("batch_size", "learning_rate")}
    others = [each for each in facts["hints"] if not own.items() <= each.items()]
    for each in others[:1]:
        assert {name: each[name] for name in own}.items() <= again.trials[1].params.items()
    assert again.study_id != first.study_id
    same = tune(dataclasses.replace(factored, seed=7, search=warm))
    assert same.trials == again.trials, "a study goes on as it began"
