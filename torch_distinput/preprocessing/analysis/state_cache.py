"""The states of files that were counted before, each in a file of its own."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from torch_distinput.data.files.dataset import FileDataset
from torch_distinput.data.files.operations import Filter, Map
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.file_listing import FileInfo
from torch_distinput.preprocessing.analysis.function_identity import find_named_parts, identify
from torch_distinput.preprocessing.analysis.user_modules import UnknownIdentityError
from torch_distinput.preprocessing.layers.features import Features
from torch_distinput.preprocessing.layers.layer import AdaptiveLayer

_FORMAT = 2
_DIGEST_BYTES = 32
_log = logging.getLogger(__name__)

States = dict[str, Any]
"""By the name of a layer."""


@final
class StateCache:
    """A folder of states.

    Args:
        folder: a path or URL.
        storage_options: of fsspec.
        recipe: what decides, beside a file, what is counted of it.
        by_number: whether what is counted of a file depends on its number in the listing.
    """

    def __init__(
        self, folder: str, storage_options: Mapping[str, Any], recipe: str, *, by_number: bool
    ) -> None:
        """See the class."""
        self._folder = folder.rstrip("/")
        self._options = storage_options
        self._recipe = recipe
        self._by_number = by_number
        self._has_warned = False

    def find_known(self, listing: Sequence[FileInfo]) -> frozenset[int]:
        """The numbers of the files that there is a state of.

        What the storage knows no version of may have changed: of that there is none.
        """
        if unknown := [info.path for info in listing if not info.version]:
            _log.warning(
                "%d of %d files have no version, such as a modification time, where they are "
                "stored, and are read in each pass: nothing is kept of %s, for instance.",
                len(unknown),
                len(listing),
                unknown[0],
            )
        try:
            names = filesystem.names_in(self._folder, self._options)
        except OSError as error:  # the pass goes on; but not where it is no storage at all
            self._warn_of("listed", error)
            return frozenset()
        known = (i for i, info in enumerate(listing) if info.version)
        return frozenset(i for i in known if self._make_name(i, listing[i]) in names)

    def load(
        self, number: int, info: FileInfo, layers: Mapping[str, AdaptiveLayer]
    ) -> States | None:
        """Return the states of a file; None if they cannot be read: it is counted again then."""
        url = f"{self._folder}/{self._make_name(number, info)}"
        try:
            content = filesystem.load_file(url, self._options)
            if content is None:
                return None
            packed, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
            if hashlib.sha256(packed).digest() != digest:
                raise ValueError("it is not as it was written")  # noqa: TRY301 - told below
            with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
                if str(arrays["key"]) != self._make_key(number, info):
                    return None
                return {
                    name: type(layer.analyzer.new_state()).from_arrays(_select(arrays, f"{place}/"))
                    for place, (name, layer) in enumerate(layers.items())
                }
        except Exception as error:  # noqa: BLE001 - a cure for all: the file is read again
            _log.warning("The state %s cannot be read (%s); its file is read again.", url, error)
            return None

    def store(self, number: int, info: FileInfo, states: States) -> None:
        """Keep the states of a file, if it has a version, and as far as there is room."""
        if not info.version:
            return
        arrays = {
            f"{place}/{name}": array
            for place, state in enumerate(states.values())
            for name, array in state.to_arrays().items()
        }
        packed = io.BytesIO()
        np.savez(packed, key=np.array(self._make_key(number, info)), **arrays)
        content = packed.getvalue()
        content += hashlib.sha256(content).digest()
        url = f"{self._folder}/{self._make_name(number, info)}"
        try:
            filesystem.store_file(url, content, self._options)
        except Exception as error:  # noqa: BLE001 - whatever a storage raises; the pass goes on
            self._warn_of("written", error)

    def _warn_of(self, verb: str, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "Expected to keep states in %s, but it cannot be %s: %s. What is not kept is "
                "counted again in the next pass; pass cache= a folder that can be written.",
                self._folder,
                verb,
                error,
            )

    def _make_key(self, number: int, info: FileInfo) -> str:
        place = number if self._by_number else None
        return json.dumps([self._recipe, place, info.path, info.size, info.version])

    def _make_name(self, number: int, info: FileInfo) -> str:
        name = info.path.rstrip("/").rpartition("/")[2]
        digest = hashlib.sha256(self._make_key(number, info).encode()).hexdigest()
        return f"{name[:50]}-{digest[:24]}.state"


def _select(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}


def identify_recipe(dataset: FileDataset, features: Features) -> str | None:
    """What decides, beside a file, what is counted of it; None, with a warning, if nobody knows."""
    try:
        functions = [
            [type(operation).__name__, identify(operation.fn)]
            for operation in dataset.operations
            if isinstance(operation, (Map, Filter))
        ]
        reader = identify(dataset.reader)
        counting = identify([find_named_parts(layer) for _, layer in features.adaptive()])
    except UnknownIdentityError as error:
        _log.warning(
            "Nothing is kept in the cache, and nothing taken from it: the recipe holds %s, which "
            "cannot be told from another of its kind.",
            error,
        )
        return None
    counted = [name for name, _ in features.adaptive()]
    recipe = [_FORMAT, reader, functions, counted, counting, features.config_fingerprint()]
    return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()
