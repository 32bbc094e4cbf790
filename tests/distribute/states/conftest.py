"""The files that all recorded states are of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distribute.states import written


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    recording = Path(__file__).with_name("version_1.json").read_text()
    written.write_all(path, json.loads(recording)["parquet"])
    return path
