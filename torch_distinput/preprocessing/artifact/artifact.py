"""Layers with their state as a folder: JSON, arrays and vocabularies as text; nothing pickled.

preprocessing.json       what the layers are, the fingerprint, and a checksum of each file
state.npz                buffers
vocabulary/<name>.txt    the tokens of a lookup of strings, one in each line, as Keras reads them
model.pt2                an exported model, if there is one
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, final
from urllib.parse import quote

import numpy as np
import torch

from torch_distinput.data.storage import filesystem
from torch_distinput.errors import ConfigurationError
from torch_distinput.preprocessing.artifact.registry import build_layer, describe_layer
from torch_distinput.preprocessing.layers.features import Features
from torch_distinput.preprocessing.layers.layer import Layer
from torch_distinput.preprocessing.layers.lookup import Learned
from torch_distinput.preprocessing.layers.string_lookup import LARGE_VOCABULARY, StringLookup
from torch_distinput.preprocessing.strings.byte_rows import to_bytes
from torch_distinput.preprocessing.vocabulary.vocabulary import (
    StringVocabulary,
    Tokens,
    index_tokens,
)
from torch_distinput.preprocessing.vocabulary.vocabulary_file import (
    is_a_line,
    open_vocabulary,
    read_tokens,
)

FORMAT = 1
_OWN_FILE = re.compile(r"vocabulary/[^/]+\.txt")
_LONGEST_NAME = 200
"""Of a file: file systems take 255 bytes, with what is written aside while it is saved."""
_MAIN, _STATE, _MODEL = "preprocessing.json", "state.npz", "model.pt2"


def save(
    layers: Layer | Features,
    path: str | os.PathLike[str],
    *,
    model: torch.export.ExportedProgram | None = None,
    about: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write layers, usually a :class:`Features`, and their state to a folder.

    Written aside and renamed; in an object store ``preprocessing.json`` is written last. One
    process writes; what it has written there before is replaced, anything else refused.

    Args:
        layers: what to write.
        path: a path or a URL.
        model: a model exported with the layers in it, for serving; ``torch.export.load`` reads it
            from ``model.pt2``.
        about: JSON values to keep beside, such as where the data came from.
        storage_options: of fsspec.

    Raises:
        ValueError: for layers that hold a function or a module which cannot be written down.
        FileExistsError: for a folder that holds anything else.
    """
    path, options = os.fspath(path), storage_options or {}
    check_target(path, options)
    contents: dict[str, bytes] = {}
    vocabularies: dict[str, Any] = {}
    state = dict(layers.state_dict())
    for name, lookup in _find_lookups(layers):
        tokens = [to_bytes(token) for token in lookup.get_vocabulary(False)]
        if tokens and all(map(is_a_line, tokens)):  # others stay among the arrays
            file = _name_file(_find_feature(layers, name), contents)
            contents[file] = b"".join(token + b"\n" for token in tokens)
            vocabularies[name] = {"file": file, "tokens": len(tokens)}
            for buffer in ("text", "ends"):
                del state[_join_names(name, buffer)]
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    contents[_STATE] = packed.getvalue()
    if model is not None:
        exported = io.BytesIO()
        torch.export.save(model, exported)
        contents[_MODEL] = exported.getvalue()
    main = {
        "format": FORMAT,
        "layers": describe_layer(layers),
        "fingerprint": layers.fingerprint(),
        "vocabularies": vocabularies,
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "about": dict(about or {}),
        "files": {
            name: {"bytes": len(content), "sha256": _hash(content)}
            for name, content in contents.items()
        },
    }
    contents[_MAIN] = _seal(main)
    filesystem.store_folder(path, contents, options, last=_MAIN)


def check_target(path: str, storage_options: Mapping[str, Any]) -> None:
    """Refuse to replace a folder that holds anything else than what :func:`save` has written.

    Raises:
        FileExistsError: naming what is there.
    """
    found = filesystem.names_below(path, storage_options)
    if not found:
        return
    try:
        own = {_MAIN, *_Folder(path, storage_options).read_main()["files"]}
    except ConfigurationError:
        own = set()
    if foreign := sorted(found - own):
        msg = (
            f"Expected a folder of preprocessing layers to replace, or none, at {path}; got one "
            f"with {len(foreign)} other files, such as {foreign[0]!r}. Choose another folder, or "
            "remove them."
        )
        raise FileExistsError(msg)


def load(
    path: str | os.PathLike[str],
    *,
    expect: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Return the layers of a folder that :func:`save` or :func:`analyze` has written.

    Args:
        path: the folder's path or URL.
        expect: the fingerprint that they must have (``layers.fingerprint()``): training and serving
            then cannot differ.
        storage_options: of fsspec.

    Raises:
        ConfigurationError: a ValueError; for a folder that is damaged, half written, of another
            version, or of another fingerprint.
    """
    path = os.fspath(path)
    folder = _Folder(path, storage_options or {})
    main = folder.read_main()
    if expect is not None and expect != main["fingerprint"]:
        msg = (
            f"Expected the preprocessing with fingerprint {expect}, got {main['fingerprint']} in "
            f"{path}. Use the folder that the model was trained with, or train it again."
        )
        raise ConfigurationError(msg)
    layers = build_layer(main["layers"], path)
    with np.load(io.BytesIO(folder.read(main, _STATE)), allow_pickle=False) as kept:
        state = {name: torch.from_numpy(kept[name]) for name in kept.files}
    weights = {name: state.pop(_join_names(name, "idf"), None) for name in main["vocabularies"]}
    layers.load_state_dict(state, strict=False)
    for name, lookup in _find_lookups(layers):
        if name in main["vocabularies"]:
            vocabulary = folder.read_vocabulary(main, main["vocabularies"][name])
            lookup.adopt(Learned(vocabulary, weights[name]))
    if layers.fingerprint() != main["fingerprint"]:
        msg = (
            f"Expected the layers of {path} to have fingerprint {main['fingerprint']}, got "
            f"{layers.fingerprint()} after loading. It was written by another version of "
            "torch_distinput; analyze the data again."
        )
        raise ConfigurationError(msg)
    return layers


@final
class _Folder:
    """Files of an artifact."""

    def __init__(self, path: str, storage_options: Mapping[str, Any]) -> None:
        self._path = path.rstrip("/")
        self._options = storage_options

    def read_main(self) -> dict[str, Any]:
        """What the folder says of itself."""
        content = filesystem.load_file(f"{self._path}/{_MAIN}", self._options)
        if content is None:
            raise self._explain_damage(f"it has no {_MAIN}: none was written, or not to its end")
        try:
            sealed = json.loads(content)
            main = sealed["content"]
            intact = sealed["sha256"] == _hash(_serialize(main))
        except (ValueError, KeyError, TypeError):
            intact = False
        if not intact:
            raise self._explain_damage(f"{_MAIN} is not as it was written")
        if main["format"] != FORMAT:
            found = main["format"]
            raise self._explain_damage(f"it has format {found}, this version reads {FORMAT}")
        return main  # type: ignore[no-any-return]

    def read(self, main: Mapping[str, Any], name: str) -> bytes:
        """The content of a file, as it was written."""
        expected = main["files"][name]
        content = filesystem.load_file(f"{self._path}/{name}", self._options)
        if content is None:
            raise self._explain_damage(f"{name} is missing")
        if len(content) != expected["bytes"] or _hash(content) != expected["sha256"]:
            raise self._explain_damage(
                f"{name} has {len(content)} bytes that are not the {expected['bytes']} written"
            )
        return content

    def read_vocabulary(
        self, main: Mapping[str, Any], vocabulary: Mapping[str, Any]
    ) -> StringVocabulary:
        """Read the tokens of a lookup; large vocabularies are mapped to memory."""
        file = vocabulary["file"]
        if not _OWN_FILE.fullmatch(file):  # the content may come from anybody
            raise self._explain_damage(f"it names a vocabulary {file!r} outside of it")
        url = f"{self._path}/{file}"
        if vocabulary["tokens"] < LARGE_VOCABULARY:
            return index_tokens(Tokens.of(read_tokens(self.read(main, file), url)))
        opened = open_vocabulary(url, self._options)
        assert opened.origin is not None, "it is mapped"
        if opened.origin.sha256 != main["files"][file]["sha256"]:
            raise self._explain_damage(f"{file} is not as it was written")
        return opened

    def _explain_damage(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"Expected a folder of preprocessing layers at {self._path}, but {what}. Analyze the "
            "data again, or copy the folder again."
        )


def _seal(main: dict[str, Any]) -> bytes:
    sealed = {"sha256": _hash(_serialize(main)), "content": main}
    return json.dumps(sealed, indent=1).encode()


def _serialize(main: dict[str, Any]) -> bytes:
    return json.dumps(main, sort_keys=True).encode()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _name_file(feature: str, taken: Collection[str]) -> str:
    """Where the vocabulary of a feature is written, whatever it is called."""
    name = quote(feature, safe="") or "tokens"
    names = map(str.lower, taken)  # some file systems take "a" and "A" for one
    if len(name) > _LONGEST_NAME or f"vocabulary/{name}.txt".lower() in names:
        digest = hashlib.blake2b(feature.encode(), digest_size=8).hexdigest()
        name = f"{name[:_LONGEST_NAME]}-{digest}"
    return f"vocabulary/{name}.txt"


def _find_feature(layers: Layer | Features, name: str) -> str:
    """The feature that a module belongs to, or the module's own name."""
    return layers.find_feature(name) if isinstance(layers, Features) else name


def _join_names(module: str, buffer: str) -> str:
    return f"{module}.{buffer}" if module else buffer


def _find_lookups(layers: Layer | Features) -> Iterator[tuple[str, StringLookup]]:
    for name, module in layers.named_modules(remove_duplicate=False):  # shared ones are saved twice
        if isinstance(module, StringLookup):
            yield name, module
