"""A vocabulary in a file: fetched and indexed once on each machine, then mapped to memory.

One token in each line, UTF-8, as Keras reads it: a line ends with LF or CRLF; a byte order mark is
no mark, but part of the first token.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.file_listing import FileInfo
from torch_distinput.data.storage.machine_cache import is_kept, kept_folder, key_of
from torch_distinput.errors import UsageError
from torch_distinput.preprocessing.vocabulary.sorted_table import SortedTable, build_directory
from torch_distinput.preprocessing.vocabulary.vocabulary import (
    StringVocabulary,
    Tokens,
    VocabularyOrigin,
    hash_tokens,
    index_tokens,
)

_log = logging.getLogger(__name__)
_FORMAT = "vocabulary 1"
_INDEX = "index.json"
_SAMPLE = 64  # tokens
_TENSORS = {"text": torch.uint8, "ends": torch.int64, "keys": torch.int64, "places": torch.int64}


def open_vocabulary(url: str, storage_options: Mapping[str, Any]) -> StringVocabulary:
    """Map the vocabulary of a file or URL.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: for blank lines, repeated tokens, or text that is no UTF-8.
        UsageError: if the file is written meanwhile.
    """
    found = filesystem.list_files([url], storage_options)
    if len(found) != 1:
        msg = f"Expected one vocabulary at {url!r}, got {len(found)} files. Name one of them."
        raise ValueError(msg)
    key = _make_key(found[0], storage_options)
    return _map(VocabularyOrigin(url=found[0].path, storage_options=dict(storage_options), key=key))


def reopen_vocabulary(origin: VocabularyOrigin) -> StringVocabulary:
    """Map a vocabulary again, in another process, perhaps on another machine.

    On the machine where it was mapped before nothing is asked of the storage.

    Raises:
        UsageError: if the file is needed and has changed since.
    """
    if not is_kept(origin.key):
        _check_unchanged(origin)
    return _map(origin)


def _make_key(info: FileInfo, storage_options: Mapping[str, Any]) -> str:
    """Name what is kept of a file; by its content, where the storage knows no version of it."""
    if not info.version:
        content = filesystem.load_file(info.path, storage_options) or b""
        info = replace(info, version=hashlib.sha256(content).hexdigest())
    return key_of(info, _FORMAT)


def _check_unchanged(origin: VocabularyOrigin) -> None:
    (info,) = filesystem.list_files([origin.url], origin.storage_options)
    if _make_key(info, origin.storage_options) != origin.key:
        msg = (
            f"Expected the vocabulary {origin.url} as it was when its layer was made, but the file "
            "has been written since. Make the layer again."
        )
        raise UsageError(msg)


def _map(origin: VocabularyOrigin) -> StringVocabulary:
    folder = kept_folder(origin.key, lambda aside: _build(origin, aside))
    try:
        return _open(origin, folder)
    except (OSError, RuntimeError, ValueError) as error:
        msg = (
            f"Expected what this machine keeps of the vocabulary {origin.url} to be as it was made,"
            f" got: {error}. Something cleans up there; remove the folder {folder}."
        )
        raise UsageError(msg) from error


def _open(origin: VocabularyOrigin, folder: Path) -> StringVocabulary:
    index = json.loads((folder / _INDEX).read_text())
    found = {
        name: torch.from_file(
            str(folder / name), shared=False, size=index["sizes"][name], dtype=dtype
        )
        for name, dtype in _TENSORS.items()
    }
    tokens = Tokens(found["text"], found["ends"])
    table = SortedTable(found["keys"], found["places"], index["seed"])
    _check_sample(tokens, table)
    return StringVocabulary(
        tokens,
        table._replace(directory=build_directory(table.keys)),
        replace(origin, sha256=index["sha256"]),
    )


def _check_sample(tokens: Tokens, table: SortedTable) -> None:
    """Look some tokens up: files that lost pages, as in a power cut, have kept their sizes."""
    num_tokens = len(tokens.ends)
    chosen = np.unique(np.linspace(0, num_tokens - 1, _SAMPLE).astype(np.int64))
    ends = tokens.ends.numpy()
    starts = np.where(chosen > 0, ends[chosen - 1], 0)
    text = tokens.text.numpy()
    sample = [text[start:end].tobytes() for start, end in zip(starts, ends[chosen], strict=True)]
    found = table.find(hash_tokens(Tokens.of(sample), table.seed))
    if b"" in sample or not np.array_equal(found.numpy(), chosen):
        raise ValueError("tokens are not in their places")


def _build(origin: VocabularyOrigin, folder: Path) -> None:
    content = filesystem.load_file(origin.url, origin.storage_options)
    if content is None:
        msg = f"No vocabulary at {origin.url!r}. Check the path."
        raise FileNotFoundError(msg)
    _check_unchanged(origin)  # what is kept under its key is what was there under its key
    tokens = Tokens.of(read_tokens(content, origin.url))
    table = index_tokens(tokens).table
    tensors = {**tokens._asdict(), "keys": table.keys, "places": table.places}
    for name in _TENSORS:
        tensors[name].numpy().tofile(folder / name)
    sizes = {name: tensors[name].numel() for name in _TENSORS}
    sha256 = hashlib.sha256(content).hexdigest()
    index = {"url": origin.url, "sha256": sha256, "sizes": sizes, "seed": table.seed}
    (folder / _INDEX).write_text(json.dumps(index))


def read_tokens(content: bytes, name: str) -> list[bytes]:
    """Return the tokens of a vocabulary's text.

    Raises:
        ValueError: for blank lines, repeated tokens, no token, or text that is no UTF-8.
    """
    _check_encoding(content, name)
    if content.startswith(codecs.BOM_UTF8):
        _log.warning(
            "The vocabulary %s begins with a byte order mark, which is part of its first token. "
            "Write it with encoding='utf-8', not 'utf-8-sig'.",
            name,
        )
    lines = content.split(b"\n")
    if lines[-1] == b"":
        del lines[-1]
    tokens = [line.removesuffix(b"\r") for line in lines]
    if not tokens:
        msg = (
            f"Expected a token in each line of the vocabulary {name}, got an empty file. Write the "
            "tokens into it, or name another one."
        )
        raise ValueError(msg)
    if b"" in tokens:
        msg = (
            f"Expected a token in each line of the vocabulary {name}, got a blank one, line "
            f"{tokens.index(b'') + 1}. Remove it."
        )
        raise ValueError(msg)
    if len(set(tokens)) < len(tokens):
        raise ValueError(_explain_repeated(tokens, name))
    return tokens


def _check_encoding(content: bytes, name: str) -> None:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        msg = (
            f"Expected the vocabulary {name} in UTF-8, got byte {content[error.start]:#04x} in "
            f"line {line}. Write it with encoding='utf-8'."
        )
        raise ValueError(msg) from None


def _explain_repeated(tokens: list[bytes], name: str) -> str:
    first: dict[bytes, int] = {}
    for line, token in enumerate(tokens, 1):
        if token in first:
            return (
                f"Expected each token once in the vocabulary {name}, got {token.decode()!r} in "
                f"lines {first[token]} and {line}. Remove one."
            )
        first[token] = line
    raise AssertionError(tokens)


def is_a_line(token: bytes) -> bool:
    """Whether a token can stand in a vocabulary's file."""
    if not token or b"\n" in token or token.endswith(b"\r"):
        return False
    try:
        token.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
