"""Where the parts of a file begin and how many records each has: found by a walk, perhaps kept."""

from __future__ import annotations

import functools
import hashlib
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from torch_distinput.data.formats.reader import Part
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.input_file import FEWEST_UNITS, InputFile

PART_BYTES = 4 << 20
_LONGEST_NAME = 50
"""Letters; file systems take names of 255 bytes."""

Cuts = list[tuple[int, int]]
"""For each part where it begins, and how many records it has."""

_log = logging.getLogger(__name__)


def check_index(index: str) -> None:
    """Refuse what is neither a word nor a place."""
    if not isinstance(index, str) or not index:
        msg = (
            "Expected index to be 'memory', 'beside', or the path or URL of a folder to keep "
            f"indexes in, got {index!r}. Leave it out to keep none."
        )
        raise ValueError(msg)


def index_parts(
    file: InputFile, index: str, kind: str, find_cuts: Callable[[InputFile], Cuts]
) -> Sequence[Part]:
    """Return the parts of a file, from its kept index if there is a good one.

    Args:
        file: the file; without a size it is one part of unknown length.
        index: ``"memory"``: walk now, and keep nothing; ``"beside"``: keep the index as
            ``<file>.index.npz``; otherwise the folder or URL to keep it in.
        kind: the format that the index belongs to.
        find_cuts: walks the file; a file without records may have one part or none. What is not
            empty but has no records must be an error: a part that has none is never read.
    """
    if file.size is None:
        return (Part(),)
    if index == "memory" or not file.version:  # nothing would tell that the file is another
        return _parts(find_cuts(file), file, file.size)
    url = _url(file, index)
    options = file.storage_options if index == "beside" else {}
    header = f"{kind} 2 {file.size} {file.version}"  # what makes an index belong to a file
    cuts = _load(url, options, header)
    if cuts is None:
        cuts = find_cuts(file)
        _store(url, options, header, cuts)
    return _parts(cuts, file, file.size)


def cut_bytes(file: InputFile) -> int:
    """How much there is between two cuts: they serve whoever splits the file, and who does not."""
    return max(1, min(PART_BYTES, (file.size or 0) // FEWEST_UNITS))


def _parts(cuts: Cuts, file: InputFile, size: int) -> list[Part]:
    cuts = _join(cuts, file.part_size(size, PART_BYTES))
    stops = [*(start for start, _ in cuts[1:]), size]
    firsts = accumulate((count for _, count in cuts), initial=0)
    return [
        Part(start=start, stop=stop, first_record=first, num_records=count)
        for (start, count), stop, first in zip(cuts, stops, firsts, strict=False)
    ]


def _join(cuts: Cuts, enough: int) -> Cuts:
    """Fewer cuts, with enough between them."""
    joined: Cuts = []
    for start, count in cuts:
        if joined and start - joined[-1][0] < enough:
            joined[-1] = (joined[-1][0], joined[-1][1] + count)
        else:
            joined.append((start, count))
    return joined


def _url(file: InputFile, index: str) -> str:
    if index == "beside":
        return f"{file.path}.index.npz"
    name = file.path.rstrip("/").rpartition("/")[2]
    # Names need not be UTF-8; Python has surrogates for the other bytes.
    path_hash = hashlib.sha256(file.path.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{index.rstrip('/')}/{name[:_LONGEST_NAME]}-{path_hash}.index.npz"


def _load(url: str, options: Mapping[str, Any], header: str) -> Cuts | None:
    """None if there is no index, or none that can be used: it is made anew then."""
    try:
        content = filesystem.load_file(url, options)
        if content is None:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as kept:
            if str(kept["header"]) != header:
                return None
            starts, counts = kept["starts"].tolist(), kept["counts"].tolist()
    except Exception as error:  # noqa: BLE001 - a cure for all: it is made anew
        _log.info("The index %s cannot be read (%s); it is made again.", url, error)
        return None
    return list(zip(starts, counts, strict=True))


def _store(url: str, options: Mapping[str, Any], header: str, cuts: Cuts) -> None:
    content = io.BytesIO()
    starts, counts = np.array(cuts, dtype=np.int64).reshape(-1, 2).T
    np.savez(content, header=np.array(header), starts=starts, counts=counts)
    try:
        filesystem.store_file(url, content.getvalue(), options)
    except Exception as error:  # noqa: BLE001 - whatever a storage raises; it is only slower
        reason = getattr(error, "strerror", None) or str(error)  # the first without any file's name
        _warn(url.rpartition("/")[0], reason)


@functools.cache  # once for each folder and reason
def _warn(folder: str, reason: str) -> None:
    _log.warning(
        "Expected to keep indexes in %s, but it cannot be written: %s. They are made again each "
        "time; pass index= a folder that can be written.",
        folder or ".",
        reason,
    )
