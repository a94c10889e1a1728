"""Whether the service of this machine is well, as its exit code: for probes of a container.

python -m tuner.service.health [port] [healthz|livez]

``healthz`` is for readiness: what the service knows is fresh. ``livez`` is for liveness: it fails
only where a restart would help, so not while MLflow is away.
"""

from __future__ import annotations

import os
import sys

import requests

_PATIENCE_S = 5.0


def main(port: str = "8765", question: str = "healthz") -> int:
    """0 if it answers; else what is wrong goes to standard error."""
    token = os.environ.get("TUNER_SERVICE_TOKEN", "")
    try:
        answer = requests.get(
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
