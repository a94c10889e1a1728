"""Databases, locked by one process at a time."""

import pytest

from tuner.storage.databases import (
    DatabaseHeld,
    Hold,
    exclusive,
    fault_of,
)


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
    assert said == "request to http://me:***@host:5000/api failed"
