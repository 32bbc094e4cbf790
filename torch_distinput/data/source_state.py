"""Starting a stream of the user's: from its beginning, or from a state that it gave itself.

A source that has ``state_dict`` and ``load_state_dict`` (a StatefulDataLoader, an IterableDataset
of the user's, a torchdata node) can be started again where it was. Its state travels as text.
"""

from __future__ import annotations

import base64
import io
import json
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from torch_distinput.data.started_loader import started

_PACKED = "torch:"


def iterate(source: Any, state: str | None = None) -> Iterator[Any]:
    """Start a stream of the user's from its beginning, or from a state of its own.

    A generator function is called; a torchdata node is reset; anything else is iterated.
    """
    if callable(source) and not hasattr(source, "__iter__"):
        source = source()
    if _is_node(source):
        source.reset() if state is None else source.reset(_unpacked(state))
    elif isinstance(source, IterableDataset) and has_state(source):
        return _dataset(source, state)
    elif state is not None:
        source.load_state_dict(_unpacked(state))
    return _once(started(source))


_beginnings: dict[int, str] = {}
"""The first state of each dataset that is under way, or was left, by its ``id``."""


def _dataset(source: Any, state: str | None) -> Iterator[Any]:
    """Start a dataset that keeps its position on itself, also after it was left half-way.

    A StatefulDataLoader would have made a new copy of it in a new loader process.
    """
    key = id(source)
    if key in _beginnings:
        state = state or _beginnings[key]
    else:
        _beginnings[key] = _packed(source.state_dict())
        weakref.finalize(source, _beginnings.pop, key, None)
    if state is not None:
        source.load_state_dict(_unpacked(state))
    yield from iter(source)
    _beginnings.pop(key, None)


def state_of(source: Any) -> str | None:
    """The state of a source that was started, after what it has yielded; None if it has none."""
    if not has_state(source):
        return None
    return _packed(source.state_dict())


def has_state(source: Any) -> bool:
    """Whether a source can be started again where it was.

    One that deals out shards is passed over instead: the state of a Hugging Face stream forgets
    what a shuffle buffer held.
    """
    if hasattr(source, "num_shards") and hasattr(source, "shard"):
        return False
    return hasattr(source, "state_dict") and (
        hasattr(source, "load_state_dict") or _is_node(source)
    )


def _is_node(source: Any) -> bool:
    return hasattr(source, "reset") and hasattr(source, "get_state")


def _once(iterator: Iterator[Any]) -> Iterator[Any]:
    """Hide ``__iter__``: some sources are their own iterator, and start anew when asked for one."""
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            return
        yield item


def _packed(state: Any) -> str:
    """JSON where that keeps the state as it is, else what ``torch.load`` reads safely."""
    try:
        text = json.dumps(state)
        if json.loads(text) == state:
            return text
    except (TypeError, ValueError, RuntimeError):
        pass
    packed = io.BytesIO()
    torch.save(state, packed)
    return _PACKED + base64.b64encode(packed.getvalue()).decode()


def _unpacked(text: str) -> Any:
    if not text.startswith(_PACKED):
        return json.loads(text)
    content = base64.b64decode(text.removeprefix(_PACKED))
    return torch.load(io.BytesIO(content), weights_only=True)
