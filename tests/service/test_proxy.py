"""The service behind a real nginx: nobody is let in because the proxy runs on this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.conftest import free_port
from tests.served import Service
from tuner.service.server import TOKEN

# Debian keeps it off an ordinary user's PATH
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
SECRET = "a token of 16 characters"
CONFIG = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {service};
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }}
    }}
}}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed (apt-get install nginx)"),
]


class Proxied:
    """A service and the proxy in front of it."""

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        self.service = Service(folder, *words, **variables)
        port = free_port("127.0.0.1")
        file = folder / "nginx.conf"
        file.write_text(CONFIG.format(folder=folder, port=port, service=self.service.address))
        self.nginx = subprocess.Popen([NGINX, "-e", "stderr", "-c", file], stderr=subprocess.PIPE)
        self.address = f"http://127.0.0.1:{port}"

    def get(self, path: str, host: str, token: str = "") -> int:
        headers = {"Host": host} | ({"Authorization": f"Bearer {token}"} if token else {})
        for _ in range(100):
            try:
                reply = requests.get(f"{self.address}{path}", headers=headers, timeout=60)
            except requests.ConnectionError:  # nginx has not begun to listen
                assert self.nginx.poll() is None, self.nginx.stderr.read()
            else:
                return reply.status_code
        raise AssertionError("nginx does not answer")

    def stop(self) -> None:
        self.nginx.terminate()
        self.nginx.communicate()
        self.service.stop()


@pytest.fixture
def proxied(tmp_path, request) -> Iterator[Proxied]:
    words, variables = request.param
    running = Proxied(tmp_path, *words, **variables)
    yield running
    running.stop()


@pytest.mark.parametrize("proxied", [((), {})], indirect=True)
@pytest.mark.parametrize("host", ["tuner.example", "localhost"])
def test_a_service_that_knows_of_no_proxy_answers_nobody_through_one(proxied, host):
    assert proxied.get("/v1/frameworks", host) == 421


@pytest.mark.parametrize("proxied", [(("behind_proxy=true",), {TOKEN: SECRET})], indirect=True)
def test_behind_a_proxy_the_token_alone_counts(proxied):
    for host in ("tuner.example", "localhost"):
        assert proxied.get("/v1/frameworks", host) == 401
        assert proxied.get("/v1/frameworks", host, "a wrong one") == 401
        assert proxied.get("/v1/frameworks", host, SECRET) == 200
    assert proxied.get("/v1/livez", "tuner.example") == 200
