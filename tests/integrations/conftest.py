"""Pipelines that a test leaves half-way end with it."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def collected():
    """A loader and its iterator refer to each other: threads of nodes end when both are collected.

    In the thread of a node itself that would be an error, since it would wait for itself.
    """
    yield
    gc.collect()
