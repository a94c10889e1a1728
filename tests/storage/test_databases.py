"""Addresses of databases as they may be shown."""

import pytest

from tuner.storage.databases import (
    DatabaseHeld,
    Hold,
    exclusive,
    fault_of,
    without_password,
    without_passwords,
)


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


def test_a_file_that_is_not_let_go_is_not_waited_for_for_ever(tmp_path):
    address = f"sqlite:///{tmp_path}/study.db"
    with (
        exclusive(address),
        pytest.raises(DatabaseHeld, match=r"study\.db\.lock for 0\.2 s"),
        exclusive(address, wait_s=0.2),
    ):
        pass
    with exclusive(address, wait_s=0.2):
        pass


def test_who_uploads_keeps_nobody_from_asking(tmp_path):
    address = f"sqlite:///{tmp_path}/study.db"
    with exclusive(address, Hold.UPLOADS), exclusive(address, wait_s=0.2):
        pass


def test_a_fault_shows_no_password_of_an_address():
    """MLflow's own errors hold the address that was asked."""
    said = fault_of(ValueError("request to http://me:secret@host:5000/api failed\nadvice"))
    assert said == "request to http://***@host:5000/api failed"
