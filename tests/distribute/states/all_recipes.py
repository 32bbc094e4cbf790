"""All recipes by name. What is added is recorded in the file of the version that is written."""

from __future__ import annotations

from tests.distribute.states.file_recipes import FILES
from tests.distribute.states.recipes import FUNCTIONS, INDEXED, STATEFUL, STREAMS

_KINDS = (INDEXED, STREAMS, STATEFUL, FUNCTIONS, FILES)
RECIPES = {name: recipe for kind in _KINDS for name, recipe in kind.items()}
assert len(RECIPES) == sum(map(len, _KINDS)), "a name is there twice"
