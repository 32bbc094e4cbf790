"""The package shows these names, and each says what it is."""

from __future__ import annotations

import inspect
import types

import pytest

from torch_distinput import preprocessing

PROMISED = {
    # layers
    "CategoryEncoding",
    "Discretization",
    "Features",
    "HashedCrossing",
    "Hashing",
    "IntegerLookup",
    "Normalization",
    "Rescaling",
    "StringLookup",
    "TextVectorization",
    # strings for a model
    "PaddedStrings",
    "pack_strings",
    "unpack_strings",
    # a pass over files, and what it leaves
    "analyze",
    "load",
    "save",
}
LAYERS = sorted(name for name in PROMISED if hasattr(getattr(preprocessing, name), "get_config"))


def test_all_is_sorted_and_holds_what_was_promised():
    assert sorted(PROMISED) == list(preprocessing.__all__)


def test_all_holds_what_is_public():
    public = {
        name
        for name, value in vars(preprocessing).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert PROMISED == public


def test_the_package_has_a_docstring():
    assert inspect.getdoc(preprocessing)


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_a_public_object_has_a_docstring_of_its_own(name):
    value = getattr(preprocessing, name)
    own = (value.__doc__ or "").strip()
    assert own, f"{name} has no docstring"
    assert not own.startswith(f"{name}("), f"{name} has only the docstring that dataclass writes"


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_what_a_public_class_offers_has_docstrings(name):
    value = getattr(preprocessing, name)
    ours = [kind for kind in getattr(value, "__mro__", ()) if "torch_distinput" in kind.__module__]
    bare = [
        f"{kind.__name__}.{member}"
        for kind in ours
        for member, held in vars(kind).items()
        if not member.startswith("_")
        and isinstance(held, types.FunctionType | property | classmethod | staticmethod)
        and not held.__doc__
    ]
    assert not bare, f"{name} has public members without a docstring: {', '.join(bare)}"


@pytest.mark.parametrize("name", LAYERS)
def test_each_argument_of_a_layer_is_explained(name):
    value = getattr(preprocessing, name)
    arguments = set(inspect.signature(value).parameters)
    if name == "Features":  # its arguments are the user's names
        return
    explained = inspect.getdoc(value).partition("Args:")[2]
    missing = [argument for argument in arguments if f"    {argument}: " not in explained]
    assert not missing, f"{name} does not explain {missing}"
