"""The service under a fuzzer that knows its description: it answers all in its terms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.fuzzing import examples
from tests.report_samples import make_grouped
from tests.served import Service, keep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + examples(0))]
# on a busy machine a request may take long, and this is no test of how long
SETTINGS = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
ONE = "/v1/recommendations/{recommendation_id}"
OPERATIONS = [
    ("GET", "/v1/recommendations"),
    ("GET", ONE),
    ("POST", f"{ONE}/claims"),
    ("POST", f"{ONE}/outcomes"),
    ("GET", "/v1/pareto"),
    ("GET", "/v1/programs"),
    ("GET", "/v1/programs/{program}"),
    ("GET", "/v1/studies"),
    ("GET", "/v1/studies/{study_id}"),
    ("POST", "/v1/studies"),
    ("DELETE", "/v1/studies/{job_id}"),
    ("GET", "/v1/frameworks"),
    ("GET", "/v1/healthz"),
    ("GET", "/v1/livez"),
    ("GET", "/v1/metrics"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fuzzed")
    keep(folder, runtimes=make_grouped().runtimes)
    service = Service(folder)
    yield service.address
    assert service.stop() == (0, ""), "nothing failed while it answered"


@pytest.fixture(scope="module")
def description(address):
    # on a busy machine the first description takes long
    return schemathesis.openapi.from_url(f"{address}/openapi.json", timeout=60)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_answer_is_one_that_is_described(description, method, path):
    @SETTINGS
    @given(description[path][method].as_strategy())
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate()

    ask()


@pytest.mark.parametrize(("method", "path"), [each for each in OPERATIONS if ONE in each[1]])
def test_so_is_every_answer_about_a_recommendation_that_exists(address, description, method, path):
    known = requests.get(f"{address}/v1/recommendations", timeout=60).json()["id"]

    @SETTINGS
    @given(description[path][method].as_strategy())
    def ask(case: schemathesis.Case) -> None:
        case.path_parameters["recommendation_id"] = known
        case.call_and_validate()

    ask()


def test_nothing_is_left_out(description):
    described = {
        (each.ok().method.upper(), each.ok().path) for each in description.get_all_operations()
    }
    assert described == set(OPERATIONS)
