"""Kept statistics of functions that use models of pydantic, which hold addresses of a process."""

from __future__ import annotations

import sys
import types

import pytest

from torch_distinput.preprocessing.analysis.function_identity import identify
from torch_distinput.preprocessing.analysis.user_modules import UnknownIdentityError

MODEL = """
from typing import Generic, TypeVar
from pydantic import BaseModel, Field, TypeAdapter, computed_field, field_validator
from pydantic.dataclasses import dataclass

T = TypeVar("T")

class Row(BaseModel):
    model_config = {{"frozen": {frozen}}}
    x: int = Field({default}, gt={least})
    y: str = "a"

    @field_validator({field!r}, mode={mode!r})
    @classmethod
    def check(cls, value):
        return value * {factor}

    @computed_field
    @property
    def double(self) -> int:
        return 2 * self.x + {added}

class Of(BaseModel, Generic[T]):
    x: T

class Whole(Of[int]): ...

@dataclass(config={{"str_to_lower": {lower}}})
class Pair:
    x: int = {default}

ROWS = TypeAdapter(list[Row])

def fn(row):
    return ROWS, Row(x=row), Whole(x=row), Pair(x=row)
"""
VALUES = {"frozen": True, "default": 3, "least": 1, "field": "x", "mode": "after", "factor": 2}
VALUES |= {"added": 1, "lower": True}
OTHERS = {"frozen": False, "default": 4, "least": 2, "field": "y", "mode": "before", "factor": 3}
OTHERS |= {"added": 2, "lower": False}


def identity_with(**values):
    module = types.ModuleType("job_of_models")
    sys.modules["job_of_models"] = module
    exec(MODEL.format(**{**VALUES, **values}), vars(module))  # noqa: S102
    return identify(module.fn), module  # the module keeps its classes, and so their addresses


@pytest.mark.parametrize("name", VALUES)
def test_what_a_model_says_is_part_of_a_function(name):
    before, first = identity_with()
    again, second = identity_with()
    other, third = identity_with(**{name: OTHERS[name]})
    assert before == again
    assert before != other
    assert len({id(module.Row) for module in (first, second, third)}) == 3


def test_what_it_has_compiled_has_no_identity():
    """Nothing is kept of its function."""
    known = {"__name__": "job_of_models"}
    exec("import pydantic\n@pydantic.validate_call\ndef fn(x: int): ...", known)  # noqa: S102
    with pytest.raises(UnknownIdentityError, match="Schema.* of pydantic"):
        identify(known["fn"])
