"""A library whose version was not tested is named in one warning."""

from __future__ import annotations

import re
import warnings
from importlib import metadata

import pytest

import torch_distinput as tdi
from torch_distinput.integrations import versions
from torch_distinput.integrations.versions import check_names, check_version


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(versions, "_told", set())


def install(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda package: version)


@pytest.mark.parametrize("version", ["2.5", "2.5.0", "2.6", "2.6.6", "2.6.0rc1", "2.6.1+cpu"])
def test_a_tested_version_is_no_news(monkeypatch, version):
    install(monkeypatch, version)
    check_version("lightning", tested="2.5 to 2.6")


@pytest.mark.parametrize("version", ["2.4.9", "2.7", "2.10.1", "3", "1.99", "unknown"])
def test_another_one_is_warned_of(monkeypatch, version):
    install(monkeypatch, version)
    expected = "Expected lightning 2.5 to 2.6, with which this integration is tested, got lightning"
    with pytest.warns(UserWarning, match=re.escape(f"{expected} {version}.")):
        check_version("lightning", tested="2.5 to 2.6")


def test_one_version_is_a_range_too(monkeypatch):
    install(monkeypatch, "0.3.1")
    check_version("torchtitan", tested="0.3")
    with pytest.warns(UserWarning, match="got torchtitan 0.3.1"):
        check_version("torchtitan", tested="0.2")


def test_it_is_said_once_and_where_the_caller_is(monkeypatch):
    install(monkeypatch, "9")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore")  # of what is collected meanwhile
        warnings.simplefilter("always", UserWarning)
        check_version("lightning", tested="2.6")
        check_version("lightning", tested="2.6")
        check_version("ray", tested="2.6")
    assert ["lightning", "ray"] == [str(one.message).split()[1] for one in told]
    assert {__file__} == {one.filename for one in told}


def test_a_library_under_another_name_is_passed_over():
    check_version("no-such-library", tested="1")


def test_a_name_that_is_gone_is_told_with_the_version(monkeypatch):
    """Before an override is passed by without a word."""
    install(monkeypatch, "9")
    check_names("lightning", metadata, ["version", "metadata"])
    message = "to have start, stop in its Loop, .* got lightning 9 without. Install"
    with pytest.raises(tdi.ConfigurationError, match=message):
        check_names("lightning", type("Loop", (), {"run": None}), ["start", "run", "stop"])
