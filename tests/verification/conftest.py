"""What the tests of verification share."""

import contextlib

import pytest

from tuner.storage.study_folder import StudyFolder


@pytest.fixture
def folder(tmp_path):
    """The folder of a study in which nothing was measured yet."""
    with contextlib.closing(StudyFolder(tmp_path / "study")) as opened:
        yield opened
