"""Imports of our modules pause garbage collection, and nobody else is to notice."""

from __future__ import annotations

import gc
import threading

import pytest

import torch_distinput


@pytest.fixture
def collects(monkeypatch):
    """Whether an import is one with garbage collection, and whether it goes on afterwards."""
    monkeypatch.setattr("importlib.import_module", lambda _: gc.isenabled())
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    yield lambda: (torch_distinput._import("version"), gc.isenabled())
    gc.enable()


def test_an_import_is_not_searched_for_garbage(collects) -> None:
    assert (False, True) == collects()


def test_a_collector_that_is_off_stays_off(collects) -> None:
    gc.disable()
    assert (False, False) == collects()


def test_threads_that_might_fork_meanwhile_have_their_collector(collects, monkeypatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert (True, True) == collects()
