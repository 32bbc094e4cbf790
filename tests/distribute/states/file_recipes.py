"""What states were recorded of: files, and what is done with their records.

Never change one, nor its name: a state must go on in what it was recorded of. Add others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import torch_distinput as tdi
from tests.distribute.states.recipes import ALL, EPOCHS, Make, Recipe
from tests.distribute.states.written import Numbers
from torch_distinput import readers

Chain = Callable[[tdi.FileDataset], tdi.FileDataset]


def _odd(record) -> bool:
    return int(record) % 3 != 1


def _number(record) -> int:
    return int(record["n"])


CHAINS: dict[str, Chain] = {
    "map": lambda files: files.map(int),
    "filter": lambda files: files.filter(_odd),
    "shuffle": lambda files: files.shuffle(4),
    "interleave": lambda files: files.interleave(2, 2),
    "take": lambda files: files.take(11),
    "repeat": lambda files: files.repeat(2),
    "interleave, filter, shuffle, map": lambda files: (
        files.interleave(2, 1).filter(_odd).shuffle(3).map(int)
    ),
    "map, shuffle, shuffle": lambda files: files.map(int).shuffle(5).shuffle(3),
    "shuffle, filter, repeat, take": lambda files: (
        files.shuffle(4).filter(_odd).repeat(2).take(15)
    ),
    "all": lambda files: (
        files.interleave(2, 2).map(int).shuffle(3).filter(_odd).take(9).repeat(2).shuffle(2)
    ),
}
"""Operations, and chains of them."""
READERS: dict[str, tuple[str, str | readers.Reader]] = {
    "text": ("txt", "text"),
    "counted": ("npy", "npy"),
    "decoded": ("bin", Numbers(late=True)),
    "counted, decoded": ("bin", Numbers(addressable=True, late=True)),
}
"""Uncounted and counted records; such that are decoded by themselves, perhaps after the cut."""
_FEATURES = {"n": torch.int64}
FORMATS: dict[str, tuple[str, str | readers.Reader]] = {
    "jsonl": ("jsonl", "jsonl"),
    "csv": ("csv", "csv"),
    "parquet": ("parquet", "parquet"),
    "tfrecord": ("tfrecord", readers.TFRecord(_FEATURES)),
    "tfrecord, kept index": ("tfrecord", readers.TFRecord(_FEATURES, index="beside")),
}


def _plain(files: tdi.FileDataset) -> tdi.FileDataset:
    return files


def _files(reader: tuple[str, str | readers.Reader], chain: Chain = _plain, **keywords) -> Make:
    suffix, kind = reader
    return lambda place: chain(place.files(suffix, reader=kind, **keywords))


_FILE, _DATA, _OFF = ({"auto_shard_policy": policy} for policy in ("file", "data", "off"))
_POLICIES = (("FILE", _FILE), ("DATA", _DATA))
_FILES = partial(Recipe, waits=True, size=3, keywords={"seed": 5})
_TEXT = READERS["text"]
_LATE = READERS["decoded"]


_OF_CHAINS = {
    "text": tuple(CHAINS),
    "decoded": ("filter", "shuffle", "interleave, filter, shuffle, map", "all"),
    "counted": ("shuffle", "interleave", "take", "repeat", "map, shuffle, shuffle", "all"),
    "counted, decoded": ("shuffle", "repeat"),
}


def _of_chains() -> dict[str, Recipe]:
    """Chains for each sort of records, dealt out and shared."""
    return {
        f"{reader}, {chain}, {policy}": _FILES(
            source=_files(READERS[reader], CHAINS[chain]), options=options, positions=positions
        )
        for reader, chains in _OF_CHAINS.items()
        for chain in chains
        for policy, options, positions in (
            ("FILE", _FILE, ("middle",) if reader != "text" else ("step 2", "middle")),
            ("DATA", _DATA, ("middle",)),
        )
    }


FILES = {
    "text": _FILES(source=_files(_TEXT), positions=ALL, elsewhere=(3, 1)),
    "text, DATA": _FILES(
        source=_files(_TEXT), options=_DATA, positions=EPOCHS, elsewhere=(3, 1)
    ),
    "text, OFF": _FILES(source=_files(_TEXT), options=_OFF, is_elastic=False, elsewhere=(3, 1)),
    "text, as it is read": _FILES(
        source=_files(_TEXT, CHAINS["shuffle"]), size=2, waits=False, is_timed=True, home=(3, 1)
    ),
    "text, DATA, as it is read": _FILES(
        source=_files(_TEXT), size=2, options=_DATA, waits=False, is_timed=True
    ),
    "text, 2 replicas": _FILES(source=_files(_TEXT), home=(2, 2), elsewhere=(2, 1)),
    "text, even": _FILES(
        source=_files(_TEXT), size=5, home=(2, 2), options={"rebatch": "even"}, elsewhere=(1, 1)
    ),
    "text, cycle": _FILES(
        source=_files(_TEXT), size=5, home=(2, 2), options={"rebatch": "cycle"}, elsewhere=(1, 1)
    ),
    "text, cycle, DATA": _FILES(
        source=_files(_TEXT), home=(2, 1), options={"rebatch": "cycle", **_DATA}
    ),
    "text, drop_last": _FILES(source=_files(_TEXT), keywords={"drop_last": True}),
    "text, padded": _FILES(source=_files(_TEXT), options={"partial_batch": "pad"}),
    "text, audited": _FILES(source=_files(_TEXT), options={"audit": True}),
    "text, shuffle": _FILES(source=_files(_TEXT), keywords={"shuffle": True, "seed": 5}),
    "text, batches of 5": _FILES(source=_files(_TEXT), size=5),
    "text, split": _FILES(source=_files(_TEXT, split_files=True)),
    "text, shuffle_files": _FILES(
        source=_files(_TEXT, CHAINS["shuffle"], shuffle_files=True),
        positions=("begun", "middle", "epoch 1 step 1"),
    ),
    "counted": _FILES(
        source=_files(READERS["counted"]), elsewhere=(3, 1),
        positions=("begun", "step 1", "middle", "last", "ended"),
    ),
    "counted, DATA": _FILES(source=_files(READERS["counted"]), options=_DATA),
    "counted, shuffle_files": _FILES(
        source=_files(READERS["counted"], shuffle_files=True),
        positions=("middle", "epoch 1 step 1"),
    ),
    "counted, split": _FILES(
        source=_files(("bin", Numbers(counted=True)), CHAINS["shuffle"], split_files=True)
    ),
    "numbers, split": _FILES(
        source=_files(("bin", Numbers()), split_files=True, shuffle_files=True)
    ),
    "numbers, split, interleave": _FILES(
        source=_files(("bin", Numbers()), CHAINS["interleave"], split_files=True)
    ),
    "numbers, skip": _FILES(source=_files(("bad", Numbers()), on_error="skip"), elsewhere=(3, 1)),
    "numbers, skip, decoded": _FILES(source=_files(("bad", Numbers(late=True)), on_error="skip")),
    "numbers, skip, decoded, DATA": _FILES(
        source=_files(("bad", Numbers(counted=True, late=True)), on_error="skip"), options=_DATA
    ),
    "numbers, skip, chain": _FILES(
        source=_files(
            ("bad", Numbers(late=True)), CHAINS["interleave, filter, shuffle, map"],
            on_error="skip",
        )
    ),
    **{
        f"{name}, {policy}": _FILES(source=_files(kind, lambda files: files.map(_number)),
                                    options=options)
        for name, kind in FORMATS.items()
        for policy, options in _POLICIES
    },
    **{
        f"{name}, not mapped": _FILES(source=_files(FORMATS[name]))
        for name in ("parquet", "tfrecord")
    },
    **_of_chains(),
}  # fmt: skip
