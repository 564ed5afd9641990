"""Fixtures for the tests of `steingrad_lab.data`."""

import pytest
from small_dataset import small_source

from steingrad_lab.data import files
from steingrad_lab.data.sources import SOURCES


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Redirects all data folders to a temporary one, so that no test sees local datasets."""
    monkeypatch.delenv("STEINGRAD_DATA_DIR", raising=False)
    monkeypatch.setattr(files, "user_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(files, "SYSTEM_DIR", tmp_path / "system")
    return tmp_path


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(SOURCES, "small", small_source())
    return "small"
