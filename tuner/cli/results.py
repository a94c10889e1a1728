"""Commands about what studies found: ``recommend``, ``report``, ``ui`` and ``serve``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner.cli.words import Parser, read_words
from tuner.values.addresses import without_password
from tuner.values.errors import ConfigError, NothingRecommended
from tuner.values.extras import require_extra

TRACKED: Mapping[str, Parser] = {
    "framework": str,
    "dataset": str,
    "output": str,
    "tracking_uri": str,
}


def _loss(name: str) -> Parser:
    """Return what reads a fraction, or ``none`` if any loss is allowed."""

    def read(text: str) -> float | None:
        if text == "none":
            return None
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{name} must be a number or none, got {text!r}") from None

    return read


ASKED: Mapping[str, Parser] = {
    **TRACKED,
    "max_train_time_s": float,
    "max_memory_mb": float,
    "min_accuracy": float,
    "max_accuracy_loss": _loss("max_accuracy_loss"),
    "max_perplexity": float,
    "max_perplexity_loss": _loss("max_perplexity_loss"),
    "cores": int,
    "jobs_per_host": int,
    "max_workers": int,
    "objective": str,
    "bandwidth": str,
    "latency_ms": float,
    "framework_path": str,
    "format": str,
    "program": str,
}


def recommend_command(words: Sequence[str]) -> int:
    """Say which verified configuration a job should run with.

    python -m tuner recommend [framework=caffe] [dataset=mnist] [limit=value ...]
    python -m tuner recommend program=train.py

    The answer is the fastest configuration that is proven to lose no accuracy against the
    framework's default. Without framework= all frameworks with results are compared. With
    program= it is the setting that tuner wrap proved for your own program.

    Limits:
      max_accuracy_loss=0.01   allow a loss of one point; none allows any loss
      max_train_time_s=60      at most this training time, in seconds
      max_memory_mb=500        at most this peak memory, in MiB
      min_accuracy=0.985       at least this test accuracy
      max_perplexity=120       of a text: at most this test perplexity
      max_perplexity_loss=0.02 of a text: allow a rise of 2 %; none allows any
      cores=2                  measured on this many cores; also says how to split them
      jobs_per_host=2          measured with two such jobs at once (experiment=tenancy)
      max_workers=1            at most this many processes that train one job together
    Choice:
      objective=train_time_s   what to prefer within the limits; or accuracy (of a text
                               perplexity), or memory_mb. With program=, what to need less
                               of: time, cpu or memory
    Prediction for several hosts:
      bandwidth=1gbit          how fast 4 to 64 workers, one per host, would train over such a link
      latency_ms=0.25          of that link, one way
    Output:
      format=yaml              for people; json for programs; env, sh, argv, slurm,
                               k8s-configmap or trainjob for a job to start with
    Source:
      output=.                 folder with mlflow.db
      tracking_uri=            address of another MLflow server or database
      framework_path=          folder with frameworks of your own
    """
    from tuner.api import recommend, recommend_program
    from tuner.recommendation.placement import FORMS, render, render_nothing

    asked = read_words(words, ASKED)
    form = asked.pop("format", "yaml")
    if form not in FORMS:
        raise ConfigError(f"format must be one of {', '.join(FORMS)}, got {form!r}")
    try:
        if "program" in asked:
            _require_no_limits(asked)
        answer = recommend_program(**asked) if "program" in asked else recommend(**asked)
    except NothingRecommended as error:
        if form != "yaml":  # a job reads it, and keeps its defaults
            print(render_nothing(form, str(error), asked), end="")
        raise
    wanted = asked.get("dataset", "mnist")
    if answer.get("dataset", wanted) != wanted:
        instead = f"{answer['dataset']}, which a study used in place of {wanted}"
        print(f"warning: measured on {instead}", file=sys.stderr)
    print(render(form, answer, asked), end="")
    return 0


def _require_no_limits(asked: Mapping[str, object]) -> None:
    """Raise ``ConfigError`` for words that do not go with ``program=``."""
    others = sorted(asked.keys() - {"program", "objective", "output", "tracking_uri"})
    if others:
        raise ConfigError(
            f"{others[0]}= does not go with program=; only objective=, format=, output= and "
            "tracking_uri="
        )


REPORT_WORDS: Mapping[str, Parser] = {**TRACKED, "to": str}


def report_command(words: Sequence[str]) -> int:
    """Copy the newest study's report out of MLflow into a folder.

    python -m tuner report [framework=caffe] [dataset=mnist] [to=folder]

    The files are report.html, front.png and front.json. Without framework= it is the report
    across frameworks (experiment=cross_framework).

    Source:
      output=.                 folder with mlflow.db
      tracking_uri=            address of another MLflow server or database
    """
    from tuner.api import load_results
    from tuner.report import REPORT_FILES
    from tuner.tracking import CROSS, connect

    values = {"framework": CROSS, "dataset": "mnist", **read_words(words, REPORT_WORDS)}
    framework, dataset = values["framework"], values["dataset"]
    target = Path(values.pop("to", f"report-{framework}-{dataset}"))
    records = load_results(**values)
    if not records:
        wanted = "experiment=cross_framework" if framework == CROSS else f"framework={framework}"
        raise NothingRecommended(
            f"no {framework} study of {dataset} found here; "
            f"run python -m tuner {wanted} dataset={dataset} first"
        )
    target.mkdir(parents=True, exist_ok=True)
    client, run = connect(records[0].uri), records[0].run_id
    kept = {each.path for each in client.list_artifacts(run)}
    for name in (each for each in REPORT_FILES if each in kept):
        client.download_artifacts(run, name, str(target))
        print(target / name)
    return 0


UI_WORDS: Mapping[str, Parser] = {"output": str, "port": int}


def ui_command(words: Sequence[str]) -> int:
    """Browse all studies in MLflow's pages.

    python -m tuner ui [output=folder] [port=5000]

    Do not run it during a study: it takes 2 GB of memory, and its CPU time disturbs what is
    measured. The address that it prints opens the newest study's experiment in the view for
    model training; MLflow itself opens every experiment in its view for language models.
    """
    from tuner.tracking import default_tracking_uri, newest_experiment

    require_extra("tuner ui", "ui", "flask")  # of MLflow's server; mlflow-skinny has the client
    values = {"port": 5000, **read_words(words, UI_WORDS)}
    folder = Path(values.get("output", ".")).absolute()
    uri, port = default_tracking_uri(folder), values["port"]
    if uri.startswith("http"):  # which MLflow takes for no store of its own
        raise ConfigError(
            f"MLFLOW_TRACKING_URI is a server with pages of its own: open {without_password(uri)}"
        )
    newest = newest_experiment(uri)
    if newest:
        view = f"#/experiments/{newest}?workflowType=machine_learning"
        print(f"the newest study's experiment: http://127.0.0.1:{port}/{view}", flush=True)
    command = [sys.executable, "-m", "mlflow", "ui", "--port", str(port)]
    command += ["--backend-store-uri", uri]
    # MLflow's background processes for language models would take most of its memory
    lean = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    os.chdir(folder)
    # MLflow takes the place of this process, so it gets the signals, and ends its servers
    os.execve(sys.executable, command, {**lean, **os.environ})  # noqa: S606 - no shell is meant


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"behind_proxy must be true or false, got {text!r}")
    return text == "true"


SERVE_WORDS: Mapping[str, Parser] = {
    **dict.fromkeys(("host", "output", "tracking_uri", "framework_path", "mode"), str),
    "port": int,
    "behind_proxy": _switch,
}


def serve_command(words: Sequence[str]) -> int:
    """Serve recommendations and records over HTTP, and run studies on request.

    python -m tuner serve [host=127.0.0.1] [port=8765] [name=value ...]

    The page is at /, the API's description at /openapi.json. The service runs the studies that
    clients submit, one after the other. If it is stopped during a study, it resumes that study
    when it starts again. On any host but loopback, and behind a proxy, clients must send the
    token in the environment variable TUNER_SERVICE_TOKEN.

      mode=observe             change no job, only show what would be saved; apply is the default
      behind_proxy=true        require the token on loopback too, where a proxy connects from
      output=.                 folder with mlflow.db
      tracking_uri=            address of another MLflow server or database
      framework_path=          folder with frameworks of your own
      executor=, executor.*=   as in tune, for all studies; storage= likewise
    """
    require_extra("tuner serve", "service", "fastapi", "uvicorn", "prometheus_client")
    from tuner.service import serve
    from tuner.tracking import default_tracking_uri

    of_studies = [
        each for each in words if each.startswith(("executor=", "executor.", "storage="))
    ]
    own = [each for each in words if each not in of_studies]
    values = read_words(own, SERVE_WORDS)
    output = Path(values.pop("output", ".")).absolute()
    uri = values.pop("tracking_uri", "") or default_tracking_uri(output)
    serve(uri, output=str(output), words=of_studies, **values)
    return 0
