"""What decides which rows a stream has, and their order, told without reading it.

Each rank makes a Hugging Face stream, or a WebDataset pipeline, by itself. If it is shuffled
without a seed, or holds a part of the shards already, ranks deal out different lists, and rows are
lost and repeated without a word. So what its stages were made with is compared: seeds, numbers,
names of files, first rows of tables. Functions are not looked into.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from torch_distinput.data.batch.fingerprint import fingerprint
from torch_distinput.data.user_sources import web_pipelines
from torch_distinput.data.user_sources.parts import parts_of
from torch_distinput.data.user_sources.stages import INNER_STAGES, last_stage

_MOST = 4096
"""Values of one stage that are looked at."""


def settings_of(source: Any) -> str:
    """A digest of the settings of the stages of a stream; empty for other sources."""
    stages = [stage for part in parts_of(source) if (stage := last_stage(part)) is not None]
    told = [said for stage in stages for said in _stages(stage)]
    told += [said for stage in web_pipelines.pipeline_stages(source) for said in _web_stage(stage)]
    if not told:
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for said in told:
        digest.update(said.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _web_stage(stage: Any) -> Iterator[str]:
    """The values of a stage of WebDataset's own: shards, sizes and seeds."""
    if type(stage).__module__.partition(".")[0] != "webdataset":
        return
    yield type(stage).__name__
    values = {name: value for name, value in vars(stage).items() if name != "epoch"}
    yield from islice(_values(values), _MOST)


def _stages(stage: Any) -> Iterator[str]:
    """A stage's class and values, and those of the stages it reads."""
    yield type(stage).__name__
    values = {name: value for name, value in vars(stage).items() if name not in INNER_STAGES}
    public = {name: value for name, value in values.items() if not name.startswith("_")}
    yield from islice(_values(public), _MOST)
    for name in INNER_STAGES:
        inner = getattr(stage, name, None)
        for one in inner if isinstance(inner, (list, tuple)) else [inner]:
            if one is not None:
                yield from _stages(one)


def _values(value: Any) -> Iterator[str]:
    """The plain values in a value, as text; nothing of objects, which may differ by process."""
    if isinstance(value, str):
        yield os.path.basename(value)  # folders may differ between machines
    elif isinstance(value, (int, float, bool)):
        yield repr(value)
    elif isinstance(value, np.random.Generator):
        yield repr(value.bit_generator.state)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield repr(key)
            yield from _values(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _values(item)
    elif hasattr(value, "num_rows"):  # a table, or a dataset as a shard
        yield repr(value.num_rows)
        if value.num_rows:
            row = value.slice(0, 1).to_pylist() if hasattr(value, "to_pylist") else value[0]
            yield str(fingerprint(row))
