"""Addresses of databases as they may be shown."""

import pytest

from tuner.databases import exclusive, without_password, without_passwords
from tuner.errors import StorageError


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://host/db?user=me&password=secret", "postgresql://host/db?password=***&user=me"),
        ("postgresql://host/db?sslpassword=secret", "postgresql://host/db?sslpassword=***"),
        ("http://mlflow:5000/?token=secret", "http://mlflow:5000/?token=***"),
        ("sqlite:////data/mlflow.db", "sqlite:////data/mlflow.db"),
        ("results", "results"),
        ("", ""),
    ],
)  # fmt: skip
def test_no_address_shows_a_password(address, shown):
    found = without_password(address)
    assert "secret" not in found
    assert found.partition("?")[0] == shown.partition("?")[0]
    assert sorted(found.partition("?")[2].split("&")) == sorted(shown.partition("?")[2].split("&"))


def test_no_command_shows_a_password():
    words = [
        "framework=caffe",
        "storage=postgresql://me:secret@host/db",
        "tracking_uri='http://me:secret@host'",
        "prior=[{batch_size:64}]",
        "-m",
    ]
    assert without_passwords(words) == [
        "framework=caffe",
        "storage=postgresql://me:***@host/db",
        "tracking_uri='http://me:***@host'",
        "prior=[{batch_size:64}]",
        "-m",
    ]


def test_a_file_that_is_not_let_go_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.databases._PATIENCE_S", 0.2)
    address = f"sqlite:///{tmp_path}/study.db"
    with (
        exclusive(address),
        pytest.raises(StorageError, match=r"study\.db\.lock"),
        exclusive(address),
    ):
        pass
    with exclusive(address):
        pass
