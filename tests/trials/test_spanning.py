"""Trials whose group spans nodes: what comes of the parts."""

from __future__ import annotations

import pytest

from tests.report_samples import make_measurement
from tuner.config.schema import ExecutorConfig, TuneConfig
from tuner.trials.attestation import Seen, attest
from tuner.trials.session import WorkerSession
from tuner.trials.setup import host_facts
from tuner.trials.spanning import along, merged
from tuner.values.errors import ConfigError
from tuner.values.trial import Measurement, TrialKind, TrialResult, TrialStatus

NAMES = ("here", "there")


@pytest.fixture
def ended(make_trial):
    """Results of a trial on two nodes, by how its parts ended."""

    def end(*parts: tuple[TrialStatus, str] | Measurement) -> TrialResult:
        trial = make_trial(nodes=2)
        results = [
            TrialResult(trial, TrialStatus.COMPLETE, measurement=part, val_accuracy=0.9)
            if isinstance(part, Measurement)
            else TrialResult(trial, *part, log_tail=f"tail of {part[1]}")
            for part in parts
        ]
        return merged(results, NAMES)

    return end


def test_figures_are_sums_and_times_those_of_the_first(ended):
    sums = {"cpu_user_s": 3.0, "peak_memory_bytes": 5, "sent_bytes": 7, "processes_seen": 2}
    whole = ended(
        make_measurement(10.0, **sums, cpu_user_pct=40.0, threads_seen=3),
        make_measurement(11.0, **sums, cpu_user_pct=60.0, threads_seen=4, disturbed="others"),
    )
    assert (whole.status, whole.val_accuracy) == (TrialStatus.COMPLETE, 0.9)
    found = whole.measurement
    assert {name: getattr(found, name) for name in sums} == {
        name: 2 * value for name, value in sums.items()
    }
    assert (found.train_time_s, found.cpu_user_pct, found.threads_seen) == (10.0, 50.0, 4)
    assert found.disturbed == "others"
    assert isinstance(found.peak_memory_bytes, int)


CRASHED = TrialStatus.CRASHED, "worker 2 of 2 died"
MEMORY = TrialStatus.OUT_OF_MEMORY, "killed by the kernel"
ENDED = TrialStatus.INTERRUPTED, "the tuner was stopped"
INVALID = TrialStatus.INVALID, "2 threads were requested but 4 were seen"


@pytest.mark.parametrize(
    ("parts", "status", "reason"),
    [
        ((CRASHED, MEMORY), TrialStatus.OUT_OF_MEMORY, "killed by the kernel (there)"),
        ((MEMORY, CRASHED), TrialStatus.OUT_OF_MEMORY, "killed by the kernel (here)"),
        ((ENDED, CRASHED), TrialStatus.CRASHED, "worker 2 of 2 died (there)"),
        (
            (CRASHED, CRASHED),
            TrialStatus.CRASHED,
            "worker 2 of 2 died (here); worker 2 of 2 died (there)",
        ),
        ((make_measurement(1.0), INVALID), TrialStatus.INVALID, f"{INVALID[1]} (there)"),
    ],
)
def test_what_says_most_is_the_reason(ended, parts, status, reason):
    whole = ended(*parts)
    assert (whole.status, whole.reason) == (status, reason)
    assert "tail of" in whole.log_tail


def test_other_nodes_train_the_same_iterations_and_judge_nothing(make_trial):
    trial = make_trial(3, nodes=2, iterations=70, rivals=((1.0, 0.9),), curve=10, test=True)
    other = along(trial)
    assert (other.kind, other.test, other.rivals, other.curve) == (TrialKind.PROBE, False, (), 0)
    assert other.params == trial.params


def test_each_node_is_held_against_its_own_part():
    params = {"workers": 2, "nodes": 3, "threads": 1}
    seen = Seen("", threads=1, cores_used=2.0, processes=2)
    assert attest(params, {}, seen, {"workers": 6}) == ""
    assert "6 was requested" in attest(params, {}, seen, {"workers": 2})
    alone = Seen("", threads=1, cores_used=2.0, processes=1)
    assert "2 workers were requested" in attest(params, {}, alone, {"workers": 6})


def test_one_machine_trains_no_group_that_spans_nodes(setup, make_trial):
    with pytest.raises(ConfigError, match="nodes=2: a trial on one machine has one node"):
        WorkerSession(setup, make_trial(nodes=2).params)


def test_the_cluster_belongs_to_the_machine_where_trials_use_its_network():
    def facts(nodes, address):
        executor = ExecutorConfig("ray", nodes_per_trial=nodes, address=address)
        return host_facts(TuneConfig(executor=executor))

    assert facts(2, "10.0.0.1:6379")["nodes"] == "2 of the Ray cluster at 10.0.0.1:6379"
    assert facts(2, "10.0.0.1:6379") != facts(2, "10.0.0.9:6379")
    assert facts(1, "10.0.0.1:6379") == facts(1, "10.0.0.9:6379")
