"""What classes, schemas and layers that a function uses say is part of its identity."""

from __future__ import annotations

import copy
import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from threading import Lock
from typing import Annotated, AnyStr, Generic, NamedTuple

import pytest
import torch

from torch_distinput import preprocessing
from torch_distinput.preprocessing.analysis.function_identity import identify
from torch_distinput.preprocessing.analysis.user_modules import UnknownIdentityError
from torch_distinput.preprocessing.layers.layer import Layer

SCHEMAS = {
    "annotations of a class": "class Row:\n  x: {0}\ndef fn(r): return Row.__annotations__",
    "annotations of a function": "def row(x: {0}): ...\ndef fn(r): return row.__annotations__",
    "a field": "@dataclass\nclass Row:\n  x: {0}\ndef fn(r): return fields(Row)",
    "metadata": "@dataclass\nclass Row:\n  x: int = field(metadata={{1: {0}}})\n"
    "def fn(r): return fields(Row)",
    "a named tuple": "class Row(NamedTuple):\n  x: {0}\ndef fn(r): return Row._fields",
    "a generic base": "class Base(Generic[AnyStr]): ...\nclass Row(Base[{0}]): ...\n"
    "def fn(r): return Row()",
    "a metaclass": "class Kind(type):\n  of = {0}\nclass Row(metaclass=Kind): ...\n"
    "def fn(r): return Row.of",
    "a name of the user's": "class Row:\n  __scale__ = {0}\ndef fn(r): return Row.__scale__",
    "a function of a layer": "def cut(x): return {0}(x)\nlayer = Text(standardize=cut)\n"
    "def fn(r): return layer(r)",
    "a function in a layer's list": "def cut(x): return {0}(x)\nlayer = Chain(cut)\n"
    "def fn(r): return layer(r)",
    "what deletes a property": "class Row:\n  def drop(self): return {0}\n"
    "  x = property(None, None, drop)\ndef fn(r): return Row()",
    "another module of a layer": "class Cut(Module):\n  def forward(self, x): return {0}(x)\n"
    "layer = Features(a=Cut())\ndef fn(r): return layer(r)",
}


def of_schema(text, kind):
    found = {"__name__": "job", "Text": preprocessing.TextVectorization}
    found |= {"dataclass": dataclass, "field": field, "fields": fields, "NamedTuple": NamedTuple}
    found |= {"Generic": Generic, "AnyStr": AnyStr, "Annotated": Annotated, "LOCK": Lock()}
    found |= {"helper": lambda x: x, "Chain": Chain}
    found |= {"Features": preprocessing.Features, "Module": torch.nn.Module}
    code = compile(text.format(kind), "job", "exec", dont_inherit=True)  # annotations are values
    exec(code, found)  # noqa: S102
    return found["fn"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_and_layers_are_part_of_it(name, monkeypatch):
    """What a class says of its values, and what a layer that is called inside calls."""
    monkeypatch.setitem(sys.modules, "job", types.ModuleType("job"))
    before, again, other = (
        identify(of_schema(SCHEMAS[name], kind)) for kind in ("int", "int", "float")
    )
    assert before == again
    assert before != other


class Chain(Layer):
    """Its configuration has functions further inside."""

    takes = "floats"

    def __init__(self, *functions):
        super().__init__(functions=[{"do": function} for function in functions])

    def forward(self, x):
        return x


def test_that_a_value_was_copied_changes_nothing():
    """Python notes in the class which slots its values have."""

    class Row:
        x = 3

    before = identify(Row)
    copy.copy(Row())
    assert before == identify(Row)


def test_an_abstract_class_has_an_identity():
    """Python gives it something without a pickle."""

    class Row(ABC):
        @abstractmethod
        def x(self):
            """Of each subclass."""

    assert identify(Row) == identify(Row)


UNKNOWN = {
    "a method": "class Row:\n  def __call__(self, x): return LOCK and {0}\ndef fn(r): return Row()",
    "a name of the user's": "class Row:\n  __lock__ = (helper, LOCK)\n"
    "def fn(r): return helper(Row)",
    "an annotation": "class Row:\n  x: Annotated[int, helper, LOCK]\n"
    "def fn(r): return helper(Row)",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_has_no_pickle_is_not_passed_over(name, monkeypatch):
    """Nor what was met beside it, whose code may change."""
    monkeypatch.setitem(sys.modules, "job", types.ModuleType("job"))
    with pytest.raises(UnknownIdentityError):
        identify(of_schema(UNKNOWN[name], "int"))

