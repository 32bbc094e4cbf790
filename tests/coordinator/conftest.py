"""The engines that play the tests of this folder: all of them, Ray where it is installed."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session", params=["local", "ray"])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of an engine. Under `make test-integrations` a missing Ray is an error."""
    missing = request.param == "ray" and find_spec("ray") is None
    if missing and os.environ.get("TDI_TEST_INTEGRATIONS") == "1":
        pytest.fail("needs ray: not installed")
    if missing:
        pytest.skip("needs ray: not installed")
    return request.param
