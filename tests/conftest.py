"""Fixtures every test may use."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """Return the folder with real traces, or skip."""
    folder = os.environ.get("QUEUESMITH_TRACES")
    if not folder:
        pytest.skip("QUEUESMITH_TRACES is not set: it names a folder with the public traces")
    return Path(folder).resolve()
