"""An answer in the form in which a job takes it: variables, arguments, or a manifest.

Each form carries what it rests on: its id (``TUNER_RECOMMENDATION``), under which a job reports to
the service, the study (``TUNER_EVIDENCE``), the machine (``TUNER_FINGERPRINT``), until when it
holds (``TUNER_EXPIRES``), and the interval of the training time that it promises
(``TUNER_PROMISED_S``). A form without a recommendation sets nothing but ``TUNER_NOTHING`` (and,
from a service that only observes, the id), so that a job keeps its defaults.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

from tuner.values.errors import ConfigError
from tuner.values.params import param_variables, text_of

VERSION = 1
"""Version of the forms, also in the canonical one, JSON."""
_NAME_LETTERS = 57  # of a label of Kubernetes, and of a name with "tuner-" before it
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL = re.compile(r"[\n\r\0]")  # what no file of variables can hold
_UNSPEAKABLE = re.compile(r"[\"'\\\x00-\x1f\x7f]")  # what some form, or the kernel, cannot hold
_Answer = Mapping[str, Any]


def render(form: str, answer: _Answer, asked: Mapping[str, Any]) -> str:
    """Return an answer of ``recommend`` in one of ``FORMS``.

    Args:
        form: The form.
        answer: The answer.
        asked: What was asked for: ``framework`` and ``dataset``, or ``program``.

    Raises:
        ConfigError: If there is no such form, or the form cannot hold a value.
    """
    return _form(form)(_Placed(name_of(asked), {"recommended": True, **answer}))


def render_observed(form: str, answer: _Answer, asked: Mapping[str, Any]) -> str:
    """Return the form that sets nothing but the id, if any, under which a job reports its outcome.

    Args:
        form: One of ``FORMS``.
        answer: The answer that is not to be used.
        asked: What was asked for: ``framework`` and ``dataset``, or ``program``.

    Raises:
        ConfigError: If there is no such form.
    """
    reason = "the service only observes; keep your own configuration"
    observed = {"recommended": False, "reason": reason}
    named = {"id": answer["id"]} if "id" in answer else {}
    return _form(form)(_Placed(name_of(asked), observed | named))


def render_nothing(form: str, reason: str, asked: Mapping[str, Any]) -> str:
    """Return the form that says that nothing is recommended, and why, in one line.

    Args:
        form: One of ``FORMS``.
        reason: Why nothing is recommended.
        asked: What was asked for: ``framework`` and ``dataset``, or ``program``.

    Raises:
        ConfigError: If there is no such form.
    """
    reason = " ".join(reason.split())
    return _form(form)(_Placed(name_of(asked), {"recommended": False, "reason": reason}))


@dataclass(frozen=True)
class _Placed:
    """An answer on its way into a form."""

    name: str
    answer: _Answer

    @property
    def variables(self) -> dict[str, str]:
        if self.answer["recommended"]:
            return variables_of(self.answer)
        reason = " ".join(_UNSPEAKABLE.sub("", self.answer["reason"]).split())
        found = {"TUNER_NOTHING": reason}
        return found | _id_of(self.answer)


def _id_of(answer: _Answer) -> dict[str, str]:
    return {"TUNER_RECOMMENDATION": answer["id"]} if "id" in answer else {}


def name_of(asked: Mapping[str, Any]) -> str:
    """Return a name for a question, as Kubernetes allows one: ``caffe-mnist``.

    An answer has the same name whatever it is, so that each replaces the one before.
    """
    words = [asked["program"]] if asked.get("program") else [
        asked.get("framework") or "any", asked.get("dataset") or "mnist",
    ]  # fmt: skip
    joined = "-".join(map(str, words)).lower()
    return re.sub(r"[^a-z0-9]+", "-", joined).strip("-")[:_NAME_LETTERS].strip("-") or "any"


def variables_of(answer: _Answer) -> dict[str, str]:
    """Return all variables of a job: of its environment, its params, and the evidence."""
    evidence, promised = answer["evidence"], answer.get("promised")
    found = {**answer["environment"], **param_variables(answer["params"]), **_id_of(answer)}
    found |= {
        "TUNER_EVIDENCE": evidence["study_run_id"],
        "TUNER_FINGERPRINT": evidence["fingerprint"],
        "TUNER_EXPIRES": f"{end_of(evidence['expires']):%Y-%m-%dT%H:%M:%SZ}",
    }
    if promised:
        ends = [_plain(promised["train_time_s"][end]) for end in ("low", "high")]
        found["TUNER_PROMISED_S"] = "-".join(ends)
    for name, value in found.items():  # whoever writes to MLflow may have written them
        if not _VARIABLE.fullmatch(name) or not isinstance(value, str) or "\0" in value:
            raise ConfigError(f"{name!r} on record cannot be a variable of a job")
    return found


def end_of(expires: float) -> datetime:
    """Return when evidence expires; raise ``ConfigError`` for what no calendar has.

    Args:
        expires: Seconds since the epoch.
    """
    try:
        return datetime.fromtimestamp(expires, UTC)
    except (ValueError, OverflowError, OSError):  # whoever writes to MLflow may set any time
        raise ConfigError(f"{expires} on record is no time at which it expires") from None


def _plain(seconds: float) -> str:
    """Return seconds to the microsecond, without an exponent: a shell reads them."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _form(name: str) -> Callable[[_Placed], str]:
    if name not in FORMS:
        raise ConfigError(f"format must be one of {', '.join(FORMS)}, got {name!r}")
    return FORMS[name]


def _json(placed: _Placed) -> str:
    return json.dumps({"version": VERSION, **placed.answer}, indent=1) + "\n"


def _yaml(placed: _Placed) -> str:
    shown = {name: value for name, value in placed.answer.items() if name != "recommended"}
    return yaml.dump(shown, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _env(placed: _Placed) -> str:
    """Return a line per variable, unquoted: for ``docker --env-file`` and systemd."""
    for name, value in placed.variables.items():
        if _SPECIAL.search(value) or value != value.strip() or re.search(r"[\"'\\]", value):
            raise ConfigError(
                f"{name}={value!r} cannot be written without quotes; use format=sh or json"
            )
    return "".join(f"{name}={value}\n" for name, value in placed.variables.items())


def _sh(placed: _Placed) -> str:
    """Return a script to ``eval`` or source."""
    return "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in placed.variables.items()
    )


def _argv(placed: _Placed) -> str:
    """Return the params as options on one line."""
    params = placed.answer.get("params", {}).items()
    words = [f"--{name}={text_of(value)}" for name, value in params if value is not None]
    return shlex.join(words) + "\n" if words else ""


def _slurm(placed: _Placed) -> str:
    """Return the list for ``sbatch --export``.

    Slurm splits it at commas outside quotes, and takes off the quotes around a whole entry
    (``find_quote_token`` of its ``src/common/env.c``).
    """
    for name, value in placed.variables.items():
        if re.search(r"[\"'\n]", value):
            raise ConfigError(
                f"{name}={value!r} has a quote or a line end, which --export cannot hold; "
                "use format=sh"
            )
    entries = [f"{name}={value}" for name, value in placed.variables.items()]
    return ",".join(["ALL", *(f"'{each}'" if "," in each else each for each in entries)]) + "\n"


def _configmap(placed: _Placed) -> str:
    """Return a ConfigMap for ``envFrom``, or for the admission policy of the chart."""
    labels = {"app.kubernetes.io/managed-by": "tuner", "tuner": placed.name}
    # the admission policy passes on the id of what is only observed, too
    recommended = bool(placed.answer["recommended"]) or "id" in placed.answer
    return _manifest(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": f"tuner-{placed.name}",
                "labels": labels,
                "annotations": {
                    "tuner-version": str(VERSION),
                    "tuner-recommended": str(recommended).lower(),
                },
            },
            "data": placed.variables,
        }
    )


def _trainjob(placed: _Placed) -> str:
    """Return the part of a TrainJob of Kubeflow to merge into one before it is created."""
    # Kubernetes expands $(NAME) in the value of a variable, and takes $$ for $
    env = [
        {"name": name, "value": value.replace("$", "$$")}
        for name, value in placed.variables.items()
    ]
    return _manifest(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"labels": {"tuner": placed.name}},
            "spec": {"trainer": {"env": env}},
        }
    )


def _manifest(manifest: Mapping[str, Any]) -> str:
    # quoted, as what reads it may take 1e-05 for a number
    return yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, default_style='"')


class _Dumper(yaml.SafeDumper):
    """YAML with multi-line texts as they are, ready to be copied, and every value in full."""

    def ignore_aliases(self, _data: object) -> bool:
        """Repeat a value instead of writing an alias."""
        return True


def _literal(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _literal)

FORMS: Mapping[str, Callable[[_Placed], str]] = {
    "yaml": _yaml,
    "json": _json,
    "env": _env,
    "sh": _sh,
    "argv": _argv,
    "slurm": _slurm,
    "k8s-configmap": _configmap,
    "trainjob": _trainjob,
}
"""What a job can take an answer in; JSON is the canonical form."""
