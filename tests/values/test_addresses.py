"""Addresses as they may be shown."""

import pytest

from tuner.values.addresses import without_password


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://host/db?user=me&password=secret", "postgresql://host/db?user=me&password=***"),
        ("postgresql://host/db?sslpassword=secret", "postgresql://host/db?sslpassword=***"),
        ("http://mlflow:5000/?token=secret", "http://mlflow:5000/?token=***"),
        ("sqlite:////data/mlflow.db", "sqlite:////data/mlflow.db"),
        ("results", "results"),
        ("", ""),
        ("https://secret@host/x", "https://***@host/x"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://me:my@secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:secret@host:port/db", "postgresql://me:***@host:port/db"),
        ("postgresql://me:a/secret/b@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:a/my@secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql+psycopg://me:a'secret?b@host/db", "postgresql+psycopg://me:***@host/db"),
        ("http://host:5000/model@v1", "http://host:5000/model@v1"),
        ("postgresql://host:5432/db and me@host", "postgresql://host:5432/db and me@host"),
        ("deb https://me:secret@host x main", "deb https://me:***@host x main"),
    ],
)  # fmt: skip
def test_no_address_shows_a_password(address, shown):
    found = without_password(address)
    assert "secret" not in found
    assert found == shown


def test_no_command_shows_a_password():
    words = [
        "framework=caffe",
        "storage=postgresql://me:secret@host/db",
        "tracking_uri='http://me:secret@host'",
        "prior=[{batch_size:64}]",
        "-m",
    ]
    assert [without_password(word) for word in words] == [
        "framework=caffe",
        "storage=postgresql://me:***@host/db",
        "tracking_uri='http://me:***@host'",
        "prior=[{batch_size:64}]",
        "-m",
    ]
