"""A container probe: the exit code tells whether the service on this machine is healthy.

python -m tuner.service.health [port] [healthz|livez]

``healthz`` is for readiness: the data of the service is fresh. ``livez`` is for liveness: it
fails only if a restart would help, so not while MLflow is away.
"""

from __future__ import annotations

import os
import sys

import requests

_PATIENCE_S = 5.0


def main(port: str = "8765", question: str = "healthz") -> int:
    """Return 0 if the service is healthy; else print the fault to standard error and return 1."""
    token = os.environ.get("TUNER_SERVICE_TOKEN", "")
    try:
        with requests.Session() as session:
            session.trust_env = False  # no proxy is asked, nor told the token
            answer = session.get(
                f"http://127.0.0.1:{port}/v1/{question}",
                headers={"Authorization": f"Bearer {token}"},
                timeout=_PATIENCE_S,
            )
    except requests.RequestException as error:
        print(f"the service does not answer: {error}", file=sys.stderr)
        return 1
    if answer.ok:
        return 0
    print(f"the service answers {answer.status_code} {answer.reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
