"""Claims and outcomes of jobs: whether promises were kept, and what follows if they were not."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import random
import statistics
import time
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.conftest import MLFLOW, SYNTHETIC, add_database
from tests.report_samples import make_study
from tests.served import Client, keep, served_here
from tuner.recommendation.evidence import Evidence
from tuner.recommendation.reading import evidence_of
from tuner.service.app import make_app
from tuner.service.claims import FALSE_ALARM_AFTER, Outcome, Promised, has_drifted
from tuner.service.jobs import Jobs
from tuner.service.orders import own_words
from tuner.service.promises import Contradiction, Promises, UnknownClaim
from tuner.tracking import connect, load_everything
from tuner.values.errors import StorageAway
from tuner.values.verified import Role

pytestmark = pytest.mark.timeout(60)
KEPT, SLOW, WRONG = Outcome(41.0, 0.99), Outcome(300.0, 0.99), Outcome(41.0, 0.5)


@pytest.fixture(scope="module")
def uri(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("store")
    address = add_database(folder, MLFLOW)
    own = {"blas": "fast", "threads": 1, "blas_kernel": "auto", "fault": ""}
    points = [
        dataclasses.replace(each, params={**each.params, **own}) for each in make_study().verified
    ]
    keep(folder, framework="synthetic", dataset="digits", verified=tuple(points))
    return address


@pytest.fixture
def evidence(uri) -> Evidence:
    (record,) = load_everything(uri).values()
    return next(each for each in evidence_of(record) if each.role == Role.NO_LOSS.value)


@pytest.fixture
def promises(tmp_path) -> Promises:
    return Promises(tmp_path / "jobs" / "promises.db")


def test_a_job_is_promised_what_one_run_may_take_and_reach(promises, evidence):
    claim, new = promises.claim(evidence, "slurm-1", applied=True)
    assert new
    assert claim.promised.train_time_s == evidence.train_time_s
    assert claim.promised.longest_s == evidence.job_time_s.high > evidence.train_time_s
    assert claim.promised.least_accuracy < evidence.test_accuracy.low, "a run is no mean of runs"
    assert claim.promised.speedup == evidence.speedup.value > 1
    again, new = promises.claim(evidence, "slurm-1", applied=False)
    assert (again, new) == (claim, False)


@pytest.mark.parametrize(
    ("outcome", "kept", "breach"),
    [
        (KEPT, True, ""),
        (Outcome(1.0), True, ""),
        (SLOW, False, "trained for 300 s, promised were at most "),
        (WRONG, False, "reached 50.00 %, promised were at least "),
        (Outcome(), None, ""),
    ],
)
def test_a_promise_is_judged_by_time_and_accuracy(promises, evidence, outcome, kept, breach):
    promises.claim(evidence, "a", applied=True)
    claim, drift = promises.end(evidence.id, "a", outcome)
    assert (claim.kept, claim.outcome, drift) == (kept, outcome, None)
    assert claim.breach.startswith(breach)
    assert bool(claim.breach) == bool(breach)
    repeated, _ = promises.end(evidence.id, "a", outcome)
    assert repeated == claim
    with pytest.raises(Contradiction, match="job a has already reported"):
        promises.end(evidence.id, "a", Outcome(77.0))
    with pytest.raises(UnknownClaim, match="job b has not claimed"):
        promises.end(evidence.id, "b", outcome)


def test_what_broke_a_promise_of_hours_is_told_in_full():
    promised = Promised(3600.0, 3612.5, 0.9, 2.0, 0.95)
    said = promised.breach(Outcome(3614.25))
    assert said == "trained for 3614.25 s, promised were at most 3612.5 s"


def test_what_is_claimed_survives_the_service(promises, evidence, tmp_path):
    promises.claim(evidence, "a", applied=True)
    claim, _ = promises.end(evidence.id, "a", KEPT)
    promises.close()
    assert Promises(tmp_path / "jobs" / "promises.db").claims(evidence.id, 9) == [claim]


def test_only_so_many_claims_are_remembered(promises, evidence, monkeypatch):
    monkeypatch.setattr("tuner.service.promises._MAX_CLAIMS", 3)
    for number in range(6):
        promises.claim(evidence, f"job-{number}", applied=True)
    assert [each.job for each in promises.claims(evidence.id, 9)] == ["job-5", "job-4", "job-3"]


def test_the_balance_counts_what_was_saved_and_what_would_have_been(promises, evidence):
    assert promises.balance().claimed == 0
    outcomes = (KEPT, SLOW, Outcome(), None, Outcome(190.0), Outcome())
    for number, outcome in enumerate(outcomes):
        promises.claim(evidence, str(number), applied=number < 4)
        if outcome:
            promises.end(evidence.id, str(number), outcome)
    found = promises.balance(evidence.id)
    assert found == promises.balance()
    counted = (found.claimed, found.kept, found.broken, found.failed, found.observed)
    assert counted == (6, 1, 1, 2, 1)
    default_s = evidence.train_time_s * evidence.speedup.value
    assert found.saved_s == pytest.approx(2 * default_s - 341.0)
    assert found.not_saved_s == pytest.approx(190.0 - evidence.train_time_s)
    assert promises.balance("another").claimed == 0


def test_broken_promises_in_a_row_are_drift_of_the_study_once(promises, evidence):
    for number in range(4):
        promises.claim(evidence, str(number), applied=True)
    _, first = promises.end(evidence.id, "0", SLOW)
    _, second = promises.end(evidence.id, "1", SLOW)
    assert first is second is None
    _, third = promises.end(evidence.id, "2", WRONG)
    assert third
    assert third.how.startswith("3 of 3 jobs broke the promise; the last one reached 50.00 %")
    _, fourth = promises.end(evidence.id, "3", SLOW)
    assert fourth == third
    assert promises.drifts() == [third]
    promises.queued(third, "job-1")
    assert promises.drifts() == [dataclasses.replace(third, recheck="job-1")]


def test_jobs_that_only_observe_break_no_promise(promises, evidence):
    for number in range(5):
        promises.claim(evidence, str(number), applied=False)
        claim, drift = promises.end(evidence.id, str(number), SLOW)
        assert (claim.kept, drift) == (None, None)


def test_a_file_that_cannot_be_used_is_one_line_until_it_can(tmp_path, evidence):
    path = tmp_path / "promises.db"
    path.mkdir()
    promises = Promises(path)
    with pytest.raises(StorageAway, match="cannot be read or written") as told:
        promises.claim(evidence, "a", applied=True)
    assert promises.fault == str(told.value)
    assert "\n" not in promises.fault
    path.rmdir()
    path.write_text(
        "no database, and longer than the header of one, which has 100 bytes or more" * 9
    )
    with pytest.raises(StorageAway, match="file is not a database"):
        promises.balance()
    path.unlink()
    promises.claim(evidence, "a", applied=True)
    assert (promises.balance().claimed, promises.fault) == (1, "")


def outcomes_until_drift(share: float, seed: int, most: int) -> int:
    """How many outcomes it takes if this share of promises is broken; ``most`` if that many."""
    drawn = random.Random(seed)
    kept = [drawn.random() >= share for _ in range(most)]
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if has_drifted(kept[:middle], 0.95) else (middle + 1, high)
    return low


def test_drift_is_found_soon_where_it_is_and_seldom_where_it_is_not():
    soon = [outcomes_until_drift(0.6, seed, 200) for seed in range(200)]
    assert statistics.median(soon) <= 12
    assert max(soon) < 100
    seldom = [outcomes_until_drift(0.05, seed, 10_000) for seed in range(100)]
    assert statistics.fmean(seldom) >= FALSE_ALARM_AFTER


def test_what_is_promised_by_halves_is_never_broken():
    assert not has_drifted([True] * 99 + [False] * 99, 0.5)


def test_an_early_good_record_does_not_hide_a_later_drift():
    assert not has_drifted([True] * 500 + [False] * 2, 0.95)
    assert has_drifted([True] * 500 + [False] * 3, 0.95)


@pytest.fixture
def client(uri, home, tmp_path, monkeypatch):
    def none_starts(*_words, **_options):
        raise OSError(errno.EAGAIN, "no process can be started")

    monkeypatch.setattr("tuner.service.jobs.subprocess.Popen", none_starts)
    words = own_words(uri, str(tmp_path), str(SYNTHETIC), [])

    @contextlib.contextmanager
    def open_client(*, observe: bool = False) -> Iterator[Client]:
        app = make_app(
            uri,
            Jobs(home / "jobs"),
            words=words,
            framework_path=str(SYNTHETIC),
            observe=observe,
            refresh_s=0.1,
        )
        with served_here(app) as asked:
            yield asked

    return open_client


ASKED = {"framework": "synthetic", "dataset": "digits"}


def until(look: Callable[[], dict], name: str) -> dict:
    """What is seen once it has something under a name."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = look()
        if found[name]:
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def test_jobs_claim_and_report_over_http_and_drift_is_marked_and_measured_again(client, uri):
    with client() as asked:
        answer = asked.get("/v1/recommendations", **ASKED).json()
        assert answer["mode"] == "apply"
        place = f"/v1/recommendations/{answer['id']}"
        for number in range(3):
            job = {"job": f"pod/{number}"}
            made = asked.post(f"{place}/claims", **job)
            assert (made.status_code, made.json()["applied"]) == (201, True)
            assert asked.post(f"{place}/claims", **job).status_code == 200
            promised = made.json()["promised"]["longest_s"]
            assert promised > answer["measured"]["train_time_s"]["value"]
            came = asked.post(f"{place}/outcomes", **job, train_time_s=9 * promised)
            assert (came.status_code, came.json()["kept"]) == (200, False)
            assert bool(came.json()["drift"]) == (number == 2)
        found = until(lambda: asked.get(place).json(), "recheck")
        assert found["kept"]["broken"] == 3
        assert found["jobs"][0]["breach"] == came.json()["breach"]
        job = asked.get(f"/v1/studies/{found['recheck']}").json()
        assert (job["kind"], job["state"]) == ("recheck", "queued")
        run = connect(uri).get_run(answer["evidence"]["study_run_id"])
        assert run.data.tags["drift"] == found["drift"] == came.json()["drift"]
        stale = until(lambda: asked.get("/v1/recommendations", **ASKED).json(), "drift")
        assert (stale["id"], stale["stale"], stale["drift"]) == (
            answer["id"],
            True,
            found["drift"],
        )
        metrics = asked.get("/v1/metrics").text
        assert 'tuner_promises{kind="broken"} 3.0' in metrics
        assert "tuner_drifted_studies 1.0" in metrics
        page = asked.get("/").text
        assert "Jobs that started with a recommendation: 3." in page
        assert found["drift"] in page
        connect(uri).delete_tag(run.info.run_id, "drift")  # a person has taken note
        until(
            lambda: {"fresh": not asked.get("/v1/recommendations", **ASKED).json()["drift"]},
            "fresh",
        )
        time.sleep(0.5)  # some more looks
        assert "drift" not in connect(uri).get_run(run.info.run_id).data.tags


@pytest.mark.parametrize(
    ("path", "sent", "status", "said"),
    [
        ("ffffffffffffffff/claims", {"job": "a"}, 404, "no recommendation of this id"),
        ("{id}/claims", {"job": "a b"}, 422, "should match pattern"),
        ("{id}/claims", {}, 422, "Field required"),
        ("{id}/outcomes", {"job": "never", "train_time_s": 3}, 404, "has not claimed"),
        ("{id}/outcomes", {"job": "a"}, 422, "Field required"),
        ("{id}/outcomes", {"job": "a", "train_time_s": -3}, 422, "greater than 0"),
        ("{id}/outcomes", {"job": "a", "train_time_s": 3, "test_accuracy": 99}, 422, "less than"),
    ],
)
def test_wrong_claims_are_refused(client, path, sent, status, said):
    with client() as asked:
        key = asked.get("/v1/recommendations", **ASKED).json()["id"]
        reply = asked.post(f"/v1/recommendations/{path.format(id=key)}", **sent)
        assert reply.status_code == status
        assert said in reply.text


def test_a_service_that_only_observes_sets_nothing_and_counts_what_would_be_gained(client):
    with client(observe=True) as asked:
        answer = asked.get("/v1/recommendations", **ASKED).json()
        assert answer["mode"] == "observe"
        text = asked.get("/v1/recommendations", **ASKED, format="env").text
        lines = dict(line.split("=", 1) for line in text.splitlines())
        assert set(lines) == {"TUNER_NOTHING", "TUNER_RECOMMENDATION"}
        text = asked.get("/v1/recommendations", **ASKED, format="k8s-configmap").text
        manifest = yaml.safe_load(text)
        assert manifest["data"] == lines
        annotations = manifest["metadata"]["annotations"]
        assert annotations["tuner-recommended"] == "true", "the admission policy passes the id on"
        place = f"/v1/recommendations/{lines['TUNER_RECOMMENDATION']}"
        assert asked.post(f"{place}/claims", job="1").json()["applied"] is False
        took = answer["measured"]["train_time_s"]["value"] + 3600
        asked.post(f"{place}/outcomes", job="1", train_time_s=took)
        kept = asked.get(place).json()["kept"]
        assert kept["observed"] == 1
        assert kept["not_saved_s"] == pytest.approx(3600)
        page = asked.get("/").text
        assert "the recommended one would have saved them 60.0 min" in page


def test_a_job_in_apply_mode_is_told_the_id_too(client):
    with client() as asked:
        key = asked.get("/v1/recommendations", **ASKED).json()["id"]
        text = asked.get("/v1/recommendations", **ASKED, format="env").text
        assert f"TUNER_RECOMMENDATION={key}\n" in text
        assert "TUNER_NOTHING" not in text


def test_the_id_is_that_of_the_configuration(uri):
    (record,) = load_everything(uri).values()
    ids = [each.id for each in evidence_of(record)]
    assert len(set(ids)) == len(ids) > 1
    assert ids == [each.id for each in evidence_of(record)]
