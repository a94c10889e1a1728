"""An answer as a job takes it: each form is read by what it is made for."""

from __future__ import annotations

import json
import re
import shlex
import subprocess

import dotenv
import kubernetes_validate
import pytest
import yaml

from tuner.recommendation.placement import FORMS, name_of, render, render_nothing
from tuner.values.errors import ConfigError

ANSWER = {
    "framework": "caffe",
    "dataset": "fashion_mnist",
    "no_loss": True,
    "params": {"batch_size": 64, "learning_rate": 0.03, "kernel": None},
    "environment": {
        "OPENBLAS_NUM_THREADS": "1",
        "LD_LIBRARY_PATH": "/opt/a b:/opt/c",
        "THEANO_FLAGS": "floatX=float32,device=cpu",
        "PRICE": "$5 or $(OPENBLAS_NUM_THREADS) or $$",
    },
    "promised": {"train_time_s": {"value": 55.8, "low": 53.123, "high": 58.0}},
    "evidence": {
        "study_run_id": "abc123", "fingerprint": "f00", "expires": 1_800_000_000, "run_ids": [],
    },
}  # fmt: skip
ASKED = {"framework": "caffe", "dataset": "fashion_mnist"}
VARIABLES = {
    "OPENBLAS_NUM_THREADS": "1",
    "LD_LIBRARY_PATH": "/opt/a b:/opt/c",
    "THEANO_FLAGS": "floatX=float32,device=cpu",
    "PRICE": "$5 or $(OPENBLAS_NUM_THREADS) or $$",
    "TUNER_PARAM_BATCH_SIZE": "64",
    "TUNER_PARAM_LEARNING_RATE": "0.03",
    "TUNER_EVIDENCE": "abc123",
    "TUNER_FINGERPRINT": "f00",
    "TUNER_EXPIRES": "2027-01-15T08:00:00Z",
    "TUNER_PROMISED_S": "53.123-58",
}
REASON = "no measured configuration meets max_train_time_s=1, or\nelse: {'batch_size': 64}"
NOTHING = {
    "TUNER_NOTHING": (
        "no measured configuration meets max_train_time_s=1, or else: {batch_size: 64}"
    )
}


def read_env(text: str, tmp_path) -> dict:
    path = tmp_path / "job.env"
    path.write_text(text)
    return dotenv.dotenv_values(path, interpolate=False)


def read_sh(text: str, _) -> dict:
    done = subprocess.run(
        ["env", "-i", "sh", "-c", 'eval "$1"; env -0', "", text],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = dict(each.partition("=")[::2] for each in done.stdout.split("\0") if each)
    return {name: value for name, value in found.items() if name not in ("PWD", "_", "SHLVL")}


def read_slurm(text: str, _) -> dict:
    """As Slurm's find_quote_token: commas in quotes are kept, quotes around an entry are not."""
    first, *pairs = re.findall(r"((?:[^,']|'[^']*')+)(?:,|$)", text.rstrip("\n"))
    assert first == "ALL"
    plain = [each[1:-1] if each[0] == each[-1] == "'" else each for each in pairs]
    return dict(each.partition("=")[::2] for each in plain)


def read_configmap(text: str, _) -> dict:
    manifest = yaml.safe_load(text)
    kubernetes_validate.validate(manifest, "1.32", strict=True)
    assert manifest["metadata"]["name"] == "tuner-caffe-fashion-mnist"
    return manifest["data"]


def read_trainjob(text: str, _) -> dict:
    manifest = yaml.safe_load(text)
    assert manifest["kind"] == "TrainJob"
    return {each["name"]: expanded(each["value"]) for each in manifest["spec"]["trainer"]["env"]}


def expanded(value: str) -> str:
    """As the kubelet: $(NAME) is the value of another variable, and $$ is $."""
    return re.sub(r"\$(?:\$|\(\w+\))", lambda m: "$" if m[0] == "$$" else "of another", value)


READERS = {
    "env": read_env,
    "sh": read_sh,
    "slurm": read_slurm,
    "k8s-configmap": read_configmap,
    "trainjob": read_trainjob,
}


@pytest.mark.parametrize("form", READERS)
def test_a_job_reads_its_variables_and_what_they_rest_on(form, tmp_path):
    assert READERS[form](render(form, ANSWER, ASKED), tmp_path) == VARIABLES


@pytest.mark.parametrize("form", READERS)
def test_without_a_recommendation_nothing_but_that_is_set(form, tmp_path):
    assert READERS[form](render_nothing(form, REASON, ASKED), tmp_path) == NOTHING


@pytest.mark.parametrize("form", READERS)
def test_whatever_the_reason_holds_a_job_can_read_it(form, tmp_path):
    reason = "no study of \0\x1b[1mx\x7f is on record; say where: output='here '"
    found = READERS[form](render_nothing(form, reason, ASKED), tmp_path)
    assert found == {"TUNER_NOTHING": "no study of [1mx is on record; say where: output=here"}


def test_a_time_that_no_calendar_has_is_named():
    evidence = {**ANSWER["evidence"], "expires": 10**18}
    with pytest.raises(ConfigError, match="1000000000000000000 on record is no time"):
        render("sh", {**ANSWER, "evidence": evidence}, ASKED)


def test_json_is_canonical_and_says_whether_something_is_recommended():
    assert json.loads(render("json", ANSWER, ASKED)) == {
        "version": 1,
        "recommended": True,
        **ANSWER,
    }
    nothing = json.loads(render_nothing("json", REASON, {}))
    assert nothing == {"version": 1, "recommended": False, "reason": " ".join(REASON.split())}


def test_yaml_has_the_same_for_people():
    assert yaml.safe_load(render("yaml", ANSWER, ASKED)) == ANSWER


def test_arguments_are_one_line_of_options():
    params = {"a": True, "b": "x y", "c": None}
    line = render("argv", {**ANSWER, "params": params}, ASKED)
    assert shlex.split(line) == ["--a=true", "--b=x y"]
    assert render_nothing("argv", REASON, {}) == ""


@pytest.mark.parametrize(
    ("form", "value", "said"),
    [
        ("env", "a\nb", "cannot be written without quotes"),
        ("env", 'a"b', "cannot be written without quotes"),
        ("env", " a", "cannot be written without quotes"),
        ("slurm", "a'b", "has a quote or a line end, which --export cannot hold"),
        ("slurm", 'a"b', "has a quote or a line end, which --export cannot hold"),
        ("xml", "a", "format must be one of yaml, json, env"),
    ],
)
def test_what_a_form_cannot_hold_is_refused(form, value, said):
    with pytest.raises(ConfigError, match=said):
        render(form, {**ANSWER, "environment": {"X": value}}, ASKED)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_takes_every_reason(form):
    assert "\n\n" not in render_nothing(form, "a 'b' \"c\", \\d\n\ne", {})


@pytest.mark.parametrize("form", ["env", "sh", "slurm", "k8s-configmap"])
@pytest.mark.parametrize("variables", [{"X=1;id;Y": "1"}, {"A\nB": "1"}, {"X": 1}, {"X": "\0"}])
def test_what_no_variable_can_be_is_refused(form, variables):
    with pytest.raises(ConfigError, match="on record cannot be a variable of a job"):
        render(form, {**ANSWER, "environment": variables}, ASKED)


def test_no_manifest_has_a_number_where_a_text_belongs():
    text = render("k8s-configmap", {**ANSWER, "params": {"lr": 1e-05}}, ASKED)
    assert '"TUNER_PARAM_LR": "1e-05"' in text


def test_long_and_short_times_are_promised_without_an_exponent():
    promised = {"train_time_s": {"value": 2e4, "low": 0.00012, "high": 98765.4321}}
    text = render("env", {**ANSWER, "promised": promised}, ASKED)
    assert "TUNER_PROMISED_S=0.00012-98765.4321\n" in text


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"framework": "caffe"}, "caffe-mnist"),
        ({"dataset": "mnist"}, "any-mnist"),
        ({"program": "My Train_2.py"}, "my-train-2-py"),
        ({"program": "x" * 99}, "x" * 57),
    ],
)
def test_an_answer_is_named_after_the_question(asked, name):
    assert name_of(asked) == name
