"""The chart's admission policies: a manifest goes in, and comes out as Kubernetes would make it.

Kubernetes types the objects in an expression (``Object.spec{name: …}``). The CEL library here has
no such types, so they are replaced by maps; all else of an expression is evaluated as it is. Of
Kubernetes' library of strings it gets ``replace``.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import celpy
import pytest
import yaml
from celpy import celtypes
from kubernetes_validate import validate

from tests.test_deploy import GIVEN, rendered
from tuner.recommendation.placement import render, render_nothing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

ANSWER = {
    "framework": "caffe",
    "dataset": "mnist",
    "params": {},
    "environment": {"OPENBLAS_NUM_THREADS": "1"},
    "evidence": {"study_run_id": "abc", "fingerprint": "f00", "expires": 0},
}
ASKED = {"framework": "caffe", "dataset": "mnist"}
EVIDENCE = {"TUNER_EVIDENCE": "abc", "TUNER_FINGERPRINT": "f00",
            "TUNER_EXPIRES": "1970-01-01T00:00:00Z"}  # fmt: skip
ADDED = {"OPENBLAS_NUM_THREADS": "1", **EVIDENCE}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train", "labels": {"tuner": "caffe-mnist"}},
    "spec": {
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {"name": "train", "image": "caffe", "env": [{"name": "A", "value": "b"}]},
                    {"name": "beside", "image": "busybox"},
                ],
            }
        }
    },
}
TRAINJOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "train", "labels": {"tuner": "caffe-mnist"}},
    "spec": {"trainer": {"numNodes": 1, "env": [{"name": "A", "value": "b"}]}},
}


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    return rendered((*GIVEN, "--set", "admission.enabled=true"))


def evaluate(expression: str, **values: Any) -> Any:
    untyped = re.sub(r"\bObject[\w.]*\{", "{", expression)
    untyped = re.sub(r"([{,]\s*)(\w+):", r'\1"\2":', untyped)
    environment = celpy.Environment()
    replace = {"replace": lambda text, *words: celtypes.StringType(text.replace(*words))}
    program = environment.program(environment.compile(untyped), functions=replace)
    found = program.evaluate({name: celpy.json_to_cel(each) for name, each in values.items()})
    return json.loads(json.dumps(found, cls=celpy.CELJSONEncoder))


def merge(own: Any, applied: Any) -> Any:
    """Merge as server-side apply does: maps by key, lists of named entries by name."""
    if isinstance(own, dict) and isinstance(applied, dict):
        return own | {name: merge(own.get(name), value) for name, value in applied.items()}
    if isinstance(applied, list):
        merged = {each["name"]: each for each in own or []}
        for each in applied:
            merged[each["name"]] = merge(merged.get(each["name"]), each)
        return list(merged.values())
    return applied


def admit(manifests: list[dict[str, Any]], created: dict[str, Any], form: str) -> dict[str, Any]:
    """Return what Kubernetes makes of a manifest, with one ConfigMap in its namespace."""
    params = yaml.safe_load(form)
    group, _, _ = created["apiVersion"].partition("/")
    policies = [each for each in manifests if each["kind"] == "MutatingAdmissionPolicy"]
    (policy,) = (
        each["spec"]
        for each in policies
        if group in each["spec"]["matchConstraints"]["resourceRules"][0]["apiGroups"]
    )
    for condition in policy["matchConditions"]:
        if not evaluate(condition["expression"], object=created, params=params):
            return created
    (mutation,) = policy["mutations"]
    expression = mutation["applyConfiguration"]["expression"]
    return merge(copy.deepcopy(created), evaluate(expression, object=created, params=params))


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


def test_a_job_gets_what_is_recommended(manifests):
    admitted = admit(manifests, JOB, render("k8s-configmap", ANSWER, ASKED))
    first, second = admitted["spec"]["template"]["spec"]["containers"]
    assert variables(first) == {"A": "b", **ADDED}
    assert variables(second) == ADDED
    assert (first["image"], second["image"]) == ("caffe", "busybox")
    assert admitted["metadata"] == JOB["metadata"]


def test_what_a_job_sets_itself_stays(manifests):
    own = copy.deepcopy(JOB)
    containers = own["spec"]["template"]["spec"]["containers"]
    containers[0]["env"] = [{"name": "OPENBLAS_NUM_THREADS", "value": "8"}]
    admitted = admit(manifests, own, render("k8s-configmap", ANSWER, ASKED))
    first = admitted["spec"]["template"]["spec"]["containers"][0]
    assert variables(first) == {"OPENBLAS_NUM_THREADS": "8", **EVIDENCE}


@pytest.mark.parametrize("created", [JOB, TRAINJOB])
def test_what_kubernetes_would_expand_is_kept_from_it(manifests, created):
    answer = ANSWER | {"environment": {"A": "own", "PRICE": "$5 or $(A)"}}
    admitted = admit(manifests, created, render("k8s-configmap", answer, ASKED))
    spec = admitted["spec"]
    train = spec.get("trainer") or spec["template"]["spec"]["containers"][0]
    assert variables(train)["PRICE"] == "$$5 or $$(A)"
    assert variables(train)["A"] == "b"


@pytest.mark.parametrize("trainer", [TRAINJOB["spec"]["trainer"], {"numNodes": 1}, None])
def test_a_trainjob_gets_it_when_it_is_created(manifests, trainer):
    created = copy.deepcopy(TRAINJOB)
    created["spec"] = {"trainer": trainer} if trainer else {"runtimeRef": {"name": "torch"}}
    admitted = admit(manifests, created, render("k8s-configmap", ANSWER, ASKED))
    own = {"A": "b"} if trainer and "env" in trainer else {}
    assert variables(admitted["spec"]["trainer"]) == {**own, **ADDED}


@pytest.mark.parametrize("labels", [None, {}, {"tuner": "torch-mnist"}])
def test_a_job_that_does_not_ask_stays_as_it_is(manifests, labels):
    other = {
        **JOB,
        "metadata": {"name": "train", **({} if labels is None else {"labels": labels})},
    }
    assert admit(manifests, other, render("k8s-configmap", ANSWER, ASKED)) == other


def test_without_a_recommendation_a_job_keeps_its_defaults(manifests):
    nothing = render_nothing(
        "k8s-configmap", "no time", {"framework": "caffe", "dataset": "mnist"}
    )
    assert admit(manifests, JOB, nothing) == JOB


def test_kubernetes_takes_the_policies(manifests):
    made = [each for each in manifests if "Admission" in each["kind"]]
    assert len(made) == 4
    for each in made:
        validate(each, "1.36", strict=True)
    assert not [each for each in rendered(GIVEN) if "Admission" in each["kind"]]
