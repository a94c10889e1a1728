"""What is deployed is what its tools accept: those of Docker, of Compose, Helm and Kubernetes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import validate

from tuner.cli.results import serve_command
from tuner.values.errors import ConfigError

PROJECT = Path(__file__).parent.parent
DEPLOY = PROJECT / "deploy"
CHART = DEPLOY / "helm" / "tuner"
TOKEN = "secret-of-16-letters"
GIVEN = (
    *("--set", f"token={TOKEN}", "--set", "ray.token=secret", "--set", "privileged=true"),
    *("--set", "postgresql.password=secret"),
)
CASES = {
    "as it is": GIVEN,
    "without Ray": (*GIVEN, "--set", "ray.enabled=false"),
    "with a server and a secret of one's own": (
        *("--set", "existingSecret=mine", "--set", "postgresql.enabled=false"),
        *("--set", "privileged=true"),
        *("--set", "postgresql.url=postgresql://me:$(POSTGRES_PASSWORD)@there"),
    ),
    "on chosen nodes": (
        *GIVEN,
        *("--set", "ray.nodeSelector.kind=fast", "--set", "service.nodeSelector.kind=fast"),
        *("--set", "storageClassName=ssd", "--set", "privileged=false"),
    ),
}


def run(name: str, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A program of the development requirements."""
    program = shutil.which(name, path=Path(sys.executable).parent)
    if program is None:
        pytest.skip(f"{name} is not installed (requirements-dev.txt)")
    command = [program, *map(str, words)]
    return subprocess.run(command, check=check, capture_output=True, text=True)


def rendered(words: tuple[str, ...]) -> list[dict[str, Any]]:
    text = run("helm", "template", "release", CHART, "--kube-version", "1.32.0", *words).stdout
    return list(yaml.safe_load_all(text))


def test_the_image_is_built_by_the_rules():
    assert run("hadolint", DEPLOY / "Dockerfile").stdout == ""


def test_the_image_has_all_that_it_copies():
    text = (DEPLOY / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)
    sources = [word for words in copied for word in words.split()]
    assert len(sources) > 5
    assert all((PROJECT / each).exists() for each in sources)


def test_the_compose_file_is_one():
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_no_container_of_the_compose_file_is_privileged_unless_somebody_says_so():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name, each in services.items():
        assert "no-new-privileges:true" in each["security_opt"]
        assert str(each.get("privileged", False)).startswith(("False", "${TUNER_PRIVILEGED:?"))
        published = [str(port) for port in each.get("ports", [])]
        assert name == "service" or all(port.startswith("127.0.0.1:") for port in published)
        for variable, value in each.get("environment", {}).items():
            assert not re.search("TOKEN|PASSWORD", variable) or value.startswith("${"), variable


def test_what_the_containers_start_is_understood():
    """The words of the compose file and of the chart are the command line's own."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["service"][
        "command"
    ]
    pods = [each for each in rendered(GIVEN) if each["metadata"]["name"] == "release"]
    (chart,) = (each for each in pods if each["kind"] == "StatefulSet")
    (container,) = chart["spec"]["template"]["spec"]["containers"]
    for command, *words in (compose, container["args"]):
        assert command == "serve"
        # without a token of its own it goes no further than this
        with pytest.raises(ConfigError, match="must hold a token"):
            serve_command(words)


def test_the_chart_is_well_formed():
    run("helm", "lint", "--strict", CHART, *GIVEN)


@pytest.mark.slow
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_kubernetes_takes_what_the_chart_makes(words):
    made = rendered(words)
    kinds = [each["kind"] for each in made]
    assert {"StatefulSet", "Service"} <= set(kinds)
    assert ("RayCluster" in kinds) is ("ray.enabled=false" not in words)
    for each in made:
        if each["kind"] != "RayCluster":  # KubeRay's own; what Kubernetes knows of it are its pods
            validate(each, "1.32", strict=True)
            continue
        groups = [each["spec"]["headGroupSpec"], *each["spec"]["workerGroupSpecs"]]
        for group in groups:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}}
            validate(pod | {"spec": group["template"]["spec"]}, "1.32", strict=True)


def test_nodes_have_the_cores_that_a_trial_wants():
    (cluster,) = (each for each in rendered(GIVEN) if each["kind"] == "RayCluster")
    (group,) = cluster["spec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    limits, requests = (container["resources"][each] for each in ("limits", "requests"))
    assert limits == requests, "else its cores are not its own"
    assert int(limits["cpu"]) % values["ray"]["coresPerTrial"] == 0
    pinned = (PROJECT / "requirements-ray.txt").read_text().strip()
    assert pinned == f"ray[tune]=={cluster['spec']['rayVersion']}"


def test_the_image_has_every_folder_that_the_wheel_is_made_of():
    build = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    for folder in (*wheel["packages"], *wheel["force-include"]):
        assert f"COPY {folder} {folder}" in lines


@pytest.mark.parametrize("given", range(0, len(GIVEN), 2))
def test_a_chart_without_its_secrets_or_the_choice_to_be_privileged_is_refused(given):
    words = GIVEN[:given] + GIVEN[given + 2 :]
    done = run("helm", "template", "release", CHART, *words, check=False)
    assert done.returncode != 0
    assert "is required" in done.stderr


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("token=short", "token must have 16 characters or more"),
        ("postgresql.password=a/b", "must be of letters, digits"),
        ("postgresql.password=a@b", "must be of letters, digits"),
    ],
)
def test_secrets_with_which_nothing_would_start_are_refused(value, why):
    done = run("helm", "template", "release", CHART, *GIVEN, "--set", value, check=False)
    assert done.returncode != 0
    assert why in done.stderr


def pods_of(made: list[dict[str, Any]]) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Labels and specification of every pod that manifests make."""
    templates = [each["spec"]["template"] for each in made if each["kind"] == "StatefulSet"]
    for each in made:
        if each["kind"] == "RayCluster":
            groups = [each["spec"]["headGroupSpec"], *each["spec"]["workerGroupSpecs"]]
            templates += [group["template"] for group in groups]
    return [(each["metadata"]["labels"], each["spec"]) for each in templates]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["behind_proxy=true"], "behind_proxy=true can be reached"),
        (["behind_proxy=yes"], "behind_proxy must be true or false, got 'yes'"),
    ],
)
def test_a_service_behind_a_proxy_wants_a_token(words, why, monkeypatch):
    monkeypatch.delenv("TUNER_SERVICE_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=why):
        serve_command(words)


@pytest.mark.slow
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_no_pod_has_more_rights_than_it_needs(words):
    chosen = "privileged=false" not in words
    for labels, pod in pods_of(rendered(words)):
        component = labels["app.kubernetes.io/component"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["terminationGracePeriodSeconds"] >= 30
        rights = pod["securityContext"]
        assert rights["runAsNonRoot"] is True
        assert rights["runAsUser"] > 0
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["resources"]["limits"] == container["resources"]["requests"]
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] is True
            if chosen and (component == "service" or container["name"] == "ray-worker"):
                assert own["privileged"] is True
            else:
                assert own.get("privileged", False) is False
                assert own["allowPrivilegeEscalation"] is False
                assert own["capabilities"] == {"drop": ["ALL"]}
            if component != "ray":  # KubeRay adds its own
                assert {"readinessProbe", "livenessProbe"} <= set(container)
            for variable in container.get("env", []):
                secret = re.search("TOKEN|PASSWORD", variable["name"])
                assert not secret or "secretKeyRef" in variable["valueFrom"], variable


@pytest.mark.slow
@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_every_pod_has_a_policy_of_who_may_reach_it(words):
    made = rendered(words)
    policies = [each["spec"] for each in made if each["kind"] == "NetworkPolicy"]

    def of(labels: dict[str, str]) -> list[dict[str, Any]]:
        chosen = [(each["podSelector"]["matchLabels"].items(), each) for each in policies]
        return [each for wanted, each in chosen if wanted <= labels.items()]

    for labels, _ in pods_of(made):
        (policy,) = of(labels)
        assert "Ingress" in policy["policyTypes"]
        if labels["app.kubernetes.io/component"] != "service":
            for rule in policy["ingress"]:
                for peer in rule["from"]:
                    own = peer["podSelector"]["matchLabels"]["app.kubernetes.io/instance"]
                    assert own == "release", "nothing but the service is reached from outside"
    without = rendered((*words, "--set", "networkPolicy.enabled=false"))
    assert not [each for each in without if each["kind"] == "NetworkPolicy"]


def test_nodes_of_the_cluster_and_their_driver_have_the_same_token():
    variables = [
        {each["name"]: each for each in container["env"]}
        for labels, pod in pods_of(rendered(GIVEN))
        for container in pod["containers"]
        if labels["app.kubernetes.io/component"] in ("service", "ray")
    ]
    assert len(variables) == 3
    assert all(each["RAY_AUTH_MODE"]["value"] == "token" for each in variables)
    first, *others = (each["RAY_AUTH_TOKEN"] for each in variables)
    assert all(each == first for each in others)


def test_no_manifest_holds_a_password():
    for each in rendered(GIVEN):
        if each["kind"] != "Secret":
            assert "secret@" not in yaml.safe_dump(each)
